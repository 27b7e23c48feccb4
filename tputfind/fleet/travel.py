"""The files of a model on their way to the nodes of a cluster: what was named, and what a Python file imports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Final

import msgspec

from tputfind.record.spec import Spec

_ELSEWHERE: Final = "from-the-root"
"""Holds, in the folder that travels, what does not lie below the current folder."""


def packed(spec: Spec, folder: Path) -> Spec:
    """Copy the files that a spec names into the folder; return the spec as it is asked of a node, which works there.

    A Python file takes along the modules beside it that it imports, found by reading and not by running it. What it
    opens or imports by other ways must be on the nodes.
    """
    weights = spec.weights
    if weights is not None and Path(weights).is_file():
        weights = _copied(Path(weights), folder)
    home, apart, attribute = spec.model.rpartition(":")
    model = spec.model
    if spec.source == "file" and Path(model).is_file():
        model = _copied(Path(model), folder)
    elif spec.source == "factory" and home.endswith(".py") and Path(home).is_file():
        model = f"{_copied(Path(home), folder)}{apart}{attribute}"
        for beside in _imported_by(Path(home)):
            _copied(beside, folder)
    elif spec.source == "factory":
        for file in _files_of(home):
            _copied(file, folder)
    elif spec.source == "hf" and (place := Path(model.removeprefix("hf:"))).is_dir():
        for file in filter(Path.is_file, place.iterdir()):
            _copied(file, folder)
        model = f"hf:{_staged(place)}"
    return msgspec.structs.replace(spec, model=model, weights=weights)


def _staged(path: Path) -> Path:
    """Return where a file lies on the nodes: as it is named here, where that is below the current folder."""
    named = Path(os.path.normpath(path))
    if named.is_absolute() or ".." in named.parts:
        return Path(_ELSEWHERE) / Path(os.path.normpath(Path.cwd() / named)).relative_to("/")
    return named


def _copied(path: Path, folder: Path) -> str:
    staged = _staged(path)
    (folder / staged).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, folder / staged)
    return str(staged)


def _imported_by(script: Path) -> Iterator[Path]:
    """Yield the files beside a script that it imports, and those that they import."""
    finder = ModuleFinder(path=[str(script.parent)])
    try:
        finder.run_script(str(script))
    except (SyntaxError, ValueError, RecursionError):  # the node says what is wrong with it
        return
    yield from _files_in(finder)


def _files_of(package: str) -> Iterator[Path]:
    """Yield the files of ``package.module`` below the current folder; none of a package that is installed."""
    finder = ModuleFinder(path=["."])
    try:
        finder.import_hook(package)
    except (ImportError, SyntaxError, ValueError, RecursionError):
        return
    yield from _files_in(finder)


def _files_in(finder: ModuleFinder) -> Iterator[Path]:
    files = (getattr(module, "__file__", None) for module in finder.modules.values())
    yield from (Path(file) for file in files if file)
