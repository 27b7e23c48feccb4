"""Checks after the timing: whether a batch is right, and whether a model caches results or keeps more every step."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, zip_longest
from operator import ne
from time import perf_counter
from typing import Final, NamedTuple

import torch

from tputfind.record.record import Failure, OutputCheck
from tputfind.record.types import NOISE
from tputfind.worker.batch import Batch
from tputfind.worker.devices.host import core_wait_s
from tputfind.worker.devices.protocol import Device
from tputfind.worker.structures import tensors_of

_CHECKED: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_MASKING: Final = (torch.float64, torch.float32, torch.bfloat16)
_MEDIUM: Final = 16
"""Maximum factor between the sizes of the two references, which makes them use different kernels.

Mostly the larger reference is a quarter of the batch.
"""
_COMPANIES: Final = 16
_CROWDS: Final = 4
_NEAR_OVERFLOW: Final = 8
_CHUNK_ELEMENTS: Final = 2**24
_FARTHEST: Final = 1e9


def check_output(
    batch: Batch, dtype: str, small_size: int, output: object = None, *, short: bool = False
) -> OutputCheck | Failure:
    """Run the first and last sample of a batch in small batches; return whether the outputs of the batch are right.

    Two references differ in size, and in the places and neighbours of the samples. They show whether an output depends
    on its sample alone; only then does a difference mean that the batch is wrong. Each output is copied before the next
    call, which may write into the same memory. The references run the model eagerly, whatever the mode of the batch. A
    small batch in another mode is compared with an eager run of itself.

    ``dtype`` sets the tolerance for rounding. The smaller reference has ``small_size`` samples, at least 2; a batch of
    at most twice this size is small itself. Without its last ``output`` the batch runs once more. ``short`` says
    whether memory was nearly used up, for which the model may have left out samples. An output with another number of
    samples is wrong only then, and if half of the batch returns all samples.
    """
    last = batch.size - 1
    if batch.size <= 2 * small_size and batch.eager is not None:
        return _compare_with_eager(batch, batch.eager, NOISE[dtype])
    returned = batch() if output is None else output
    whole = [_looked_at(tensor, batch.size, 0, last) for tensor in _tensors(returned)]
    del returned
    if batch.size <= 2 * small_size:
        finite = all(look.finite for look in whole)
        return OutputCheck(result="small" if finite else "not_finite") if whole else _unchecked_output(_NO_VALUES)
    medium_size = small_size * min(_MEDIUM, max(2, batch.size // (4 * small_size)))
    few = batch.batch_of_samples([*range(small_size - 1), last])
    more = batch.batch_of_samples([last, *range(1, medium_size - 1), 0])
    if few is None or more is None:
        return _unchecked_output("its inputs cannot be taken apart by sample")
    small = _look_at_ends(few)
    medium = [_looked_at(output, medium_size, medium_size - 1, 0) for output in _tensors(more())]
    axes = _batch_axes(small, medium)
    if not axes:
        return _unchecked_output(_UNLIKE if _are_unlike(small, medium) else _NO_VALUES)
    if _lacks_samples(whole, small, axes):
        again = whole if short else [_looked_at(tensor, batch.size) for tensor in _tensors(batch())]
        if not _lacks_samples(again, small, axes):
            return _unchecked_output(_COMPANY)
        counted = _count_outputs(whole, small, axes)
        half = small_size * (batch.size // (2 * small_size))
        if counted and not (short and _returns_all(batch, half, small, axes)):
            return _unchecked_output(f"it returned another number of outputs than samples: {counted} for {batch.size}")
        shown = ", ".join("x".join(map(str, look.shape)) for look in whole) or "none"
        what = f"batch {batch.size} returned outputs of another number of samples, where small batches return all"
        return Failure(kind="wrong_output", message=f"{what}: {shown}")
    if _batch_axes(small, medium, whole) != axes:
        return _unchecked_output(_COMPANY)
    verdict = _compare_samples(_samples(small, axes), _samples(medium, axes), _samples(whole, axes), NOISE[dtype])
    if isinstance(verdict, _Differs):
        if excuse := _excuse_of(batch, few, small, axes, medium_size, noise=NOISE[dtype]):
            return _unchecked_output(excuse)
        sample = last if verdict.at_the_end else 0
        return _wrong(sample, batch.size, small_size, f"differs by {verdict.distance:.2g} (relative) from its output")
    bad = sorted({sample for number, axis in axes.items() for sample in whole[number].bad[axis]})
    return _check_not_finite(batch, bad, axes, medium_size) or verdict


def _lacks_samples(whole: Sequence[_Look], small: Sequence[_Look], axes: dict[int, int]) -> bool:
    """Return whether an output of the whole batch lacks samples, since it is not as long as the batch.

    If the number of outputs differs, they lack samples if there are fewer, and none is as long as the batch. More of
    them may be chunks of the batch.
    """
    if len(whole) == len(small):
        return any(axis not in whole[number].samples for number, axis in axes.items())
    return len(whole) < len(small) and not any(look.samples for look in whole)


def _returns_all(batch: Batch, size: int, small: Sequence[_Look], axes: dict[int, int]) -> bool:
    """Return whether a batch of the first samples returns all of them."""
    first = batch.batch_of_samples(range(size))
    assert first is not None  # the same inputs were divided before
    return not _lacks_samples([_looked_at(output, size) for output in _tensors(first())], small, axes)


def _count_outputs(whole: Sequence[_Look], small: Sequence[_Look], axes: dict[int, int]) -> int:
    """Return the length of the first output that is not as long as the batch; 0 if its shape also differs otherwise."""
    if len(whole) < len(small):
        return 0
    number, axis = next((number, axis) for number, axis in axes.items() if axis not in whole[number].samples)
    lengths = [*whole[number].shape]
    expected = [*small[number].shape]
    expected[axis : axis + 1] = lengths[axis : axis + 1]
    return lengths[axis] if lengths == expected else 0


def _compare_with_eager(batch: Batch, eager: Batch, noise: float) -> OutputCheck | Failure:
    def run_restored(which: Batch) -> list[_Sample]:
        if batch.restore is not None:
            batch.restore()
        return [_copy_values(tensor) for tensor in _tensors(which())]

    here, there, again = map(run_restored, (batch, eager, eager))
    if not there:
        return _unchecked_output(_NO_VALUES)
    if [one.values.shape for one in here] != [one.values.shape for one in there]:
        return Failure(kind="wrong_output", message=f"batch {batch.size} returned outputs of other shapes than eagerly")
    if not all(one.finite() for one in there):
        return OutputCheck(result="not_finite")
    if all(one.largest() < one.limits.tiny for one in there):
        return _unchecked_output(_VANISHING)
    apart, by_itself = (max(map(_distance, ran, there)) for ran in (here, again))
    if by_itself > noise:
        return _unchecked_output(_COMPANY)
    if apart > noise:
        how = f"batch {batch.size} differs by {apart:.2g} (relative) from the model run eagerly"
        return Failure(kind="wrong_output", message=how)
    return OutputCheck(result="right", difference=apart)


_MOST_VALUES: Final = 4096


def values_of_outputs(batch: Batch, dtype: str) -> tuple[float, ...]:
    """Run a batch; return up to 4096 values of its outputs, in the order of their axes.

    Returns none if a second run gives others, if they are not finite, or if those of a tensor are below the dtype's
    normal numbers.
    """
    found = list[torch.Tensor]()
    for _ in range(2):
        if batch.restore is not None:
            batch.restore()
        outputs = [one for one in _tensors(batch()) if one.numel()]
        if any(0 < float(one.abs().max()) < torch.finfo(one.dtype).tiny for one in outputs):
            return ()
        found.append(torch.cat([torch.zeros(0), *(one.double().flatten().cpu() for one in outputs)]))
    once, again = found
    if once.shape != again.shape or not (once - again).norm() <= NOISE[dtype] * once.norm():
        return ()
    return tuple(once[:: max(1, math.ceil(len(once) / _MOST_VALUES))].tolist())


class _Sample(NamedTuple):
    """One output of one sample, copied in double precision; ``limits`` are those of its original dtype."""

    values: torch.Tensor
    limits: torch.finfo

    def finite(self) -> bool:
        return bool(torch.isfinite(self.values).all())

    def largest(self) -> float:
        return float(self.values.abs().max())


class _Look(NamedTuple):
    """The kept parts of one output: its shape, and the following by each axis that is as long as the batch.

    ``samples`` are copies of the requested samples, ``bad`` the places with values that are not finite. ``finite`` says
    whether all values are.
    """

    shape: torch.Size
    samples: dict[int, tuple[_Sample, ...]]
    bad: dict[int, list[int]]
    finite: bool


class _Differs(NamedTuple):
    """An output that differs from its reference: of the last sample, or of the first."""

    distance: float
    at_the_end: bool


def _compare_samples(
    reference: Sequence[_Sample], other: Sequence[_Sample], whole: Sequence[_Sample], noise: float
) -> OutputCheck | _Differs:
    overflowing, vanishing, telling = False, False, False
    difference: float | None = None
    for number, (one, another, here) in enumerate(zip(reference, other, whole, strict=True)):
        if not one.finite() or not another.finite():
            overflowing = True
        elif one.largest() < one.limits.tiny:
            vanishing = True
        elif _distance(another, one) > noise:
            return _unchecked_output(_COMPANY)
        elif not here.finite() and one.largest() > one.limits.max / _NEAR_OVERFLOW:
            overflowing = True
        else:
            apart = _distance(here, one)
            if apart > noise:
                return _Differs(apart, at_the_end=number % 2 == 1)
            difference = max(difference or 0.0, apart)
            # Much nearer to its own reference than to the other sample's, so that swapped samples would show.
            telling = telling or apart < _distance(reference[number ^ 1], one) / 4
    if overflowing:
        return OutputCheck(result="not_finite", difference=difference)
    if difference is None:
        return _unchecked_output(_VANISHING if vanishing else _NO_VALUES)
    if not telling:
        return _unchecked_output("the outputs of different samples hardly differ, so that one would pass for another")
    return OutputCheck(result="right", difference=difference)


def _excuse_of(
    batch: Batch, few: Batch, small: Sequence[_Look], axes: dict[int, int], size: int, *, noise: float
) -> str:
    """Return what else than a wrong kernel can change the outputs of the first and last sample; empty if nothing does.

    A few samples can if they have the largest values, by which dynamic quantisation scales a batch. The smaller
    reference is also run again, since a model that writes into its inputs then returns other outputs.
    """
    last, beside = batch.size - 1, size - 2
    # A state that the model resets if the batch size changes shows only in the second of two runs.
    if any(_apart(_look_at_ends(few), small, axes) > noise for _ in range(2)):
        return _COMPANY
    if _is_sensitive(few, small, axes, noise):
        return _SENSITIVE
    for number in range(_COMPANIES):
        others = [1 + (number * beside + place) % (last - 1) for place in range(beside)]
        beside_others = batch.batch_of_samples([last, *others, 0])
        assert beside_others is not None  # the same inputs were divided before
        looks = [_looked_at(output, size, size - 1, 0) for output in _tensors(beside_others())]
        if _apart(looks, small, axes) > noise:
            return _COMPANY
    return _COMPANY if _is_right_in_other_company(batch, small, axes, noise) else ""


def _is_sensitive(few: Batch, small: Sequence[_Look], axes: dict[int, int], noise: float) -> bool:
    """Return whether rounding of the inputs alone changes outputs, as by hard decisions such as the nearest code."""
    try:
        scaled = (_look_at_ends(few.scale_inputs(change)) for change in (_ROUNDING, -_ROUNDING))
        return any(_apart(looks, small, axes) > noise for looks in scaled)
    except Exception:  # inputs of this kind cannot be scaled, or memory ran out: no finding then
        return False


def _is_right_in_other_company(batch: Batch, small: Sequence[_Look], axes: dict[int, int], noise: float) -> bool:
    """Return whether the first and last sample are right in a batch of the same size with copies of a third sample.

    Samples may compete for places of which small batches have enough, as in a mixture of experts with a capacity. A
    wrong kernel is wrong in any company. Return False if the model is right when run eagerly: its mode is wrong then.
    """
    last = batch.size - 1

    def is_right(one: Batch | None) -> bool:
        looks = [] if one is None else _look_at_ends(one)
        return bool(looks) and _apart(looks, small, axes) <= noise

    others = (1 + number * (last - 1) // _CROWDS for number in range(_CROWDS))
    crowds = ([0, *[other] * (last - 1), last] for other in others)
    try:
        return not is_right(batch.eager) and any(is_right(batch.batch_of_samples(crowd)) for crowd in crowds)
    except Exception:  # out of memory for the copies, or the model rejects them: no finding then
        return False


def _apart(looks: Sequence[_Look], others: Sequence[_Look], axes: dict[int, int]) -> float:
    pairs = zip(_samples(looks, axes), _samples(others, axes), strict=True)
    return max(_distance(one, other) for one, other in pairs)


def _check_not_finite(
    batch: Batch, bad: Sequence[int], axes: dict[int, int], small_size: int
) -> OutputCheck | Failure | None:
    """Run samples that are not finite in a small batch; return a failure if one is finite there, None without any."""
    if not bad:
        return None
    some = [bad[len(bad) * number // small_size] for number in range(small_size)]
    few = batch.batch_of_samples(some)
    assert few is not None  # the same inputs were divided before
    alone = [_looked_at(output, small_size, *range(small_size)) for output in _tensors(few())]
    for place, sample in enumerate(some):
        outputs = [alone[number].samples[axis][place] for number, axis in axes.items()]
        if all(one.finite() and one.largest() <= one.limits.max / _NEAR_OVERFLOW for one in outputs):
            return _wrong(sample, batch.size, small_size, "holds NaN or infinity, but not")
    return OutputCheck(result="not_finite")


def _wrong(sample: int, size: int, small_size: int, how: str) -> Failure:
    return Failure(kind="wrong_output", message=f"sample {sample} of batch {size} {how} in a batch of {small_size}")


_ROUNDING: Final = 2.0**-18
"""Relative change of inputs like that by rounding in fp32; it changes outputs of continuous models by far less than
``NOISE``."""
_COMPANY: Final = "a sample's output differs from run to run, or with the batch that it is in"
_SENSITIVE: Final = "a change of its inputs as small as rounding gives other outputs"
_VANISHING: Final = "its outputs are below the dtype's normal numbers"
_NO_VALUES: Final = "no output has floating-point values by sample"
_UNLIKE: Final = "its outputs differ in number, or in several lengths, between batch sizes"


def _unchecked_output(remark: str) -> OutputCheck:
    return OutputCheck(result="unchecked", remark=remark)


def _tensors(output: object) -> list[torch.Tensor]:
    """Return the dense floating-point tensors of an output of any structure, in order; complex ones as real ones."""
    dense = (leaf for leaf in tensors_of(output) if leaf.layout is torch.strided and not leaf.is_nested)
    real = (torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf for leaf in dense)
    return [leaf for leaf in real if leaf.dtype in _CHECKED]


def _looked_at(output: torch.Tensor, size: int, *places: int) -> _Look:
    """Copy the parts of an output that will be compared, before another call may overwrite them."""
    axes = [axis for axis, length in enumerate(output.shape) if length == size and output.numel()]
    bad = {axis: list(_bad_places(output, axis)) for axis in axes}
    return _Look(
        output.shape,
        {axis: tuple(_copy_values(output.select(axis, place)) for place in places) for axis in axes},
        bad,
        finite=not any(bad.values()) if axes else bool(torch.isfinite(output).all()),
    )


def _look_at_ends(batch: Batch) -> list[_Look]:
    """Run a batch, and copy the outputs of its first and last sample."""
    return [_looked_at(output, batch.size, 0, batch.size - 1) for output in _tensors(batch())]


def _copy_values(tensor: torch.Tensor) -> _Sample:
    """Return the values of an output of one sample, with 0 in place of minus infinity that masks some of them."""
    values, limits = tensor.clone().double(), torch.finfo(tensor.dtype)
    if tensor.dtype in _MASKING and bool(torch.isfinite(values).any()):
        values.masked_fill_(values == -math.inf, 0.0)
    return _Sample(values, limits)


def _are_fine(output: torch.Tensor, axis: int) -> torch.Tensor:
    """Return which places along an axis hold finite values, or minus infinity among them, as masks write it."""

    def rows_of(values: torch.Tensor) -> torch.Tensor:
        return values.movedim(axis, 0).reshape(output.shape[axis], -1)

    finite = rows_of(torch.isfinite(output))
    fine = finite.all(dim=1)
    if output.dtype in _MASKING and not bool(fine.all()):  # in fp16 minus infinity may be an overflow
        fine |= (finite | rows_of(torch.isneginf(output))).all(dim=1) & finite.any(dim=1)
    return fine


def _are_unlike(small: Sequence[_Look], medium: Sequence[_Look]) -> bool:
    """Return whether outputs differ between two batch sizes in their number, or one of them in several lengths."""
    pairs = zip_longest((look.shape for look in small), (look.shape for look in medium), fillvalue=())
    return any(len(one) != len(other) or sum(map(ne, one, other)) > 1 for one, other in pairs)


def _batch_axes(*looks: Sequence[_Look]) -> dict[int, int]:
    """Return the batch axis by the number of each output whose shape differs between the batches in that axis alone."""
    axes = {}
    for number, same in enumerate(zip(*looks, strict=False)):
        shapes = [look.shape for look in same]
        if len({len(look) for look in looks}) == 1 and len({len(shape) for shape in shapes}) == 1:
            differing = [axis for axis, lengths in enumerate(zip(*shapes, strict=True)) if len(set(lengths)) > 1]
            if len(differing) == 1 and all(differing[0] in look.samples for look in same):
                axes[number] = differing[0]
    return axes


def _samples(looks: Sequence[_Look], axes: dict[int, int]) -> list[_Sample]:
    """Return the copied samples of every output with a batch axis, one output after the other."""
    return [sample for number, axis in axes.items() for sample in looks[number].samples[axis]]


def _distance(one: _Sample, other: _Sample) -> float:
    """Return the L2 distance relative to the norm of ``other``: at most 1e9, and 1e9 if ``one`` is not finite."""
    if not one.finite():
        return _FARTHEST
    apart = float((one.values - other.values).norm())
    return 0.0 if apart == 0 else min(_FARTHEST, apart / max(float(other.values.norm()), 1e-300))


def _bad_places(output: torch.Tensor, axis: int) -> Iterator[int]:
    """Yield the places along an axis with values that are not finite; piecewise, since memory may be nearly full."""
    length = max(1, _CHUNK_ELEMENTS * output.shape[axis] // output.numel())
    for start in range(0, output.shape[axis], length):
        piece = output.narrow(axis, start, min(length, output.shape[axis] - start))
        fine = _are_fine(piece, axis)
        if not bool(fine.all()):
            yield from (start + int(index) for index in (~fine).nonzero().flatten())


_DRAWS: Final = 3
_MOST_MAKING_S: Final = 0.5
"""Seconds; inputs that take longer to make are not drawn again, since smaller batches show the same."""
_FASTER: Final = 2.0


def remembers_inputs(device: Device, timed: Batch, make_batch: Callable[[int], Batch], seen_ms: float) -> bool:
    """Return whether each new input takes more than twice as long as any input does the second time.

    Return False for inputs that differ in shape from draw to draw, or that take long to make. ``make_batch`` makes new
    inputs from the number of a draw, from 1. ``seen_ms`` is the least step time of the timed batch: the test ends if a
    new input takes at most twice as long.
    """
    begin_s = perf_counter()
    first = make_batch(1).again()  # its steps restore no inputs, which would take time
    if first.shapes != timed.shapes or perf_counter() - begin_s > _MOST_MAKING_S:
        return False
    if _step_ms(device, first) <= _FASTER * seen_ms:
        return False
    del first
    # The host may be disturbed in three draws in a row, but hardly in six.
    rounds = (range(draw, draw + _DRAWS) for draw in (2, 2 + _DRAWS))
    return all(_is_slower_for_new(device, timed, make_batch, draws) for draws in rounds)


def _is_slower_for_new(device: Device, timed: Batch, make_batch: Callable[[int], Batch], draws: range) -> bool:
    """Return whether each new input of these draws is slower; the first that is not ends the test."""
    fastest_new_ms, slowest_seen_ms = math.inf, 0.0
    for draw in draws:
        batch = make_batch(draw).again()
        if batch.shapes != timed.shapes:
            return False
        _step_ms(device, timed.again())  # the allocator replaces the free blocks that the new inputs took
        fastest_new_ms = min(fastest_new_ms, _step_ms(device, batch))
        slowest_seen_ms = max(slowest_seen_ms, _step_ms(device, batch.again()))
        if fastest_new_ms <= _FASTER * slowest_seen_ms:
            return False
    return True


_GROWING_STEPS: Final = 4
_MOST_GROWING_S: Final = 0.5
"""Maximum seconds of these steps."""
_LEAST_GROWTH_BYTES: Final = 2**10
"""Python's own lists grow by less."""


def grows_with_each_step(device: Device, batch: Batch, step_ms: float) -> bool:
    """Return whether each of four further steps of a batch leaves more memory in use than the one before.

    Return False for long steps, since smaller batches show the same.
    """
    if (1 + _GROWING_STEPS) * step_ms > 1000 * _MOST_GROWING_S:
        return False
    held_bytes: list[int] = []
    output: object = None
    for _ in range(1 + _GROWING_STEPS):
        if batch.restore is not None:
            batch.restore()
        output = batch()
        device.synchronize()
        gc.collect()  # memory in reference cycles is not kept
        held_bytes.append(device.allocated_bytes() or 0)
    del output
    return all(after - before >= _LEAST_GROWTH_BYTES for before, after in pairwise(held_bytes))


def _step_ms(device: Device, batch: Batch) -> float:
    # Without waits for a core: making new inputs may use up this process's time slice, so that their step would wait.
    device.synchronize()
    waited_s, start_s = core_wait_s(), perf_counter()
    output = batch()
    device.synchronize()
    seconds = perf_counter() - start_s - (core_wait_s() - waited_s)
    del output
    return seconds * 1000
