"""Whether the samples of a small batch can be repeated to fill a large one."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import torch

from tputfind.worker.inputs import Rows, Split, moves, shape_of, split_of
from tputfind.worker.structures import is_plain, parts_of

_PLAIN: Final = (int, float, str, bytes, type(None))


def repeatable_split(values: Sequence[object], sizes: Sequence[int]) -> Split | None:
    """Return the location of the samples in values made for these batch sizes; None if repeats would be wrong.

    Repeats are right only if each part is a plain value or a dense tensor whose shape differs between the sizes along
    its axis of samples alone, and if no integer grows with the batch size, as an index into the batch does.
    """
    split = split_of(values, sizes)
    return split if _is_repeatable(values, split, sizes) else None


def _is_repeatable(values: Sequence[object], split: Split, sizes: Sequence[int]) -> bool:
    match split:
        case "unknown":
            return False
        case list() | dict():
            splits = split.values() if isinstance(split, dict) else split
            parts = zip(*((parts_of(value) or {}).values() for value in values), strict=True)
            still = not any(map(moves, values))
            return still and all(_is_repeatable(part, each, sizes) for part, each in zip(parts, splits, strict=True))
        case int() | Rows():
            axis = split if isinstance(split, int) else split.axis
            tensors = cast("Sequence[torch.Tensor]", values)
            rests = {(*shape_of(tensor)[:axis], *shape_of(tensor)[axis + 1 :]) for tensor in tensors}
            if len(rests) > 1:
                return False
    return all(map(_is_plain, values)) and not _grows([_highest(value) for value in values], sizes)


def _is_plain(value: object) -> bool:
    """Return whether a value consists of dense tensors and plain values."""
    if isinstance(value, torch.Tensor):
        return is_plain(value)
    parts = None if moves(value) else parts_of(value)
    return isinstance(value, _PLAIN) if parts is None else all(map(_is_plain, parts.values()))


def _highest(value: Any) -> int:
    """Return the highest integer in a value, or 0; integers of one byte are ignored as too small to count a batch."""
    if isinstance(value, torch.Tensor):
        is_whole = not (value.is_floating_point() or value.is_complex()) and value.element_size() > 1
        return int(value.long().max()) if is_whole and value.numel() else 0
    if isinstance(value, int):
        return value
    return max(map(_highest, (parts_of(value) or {}).values()), default=0)


def _grows(highest: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether the highest number grows in proportion to the batch size.

    It does if the largest batch's highest number exceeds two thirds of the number scaled up from each smaller batch.
    Numbers drawn below a bound come close to it with few samples and do not grow.
    """
    largest = max(sizes)
    top = highest[list(sizes).index(largest)]
    pairs = zip(highest, sizes, strict=True)
    return all(3 * top * size > 2 * largest * max(1, number) for number, size in pairs if size < largest)


def copies(few: int, many: int) -> Iterator[tuple[int, int, int]]:
    """Yield the copies that turn ``few`` samples into ``many``: source index, target index, number of samples.

    The source and target of a copy never overlap. The last sample is always a copy of the last of the few.
    """
    done = few
    while done < many:
        count = min(done, many - done)
        yield done - count, done, count
        done += count
