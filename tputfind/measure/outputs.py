"""Whether a batch was computed right: its samples against the same samples in a small batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from tputfind.measure.workload import Batch
from tputfind.record import Failure, OutputCheck

TOLERANCES: Final = {"fp32": 1e-2, "tf32": 5e-2, "fp16": 1e-1, "amp-fp16": 1e-1, "bf16": 3e-1, "amp-bf16": 3e-1}
"""The relative distance (L2 norm) up to which two outputs of a sample are the same, by dtype. Other kernels at another
batch size add up in another order; an overflowed index gives a distance of about 1."""

_CHUNK_ELEMENTS: Final = 2**24
_FARTHEST: Final = 1e9


def check_output(batch: Batch, dtype: str, small_size: int) -> OutputCheck | Failure:
    """Run the batch once more, and its first and last sample in a small batch; say whether the outputs are right.

    Args:
        batch: what is checked.
        dtype: the spec's, which sets the tolerance.
        small_size: the small batch, at least 2: the first samples and the last one.
    """
    tolerance = TOLERANCES[dtype]
    whole = _tensors(batch())
    if batch.size <= small_size:  # it is a small batch itself
        finite = all(bool(torch.isfinite(output).all()) for output in whole)
        return OutputCheck(result="right" if finite else "not_finite")
    samples = [*range(small_size - 1), batch.size - 1]
    few, in_other_company = batch.picked(samples), batch.picked(range(small_size))
    if few is None or in_other_company is None:
        return OutputCheck(result="unchecked", remark="its inputs cannot be taken apart by sample")
    small, again = _tensors(few()), _tensors(in_other_company())
    pairs = _pairs(whole, small, batch.size, small_size)
    if not pairs or len(again) != len(small):
        return OutputCheck(result="unchecked", remark="no output has floating-point values by sample")
    if max(_distance(_sample(again[p.place], p.axis, 0), _sample(p.small, p.axis, 0)) for p in pairs) > tolerance:
        remark = "a sample's output differs from run to run, or with the other samples of its batch"
        return OutputCheck(result="unchecked", remark=remark)
    difference = 0.0
    for pair in pairs:
        for at in (0, small_size - 1):
            here = _distance(_sample(pair.whole, pair.axis, samples[at]), _sample(pair.small, pair.axis, at))
            if here > tolerance:
                return _wrong(samples[at], batch.size, small_size, f"differs by {here:.2g} (relative)")
            difference = max(difference, here)
    return _finite(batch, pairs, samples, difference)


class _Pair(NamedTuple):
    """One output at both batch sizes, and its batch axis; ``place`` is its number among the outputs."""

    place: int
    whole: torch.Tensor
    small: torch.Tensor
    axis: int


def _finite(batch: Batch, pairs: list[_Pair], samples: list[int], difference: float) -> OutputCheck | Failure:
    """Look at every output; a sample that is not finite must not be so in the small batch either."""
    for pair in pairs:
        for bad in _bad_rows(pair.whole, pair.axis):
            few = batch.picked([bad, *samples[1:]])
            assert few is not None  # it was before
            alone = _sample(_tensors(few())[pair.place], pair.axis, 0)
            if bool(torch.isfinite(alone).all()):
                return _wrong(bad, batch.size, len(samples), "holds NaN or infinity and does not there")
            return OutputCheck(result="not_finite", difference=difference)
    return OutputCheck(result="right", difference=difference)


def _wrong(sample: int, size: int, small_size: int, how: str) -> Failure:
    message = f"sample {sample} of batch {size}, set beside the same sample in a batch of {small_size}, {how}"
    return Failure(kind="wrong_output", message=message)


def _tensors(output: object) -> list[torch.Tensor]:
    """Return the dense floating-point tensors in whatever the model returned, in order."""
    return [
        leaf
        for leaf in tree_leaves(output)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.is_floating_point()
    ]


def _pairs(whole: list[torch.Tensor], small: list[torch.Tensor], size: int, small_size: int) -> list[_Pair]:
    """Pair the outputs of two batch sizes that have the same shape but for one axis, the batch's."""
    if len(whole) != len(small):
        return []
    found = []
    for index, (large, little) in enumerate(zip(whole, small, strict=True)):
        if large.dim() != little.dim():
            continue
        axes = [a for a, lengths in enumerate(zip(large.shape, little.shape, strict=True)) if lengths[0] != lengths[1]]
        if len(axes) == 1 and (large.shape[axes[0]], little.shape[axes[0]]) == (size, small_size) and large.numel():
            found.append(_Pair(index, large, little, axes[0]))
    return found


def _sample(output: torch.Tensor, axis: int, index: int) -> torch.Tensor:
    return output.select(axis, index).float()


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the L2 norm of the difference, relative to the other's; values that are not finite must be the same."""
    if one.shape != other.shape:
        return _FARTHEST
    finite = torch.isfinite(other)
    if not bool((torch.isfinite(one) == finite).all()):
        return _FARTHEST
    one, other = one.where(finite, 0).double(), other.where(finite, 0).double()
    apart, size = float((one - other).norm()), float(other.norm())
    return 0.0 if apart == 0 else min(_FARTHEST, apart / max(size, 1e-30))


def _bad_rows(output: torch.Tensor, axis: int) -> Iterator[int]:
    """Yield the indices along an axis whose values are not all finite, a piece at a time: memory may be nearly full."""
    length = max(1, _CHUNK_ELEMENTS * output.shape[axis] // max(1, output.numel()))
    for start in range(0, output.shape[axis], length):
        piece = output.narrow(axis, start, min(length, output.shape[axis] - start))
        fine = torch.isfinite(piece).movedim(axis, 0).reshape(piece.shape[axis], -1).all(dim=1)
        if not bool(fine.all()):
            yield from (start + int(index) for index in (~fine).nonzero().flatten())
