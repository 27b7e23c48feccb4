"""What a search may expect, from the trials taken so far: the largest batch that their traces and times allow."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from tputfind.record.record import LimitedBy, Trial
from tputfind.record.trace import Trace
from tputfind.search.edge import find_edge
from tputfind.search.replay import Forecast, Memory, memory_below, readable, right_about

FIRST_BATCH: Final = 61
"""Where traces can be had, the first trial is of about this batch size: small enough to cost little, large enough for
the kernels of larger ones, and a prime number, so that what it divides is what follows the batch size."""
_LAST_BYTES: Final = 2**20
"""NVIDIA's driver cannot give out the last MiB of a device."""
_MOST_MISSING_BYTES: Final = 64 * 2**20
_LESS_BYTES: Final = (0, *(2**power for power in range(20, 27)))
_FULL: Final = 0.9
"""Of a device's memory: an allocator that has taken more gives unused blocks back before it takes more, and what it
holds tells no longer what a batch needs."""
_MOST_ELEMENTS: Final = 2**31 - 1
_SAMPLES: Final = 256
"""Batch sizes on either side of an edge that are forecast, to see whether fits and fails alternate there."""

Fits = Callable[[int], bool]


class Known(NamedTuple):
    """What is known, and what is asked.

    ``trials`` are those that a forecast may learn from, under whatever limit, ``passes`` the answers under the limit
    that is asked about; what failed of something else than memory and time is not among them. ``limit_bytes`` is that
    limit, None where there is none but the device's own ``memory_bytes``; ``most_ms`` what a step may take at the most.
    ``expandable`` asks about segments of that kind or the other, None about the trials' own.
    """

    trials: Sequence[Trial]
    passes: Mapping[int, bool]
    granularity: int
    max_batch: int
    limit_bytes: int | None = None
    most_ms: float | None = None
    expandable: bool | None = None
    memory_bytes: int | None = None


def expected_batch(known: Known, passes: int, fails: int | None) -> int | None:
    """Return the batch size that is expected to be the edge; None where nothing can be said.

    It is the one that doubling and bisection would come to if all were as forecast: where larger batches fit again
    beyond one that does not, the answer is then the same as without a forecast. Where no end is in sight it is the
    largest that may be tried.

    Args:
        known: what is known.
        passes: the largest batch size that passes, or 0.
        fails: the smallest beyond it that does not. None where there is none yet, and where it is asked whether larger
            ones pass again: of a forecast that is wrong about any that is known not to, nothing is expected then.
    """
    expected = _expectation(known)
    if expected is None:
        return None
    beyond = [size for size, passed in known.passes.items() if size > passes > 0 and not passed]
    if any(expected(size) for size in (beyond if fails is None else [fails])):
        return None  # it is wrong about what is known

    def fits(batch_size: int) -> bool:
        known_to = known.passes.get(batch_size)
        return expected(batch_size) if known_to is None else known_to

    steps = {"granularity": known.granularity, "max_batch": known.max_batch}
    found = edge_where(fits, **steps)
    if found < passes or (fails is not None and found >= fails):
        found = edge_where(lambda size: size <= passes or ((fails is None or size < fails) and fits(size)), **steps)
    return found


