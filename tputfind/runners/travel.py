"""The files of a model on their way to the nodes of a cluster: what was named, and what a Python file imports."""

import ast
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tputfind.record.spec import Spec

_ELSEWHERE: Final = "from-the-root"
"""Holds, in the folder that travels, what does not lie below the current folder."""


def packed(spec: Spec, folder: Path) -> Spec:
    """Copy the files that a spec names into the folder; return the spec as it is asked of a node, which works there.

    A Python file takes along the modules beside it that it imports, found by reading and not by running it. What it
    opens, or imports in other ways, must be on the nodes.
    """
    weights = spec.weights
    if weights is not None and Path(weights).is_file():
        weights = _copied(Path(weights), folder)
    home, apart, attribute = spec.model.rpartition(":")
    model = spec.model
    if spec.source == "file" and Path(model).is_file():
        model = _copied(Path(model), folder)
    elif spec.source == "factory" and home.endswith(".py") and Path(home).is_file():
        model = f"{_staged(Path(home))}{apart}{attribute}"
        for file in _with_imports(Path(home), Path(home).parent):
            _copied(file, folder)
    elif spec.source == "factory":
        for module in _files_of(tuple(home.split(".")), Path()):
            for file in _with_imports(module, Path()):
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


def _with_imports(first: Path, root: Path) -> list[Path]:
    """Return a Python file and the files below a folder that it imports, and those that they import: none is run."""
    found: dict[Path, None] = {}
    waiting = [first]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = None
        with suppress(SyntaxError, ValueError, OSError, RecursionError):  # the node says what is wrong with it
            for name in _names_imported(ast.parse(file.read_bytes()), file.relative_to(root).parent.parts):
                waiting += _files_of(name, root)
    return list(found)


def _names_imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield what is imported anywhere in a file of this package, each by all its parts; some may be no modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            home = (*above, *(node.module.split(".") if node.module else ()))
            yield from ((*home, alias.name) for alias in node.names)


def _files_of(name: tuple[str, ...], root: Path) -> list[Path]:
    """Return the files below a folder that importing a module runs: its own, and those of the packages it lies in."""
    homes = [root.joinpath(*name[:length]) for length in range(1, len(name) + 1)]
    files = [file for home in homes for file in (home / "__init__.py", home.with_name(f"{home.name}.py"))]
    return [file for file in files if file.is_file()]
