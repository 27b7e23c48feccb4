"""What torch or torchvision would do, done otherwise for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(holder: Any, name: str, function: Callable[..., object]) -> Iterator[None]:
    """Put a function in the place of an attribute of a module or class, and the old one back in the end."""
    before = getattr(holder, name)
    setattr(holder, name, function)
    try:
        yield
    finally:
        setattr(holder, name, before)
