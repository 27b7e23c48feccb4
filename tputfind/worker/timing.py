"""The timing loops: warm-up to a steady state, batches back to back, and batches one at a time."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import Final, NamedTuple, Protocol

from tputfind.record.record import LEAST_SPAN_MS
from tputfind.record.spec import Spec
from tputfind.stats import spread
from tputfind.worker.devices.protocol import Device, Stopwatch

LEAST_BATCHES: Final = 10
"""No row is cut shorter than this, in all its processes."""
MOST_MARKED: Final = 2000
"""Batches that ``min_seconds`` may bring into a window: each takes an event, and a place in the record."""
_CHUNK_MS: Final = 20.0
"""Warm-up waits for the device this often, and no more: an idle device would cool down and clock up."""
_WARMUP_OF_WINDOW: Final = 0.5, 4.0
"""The least and the most that warm-up takes beyond its steps, in shares of the least time of a window."""
_STEADY: Final = 0.01
_MOST_SCATTER: Final = 0.02
_LEAST_CHUNKS: Final = 12
Announce = Callable[[float], None]
"""Takes about how many seconds the next stage will take, so that a silence can be told from a hang."""


class Listener(Protocol):
    """Who follows the timing of a row from outside."""

    def busy(self, seconds: float) -> None:
        """The next stage takes about this many seconds."""

    def window(self, *, begins: bool) -> None:
        """The throughput window begins, or has ended."""


class Work(NamedTuple):
    """What is timed: one batch of many in a row, after ``lead_in`` others, and one batch by itself."""

    step: Callable[[], object]
    single: Callable[[], object]
    lead_in: int = 1


class Plan(NamedTuple):
    """What one process is to time of a row: at least these batches and seconds, within ``max_seconds``."""

    warmup: int
    batches: int
    latency_batches: int
    least_batches: int
    min_seconds: float
    max_seconds: float


class WarmUp(NamedTuple):
    """The untimed steps: how many, how long, the first of them, what a step took in the end, and whether it settled.

    ``fastest_ms`` is what a step took in the end when nothing disturbed it.
    """

    steps: int
    seconds: float
    first_step_ms: float
    step_ms: float
    fastest_ms: float
    steady: bool | None


class Windows(NamedTuple):
    """The samples of a row, in milliseconds a batch."""

    warm_up: WarmUp
    device_ms: list[float]
    latency_ms: list[float]
    enqueue_ms: list[float]


def plan_of(spec: Spec, number: int) -> Plan:
    """Return what the process with this number (from 0) does: the processes of a row share its batches and seconds."""
    return Plan(
        warmup=spec.warmup,
        batches=_share(spec.batches, spec.processes, number),
        latency_batches=_share(spec.latency_batches, spec.processes, number),
        least_batches=math.ceil(LEAST_BATCHES / spec.processes),
        min_seconds=spec.min_seconds / spec.processes,
        max_seconds=spec.max_seconds / spec.processes,
    )


def _share(whole: int, processes: int, number: int) -> int:
    return max(1, whole // processes + (number % processes < whole % processes))


def most_marks(spec: Spec) -> int:
    """Return how many marks the window of a process may need."""
    return max(_share(spec.batches, spec.processes, 0), MOST_MARKED if spec.min_seconds else 0) + 1


def try_steps(device: Device, step: Callable[[], object], steps: int, announce: Announce) -> float:
    """Take a trial's steps, each output alive while the next is made; return the fastest after the first, in ms.

    The boundary is the host clock from the call to the synchronised output. A single step stands for itself.
    """
    spans_ms: list[float] = []
    output: object = None
    for number in range(steps):
        start_ns = perf_counter_ns()
        output = step() if number else device.first_step(step)
        device.synchronize()
        spans_ms.append((perf_counter_ns() - start_ns) / 1e6)
        if len(spans_ms) == 1:
            announce(steps * spans_ms[0] / 1000)
    del output
    return min(spans_ms[1:] or spans_ms)


def time_windows(device: Device, work: Work, stopwatch: Stopwatch, plan: Plan, listener: Listener) -> Windows:
    """Warm up, then time the throughput window and the latency window.

    Where a call returns when its work is done, one window gives both: each of its spans is a latency.

    Args:
        device: where the work is done.
        work: what is timed.
        stopwatch: good for ``most_marks``.
        plan: how much of everything.
        listener: told what warm-up and windows will take, and when the throughput window begins and has ended.
    """
    gc.collect()
    gc.freeze()  # collections during the windows then look at what the steps make, not at all of torch
    warmed = warm_up(
        device,
        work.step,
        listener.busy,
        steps=plan.warmup,
        window_s=plan.min_seconds,
        max_seconds=plan.max_seconds,
    )
    both = not device.capabilities.events
    if both:
        plan = plan._replace(batches=max(plan.batches, plan.latency_batches), latency_batches=0)
    batches = _batches_of(plan, warmed)
    listener.window(begins=True)
    listener.busy(batches * warmed.step_ms / 1000)
    device_ms = back_to_back(work.step, stopwatch, batches, work.lead_in)
    listener.window(begins=False)
    if both:
        return Windows(warmed, device_ms, [max(span_ms, LEAST_SPAN_MS) for span_ms in device_ms], [])
    left_s = plan.max_seconds - sum(device_ms) / 1000
    step_s = warmed.step_ms / 1000
    listener.busy(min(plan.latency_batches * step_s, max(left_s, plan.least_batches * step_s)))
    singles = one_at_a_time(device, work.single, plan.latency_batches, least=plan.least_batches, seconds=left_s)
    return Windows(warmed, device_ms, singles.synchronised_ms, singles.submission_ms)


def _batches_of(plan: Plan, warmed: WarmUp) -> int:
    """Return how many batches the throughput window takes: it is not for length's sake that the latency window goes
    short. It is to be long enough even if nothing disturbs it.
    """
    step_s = warmed.step_ms / 1000
    long_s = min(plan.min_seconds, plan.max_seconds - plan.latency_batches * step_s)
    wanted = max(plan.batches, min(MOST_MARKED, math.ceil(long_s / (warmed.fastest_ms / 1000))))
    return min(wanted, max(plan.least_batches, int(plan.max_seconds / step_s)))


def warm_up(
    device: Device,
    step: Callable[[], object],
    announce: Announce,
    *,
    steps: int,
    window_s: float,
    max_seconds: float,
) -> WarmUp:
    """Take at least ``steps`` untimed steps, for 0.5 to 4 times ``window_s``, until batch times have settled.

    The bounds are for what follows the first step, which loads and chooses kernels. Steps that by themselves take
    longer than ``max_seconds`` are cut short, but not under two: the second is the first that says how long one takes.
    """
    least_s, most_s = (min(share * window_s, max_seconds) for share in _WARMUP_OF_WINDOW)
    first_ms = _steps_ms(device, lambda: device.first_step(step), 1)
    announce(max(most_s, min(max_seconds, steps * first_ms / 1000)))
    begin_ns = perf_counter_ns()
    taken, chunk, spans_ms = 1, 1, list[float]()
    while True:
        spans_ms.append(_steps_ms(device, step, chunk))
        taken += chunk
        seconds = (perf_counter_ns() - begin_ns) / 1e9
        steady = _settled(spans_ms, seconds, window_s)
        enough = (taken >= steps and seconds >= least_s) or seconds >= max_seconds
        if enough and (steady or seconds >= most_s):
            fastest_ms = min(spans_ms[-max(1, len(spans_ms) // 3) :])
            return WarmUp(taken, first_ms / 1000 + seconds, first_ms, median(spans_ms[-3:]), fastest_ms, steady)
        chunk = max(1, min(int(_CHUNK_MS / spans_ms[-1]), 2 * chunk))
        if taken < steps and seconds >= least_s:  # it is only steps that are lacking
            chunk = min(chunk, steps - taken)


def _steps_ms(device: Device, step: Callable[[], object], count: int) -> float:
    """Take steps back to back; return what one took."""
    start_ns = perf_counter_ns()
    output: object = None
    for _ in range(count):
        output = step()
    device.synchronize()
    del output
    return max((perf_counter_ns() - start_ns) / 1e6 / count, 1e-6)


def _settled(spans_ms: Sequence[float], seconds: float, window_s: float) -> bool | None:
    """Return whether a warm-up of these spans has become steady; None where they are too few to tell.

    The last third of it is held against the third before. Going on like that for the length of the window, they would
    have to change by less than 1 %. Where the spans scatter too much to show so little, a warm-up as long as the window
    will do, if its thirds agree but for the scatter (twice the standard error of a difference of two medians).
    """
    if len(spans_ms) < _LEAST_CHUNKS:
        return None
    third = len(spans_ms) // 3
    before, after = spans_ms[-2 * third : -third], spans_ms[-third:]
    change = abs(median(after) / median(before) - 1)
    if change * window_s / (seconds / 3) <= _STEADY:
        return True
    scatter = max(spread(before), spread(after)) * 2 * math.sqrt(2 / third) * math.sqrt(math.pi / 2)
    return seconds >= window_s and change <= min(scatter, _MOST_SCATTER)


def back_to_back(step: Callable[[], object], stopwatch: Stopwatch, batches: int, lead_in: int) -> list[float]:
    """Submit batches back to back and return the span of each, in ms, between marks in the device's own order of work.

    The host never waits in between. Steps lead in, so that the first mark falls into steady running and not onto an
    idle device that waits for its first kernel.
    """
    output: object = None
    for _ in range(lead_in):
        output = step()
    stopwatch.mark()
    for _ in range(batches):
        output = step()
        stopwatch.mark()
    spans_ms = stopwatch.spans_ms()
    del output
    return spans_ms


class Singles(NamedTuple):
    """Batches one at a time, in ms each: to the return of the call, and to the synchronised output.

    The time to the return is the host's own work: back to back it would also hold the waiting for room in the launch
    queue.
    """

    submission_ms: list[float]
    synchronised_ms: list[float]


def one_at_a_time(
    device: Device,
    single: Callable[[], object],
    batches: int,
    *,
    least: int = 0,
    seconds: float = math.inf,
    stopwatches: Sequence[Stopwatch] = (),
) -> Singles:
    """Send single batches to the idle device.

    Args:
        device: idle when this is called.
        single: runs one batch.
        batches: at the most.
        least: batches that are taken however long they take.
        seconds: the others are taken within this.
        stopwatches: one a batch, to mark its begin and its end; none, to mark nothing.
    """
    submission_ms: list[float] = []
    synchronised_ms: list[float] = []
    deadline_ns = perf_counter_ns() + seconds * 1e9
    output: object = None
    for count in range(batches):
        if count >= least and perf_counter_ns() > deadline_ns:
            break
        if stopwatches:
            stopwatches[count].mark()
        start_ns = perf_counter_ns()
        output = single()
        submitted_ns = perf_counter_ns()
        if stopwatches:
            stopwatches[count].mark()
        device.synchronize()
        synchronised_ms.append((perf_counter_ns() - start_ns) / 1e6)
        submission_ms.append((submitted_ns - start_ns) / 1e6)
    del output
    return Singles(submission_ms, synchronised_ms)
