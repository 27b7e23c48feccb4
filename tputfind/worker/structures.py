"""Values of any structure: the parts of containers, dataclasses and objects, and the tensors in them."""

import asyncio
import copy
import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_DEEPEST: Final = 12
"""Maximum depth of a structure that is searched; ends the recursion into a list that contains itself."""
_NO_STRUCTURE: Final = (str, bytes, int, float, complex, type(None), type, nn.Module, Optimizer, LRScheduler)
"""Classes whose objects are neither searched nor copied: a copy of an optimizer would lose the state of each step."""


def parts_of(value: object) -> dict[Any, Any] | None:
    """Return the parts of a container or dataclass by index, key or field; None if the value is neither."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return None


def attributes_of(value: object) -> dict[str, Any] | None:
    """Return the attributes of an object by name, those in slots included; None if it can have none."""
    slots = [name for each in type(value).__mro__ for name in vars(each).get("__slots__", ())]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    own = getattr(value, "__dict__", held if slots else None)
    return None if own is None else {**own, **held}


def replace_parts(value: Any, parts: Mapping[Any, Any]) -> Any:
    """Return a copy of a container or dataclass that holds other parts under the same keys."""
    if hasattr(value, "_make"):  # a named tuple
        return value._make(parts.values())
    if isinstance(value, tuple):
        return tuple(parts.values())
    if isinstance(value, list):
        return list(parts.values())
    if type(value) is dict:
        return dict(parts)
    changed = copy.copy(value)
    for key, part in parts.items():
        if isinstance(value, Mapping):
            changed[key] = part
        else:
            object.__setattr__(changed, key, part)  # a frozen dataclass, too
    return changed


def map_parts(function: Callable[[Any], object], value: Any) -> Any:
    """Return a copy of a container or dataclass with a function applied to each part, or any other value itself."""
    parts = parts_of(value)
    return value if parts is None else replace_parts(value, {key: function(part) for key, part in parts.items()})


def moves(value: object) -> bool:
    """Return whether a value has a method ``to``: it is a tensor, or an object that moves its tensors itself."""
    return callable(getattr(value, "to", None))


def contents_of(value: object) -> dict[Any, Any] | None:
    """Return the parts of a container or dataclass, or the attributes of an object without ``to`` that holds tensors.

    None for any other value.
    """
    parts = parts_of(value)
    if parts is None and not moves(value) and not callable(value) and any(True for _ in _tensors(value, 0, set())):
        parts = attributes_of(value)
    return parts


def copy_containers(value: Any, depth: int = 0) -> Any:
    """Return a copy of the containers, dataclasses and objects that hold tensors in a value; it shares the tensors.

    An object that cannot be copied is returned itself. Objects with a method ``to`` are copied without what they hold.
    """
    if isinstance(value, (torch.Tensor, *_NO_STRUCTURE)) or depth > _DEEPEST:
        return value
    with suppress(Exception):  # the object's own code can raise anything
        contents = contents_of(value)
        if contents is not None:
            return replace_parts(value, {key: copy_containers(part, depth + 1) for key, part in contents.items()})
        if moves(value):
            return copy.copy(value)
    return value


def has_same_parts(one: object, other: object, depth: int = 0) -> bool:
    """Return whether a value, and its copy by ``copy_containers``, hold the same objects."""
    if one is other or depth > _DEEPEST:
        return True
    if isinstance(one, torch.Tensor):
        return False
    mine, theirs = (
        attributes_of(each) if moves(each) and parts_of(each) is None else contents_of(each) for each in (one, other)
    )
    if mine is None or theirs is None or mine.keys() != theirs.keys():
        return False
    return all(has_same_parts(mine[key], theirs[key], depth + 1) for key in mine)


def is_of_torch(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's class is torch's own."""
    return type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer, nn.UninitializedParameter, nn.UninitializedBuffer)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense, not quantised and of torch's own class, so that its strides may be changed."""
    return is_of_torch(tensor) and tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def tensors_of(value: object) -> list[torch.Tensor]:
    """Return the tensors in a value of any structure, in order, including those in the attributes of objects."""
    return list(_tensors(value, 0, set()))


def count_values(value: object) -> int:
    """Return the number of values in the dense tensors of a value of any structure."""
    dense = (tensor for tensor in tensors_of(value) if tensor.layout is torch.strided and not tensor.is_nested)
    return sum(tensor.numel() for tensor in dense)


def _tensors(value: object, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, _NO_STRUCTURE) or depth > _DEEPEST or id(value) in seen:
        return
    seen.add(id(value))
    inside = parts_of(value)
    if inside is None and not callable(value):
        inside = attributes_of(value)
    for part in list((inside or {}).values()):
        yield from _tensors(part, depth + 1, seen)


def is_lazy(output: object) -> bool:
    """Return whether a value, or a part of it, may still be uncomputed: an iterator, a future or a coroutine."""
    if isinstance(output, torch.Tensor):
        return False
    if isinstance(output, (Iterator, AsyncIterator, Future, torch.futures.Future)) or inspect.isawaitable(output):
        return True
    return any(map(is_lazy, (parts_of(output) or {}).values()))


def drain_value(output: Any) -> Any:
    """Return a value with its lazy parts computed: iterators become lists, futures and coroutines their results."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Iterator):
        return [drain_value(part) for part in output]
    if isinstance(output, AsyncIterator):
        return _loop().run_until_complete(_collect(output))
    if isinstance(output, Future):
        return drain_value(output.result())
    if isinstance(output, torch.futures.Future):
        return drain_value(output.wait())
    if inspect.isawaitable(output):
        loop = output.get_loop() if isinstance(output, asyncio.Future) else _loop()  # a task belongs to its own loop
        return drain_value(loop.run_until_complete(_await_result(output)))
    return map_parts(drain_value, output) if is_lazy(output) else output


async def _collect(output: AsyncIterator[object]) -> list[object]:
    return [drain_value(part) async for part in output]


async def _await_result(output: Any) -> object:
    return await output


_loops: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process; the first call makes it."""
    if not _loops:
        _loops.append(asyncio.new_event_loop())
    return _loops[0]


def draining(step: Callable[..., object]) -> Callable[..., object]:
    """Return a step that computes all of its output before it returns."""

    def drained_step(*arguments: object, **keywords: object) -> object:
        return drain_value(step(*arguments, **keywords))

    return drained_step


@contextmanager
def patch_attribute(holder: Any, name: str, function: Callable[..., object]) -> Iterator[None]:
    """Replace an attribute of a module or class by a function; restore it at the end."""
    before = getattr(holder, name)
    setattr(holder, name, function)
    try:
        yield
    finally:
        setattr(holder, name, before)
