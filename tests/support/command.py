"""Run the installed command in a process, or its main function many times with one server."""

import contextlib
import importlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

import tputfind
from tputfind.processes.children import Children
from tputfind.record.record import Record

QUICK = ("--batches", 10, "--warmup", 1, "--processes", 1)
EDGE = ("--batches", 1, "--warmup", 1, "--processes", 1, "--max-latency", "none")
"""Options of a search whose largest batch alone matters: each batch size is timed by one batch."""
TINY = ("--image-size", 64, "--batch-sizes", 1, *QUICK)


# A checkout without installation is found from other folders too.
_SEARCHED = [str(Path(tputfind.__file__).parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
ENVIRONMENT = os.environ | {"COLUMNS": "100", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, _SEARCHED))}


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


def command() -> list[str]:
    """Return the installed ``tputfind`` next to this Python, else a call of the package."""
    installed = shutil.which("tputfind", path=Path(sys.executable).parent)
    return [installed] if installed else [sys.executable, "-m", "tputfind"]


def run(folder: Path, *arguments: object, timeout_s: float = 300, environment: Mapping[str, str] | None = None) -> Ran:
    """Run ``tputfind`` with these arguments in a folder, and return its status and output."""
    done = subprocess.run(
        [*command(), *map(str, arguments)],
        cwd=folder,
        env=environment or ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, folder)


def measured(folder: Path, *arguments: object, environment: Mapping[str, str] | None = None) -> Record:
    """Run the command, check that it succeeds, and return its only record; create the folder if missing."""
    folder.mkdir(exist_ok=True)
    ran = run(folder, *arguments, environment=environment)
    assert ran.status == 0, ran.err
    return ran.record()


class Kept(Children):
    """A server that outlives its commands, so that torch is imported once for all of them."""

    def __exit__(self, *_: object) -> None:
        """Keep the server running."""

    def or_another(self, **options: Any) -> Children:
        """Return this server, or a new one if it needs options."""
        return Children(**options) if any(options.values()) else self

    def run(self, folder: Path, *arguments: object) -> Ran:
        """Run the command in this process, as ``run`` does in a process of its own.

        It serves tests of models, options and devices. Start, interruption, printing and exit are visible only from
        outside. Name model files by full path: the server keeps the working folder that it started in.
        """
        from tputfind.commands import main

        out, err, status = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
            patch.setenv("COLUMNS", ENVIRONMENT["COLUMNS"])
            patch.setattr(sys, "argv", ["tputfind", *map(str, arguments)])
            patch.setattr("tputfind.commands.run.Children", self.or_another)
            for name in ("clocks", "devices", "forecast", "models"):
                patch.setattr(importlib.import_module(f"tputfind.commands.{name}"), "Children", self.or_another)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    main(prog_name="tputfind")
                except SystemExit as end:
                    status = end.code
        return Ran(status, out.getvalue(), err.getvalue(), folder)

    def find(self, *models: object, **options: Any) -> Any:
        """Run ``tputfind.find`` with this server."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tputfind.runners.find.Children", self.or_another)
            return tputfind.find(*models, **options)
