"""The inputs of a step: what they are made of, where the samples lie in them, and some of the samples picked out."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Literal, cast

import torch
from torch.utils._pytree import tree_leaves

from tputfind.worker.structures import parts_of, tensors_of, with_parts

_DEEPEST: Final = 12
"""Levels of a structure that are compared; keeps a list that holds itself from being followed for ever."""
CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The layout ``nhwc``, by the number of a tensor's dimensions: others have none."""


@dataclass(frozen=True)
class Drawn:
    """A tensor to be drawn at random, its batch along an ``axis``, or a list of one tensor a sample.

    ``sample_shape`` leaves the batch out; without an axis the tensor is the same for every batch size. Where ``dtype``
    is None it is the workload's, and the numbers are normal, or those of an image: uniform between 0 and 1. Whole
    numbers lie between 0 and ``below``, which is not among them, or are all 1, as those of a mask are.
    """

    sample_shape: tuple[int, ...]
    axis: int | None = 0
    dtype: torch.dtype | None = None
    below: int = 2
    ones: bool = False
    image: bool = False
    listed: bool = False


@dataclass(frozen=True)
class Each:
    """A list of one value a sample, each of which ``make`` draws on a device."""

    make: Callable[[torch.device], object]


Call = tuple[tuple[object, ...], dict[str, object]]
"""Positional and keyword arguments."""
MakeInputs = Callable[[int], object]
"""From a batch size to the inputs of one step: a tuple of arguments, a dict of keyword arguments, or a single one."""
Inputs = Call | MakeInputs
"""The arguments of a step, in which what is to be drawn stands as ``Drawn``, or what makes them."""


@dataclass(frozen=True)
class Rows:
    """Several rows a sample along an axis of a tensor, as the nodes of graphs: they are counted, and not picked."""

    axis: int
    each: int


Split = int | Rows | Literal["listed", "whole", "unknown"] | list["Split"] | dict[Any, "Split"]
"""Where the samples lie in a value: along an axis of a tensor, one or several rows each; as the items of a list; not at
all; or in the parts of a container or dataclass, each by a split of its own; or that cannot be told.
"""


class Indivisible(LookupError):
    """Raised when samples cannot be picked out of inputs."""


def as_call(inputs: object, forward: Callable[..., object] | None = None) -> Call:
    """Return what a ``MakeInputs`` has made as positional and keyword arguments.

    A tuple holds positional arguments and a mapping keyword arguments, unless ``forward`` cannot be called so and takes
    either as its one argument.
    """
    call: Call
    whole: Call = (inputs,), {}
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        call = (), dict(inputs)
    elif isinstance(inputs, tuple):
        call = inputs, {}
    else:
        return whole
    return whole if forward is not None and not _binds(forward, call) and _binds(forward, whole) else call


def _binds(forward: Callable[..., object], call: Call) -> bool:
    """Return whether a function can be called with these arguments; True if its signature is not known."""
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*call[0], **call[1])
    except TypeError:
        return False
    return True


def moves(value: object) -> bool:
    """Whether a value knows how to move to a device: a tensor, or what holds some and is moved as one."""
    return callable(getattr(value, "to", None))


def shape_text(shapes: Sequence[Sequence[int | None]]) -> str:
    """Print the shapes of a sample: ``3x224x224``, several tensors apart by ``+``; ``1`` stands for a single number."""
    texts = (("?" if length is None else str(length) for length in shape) for shape in shapes)
    return "+".join("x".join(text) or "1" for text in texts)


