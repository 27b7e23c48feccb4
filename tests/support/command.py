"""Runs the installed command; or what it calls, many times with one server."""

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

import pytest

import tputfind
from tputfind.processes.children import Children
from tputfind.processes.ranks import children_of
from tputfind.record.record import Record
from tputfind.record.spec import Spec

QUICK = ("--batches", 10, "--warmup", 1, "--processes", 1)
TINY = ("--image-size", 64, "--batch-sizes", 1, *QUICK)


# A checkout that was not installed is found from other folders too.
_SEARCHED = [str(Path(tputfind.__file__).parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
ENVIRONMENT = os.environ | {"COLUMNS": "100", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, _SEARCHED))}


class Ran(NamedTuple):
    status: int
    out: str
    err: str
    folder: Path

    def record(self, name: str = "*") -> Record:
        """The one record that the run saved in its own folder."""
        (path,) = (self.folder / "results").glob(f"{name}.json")
        return tputfind.load_record(path)


def command() -> list[str]:
    """The ``tputfind`` beside this Python where the package is installed, else the package itself."""
    installed = shutil.which("tputfind", path=Path(sys.executable).parent)
    return [installed] if installed else [sys.executable, "-m", "tputfind"]


def run(folder: Path, *arguments: object, timeout_s: float = 300, environment: Mapping[str, str] | None = None) -> Ran:
    """Run ``tputfind`` with these arguments in a folder."""
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
    """The one record of a run that must succeed, in a folder that is made where there is none."""
    folder.mkdir(exist_ok=True)
    ran = run(folder, *arguments, environment=environment)
    assert ran.status == 0, ran.err
    return ran.record()


class Kept(Children):
    """A server that outlives the commands that it answers, so that torch is imported once for all of them."""

    def __exit__(self, *_: object) -> None:
        """Stay."""

    def or_another(self, spec: Spec | None = None, **options: Any) -> Children:
        """This one, unless a server has to be told something as it starts, or one is needed for each rank."""
        if any(options.values()) or (spec is not None and spec.ranks is not None):
            return Children(**options) if spec is None else children_of(spec, **options)
        return self

    def run(self, folder: Path, *arguments: object) -> Ran:
        """Do in this process what ``run`` has a process of its own do.

        For what a model, an option or a device comes to. How the command starts, is interrupted, prints and ends is
        seen from outside only. Files of models are named in full: the server stays in the folder that it started in.
        """
        from tputfind.commands import main

        out, err, status = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
            patch.setenv("COLUMNS", ENVIRONMENT["COLUMNS"])
            patch.setattr(sys, "argv", ["tputfind", *map(str, arguments)])
            patch.setattr("tputfind.commands.run.children_of", self.or_another)
            for name in ("clocks", "devices", "forecast", "models"):
                patch.setattr(importlib.import_module(f"tputfind.commands.{name}"), "Children", self.or_another)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    main(prog_name="tputfind")
                except SystemExit as end:
                    status = end.code
        return Ran(status, out.getvalue(), err.getvalue(), folder)

    def find(self, *models: object, **options: Any) -> Any:
        """``tputfind.find``, answered by this server."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tputfind.runners.find.children_of", self.or_another)
            return tputfind.find(*models, **options)
