"""Forecasts of the largest batch from the traces and step times of trials so far."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from tputfind.record.record import LimitedBy, Trial
from tputfind.record.trace import Trace
from tputfind.search.edge import find_edge
from tputfind.search.replay import Forecast, Memory, memory_below, readable, right_about
from tputfind.units import parse_bytes

FIRST_BATCH: Final = 61
"""Batch size of the first trial if traces are available: small enough to cost little, large enough for the kernels of
larger batches, and prime, so that a size divisible by it follows the batch size."""
_LAST_BYTES: Final = 2**20
"""The last MiB of a device, which NVIDIA's driver cannot allocate."""
_MOST_MISSING_BYTES: Final = 64 * 2**20
_LESS_BYTES: Final = (0, *(2**power for power in range(20, 27)))
_FULL: Final = 0.9
"""Fraction of a device's memory: an allocator that holds more frees unused blocks before it takes more, so that its
reserved bytes no longer show the need of a batch."""
_MOST_ELEMENTS: Final = 2**31 - 1, 2**32 - 1
"""Maximum number of elements that 32 bits count, with and without a sign."""
_AMOUNT: Final = r"\d{1,6}(?:\.\d+)? (?:[KMGTPE]iB|bytes)"
_REFUSAL: Final = re.compile(
    rf"Tried to allocate (?P<asked>{_AMOUNT})\..* of which (?P<free>{_AMOUNT}) is free\."
    rf"(?:.* (?P<allowed>{_AMOUNT}) allowed;)?"
    rf".* (?P<allocated>{_AMOUNT}) is allocated by PyTorch.* (?P<unused>{_AMOUNT}) is reserved by PyTorch"
)
"""CUDA's message for an allocation that fails."""
_EXACT: Final = 1 / 4096
"""Error of the bytes in such a message, which has two decimals, relative to the device's memory."""
_SAMPLES: Final = 256
"""Number of batch sizes on either side of an edge that are forecast, to see whether fits and failures alternate
there."""

Fits = Callable[[int], bool]


class Known(NamedTuple):
    """The answers so far, and the limits of the question.

    ``trials`` are trials under any limit from which a forecast may learn. ``answers`` are whether batch sizes fit under
    the limit in question, without failures for other reasons than memory and time. ``limit_bytes`` is that limit, or
    None for the device's own ``memory_bytes``; ``most_ms`` is the maximum step time. ``expandable`` selects the kind of
    segments, or None for that of the trials.
    """

    trials: Sequence[Trial]
    answers: Mapping[int, bool]
    granularity: int
    max_batch: int
    limit_bytes: int | None = None
    most_ms: float | None = None
    expandable: bool | None = None
    memory_bytes: int | None = None


def expected_batch(known: Known, passes: int, fails: int | None) -> int | None:
    """Return the expected largest batch; None if there is no forecast, or if it contradicts a failure.

    The result is the one that doubling and bisection would find if every forecast were true: if larger batches fit
    again beyond one that fails, the answer is then the same as without a forecast. Without a limit in sight, the result
    is the largest batch that may be tried.

    ``passes`` is the largest batch size that passes, or 0; ``fails`` is the smallest beyond it that fails. It is None
    if there is none yet, or to look for larger batches that fit again: the forecast must then agree with all known
    failures beyond ``passes``.
    """
    expected = _expectation(known, passes, fails)
    if expected is None:
        return None
    beyond = [size for size, passed in known.answers.items() if size > passes > 0 and not passed]
    if any(expected(size) for size in (beyond if fails is None else [fails])):
        return None  # the forecast contradicts a known failure

    def fits(batch_size: int) -> bool:
        known_to = known.answers.get(batch_size)
        return expected(batch_size) if known_to is None else known_to

    steps = {"granularity": known.granularity, "max_batch": known.max_batch}
    found = edge_where(fits, **steps)
    if found < passes or (fails is not None and found >= fails):
        found = edge_where(lambda size: size <= passes or ((fails is None or size < fails) and fits(size)), **steps)
    return found