def shape_of(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Return the shape of a tensor; lengths that differ within a nested tensor are None."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    if tensor.layout is torch.jagged:
        return tuple(int(length) if isinstance(length, int) else None for length in tensor.shape)
    return (tensor.size(0), *(None for _ in range(tensor.dim() - 1)))


def split_of(values: Sequence[object], sizes: Sequence[int]) -> Split:
    """Return where the samples lie in values that were made for these batch sizes, one value a size."""
    first = values[0]
    if all(isinstance(value, torch.Tensor) for value in values):
        return _axis_of(cast("Sequence[torch.Tensor]", values), sizes)
    lists = [value for value in values if isinstance(value, (list, tuple))]
    if len(lists) == len(values) and [len(value) for value in lists] == list(sizes):
        return "listed"
    parts = [parts_of(value) for value in values]
    keys = parts[0]
    if keys is not None and all(type(value) is type(first) for value in values):
        same = all(other is not None and other.keys() == keys.keys() for other in parts)
        if not same:
            return "unknown"
        splits = {key: split_of([cast("dict[Any, Any]", part)[key] for part in parts], sizes) for key in keys}
        return list(splits.values()) if isinstance(first, (list, tuple)) else splits
    plain = isinstance(first, (int, float, str, bool, type(None)))
    return "whole" if plain and all(type(v) is type(first) and v == first for v in values) else "unknown"


def _axis_of(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Split:
    """Return the axis of tensors that follows the batch size, other axes may change too: texts are padded."""
    shapes = [shape_of(tensor) for tensor in tensors]
    if len({len(shape) for shape in shapes}) > 1:
        return "unknown"
    axes = dict(enumerate(zip(*shapes, strict=True)))
    if any(tensor.is_nested for tensor in tensors):
        return Rows(0, 1) if axes[0] == tuple(sizes) else "unknown"
    changing = {axis: lengths for axis, lengths in axes.items() if len(set(lengths)) > 1}
    if not changing:
        return "whole"
    exact = [axis for axis, lengths in changing.items() if lengths == tuple(sizes)]
    if exact:
        return exact[0] if len(exact) == 1 else "unknown"
    each = {axis: (lengths[0] or 0) // sizes[0] for axis, lengths in changing.items()}
    rows = [axis for axis, lengths in changing.items() if lengths == tuple(each[axis] * size for size in sizes)]
    return Rows(rows[0], each[rows[0]]) if len(rows) == 1 else "unknown"


def split_of_drawn(value: object) -> Split:
    """Return where the samples lie in what is drawn as the value says."""
    if isinstance(value, Each):
        return "listed"
    if isinstance(value, Drawn):
        return "listed" if value.listed else "whole" if value.axis is None else value.axis
    if isinstance(value, (list, tuple)):
        return [split_of_drawn(item) for item in value]
    return {name: split_of_drawn(item) for name, item in value.items()} if isinstance(value, Mapping) else "whole"


def drawn_of(inputs: object) -> list[Drawn]:
    """Return what is to be drawn in a value of any structure, in order."""
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Drawn)]


def miscounts(value: Any, split: Split, size: int) -> Iterator[int]:
    """Yield how many samples lie in each part of a value that does not hold as many as the batch size says.

    A part in which nobody knows where the samples lie has no count. One that is missing, or is no longer a tensor or a
    list, counts 0.
    """
    match split:
        case "whole" | "unknown":
            return
        case "listed":
            count = len(value) if isinstance(value, (list, tuple)) else 0
        case int(axis):
            count = _length(value, axis)
        case Rows(axis, each):
            length = _length(value, axis)
            count = length // each + (length > size * each and length % each > 0)
        case dict():
            items = parts_of(value) or {}
            for name, of_item in split.items():
                yield from miscounts(items.get(name), of_item, size)
            return
        case _:
            parts = value if isinstance(value, (list, tuple)) else ()
            for part, of_part in zip_longest(parts[: len(split)], split):
                yield from miscounts(part, of_part, size)
            return
    if count != size:
        yield count


def _length(value: object, axis: int) -> int:
    shape = shape_of(value) if isinstance(value, torch.Tensor) else ()
    return (shape[axis] or 0) if axis < len(shape) else 0


def is_counted(split: Split) -> bool:
    """Return whether every part in which samples may lie has a count."""
    if isinstance(split, (list, dict)):
        return all(map(is_counted, split.values() if isinstance(split, dict) else split))
    return split != "unknown"


def shows_samples(value: object, split: Split) -> bool:
    """Return whether a tensor of a value has an axis along which the samples lie one by one."""
    match split:
        case int():
            return True
        case "listed":
            return bool(tensors_of(value))
        case dict() | list():
            parts = list((parts_of(value) or {}).values())
            splits = list(split.values()) if isinstance(split, dict) else split
            return any(shows_samples(*pair) for pair in zip(parts, splits, strict=False))
        case _:
            return False


def _is_array(value: object) -> bool:
    """Return whether a value is an array of numpy's, or of a library that does as numpy does."""
    return hasattr(value, "__array__") and hasattr(value, "shape")


def outline(value: Any, depth: int = 0) -> object:
    """Return the sizes in a value: shapes of tensors, lengths of lists, plain values, those inside of objects too.

    Two inputs of one outline have the same number of samples, whatever they hold.
    """
    if isinstance(value, torch.Tensor):
        return ("tensor", shape_of(value), value.values().shape if value.is_nested else None)
    if isinstance(value, (int, float, bool, str, bytes, type(None))) or depth > _DEEPEST:
        return value
    if _is_array(value):
        return ("array", tuple(value.shape))
    parts = parts_of(value)
    parts = getattr(value, "__dict__", None) if parts is None else parts
    if parts is None:
        return (type(value).__name__, len(value) if isinstance(value, Sized) else id(value))
    return type(value).__name__, [(str(key), outline(part, depth + 1)) for key, part in parts.items()]


def is_same(one: Any, other: Any, depth: int = 0) -> bool:
    """Return whether two values are known to be the same in sizes and content; objects without parts differ."""
    if type(one) is not type(other) or depth > _DEEPEST:
        return False
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if shape_of(one) != shape_of(other) or one.is_nested:
            return False
        return bool(torch.equal(one.to_dense(), other.to_dense()) if one.is_sparse else torch.equal(one, other))
    if _is_array(one):
        return bool(one.shape == other.shape and (one == other).all())
    mine, theirs = (parts_of(value) for value in (one, other))
    if mine is None and theirs is None and not isinstance(one, (int, float, str, bytes)):
        mine, theirs = (getattr(value, "__dict__", None) for value in (one, other))
    if mine is None or theirs is None:
        return isinstance(one, (int, float, str, bytes, type(None))) and one == other
    return mine.keys() == theirs.keys() and all(is_same(mine[key], theirs[key], depth + 1) for key in mine)


def divides(split: Split) -> bool:
    """Whether samples lie anywhere in a value."""
    if isinstance(split, (list, dict)):
        return any(map(divides, split.values() if isinstance(split, dict) else split))
    return split == "listed" or isinstance(split, int)


def picked(value: Any, split: Split, samples: Sequence[int]) -> Any:
    """Return a value of the same structure that holds only some of the samples, by index.

    Raises:
        Indivisible: nobody knows where they lie.
    """
    match split:
        case "whole":
            return value
        case "unknown" | Rows():
            raise Indivisible
        case "listed":
            return alike(value, [value[sample] for sample in samples])
        case int(axis):
            return _rows(value, axis, samples)
        case dict():
            parts = parts_of(value) or {}
            return with_parts(value, {key: picked(part, split[key], samples) for key, part in parts.items()})
        case _:
            pairs = zip(value, split, strict=True)
            return alike(value, [picked(item, of_item, samples) for item, of_item in pairs])


def sample_shapes(values: Sequence[object], splits: Split) -> Iterator[str]:
    """Yield the shape of a sample in each tensor of inputs, as ``3x224x224``, and what else holds samples.

    An axis along which the samples lie is left out, or divided by the batch size where a sample has several rows.
    Lengths that change otherwise are ranges: ``12-48x64``.

    Args:
        values: made for several batch sizes, one value a size.
        splits: where the samples lie in them.
    """
    first = values[0]
    if isinstance(first, torch.Tensor):
        yield _sample_shape([shape_of(value) for value in values if isinstance(value, torch.Tensor)], splits)
    elif splits == "listed":
        items = cast("Sequence[object]", first)
        shapes = [*map(shape_of, tensors_of(items[0]))]
        yield shape_text(shapes) if shapes else type(items[0]).__name__
    elif isinstance(splits, (list, dict)):
        parts = [parts_of(value) or {} for value in values]
        inner = splits.values() if isinstance(splits, dict) else splits
        for key, of_part in zip(parts[0], inner, strict=True):
            yield from sample_shapes([part.get(key) for part in parts], of_part)
    elif splits == "unknown":
        yield type(first).__name__


def _sample_shape(shapes: Sequence[tuple[int | None, ...]], split: Split) -> str:
    axes: list[tuple[int | None, ...]] = list(zip(*shapes, strict=False))
    if isinstance(split, int):
        del axes[split]
    elif isinstance(split, Rows) and split.each == 1:
        del axes[split.axis]
    elif isinstance(split, Rows):
        axes[split.axis] = (split.each,)
    return "x".join(_range([length for length in axis if length is not None]) for axis in axes) or "1"


def _range(lengths: Sequence[int]) -> str:
    if not lengths:
        return "?"
    low, high = min(lengths), max(lengths)
    return f"{low}" if low == high else f"{low}-{high}"


def alike(value: Any, items: list[Any]) -> Any:
    """Return items in a list, tuple or named tuple, as the value is one."""
    if hasattr(value, "_make"):
        return value._make(items)
    return tuple(items) if isinstance(value, tuple) else items


def _rows(tensor: torch.Tensor, axis: int, samples: Sequence[int]) -> torch.Tensor:
    few = tensor.index_select(axis, torch.tensor(samples, device=tensor.device))
    memory_format = CHANNELS_LAST.get(tensor.dim())
    if memory_format is not None and tensor.is_contiguous(memory_format=memory_format):
        return few.contiguous(memory_format=memory_format)
    return few
