"""The inputs of a step: what they are made of, where the samples lie in them, and some of the samples picked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Literal

import torch
from torch.utils._pytree import tree_leaves

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


Call = tuple[tuple[object, ...], dict[str, object]]
"""Positional and keyword arguments."""
MakeInputs = Callable[[int], object]
"""From a batch size to the inputs of one step: a tuple of arguments, a dict of keyword arguments, or a single one."""
Inputs = Call | MakeInputs
"""The arguments of a step, in which what is to be drawn stands as ``Drawn``, or what makes them."""

Split = int | Literal["listed", "whole", "unknown"] | list["Split"] | dict[str, "Split"]
"""Where the samples lie in a value: along an axis of a tensor, as the items of a list, not at all, or in the items of a
list, tuple or dict, each by a split of its own; or that cannot be told.
"""


class Indivisible(LookupError):
    """Raised when samples cannot be picked out of inputs."""


def as_call(inputs: object) -> Call:
    """Return what a ``MakeInputs`` has made as positional and keyword arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def tensors_of(inputs: object) -> list[torch.Tensor]:
    """Return the tensors in a value of any structure, in order."""
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


def moves(value: object) -> bool:
    """Whether a value knows how to move to a device: a tensor, or what holds some and is moved as one."""
    return callable(getattr(value, "to", None))


def shape_text(shapes: Sequence[Sequence[int]]) -> str:
    """Print the shapes of a sample: ``3x224x224``, several tensors apart by ``+``; ``1`` stands for a single number."""
    return "+".join("x".join(map(str, shape)) or "1" for shape in shapes)


def split_of(once: object, twice: object, size: int) -> Split:
    """Return where the samples lie in a value, from it and what it is for twice the batch size."""
    if isinstance(once, torch.Tensor) and isinstance(twice, torch.Tensor):
        if once.dim() != twice.dim():
            return "unknown"
        lengths = enumerate(zip(once.shape, twice.shape, strict=True))
        changes = [(axis, pair) for axis, pair in lengths if pair[0] != pair[1]]
        follows = [pair for _, pair in changes] == [(size, 2 * size)]
        return changes[0][0] if follows else "unknown" if changes else "whole"
    if isinstance(once, (list, tuple)) and isinstance(twice, (list, tuple)):
        if _listed(once, twice, size):
            return "listed"
        same = len(once) == len(twice)
        return [split_of(*pair, size) for pair in zip(once, twice, strict=True)] if same else "unknown"
    if isinstance(once, Mapping) and isinstance(twice, Mapping):
        same = once.keys() == twice.keys()
        return {name: split_of(once[name], twice[name], size) for name in once} if same else "unknown"
    plain = isinstance(once, (int, float, str, bool, type(None)))
    return "whole" if plain and type(once) is type(twice) and once == twice else "unknown"


def split_of_drawn(value: object) -> Split:
    """Return where the samples lie in what is drawn as the value says."""
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
            counts = [len(value) if isinstance(value, (list, tuple)) else 0]
        case int(axis):
            counts = [value.shape[axis] if isinstance(value, torch.Tensor) and axis < value.dim() else 0]
        case dict():
            items = value if isinstance(value, Mapping) else {}
            for name, of_item in split.items():
                yield from miscounts(items.get(name), of_item, size)
            return
        case _:
            parts = value if isinstance(value, (list, tuple)) else ()
            for part, of_part in zip_longest(parts[: len(split)], split):
                yield from miscounts(part, of_part, size)
            return
    yield from (count for count in counts if count != size)


def divides(split: Split) -> bool:
    """Whether samples lie anywhere in a value."""
    if isinstance(split, (list, dict)):
        return any(map(divides, split.values() if isinstance(split, dict) else split))
    return split not in ("whole", "unknown")


def picked(value: Any, split: Split, samples: Sequence[int]) -> Any:
    """Return a value of the same structure that holds only some of the samples, by index.

    Raises:
        Indivisible: nobody knows where they lie.
    """
    match split:
        case "whole":
            return value
        case "unknown":
            raise Indivisible
        case "listed":
            return _alike(value, [value[sample] for sample in samples])
        case int(axis):
            return _rows(value, axis, samples)
        case dict():
            return {name: picked(item, split[name], samples) for name, item in value.items()}
        case _:
            pairs = zip(value, split, strict=True)
            return _alike(value, [picked(item, of_item, samples) for item, of_item in pairs])


def sample_shapes(once: object, twice: object, size: int) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield the shape of a sample in each tensor of the inputs, and whether an axis or a list follows the batch size.

    An axis that is as long as the batch, and twice as long for twice the batch, is left out of the shape.
    """
    if isinstance(once, torch.Tensor) and isinstance(twice, torch.Tensor):
        pairs = list(zip(once.shape, twice.shape, strict=False))
        yield tuple(length for length, doubled in pairs if length == doubled), (size, 2 * size) in pairs
    elif isinstance(once, (list, tuple)) and isinstance(twice, (list, tuple)):
        if _listed(once, twice, size):
            yield from ((tuple(tensor.shape), True) for tensor in tensors_of(once[0]))
        else:
            for pair in zip(once, twice, strict=False):
                yield from sample_shapes(*pair, size)
    elif isinstance(once, Mapping) and isinstance(twice, Mapping):
        for name in once:
            yield from sample_shapes(once[name], twice.get(name), size)


def _listed(once: Sequence[object], twice: Sequence[object], size: int) -> bool:
    return (len(once), len(twice)) == (size, 2 * size)


def _alike(value: Any, items: list[Any]) -> Any:
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