def index_limits(traces: Sequence[Trace], element_bytes: Collection[int]) -> list[int]:
    """Return the batch sizes beyond which some tensor has more elements than 32 bits count, in ascending order.

    They are those of tensors that grow in proportion to the batch, by the request for each in the latest trace that is
    complete, and ``element_bytes``: the bytes that an element may have. There are none without a trace.
    """
    trace = next((trace for trace in reversed(traces) if trace.complete), None)
    if trace is None or not readable(trace):
        return []
    sizes = [event.value for event in trace.events() if event.kind == "allocate"][trace.fixed :]
    per_sample = {
        size // trace.batch_size // width
        for size in sizes
        for width in element_bytes
        if size % (trace.batch_size * width) == 0
    }
    return sorted({_MOST_ELEMENTS // elements for elements in per_sample if elements})


class NonMonotonic(NamedTuple):
    """One batch size on either side of an edge that does not follow it; None where there is none.

    ``fails`` is the smallest seen above half the edge that does not fit, ``fits`` the largest seen that does, up to one
    and a half times the edge.
    """

    fails: int | None
    fits: int | None


def expected_non_monotonic(known: Known, edge: int) -> NonMonotonic:
    """Return what is expected around an edge; nothing where the forecast is wrong about any answer that is known.

    What the allocator holds in pieces makes smaller batches fail, and larger ones fit again. No search could afford to
    try all of them, and bisection takes no notice.
    """
    expected = _expectation(known) if edge else None
    if expected is None or any(expected(size) != passed for size, passed in known.passes.items()):
        return NonMonotonic(None, None)
    return non_monotonic_where(expected, edge, granularity=known.granularity, max_batch=known.max_batch)


def non_monotonic_where(fits: Fits, edge: int, *, granularity: int, max_batch: int) -> NonMonotonic:
    """Return what a few hundred batch sizes on either side of an edge, evenly apart, tell."""
    step = granularity * max(1, math.ceil(edge / 2 / granularity / _SAMPLES))
    below = range(edge - step, edge // 2, -step)
    above = range(edge + step, min(edge + edge // 2, max_batch) + 1, step)
    fails = next((size for size in reversed(below) if not fits(size)), None)
    again = next((size for size in reversed(above) if fits(size)), None)
    return NonMonotonic(fails, again)


def edge_where(fits: Fits, *, granularity: int, max_batch: int) -> int:
    """Return the edge that doubling and bisection come to, or 0."""

    def ask(batch_size: int) -> LimitedBy | None:
        return None if fits(batch_size) else "memory"

    return find_edge(ask, ask, granularity=granularity, max_batch=max_batch).largest_batch


def _expectation(known: Known) -> Fits | None:
    """Return what is expected of a batch size, by memory and by time; None where nothing can be said."""
    by_memory, by_time = _by_memory(known), _by_time(known)
    if by_memory is None and by_time is None:
        return None
    return lambda size: (by_memory is None or by_memory(size)) and (by_time is None or by_time(size))


def _by_memory(known: Known) -> Fits | None:
    """Forecast by traces, where the model of the allocator is right about what their trials took; else by a line."""
    traces = [trial.trace for trial in known.trials if trial.trace is not None and _trusted(trial)]
    if traces:
        by_size = {trace.batch_size: trace for trace in sorted(traces, key=lambda trace: trace.complete)}
        latest = traces[-1]
        expandable = latest.expandable if known.expandable is None else known.expandable
        memory = Memory(known.limit_bytes or _memory_bytes(traces), expandable, capped=known.limit_bytes is not None)
        complete = any(trace.complete for trace in traces)
        return _agreeing(Forecast(by_size.values(), memory), known.passes) if complete else None
    limit_bytes = known.limit_bytes or known.memory_bytes
    if limit_bytes is None:
        return None
    reserved = {one.batch_size: one.peak_reserved_bytes for one in known.trials if one.peak_reserved_bytes is not None}
    allocated = {
        one.batch_size: one.peak_allocated_bytes for one in known.trials if one.peak_allocated_bytes is not None
    }
    full = known.limit_bytes is None and reserved and reserved[max(reserved)] > _FULL * limit_bytes
    return _below(allocated if full and allocated else reserved, limit_bytes)


def _agreeing(forecast: Forecast, passes: Mapping[int, bool]) -> Fits:
    """Return the forecast, of a bit less memory where only that agrees with a batch that is known not to fit.

    A trial that gave all unused memory back before it was refused tells less about the end of the memory.
    """
    failed = [size for size, passed in passes.items() if not passed]
    memory = forecast.memory
    for less_bytes in () if memory.capped or not failed else _LESS_BYTES:
        smaller = forecast.within(memory._replace(limit_bytes=memory.limit_bytes - less_bytes))
        if not any(map(smaller.fits, failed)):
            return smaller.fits
    return forecast.fits


def _memory_bytes(traces: Sequence[Trace]) -> int:
    """Return the bytes that a process can have of the device: NVML's total without the last MiB, or less if a trial was
    refused less. If more than a few MiB are missing, the cause is another one.
    """
    told_bytes = traces[-1].memory_bytes
    refused = [memory_below(trace) for trace in traces if not trace.capped]
    near = [held for held in refused if held is not None and held > told_bytes - _MOST_MISSING_BYTES]
    return min([told_bytes - _LAST_BYTES, *(held - 1 for held in near)])


def _trusted(trial: Trial) -> bool:
    trace, peak_bytes = trial.trace, trial.peak_reserved_bytes
    if trace is None or not trace.complete:
        return trace is not None and readable(trace)
    return peak_bytes is not None and right_about(trace, peak_bytes)


def _by_time(known: Known) -> Fits | None:
    if known.most_ms is None:
        return None
    times = {trial.batch_size: trial.step_ms for trial in known.trials if trial.step_ms is not None}
    # From one batch size alone, a step is taken to grow as the batch does, which is more than it will.
    return _below(times if len(times) != 1 else {0: 0.0, **times}, known.most_ms)


def _below(points: Mapping[int, float], limit: float) -> Fits | None:
    """Say what stays within a limit as the points go on; None where nothing can be said of that."""
    goes_on = going_on(points)
    return None if goes_on is None else lambda size: goes_on(size) <= limit


def going_on(points: Mapping[int, float]) -> Callable[[int], float] | None:
    """Follow what was measured at some batch sizes on to larger ones; None where there are not two.

    It goes on as the parabola through the largest, one of at most half its size and the smallest, or as the line
    through the first two where that does not bend upwards; what does not rise stays.
    """
    if len(points) < 2:
        return None
    sizes = sorted(points)
    large = sizes[-1]
    middle = next((size for size in reversed(sizes) if size <= large / 2), sizes[0])
    slope = max(0.0, (points[large] - points[middle]) / (large - middle))
    bend = 0.0
    if sizes[0] < middle:
        before = (points[middle] - points[sizes[0]]) / (middle - sizes[0])
        bend = max(0.0, (slope - max(0.0, before)) / (large - sizes[0]))
    return lambda size: points[large] + (slope + bend * (size - middle)) * (size - large)
