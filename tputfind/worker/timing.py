"""The windows of a row: batches back to back behind their transient, and batches one at a time."""

import gc
import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median
from time import perf_counter_ns
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from tputfind.processes.messages import Plan
from tputfind.record.record import LEAST_SPAN_MS, WindowEnd
from tputfind.record.types import REPEATABILITY
from tputfind.stats import MSER_BATCH, transient, trend
from tputfind.worker.devices.protocol import Device, Stopwatch
from tputfind.worker.loops import MOST_MARKED, Singles, Work, back_to_back, moments, one_at_a_time, steps_ms
from tputfind.worker.warm_up import WINDOW_S, Load, slowed_by_power, work_for

_FEWEST_TO_TELL: Final = 12
"""Of fewer batches nobody can say whether their times have settled."""
_MOST_TREND: Final = 0.005
"""Of a window: where the device sets the pace, rates are to be known to this share."""
_UNSETTLED_FOR: Final = 4.0
"""A window that does not settle ends at this many times its least length."""
_LONG_MS: Final = 100.0
"""Launching the first kernel of a batch that takes longer is a thousandth of it at the most."""
_MOST_AHEAD: Final = 0.05
"""Of a batch that is waited for: what the host does before its first kernel counts as the device's time."""
_TOO_LONG_MS: Final = 1000.0
"""To take a longer batch once more back to back costs more than the host's part of it is."""
_METER_S: Final = 0.15
"""Work before a window: what reads power lags, and held some of the rest before it. ResNet-50 at batch 256 on an H200
read 548 W behind a rest, and 641 W where the device was kept at work until the window began."""
_LIMIT_SHOWS_S: Final = 0.5
"""Of work: ViT-B/16 on an H200, behind a rest, ran at its full clock for a quarter of a second."""
_AT_DEVICE_PACE: Final = 1.05
"""Latencies up to this many times the time on the device are the device's: a few of them say it."""


class Listener(Protocol):
    """Who follows the timing of a row from outside."""

    def busy(self, seconds: float) -> None:
        """The next stage takes about this many seconds."""

    def window(self, *, begins: bool) -> None:
        """The throughput window begins, or has ended."""

    def meet(self, work: Callable[[], int]) -> int:
        """Go on working until the processes of all devices that time together have come as far; return the steps.

        There are none where nobody times together.
        """


class Window(NamedTuple):
    """A throughput window, in milliseconds a batch, and what went before it: steps, seconds, the first step.

    ``singles`` are the same batches where each was waited for. ``steady`` says whether the times had settled where the
    window begins, None where there are too few to tell. ``slowed`` says whether a power limit slowed the device.
    """

    device_ms: list[float]
    singles: Singles
    ended_by: WindowEnd
    steady: bool | None
    warmup_steps: int
    warmup_s: float
    first_step_ms: float
    slowed: bool


class Windows(NamedTuple):
    """The samples of a row: the throughput window, and the latency window in milliseconds a batch.

    ``one`` says that both are the same batches. ``output`` is that of the last batch.
    """

    throughput: Window
    latency_ms: list[float]
    enqueue_ms: list[float]
    one: bool
    output: object


def time_windows(
    device: Device, work: Work, stopwatch: Stopwatch, plan: Plan, listener: Listener, *, load: Load
) -> Windows:
    """Time the throughput window, then the latency window.

    Where a call returns when its work is done, one window gives both: each of its spans is a latency.

    Args:
        device: where the work is done.
        work: what is timed.
        stopwatch: good for ``MOST_MARKED`` batches.
        plan: how much of everything.
        listener: told what the windows will take, and when the throughput window begins and has ended.
        load: of the process.
    """
    work = work.holding()
    gc.collect()
    gc.freeze()  # collections during the windows then look at what the steps make, not at all of torch
    if not device.capabilities.events:
        both = replace(plan, batches=max(plan.batches, plan.latency_batches if plan.every_latency else 0))
        window = time_throughput(device, work._replace(lead_in=0), stopwatch, both, listener, load=load)
        load.leave(slowed=window.slowed)
        latency_ms = [max(span_ms, LEAST_SPAN_MS) for span_ms in window.device_ms]
        return Windows(window, latency_ms, [], one=True, output=work.held())
    window = time_throughput(device, work, stopwatch, plan, listener, load=load)
    singles = window.singles
    one = bool(singles.synchronised_ms) and not plan.every_latency
    if not one:
        step_ms = median(window.device_ms)
        # What went before the window, such as loading and work under a power limit, takes nothing from the latencies.
        left_s = max(plan.window_s, plan.max_seconds - sum(window.device_ms) / 1000)
        listener.busy(min(plan.latency_batches * step_ms / 1000, max(left_s, plan.least_batches * step_ms / 1000)))
        singles = one_at_a_time(
            device,
            work.single,
            plan.latency_batches,
            least=plan.least_batches,
            seconds=left_s,
            enough=None if plan.every_latency else _at_pace(step_ms, plan.window_s),
            restore=work.restore(),
        )
    load.leave(slowed=window.slowed)
    return Windows(window, singles.synchronised_ms, singles.submission_ms, one, work.held())


