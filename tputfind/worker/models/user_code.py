"""Reads a user's Python file without running it, runs and checks it, with hints for the cases that are refused."""

import ast
import inspect
import io
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Final, TextIO

from tputfind.errors import BadRequest
from tputfind.processes.failures import cut_line
from tputfind.units import shorten_text

NO_MAIN: Final = 'put what parses arguments under if __name__ == "__main__":'
NO_EXIT: Final = "a factory returns the model: it neither parses arguments nor calls sys.exit"
_NO_PARENT: Final = "attempted relative import with no known parent package"


@contextmanager
def without_arguments(name: str, doing: str, hint: str) -> Iterator[None]:
    """Run the user's code with an empty command line; refuse the model if it calls ``sys.exit``.

    The message names the file, module or model, the phase of the run, such as ``as it is imported``, and the last line
    that was written to ``sys.stderr``.
    """
    arguments, sys.argv = sys.argv, [name]
    written = _Copied(sys.stderr)
    try:
        with redirect_stderr(written):
            yield
    except SystemExit as end:
        lines = [line.strip() for line in (*written.getvalue().splitlines(), end.code or "") if isinstance(line, str)]
        complaint = next((f": {cut_line(line)}" for line in reversed(lines) if line), "")
        code = end.code if isinstance(end.code, int) else ""
        raise BadRequest(f"{name} calls sys.exit({code}) {doing}{complaint}", hint) from None
    finally:
        sys.argv = arguments


class _Copied(io.StringIO):
    """Text that is also written to another stream, so that the last lines are there if the process dies."""

    def __init__(self, to: TextIO | None) -> None:
        super().__init__()
        self._to = to

    def write(self, text: str) -> int:
        if self._to is not None:
            self._to.write(text)
            self._to.flush()
        return super().write(text)


def needed_arguments(factory: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the arguments without a default; none if they are unknown, as for a function in C without a signature."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return []
    by_length = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [each for each in parameters if each.default is each.empty and each.kind not in by_length]


def check_takes_nothing(model: str, factory: Callable[..., object]) -> None:
    """Refuse a factory that requires arguments, as the class of a model often does."""
    needed = needed_arguments(factory)
    if needed:
        name = model.rpartition(":")[2]
        raise BadRequest(
            f"{model} takes arguments ({', '.join(each.name for each in needed)}): "
            f"name a function without arguments that returns {shorten_text(name)}(...)"
        )


def package_of(error: ImportError, path: Path) -> tuple[Path, str] | None:
    """Return where a file belongs, in the form of ``module_name``, if importing it by its path raised this error.

    It is None for any error but that of a relative import in the file itself.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    if _NO_PARENT not in str(error) or not frames or Path(frames[-1].filename).resolve() != path.resolve():
        return None
    dots = re.search(r"\bfrom\s+(\.+)", frames[-1].line or "")
    return module_name(path.resolve(), 1 if dots is None else len(dots[1]))


def module_name(path: Path, levels: int = 1) -> tuple[Path, str]:
    """Return the folder in which to start Python, and the dotted name of a file, by its absolute path, from there.

    At least ``levels`` folders belong to the package, even without an ``__init__.py``.
    """
    names: list[str] = []
    folder = path.parent
    while folder != folder.parent and ((folder / "__init__.py").is_file() or len(names) < levels):
        names.insert(0, folder.name)
        folder = folder.parent
    if path.stem != "__init__":
        names.append(path.stem)
    return folder, ".".join(names)


_MOST_NAMES: Final = 8


def callables_in(path: Path) -> list[str]:
    """Return the public top-level functions and classes of a file; an empty list if it cannot be read."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [one.name for one in _statements(path) if isinstance(one, defined) and not one.name.startswith("_")]


def factories_of(path: Path) -> str:
    """Return a phrase with the functions and classes that a file defines; empty if there are none."""
    names = callables_in(path)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"it defines {', '.join(names[:_MOST_NAMES])}{more}" if names else ""


def is_entry_point(path: Path, name: str) -> bool:
    """Return whether a function returns nothing and its file calls it as a script: a call would run the script."""
    statements = _statements(path)
    functions = [one for one in statements if isinstance(one, ast.FunctionDef) and one.name == name]
    others = [one for one in statements if isinstance(one, (ast.If, ast.Expr))]
    called = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        for one in others
        for node in ast.walk(one)
    )
    return bool(functions) and called and not functions[-1].decorator_list and not _returns(functions[-1])


def _returns(function: ast.FunctionDef) -> bool:
    """Return whether a function, or one nested in it, returns a value or yields."""
    return any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) or (isinstance(node, ast.Return) and node.value is not None)
        for node in ast.walk(function)
    )


def _statements(path: Path) -> list[ast.stmt]:
    try:
        return ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # running the file gives a better message
        return []
