"""Transfer of live objects to the measuring processes: a module, or a function that builds one.

They are pickled once into a nameless temporary file, by value if they were defined in a script or notebook. The system
removes the file however the run ends. Each process reads the file itself, so that no trial waits for weights in a pipe.
"""

import functools
import inspect
import io
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

from tputfind.errors import BadRequest
from tputfind.processes.failures import said
from tputfind.record.types import LIVE
from tputfind.step import Step
from tputfind.units import echo, format_bytes, printable, shorten_text

_LONGEST_NAME: Final = 200
_DEEPEST: Final = 8
"""Maximum depth of the search for the part of an object that cannot be pickled."""


def name_of(model: object) -> str:
    """Return the record's name for a live object, such as ``ResNet (live)``; a name is returned as it is."""
    if isinstance(model, str):
        return model
    if isinstance(model, Step):
        model = model.run
    if not callable(model):
        raise BadRequest(f"model: {echo(model)} is a {type(model).__name__}, not a name, module or function")
    while isinstance(model, functools.partial):
        model = model.func
    name = getattr(model, "__qualname__", None)
    name = name if isinstance(name, str) else type(model).__name__
    return shorten_text(printable(name), _LONGEST_NAME) + LIVE


@contextmanager
def pickle_model(model: object, inputs: object) -> Iterator[IO[bytes] | None]:
    """Yield an open file with the pickled live object and its ``inputs`` function; None if the model is a name.

    BadRequest, with the part's name, if the object cannot be pickled.
    """
    if inputs is not None and not callable(inputs):
        raise BadRequest(
            f"inputs: {echo(inputs)} is a {type(inputs).__name__}, not a callable",
            "give what makes the inputs of a batch size: inputs=lambda batch: torch.randn(batch, 3, 224, 224)",
        )
    if isinstance(model, str):
        if inputs is not None:
            raise BadRequest(f"inputs goes with a module or a function, and {echo(model)} is a name")
        yield None
        return
    name = name_of(model)
    if hasattr(model, "_orig_mod"):
        raise BadRequest(
            f"{name} was compiled already", "hand over the module before torch.compile, and mode='compile'"
        )
    with tempfile.TemporaryFile() as file:
        disk = _Disk(file)
        try:
            _pickle((model, inputs), disk)
        except Exception as error:  # pickling can raise any error
            if disk.problem:
                hint = "TMPDIR names another folder for temporary files"
                raise BadRequest(f"cannot write {name} in {tempfile.gettempdir()}: {disk.problem}", hint) from None
            part, where = _culprit({"model": model, "inputs": inputs})
            raise BadRequest(
                f"{name} cannot travel to another process: {where} is a {type(part).__name__}: {said(error)}",
                "hand over a function that builds the model, and makes that part of it inside",
            ) from None
        yield file


def memory_warning(device: str) -> str:
    """Return a warning about the device memory that this process itself holds; empty if it never opened the device."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    held = format_bytes(torch.cuda.memory_reserved(device))
    return (
        f"this process holds {held} of the memory of {device}, its CUDA context aside: the largest batch is for the "
        "rest; model.cpu() and torch.cuda.empty_cache() free it"
    )


class _Disk(io.FileIO):
    """An open file that keeps the reason of a failed write, which torch's own error lacks."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file.fileno(), "wb", closefd=False)
        self.problem = ""

    def write(self, data: Any) -> int:
        left = whole = memoryview(data).cast("B")
        try:
            while left:
                left = left[super().write(left) :]
        except OSError as error:
            self.problem = error.strerror or f"{error}"
            raise
        return len(whole)


def _pickle(value: object, file: _Disk) -> None:
    # Torch writes the bytes of tensors as they are, those of a GPU too, and leaves the tensors in place. If torch is
    # not imported, there are no tensors, and we do not import it.
    import cloudpickle

    torch: Any = sys.modules.get("torch")
    if torch is None:
        cloudpickle.dump(value, file)
    else:
        torch.save(value, file, pickle_module=cloudpickle, pickle_protocol=pickle.HIGHEST_PROTOCOL)


def _culprit(values: Mapping[str, object]) -> tuple[object, str]:
    """Return the innermost part that cannot be pickled, and its path: ``model.blocks.lock``."""
    part, where = next(((value, name) for name, value in values.items() if not _is_picklable(value)), (values, "it"))
    for _ in range(_DEEPEST):
        found = next(((name, value) for name, value in _parts(part) if not _is_picklable(value)), None)
        if found is None:
            break
        where, part = where + found[0], found[1]
    return part, where


def _is_picklable(value: object) -> bool:
    try:
        with tempfile.TemporaryFile() as file:
            _pickle(value, _Disk(file))
    except Exception:  # as above
        return False
    return True


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts that are pickled with an object: variables of a function, items or attributes of others."""
    if isinstance(value, functools.partial):
        yield from ((f"({name})", part) for name, part in (("func", value.func), *enumerate(value.args)))
        yield from ((f"({name}=)", part) for name, part in value.keywords.items())
    elif inspect.ismethod(value):
        yield ".__self__", value.__self__
    elif inspect.isfunction(value):
        yield from ((f"'s {name}", part) for name, part in _variables(value))
    elif isinstance(value, Mapping):
        yield from ((f"[{name!r}]", part) for name, part in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    elif hasattr(value, "__dict__"):
        yield from ((f".{name}", part) for name, part in vars(value).items())


def _variables(function: Callable[..., object]) -> Iterator[tuple[str, object]]:
    try:
        named = inspect.getclosurevars(function)
    except ValueError:  # a variable without a value yet
        return
    yield from named.nonlocals.items()
    yield from named.globals.items()
