"""Values of any structure: the parts of containers, dataclasses and objects, and the tensors in them."""

import asyncio
import copy
import dataclasses
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from operator import is_
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

_DEEPEST: Final = 12
"""Maximum depth of a structure that is searched."""
_VALUES: Final = (str, bytes, int, float, complex, type(None))
_NO_STRUCTURE: Final = (*_VALUES, type, nn.Module, Optimizer, LRScheduler, DataLoader)
"""Classes whose objects are neither searched nor copied: a copy of an optimizer would lose the state of each step, and
one of a loader its workers."""

Copies = dict[int, tuple[object, object]]
"""Objects and their copies, by the object's id; the object is kept since another one may get its id later."""


def parts_of(value: object) -> dict[Any, Any] | None:
    """Return the parts of a container or dataclass by index, key or field; None if the value is neither."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple, deque)):
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
    if hasattr(type(value), "_make"):  # a named tuple
        return value._make(parts.values())
    if isinstance(value, tuple):
        is_same = len(value) == len(parts) and all(map(is_, value, parts.values()))
        return value if is_same else tuple(parts.values())  # a subclass, such as torch.Size, may not take parts
    return _set_parts(_copy_to_fill(value), parts)


def convert_parts(value: Any, parts: Mapping[Any, Any], convert: Callable[[Any], object], copies: Copies) -> Any:
    """Return a copy of a value with each of its parts converted.

    The copy is added to ``copies`` before the parts are converted, so that a part may refer back to the value. Only a
    tuple is added afterwards.
    """
    if isinstance(value, tuple):
        changed = replace_parts(value, {key: convert(part) for key, part in parts.items()})
        copies[id(value)] = value, changed
        return changed
    changed = _copy_to_fill(value)
    copies[id(value)] = value, changed
    return _set_parts(changed, {key: convert(part) for key, part in parts.items()})


def _copy_to_fill(value: Any) -> Any:
    """Return an empty list or dict, or a shallow copy of another value, for ``_set_parts``."""
    if type(value) is list:
        return []
    if isinstance(value, list):  # a subclass may have attributes, or refuse changes
        try:
            made = copy.copy(value)
            made.clear()
        except Exception:
            return []
        return made
    is_frozen = isinstance(value, Mapping) and not isinstance(value, MutableMapping)
    return {} if type(value) is dict or is_frozen else copy.copy(value)


def _set_parts(value: Any, parts: Mapping[Any, Any]) -> Any:
    if isinstance(value, list):
        value.extend(parts.values())
        return value
    has_items = isinstance(value, (Mapping, deque))
    for key, part in parts.items():
        if has_items:
            value[key] = part
        else:
            object.__setattr__(value, key, part)  # a frozen dataclass, too
    return value


def map_parts(function: Callable[[Any], object], value: Any) -> Any:
    """Return a copy of a container or dataclass with a function applied to each part, or any other value itself."""
    parts = parts_of(value)
    return value if parts is None else replace_parts(value, {key: function(part) for key, part in parts.items()})


def clone_tensors(value: Any) -> Any:
    """Return a copy of containers and dataclasses that holds clones of their tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return map_parts(clone_tensors, value)


def moves(value: object) -> bool:
    """Return whether a value has a method ``to``: it is a tensor, or an object that moves its tensors itself."""
    try:
        return callable(getattr(value, "to", None))
    except Exception:  # such as the KeyError of a dict whose keys are its attributes
        return False


def contents_of(value: object) -> dict[Any, Any] | None:
    """Return the parts of a container or dataclass, or attributes if an object holds tensors and has no ``to``."""
    parts = parts_of(value)
    if parts is None and not moves(value) and not callable(value) and any(True for _ in _tensors(value, 0, set())):
        parts = attributes_of(value)
    return parts


_OF_COPIES: Final = ("__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__del__")
"""Methods by which a class says how it is copied, or what its end does."""


def _parts_to_copy(value: object) -> dict[Any, Any] | None:
    """Return the parts of a container or the attributes of an object without ``to``; None for any other value."""
    parts = contents_of(value)
    is_object = parts is None and hasattr(value, "__dict__") and not moves(value) and not callable(value)
    is_plain = all(getattr(type(value), name, None) is getattr(object, name, None) for name in _OF_COPIES)
    return attributes_of(value) if is_object and is_plain and not isinstance(value, (Enum, ModuleType)) else parts