def _at_pace(step_ms: float, window_s: float) -> Callable[[Sequence[float]], bool]:
    """Return what says of latencies that they are long enough to be the device's own time, and are just that."""

    def enough(samples_ms: Sequence[float]) -> bool:
        return sum(samples_ms) >= 1000 * window_s and max(samples_ms) <= _AT_DEVICE_PACE * step_ms

    return enough


class _Sampler:
    """Takes the batches of a throughput window, in blocks between which the host waits, and keeps their times in ms.

    A block begins with batches that lead in. Launching a long batch is nothing beside its time: long ones are waited
    for one by one, so that they tell their latencies too. ``others`` counts the batches that do not count.
    """

    def __init__(self, device: Device, work: Work, stopwatch: Stopwatch) -> None:
        """Take the first step."""
        self._device = device
        self._work = work
        self._stopwatch = stopwatch
        self.first_ms = self.step_ms = steps_ms(device, lambda: device.first_step(work.step), 1)
        apart = device.capabilities.events and work.single is work.step
        self.one_by_one = apart and self.first_ms >= _LONG_MS
        self.others = 1
        self.device_ms: list[float] = []
        self.singles = Singles([], [])

    def begin_anew(self, others: int) -> None:
        """Let no batch count that was taken so far, nor as many others."""
        self.others += len(self.device_ms) + others
        self.device_ms, self.singles = [], Singles([], [])

    def take_uncounted(self) -> None:
        """Take one that does not count, and learn from it how long a step is without loading."""
        self.step_ms = steps_ms(self._device, self._work.fresh_step, 1)
        self.one_by_one = self.one_by_one and self.step_ms >= _LONG_MS
        self.others += 1

    def take(self, batches: int) -> None:
        """Take some more."""
        if self.one_by_one:
            watches = [self._stopwatch] * batches
            restore = self._work.restore()
            singles = one_at_a_time(self._device, self._work.single, batches, stopwatches=watches, restore=restore)
            self.singles.submission_ms.extend(singles.submission_ms)
            self.singles.synchronised_ms.extend(singles.synchronised_ms)
            spans_ms = self._stopwatch.spans_ms()[::2]  # those in between are waiting
        else:
            work = self._work
            spans_ms = back_to_back(work.step, self._stopwatch, batches, work.lead_in, work.restore())
            self.others += self._work.lead_in
        self.device_ms += spans_ms
        self.step_ms = max(median(spans_ms), LEAST_SPAN_MS)

    def goes_over(self) -> bool:
        """Go over to batches back to back where waiting for each would count; return whether what was taken is void.

        Short batches are taken for long ones where loading took the first step long.
        """
        if not self.one_by_one:
            return False
        ahead = median(self.singles.submission_ms) > _MOST_AHEAD * self.step_ms and self.step_ms < _TOO_LONG_MS
        if self.step_ms >= _LONG_MS and not ahead:
            return False
        self.one_by_one = False
        self.begin_anew(0)
        return True


def time_throughput(
    device: Device, work: Work, stopwatch: Stopwatch, plan: Plan, listener: Listener, *, load: Load
) -> Window:
    """Submit batches back to back until enough of them lie behind the transient at their start.

    Where a power limit is seen to slow the device, they are taken anew once it was at work for long enough. Where it
    slowed the row before, the device works for long enough first.
    """
    load.begin()
    sampler, moment = _Sampler(device, work, stopwatch), moments(device, work)
    begin_ns, brought_up = perf_counter_ns(), load.goes_on()
    warm = partial(_warm, device, plan, moment)
    if brought_up:
        sampler.take_uncounted()
        plan = _under_load(sampler, plan, listener, load, moment)
    elif not sampler.one_by_one:
        sampler.others += warm()
    before_ns = perf_counter_ns() - begin_ns
    sampler.others += listener.meet(moment)
    begin_ns = perf_counter_ns() - before_ns  # waiting for others is no warm-up
    start, steady, ended_by, end_ns = _fill(sampler, plan, listener, warm)
    slowed = slowed_by_power(device)
    if slowed and not brought_up:
        plan = _under_load(sampler, plan, listener, load, moment)
        start, steady, ended_by, end_ns = _fill(sampler, plan, listener, warm)
    listener.meet(moment)
    if not plan.window_s:  # it is batches that were asked for
        start = max(start, len(sampler.device_ms) - plan.batches)
    kept_ms = sampler.device_ms[start:]
    return Window(
        device_ms=kept_ms,
        singles=Singles(*(samples_ms[start:] for samples_ms in sampler.singles)),
        ended_by=ended_by,
        steady=steady,
        warmup_steps=sampler.others + start,
        warmup_s=sampler.first_ms / 1000 + max(0.0, (end_ns - begin_ns) / 1e9 - sum(kept_ms) / 1000),
        first_step_ms=sampler.first_ms,
        slowed=slowed,
    )


