"""Runs and checks a user's file, with hints for the cases that are refused."""

import inspect
import io
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Final, TextIO

from torch import nn

from tputfind.errors import BadRequest
from tputfind.processes.failures import cut_line
from tputfind.units import shorten_text

NO_MAIN: Final = 'put what parses arguments under if __name__ == "__main__":'
NO_EXIT: Final = "a factory returns the model: it neither parses arguments nor calls sys.exit"
_NO_PARENT: Final = "attempted relative import with no known parent package"


@contextmanager
def without_arguments(name: str, doing: str, hint: str) -> Iterator[None]:
    """Run the user's code with an empty command line; refuse the model if it calls ``sys.exit``.

    Args:
        name: the file, module or model, as the message names it.
        doing: the phase of the run, such as ``as it is imported``.
        hint: the advice to the user.

    Raises:
        BadRequest: it called ``sys.exit``; the message has the last line that it wrote to ``sys.stderr``.
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


def check_takes_nothing(model: str, factory: Callable[..., object]) -> None:
    """Refuse a factory that requires arguments, as the class of a model often does.

    Raises:
        BadRequest: it does; the message names the arguments.
    """
    if isinstance(factory, nn.Module):
        return
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a function in C may have no signature
        return
    by_length = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in by_length]
    if needed:
        name = model.rpartition(":")[2]
        raise BadRequest(
            f"{model} takes arguments ({', '.join(needed)}): "
            f"name a function without arguments that returns {shorten_text(name)}(...)"
        )


def check_has_no_parent(error: ImportError, path: Path, attribute: str) -> None:
    """Refuse a file with a relative import, whose package is unknown if the file is imported by its path.

    Args:
        error: the error of importing the file; any error but that of a relative import in the file itself is ignored.
        path: the file.
        attribute: the name of the factory.

    Raises:
        BadRequest: the hint has the factory's dotted name.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    if _NO_PARENT not in str(error) or not frames or Path(frames[-1].filename).resolve() != path.resolve():
        return
    line = frames[-1].line or ""
    dots = re.search(r"\bfrom\s+(\.+)", line)
    folder, name = module_name(path.resolve(), 1 if dots is None else len(dots[1]))
    where = "" if folder == Path.cwd() else f"in {folder} "
    raise BadRequest(
        f"{path} imports from its package ({shorten_text(line)}), which a file that is named by its path is not in",
        f"{where}name it {name}:{attribute}",
    ) from None


def module_name(path: Path, levels: int = 1) -> tuple[Path, str]:
    """Return the folder in which to start Python, and the file's dotted name from there.

    Args:
        path: the file's absolute path.
        levels: the minimum number of folders that belong to the package, even without an ``__init__.py``.
    """
    names: list[str] = []
    folder = path.parent
    while folder != folder.parent and ((folder / "__init__.py").is_file() or len(names) < levels):
        names.insert(0, folder.name)
        folder = folder.parent
    if path.stem != "__init__":
        names.append(path.stem)
    return folder, ".".join(names)
