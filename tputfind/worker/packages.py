"""Imports the packages of models, and with torchvision not the compiler of torch, which takes longer than all else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Final

_UTILS: Final = "torch._dynamo.utils"
_ASKED: Final = "is_compile_supported"


def import_package(name: str) -> None:
    """Import a package.

    Raises:
        Exception: whatever its import raises.
    """
    if name != "torchvision" or "torch._dynamo" in sys.modules:
        import_module(name)
        return
    with _compiler_at_first_use():
        import_module(name)


@contextmanager
def _compiler_at_first_use() -> Iterator[None]:
    """Let a module import the one function of the compiler that torchvision names; its first call imports the compiler.

    Whoever asks for anything else gets the compiler at once.
    """
    stand_in = ModuleType(_UTILS)

    def is_compile_supported(*arguments: object) -> object:
        return getattr(import_module(_UTILS), _ASKED)(*arguments)

    def look_up(name: str) -> object:
        if name == _ASKED:
            return is_compile_supported
        if name.startswith("__"):
            raise AttributeError(name)
        remove()
        return getattr(import_module(_UTILS), name)

    def remove() -> None:
        if sys.modules.get(_UTILS) is stand_in:
            del sys.modules[_UTILS]

    stand_in.__getattr__ = look_up  # type: ignore[method-assign]
    sys.modules[_UTILS] = stand_in
    try:
        yield
    finally:
        remove()
