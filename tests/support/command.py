"""Runs the installed command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import tputfind
from tputfind.record.record import Record

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


def run(folder: Path, *arguments: object, timeout_s: float = 300) -> Ran:
    """Run ``tputfind`` with these arguments in a folder."""
    done = subprocess.run(
        [*command(), *map(str, arguments)],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, folder)