def copy_containers(value: Any, depth: int = 0, copies: Copies | None = None, *, of_tensors: bool = False) -> Any:
    """Return a copy of the containers, dataclasses and objects in a value; it shares the tensors.

    An object that cannot be copied is returned itself, and with ``of_tensors`` an object that holds no tensors.
    Objects with a method ``to`` are copied with their own lists, dicts, tuples and plain objects only. ``copies`` holds
    the objects copied so far, so that objects that refer to each other also do so in the copy.
    """
    copies = {} if copies is None else copies
    if isinstance(value, (torch.Tensor, *_NO_STRUCTURE)) or depth > _DEEPEST:
        return value
    if id(value) in copies:
        return copies[id(value)][1]
    with suppress(Exception):  # the object's own code can raise anything
        contents = contents_of(value) if of_tensors else _parts_to_copy(value)
        if contents is not None:
            again = partial(copy_containers, depth=depth + 1, copies=copies, of_tensors=of_tensors)
            return convert_parts(value, contents, again, copies)
        if moves(value):
            made = copy.copy(value)
            copies[id(value)] = value, made
            for name, part in (attributes_of(value) or {}).items():
                is_object = not moves(part) and parts_of(part) is None and _parts_to_copy(part) is not None
                if is_object or type(part) in (list, dict, tuple):
                    object.__setattr__(made, name, copy_containers(part, depth + 1, copies, of_tensors=of_tensors))
            return made
    copies[id(value)] = value, value
    return value


def has_same_parts(one: object, other: object, depth: int = 0, seen: Copies | None = None) -> bool:
    """Return whether a value and its copy by ``copy_containers`` hold the same objects; ``seen`` has earlier pairs."""
    seen = {} if seen is None else seen
    if one is other or depth > _DEEPEST or (id(one) in seen and seen[id(one)][1] is other):
        return True
    if isinstance(one, torch.Tensor):
        return False
    seen[id(one)] = one, other
    mine, theirs = (
        attributes_of(each) if moves(each) and parts_of(each) is None else _parts_to_copy(each) for each in (one, other)
    )
    if mine is None or theirs is None or mine.keys() != theirs.keys():
        return False
    return all(has_same_parts(mine[key], theirs[key], depth + 1, seen) for key in mine)


def is_of_torch(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's class is torch's own."""
    return type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer, nn.UninitializedParameter, nn.UninitializedBuffer)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense, not quantised and of torch's own class, so that its strides may be changed."""
    return is_of_torch(tensor) and tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def zero_stride_axes(tensor: torch.Tensor) -> list[int]:
    """Return the axes of a strided tensor along which all elements are in the same memory."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [axis for axis, (length, stride) in enumerate(pairs) if length > 1 and stride == 0]


def narrow_to_one(tensor: torch.Tensor, axes: Iterable[int]) -> torch.Tensor:
    """Return a view of a tensor with the first element alone along each of these axes."""
    for axis in axes:
        tensor = tensor.narrow(axis, 0, 1)
    return tensor


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
    has_tensors = moves(value) and not isinstance(value, nn.Module)  # a batch of graphs can be called, too
    if inside is None and (has_tensors or not callable(value)):
        inside = attributes_of(value)
    for part in list((inside or {}).values()):
        yield from _tensors(part, depth + 1, seen)


def is_lazy(output: object, seen: dict[int, object] | None = None) -> bool:
    """Return whether a value, or a part of it, may still be uncomputed: an iterator, a future or a coroutine."""
    seen = {} if seen is None else seen
    if isinstance(output, torch.Tensor) or id(output) in seen:
        return False
    if isinstance(output, (Iterator, AsyncIterator, Future, torch.futures.Future)) or inspect.isawaitable(output):
        return True
    parts = parts_of(output)
    if parts is None:
        return False
    seen[id(output)] = output  # which its parts may refer to
    return any(is_lazy(part, seen) for part in parts.values())


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