def index_limits(traces: Sequence[Trace], element_bytes: Collection[int]) -> list[int]:
    """Return the batch sizes beyond which some tensor has more elements than 32 bits count, in ascending order.

    Such a tensor grows in proportion to the batch; its elements follow from its request in the latest complete trace
    and from ``element_bytes``, the possible bytes of an element. The list is empty without a trace.
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
    return sorted({most // elements for elements in per_sample if elements for most in _MOST_ELEMENTS})


class NonMonotonic(NamedTuple):
    """One batch size on either side of an edge that breaks the order of fits and failures; None if there is none.

    ``fails`` is the smallest batch size found above half the edge that does not fit, ``fits`` the largest found that
    does, up to one and a half times the edge.
    """

    fails: int | None
    fits: int | None


def expected_non_monotonic(known: Known, edge: int) -> NonMonotonic:
    """Return the expected exceptions around an edge; none if the forecast contradicts any known answer.

    Fragmented memory makes smaller batches fail and larger ones fit again. No search could afford to try all of them,
    and bisection does not see them.
    """
    expected = _expectation(known) if edge else None
    if expected is None or any(expected(size) != passed for size, passed in known.answers.items()):
        return NonMonotonic(None, None)
    return non_monotonic_where(expected, edge, granularity=known.granularity, max_batch=known.max_batch)


def non_monotonic_where(
    fits: Fits, edge: int, *, granularity: int, max_batch: int, samples: int = _SAMPLES
) -> NonMonotonic:
    """Return the exceptions among up to so many evenly spaced batch sizes on either side of an edge."""
    step = granularity * max(1, math.ceil(edge / 2 / granularity / samples))
    below = range(edge - step, edge // 2, -step)
    above = range(edge + step, min(edge + edge // 2, max_batch) + 1, step)
    fails = next((size for size in reversed(below) if not fits(size)), None)
    again = next((size for size in reversed(above) if fits(size)), None)
    return NonMonotonic(fails, again)


def edge_where(fits: Fits, *, granularity: int, max_batch: int) -> int:
    """Return the edge that doubling and bisection find, or 0."""

    def ask(batch_size: int) -> LimitedBy | None:
        return None if fits(batch_size) else "memory"

    return find_edge(ask, ask, granularity=granularity, max_batch=max_batch).largest_batch


def _expectation(known: Known, passes: int = 0, fails: int | None = None) -> Fits | None:
    """Return whether a batch size is expected to fit, by memory and by time; None without any forecast.

    By memory, traces that the allocator model reproduces tell if they do not contradict the failure; then the end by
    refusals, then peaks of memory.
    """
    by_memory, by_time = _forecast_by_traces(known), _time_forecast(known)
    if fails is not None and (by_memory is None or by_memory(fails)):
        ends_at = _end_by_refusals(known, passes, fails)
        by_memory = by_memory if ends_at is None else (lambda size: size <= ends_at)
    by_memory = by_memory or _forecast_by_peaks(known)
    if by_memory is None and by_time is None:
        return None
    return lambda size: (by_memory is None or by_memory(size)) and (by_time is None or by_time(size))


def _forecast_by_traces(known: Known) -> Fits | None:
    traces = [trial.trace for trial in known.trials if trial.trace is not None and _has_usable_trace(trial)]
    if not any(trace.complete for trace in traces):
        return None
    by_size = {trace.batch_size: trace for trace in sorted(traces, key=lambda trace: trace.complete)}
    latest = traces[-1]
    expandable = latest.expandable if known.expandable is None else known.expandable
    memory = Memory(known.limit_bytes or _memory_bytes(traces), expandable, capped=known.limit_bytes is not None)
    return _adjust_memory(Forecast(by_size.values(), memory), known.answers)


def _forecast_by_peaks(known: Known) -> Fits | None:
    limit_bytes = known.limit_bytes or known.memory_bytes
    if limit_bytes is None:
        return None
    reserved = {one.batch_size: one.peak_reserved_bytes for one in known.trials if one.peak_reserved_bytes is not None}
    allocated = {
        one.batch_size: one.peak_allocated_bytes for one in known.trials if one.peak_allocated_bytes is not None
    }
    full = known.limit_bytes is None and reserved and reserved[max(reserved)] > _FULL * limit_bytes
    return _below(allocated if full and allocated else reserved, limit_bytes)


def _end_by_refusals(known: Known, passes: int, fails: int) -> int | None:
    """Return the batch size at which memory is expected to end, by what refused requests lacked; None if unknown.

    It lies on the line through the two smallest failures. If that is not between the largest batch that passes and the
    smallest that fails, it lies on the line from what the one left to what the other lacked. Closer than the messages
    are exact, it is unknown.
    """
    alike = [trial for trial in known.trials if trial.memory_limit_bytes == known.limit_bytes]
    lacked: dict[int, int] = {}
    room_bytes = 0
    allocated_bytes, reserved_bytes = None, None
    for trial in alike:
        if trial.batch_size == passes:
            allocated_bytes, reserved_bytes = trial.peak_allocated_bytes, trial.peak_reserved_bytes
        refused = _lacked_and_room(trial) if trial.batch_size >= fails else None
        if refused is not None:
            lacked[trial.batch_size], room_bytes = refused
    if fails not in lacked or allocated_bytes is None or reserved_bytes is None:
        return None
    # A batch needs more than its allocated peak and less than its reserved one, of which some blocks are unused.
    left_bytes = max(0.0, room_bytes - (allocated_bytes + reserved_bytes) / 2)
    if left_bytes + lacked[fails] <= _EXACT * room_bytes:
        return None
    further = min(lacked.keys() - {fails}, default=fails)
    if lacked[further] > lacked[fails]:
        found = fails - math.ceil(lacked[fails] * (further - fails) / (lacked[further] - lacked[fails]))
        if 4 * (passes - found) < fails - passes:
            return min(max(found, passes), fails - 1)
    return min(passes + int((fails - passes) * left_bytes / (left_bytes + lacked[fails])), fails - 1)


def _lacked_and_room(trial: Trial) -> tuple[int, int] | None:
    """Return the bytes that a refused request lacked, and those that the allocator could hold; None if unknown."""
    said = _REFUSAL.search(trial.failure.message) if trial.failure else None
    if said is None:
        return None
    amounts = {name: parse_bytes((text or "0 B").replace("bytes", "B")) for name, text in said.groupdict().items()}
    held_bytes = amounts["allocated"] + amounts["unused"]
    room_bytes = amounts["allowed"] or held_bytes + amounts["free"]
    return held_bytes + amounts["asked"] - room_bytes, room_bytes


def _adjust_memory(forecast: Forecast, passes: Mapping[int, bool]) -> Fits:
    """Return the forecast, with less memory if it then agrees with all batches that are known not to fit.

    The reduction is the smallest that suffices, up to 64 MiB; a capped limit is not reduced. It is needed because a
    trial that freed all unused memory before its refusal does not show the exact end of the memory.
    """
    failed = [size for size, passed in passes.items() if not passed]
    memory = forecast.memory
    for less_bytes in () if memory.capped or not failed else _LESS_BYTES:
        smaller = forecast.within(memory._replace(limit_bytes=memory.limit_bytes - less_bytes))
        if not any(map(smaller.fits, failed)):
            return smaller.fits
    return forecast.fits


def _memory_bytes(traces: Sequence[Trace]) -> int:
    """Return the bytes of the device that a process can have: NVML's total without the last MiB, or less.

    The result is less if a trial was refused within 64 MiB of the total; a larger difference has another cause.
    """
    told_bytes = ([trace for trace in traces if not trace.capped] or traces)[-1].memory_bytes
    refused = [memory_below(trace) for trace in traces if not trace.capped]
    near = [held for held in refused if held is not None and held > told_bytes - _MOST_MISSING_BYTES]
    return min([told_bytes - _LAST_BYTES, *(held - 1 for held in near)])


def _has_usable_trace(trial: Trial) -> bool:
    trace, peak_bytes = trial.trace, trial.peak_reserved_bytes
    if trace is None or not trace.complete:
        return trace is not None and readable(trace)
    return peak_bytes is not None and right_about(trace, peak_bytes)


def _time_forecast(known: Known) -> Fits | None:
    if known.most_ms is None:
        return None
    times = {trial.batch_size: trial.step_ms for trial in known.trials if trial.step_ms is not None}
    # With a single batch size, a step is assumed to grow in proportion to the batch, which is an upper bound.
    return _below(times if len(times) != 1 else {0: 0.0, **times}, known.most_ms)


def _below(points: Mapping[int, float], limit: float) -> Fits | None:
    """Return whether the points, extrapolated, stay within a limit; None if they cannot be extrapolated."""
    goes_on = going_on(points)
    return None if goes_on is None else lambda size: goes_on(size) <= limit


def going_on(points: Mapping[int, float]) -> Callable[[int], float] | None:
    """Return the extrapolation of measured points to larger batch sizes; None with fewer than two points.

    The curve is the parabola through the largest point, the largest of at most half its size, and the smallest point,
    or the line through the first two if the parabola does not bend upwards. A falling curve counts as constant.
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
