"""Run the installed command in a process, or its main function many times with one server."""

import contextlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil
import pytest

import tputfind
from support import follows
from tputfind.processes.children import Children
from tputfind.record.record import Record

QUICK = ("--batches", 10, "--warmup", 1, "--processes", 1)
EDGE = ("--batches", 1, "--warmup", 1, "--processes", 1, "--max-latency", "none")
"""Options of a search whose largest batch alone matters: each batch size is timed by one batch."""
TINY = ("--image-size", 64, "--batch-sizes", 1, *QUICK)


# A checkout without installation is found from other folders too.
_SEARCHED = [str(Path(tputfind.__file__).parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
COLUMNS = "100"
ENVIRONMENT = os.environ | {"COLUMNS": COLUMNS, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, _SEARCHED))}


def children_at_work() -> list[psutil.Process]:
    """Return the processes below the servers of this process, but not the servers: each child has its own group."""
    below = [(server, child) for server in psutil.Process().children() for child in server.children(recursive=True)]
    return [child for server, child in below if os.getpgid(child.pid) != server.pid]


class Ran(NamedTuple):
    status: int
    out: str
    err: str
    folder: Path

    def record(self, name: str = "*") -> Record:
        """Return the only record that the run saved in its folder."""
        (path,) = (self.folder / "results").glob(f"{name}.json")
        return tputfind.load_record(path)

    def check_refused(self, status: int, said: str) -> None:
        """Check that the run printed one line with these words, to standard error, and exited with this status."""
        assert self.status == status, self.err
        assert said in self.err
        assert len(self.err.strip().splitlines()) == 1, self.err
        assert self.out == ""


def command() -> list[str]:
    """Return the installed ``tputfind`` next to this Python, else a call of the package."""
    installed = shutil.which("tputfind", path=Path(sys.executable).parent)
    return [installed] if installed else [sys.executable, "-m", "tputfind"]


def run_program(
    words: Sequence[str | Path],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = ENVIRONMENT,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, **options)


def start_command(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start ``tputfind`` with these arguments in a folder; its outputs are pipes."""
    words = [*command(), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)


def run(folder: Path, *arguments: object, timeout_s: float = 300, environment: Mapping[str, str] | None = None) -> Ran:
    """Run ``tputfind`` with these arguments in a folder, and return its status and output."""
    done = run_program([*command(), *map(str, arguments)], folder, environment or ENVIRONMENT, timeout=timeout_s)
    return Ran(done.returncode, done.stdout, done.stderr, folder)


def measured(folder: Path, *arguments: object, environment: Mapping[str, str] | None = None) -> Record:
    """Run the command, check that it succeeds, and return its only record; create the folder if missing."""
    folder.mkdir(exist_ok=True)
    ran = run(folder, *arguments, environment=environment)
    assert ran.status == 0, ran.err
    return ran.record()


STARTING = (
    *(f"commands.{name}" for name in ("clocks", "compare", "devices", "forecast", "models", "run", "tune")),
    *(f"runners.{name}" for name in ("compare", "find", "host", "stations", "tune")),
    "session.forecast",
)
"""Modules that start servers."""


class Kept(Children):
    """A server that outlives its commands, so that torch is imported once for all of them."""

    def __init__(self, place: Path, **options: Any) -> None:
        """Start the server now, before a test changes the environment; ``place`` is the path of a file to write."""
        super().__init__(**{**options, "variables": {**options.get("variables", {}), follows.PLACE: str(place)}})
        self._place = place
        self._kept = {_key(**options): [self]}
        assert self.preload(follows.__name__) == ""

    def __exit__(self, *_: object) -> None:
        """Keep the server running, without the interruption and the time limit of this command."""
        while self._interrupted.poll():
            self._interrupted.recv_bytes()
        self.end_within(None)
        for each in self._copies:
            each.close()
        self._copies, self._others = [], []

    def end(self) -> None:
        for servers in self._kept.values():
            for server in servers:
                server.close()

    @contextlib.contextmanager
    def in_use(self, variables: Mapping[str, str] | None = None) -> Iterator[None]:
        """Have a command in this folder use kept servers, each for one of those that it would start.

        ``variables`` are added to the environment of their children.
        """
        used: list[Kept] = []

        def server(live: IO[bytes] | None = None, **options: Any) -> Kept:
            servers = self._kept.setdefault(_key(**options), [])
            free = next((each for each in servers if each not in used), None)
            if free is None:
                count = sum(map(len, self._kept.values()))
                free = Kept(self._place.with_name(f"place-{count}.json"), **options)
                servers.append(free)
            used.append(free)
            path = "" if live is None else f"/proc/{os.getpid()}/fd/{live.fileno()}"
            free._place.write_text(json.dumps([str(Path.cwd()), dict(variables or {}), path]))
            return free

        with pytest.MonkeyPatch.context() as patch:
            for name in STARTING:
                patch.setattr(importlib.import_module(f"tputfind.{name}"), "Children", server)
            try:
                yield
            finally:
                for each in used:
                    each._place.unlink()

    def run(
        self, folder: Path, *arguments: object, columns: str = COLUMNS, variables: Mapping[str, str] | None = None
    ) -> Ran:
        """Run the command in this process, as ``run`` does in a process of its own.

        It serves tests of models, options and devices. Start, interruption, printing and exit are visible only from
        outside.
        """
        from tputfind.commands import main

        out, err, status = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder), self.in_use(variables):
            patch.setenv("COLUMNS", columns)
            patch.setattr(sys, "argv", ["tputfind", *map(str, arguments)])
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    main(prog_name="tputfind")
                except SystemExit as end:
                    status = end.code
        return Ran(status, out.getvalue(), err.getvalue(), folder)

    def find(self, *models: object, **options: Any) -> Any:
        with self.in_use():
            return tputfind.find(*models, **options)


def _key(
    trust_model_file: bool = False, variables: Mapping[str, str] | None = None, cores: frozenset[int] | None = None
) -> tuple[object, ...]:
    return trust_model_file, *sorted((variables or {}).items()), cores