def _under_load(sampler: _Sampler, plan: Plan, listener: Listener, load: Load, moment: Callable[[], int]) -> Plan:
    """Work until a power limit shows; return the plan of the window that follows.

    What the first step took longer than others, the device had nothing to do.
    """
    load.rested(max(0.0, sampler.first_ms - sampler.step_ms) / 1000)
    listener.busy(load.seconds())
    sampler.begin_anew(load.bring_up(moment))
    if not plan.window_s:
        return plan
    return replace(plan, window_s=max(plan.window_s, WINDOW_S), max_seconds=max(plan.max_seconds, 2 * WINDOW_S))


def _warm(device: Device, plan: Plan, moment: Callable[[], int]) -> int:
    """Work until what reads the device's power and clocks has seen it at work; return the steps that it took."""
    if not device.capabilities.health:
        return 0
    return work_for(max(_METER_S, _LIMIT_SHOWS_S - plan.window_s), moment)


def _fill(
    sampler: _Sampler, plan: Plan, listener: Listener, warm: Callable[[], int]
) -> tuple[int, bool | None, WindowEnd, int]:
    """Take batches until a window is full, and tell when it begins and has ended.

    Return the first batch that counts, whether times had settled, what ended the window, and when, in ns.

    They are taken in blocks, each as long as the times so far let expect that it takes, so that there are few: of slow
    batches one, of fast ones three or four. Where the first block shows that they must be taken otherwise, the window
    begins once more, on a device that is ``warm``.
    """
    listener.window(begins=True)
    begin_ns = perf_counter_ns()
    while True:
        elapsed_s = (perf_counter_ns() - begin_ns) / 1e9
        left_out = plan.warmup - sampler.others
        if elapsed_s >= plan.max_seconds:  # what is left out must not be all that there was time for
            left_out = min(left_out, len(sampler.device_ms) - plan.least_batches)
        start, steady = settled_from(sampler.device_ms, left_out)
        kept_ms = sampler.device_ms[start:]
        lacking = lacking_batches(plan, kept_ms, sampler.step_ms)
        ended_by = _end(plan, lacking, len(kept_ms), elapsed_s, steady)
        if ended_by is not None:
            end_ns = perf_counter_ns()
            listener.window(begins=False)
            return start, steady, ended_by, end_ns
        left = math.floor((plan.max_seconds - elapsed_s) * 1000 / sampler.step_ms)
        block = min(lacking or len(kept_ms) // 2 + 1, max(left, plan.least_batches - len(kept_ms), 1), MOST_MARKED // 2)
        listener.busy(block * sampler.step_ms / 1000)
        sampler.take(block)
        if sampler.goes_over():
            sampler.others += warm()
            listener.window(begins=True)


def _end(plan: Plan, lacking: int, batches: int, elapsed_s: float, steady: bool | None) -> WindowEnd | None:
    """Return what ends a window of so many batches; None where it goes on."""
    if not lacking and steady is not False:
        return "full"
    if not lacking and elapsed_s >= _UNSETTLED_FOR * plan.window_s:
        return "unsettled"
    return "time" if elapsed_s >= plan.max_seconds and batches >= plan.least_batches else None


def lacking_batches(plan: Plan, kept_ms: Sequence[float], step_ms: float) -> int:
    """Return how many batches a window still lacks; past ``MOST_MARKED`` it lacks none for length's sake."""
    lacking_ms = 1000 * plan.window_s - sum(kept_ms)
    for_length = min(math.ceil(lacking_ms / step_ms), MOST_MARKED - len(kept_ms))
    return max(0, plan.batches - len(kept_ms), for_length)


def settled_from(spans_ms: Sequence[float], least: int = 0) -> tuple[int, bool | None]:
    """Return the first of the batches that are past the transient, and whether the times have settled by then.

    Batches whose two halves take the same to ``REPEATABILITY`` have no transient that would show in a figure. What goes
    on changing steadily behind the cut, as what slows down faster and faster does, has not settled.

    Args:
        spans_ms: of all batches so far.
        least: so many are left out however steady they are.
    """
    least = min(max(0, least), len(spans_ms))
    rest = spans_ms[least:]
    if len(rest) < 2:
        return least, None
    half = len(rest) // 2
    alike = abs(fmean(rest[half:]) / max(fmean(rest[:half]), LEAST_SPAN_MS) - 1) <= REPEATABILITY
    cut = 0 if alike else transient(rest)
    if len(rest) < _FEWEST_TO_TELL:
        return least + cut, None
    still = cut < half - MSER_BATCH and abs(trend(rest[cut:])) <= _MOST_TREND
    return least + cut, alike or still
