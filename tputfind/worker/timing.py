"""Time the windows of a row: batches back to back after their transient, and one at a time; and windows in turn."""

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
from tputfind.worker.loops import MOST_MARKED, Announce, Singles, Work, back_to_back, moments, one_at_a_time, steps_ms
from tputfind.worker.warm_up import WINDOW_S, Load, slowed_by_power, warm_up, work_for

_FEWEST_TO_TELL: Final = 12
"""Minimum batches to judge whether their times have settled."""
_MOST_TREND: Final = 0.005
"""Maximum trend over a settled window, as a fraction: the accuracy required of throughput that the device limits."""
_UNSETTLED_FOR: Final = 4.0
"""A window that does not settle ends after this many times its minimum length."""
_LONG_MS: Final = 100.0
"""Minimum time of a long batch. Launching its first kernel takes at most 0.1 % of it."""
_MOST_AHEAD: Final = 0.05
"""Maximum submission time of a batch that is timed alone, as a fraction of its step time.

The host's work before the first kernel counts as device time there.
"""
_TOO_LONG_MS: Final = 1000.0
"""Longer batches are not timed again back to back: a repeat costs more than the host's part of their time."""
_METER_S: Final = 0.15
"""Minimum seconds of work before a window: power readings lag and still include the idle time before it.

ResNet-50 at batch 256 on an H200 read 548 W after idling, and 641 W if the device worked until the window began.
"""
_LIMIT_SHOWS_S: Final = 0.5
"""Seconds of work until a power limit shows.

After idling, ViT-B/16 on an H200 ran at its full clock for a quarter of a second.
"""
_AT_DEVICE_PACE: Final = 1.05
"""Latencies up to this many times the device's step time have no host part; a few samples are enough then."""


class Listener(Protocol):
    """The follower of a row's timing."""

    def busy(self, seconds: float) -> None:
        """Announce that the next stage takes about this many seconds."""

    def window(self, *, begins: bool) -> None:
        """Announce that the throughput window begins, or that it has ended."""

    def meet(self, work: Callable[[], int]) -> int:
        """Work until the processes that are timed together get here; return the number of steps, 0 if it is alone."""


class Window(NamedTuple):
    """A throughput window in ms per batch, and its warm-up: steps, seconds, and the first step.

    ``singles`` has the host times of the same batches if they were timed one at a time, else it is empty. ``steady``
    says whether the times had settled when the window began; it is None for too few batches. ``slowed`` says whether a
    power limit slowed the device.
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
    """The samples of a row: the throughput window, and the latency window in ms per batch.

    ``one`` says whether both windows are the same batches. ``output`` is the output of the last batch.
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

    On a device without events, a call returns when its work is done. One window then gives both, since each of its
    spans is a latency. If every latency is due, the throughput window takes at most half of the seconds. ``stopwatch``
    has marks for ``MOST_MARKED`` batches. ``load`` is the history of the process.
    """
    work = work.holding()
    gc.collect()
    gc.freeze()  # garbage collections during the windows then scan the objects of the steps only, not all of torch
    if not device.capabilities.events:
        both = replace(plan, batches=max(plan.batches, plan.latency_batches if plan.every_latency else 0))
        window = time_throughput(device, work._replace(lead_in=0), stopwatch, both, listener, load=load)
        load.leave(slowed=window.slowed)
        latency_ms = [max(span_ms, LEAST_SPAN_MS) for span_ms in window.device_ms]
        return Windows(window, latency_ms, [], one=True, output=work.held())
    half = replace(plan, max_seconds=plan.max_seconds / 2) if plan.every_latency else plan
    window = time_throughput(device, work, stopwatch, half, listener, load=load)
    singles = window.singles
    one = bool(singles.synchronised_ms) and not plan.every_latency
    if not one:
        step_ms = median(window.device_ms)

        def enough(samples_ms: Sequence[float]) -> bool:
            return sum(samples_ms) >= 1000 * plan.window_s and max(samples_ms) <= _AT_DEVICE_PACE * step_ms

        # The time before the window, such as loading and work under a power limit, does not shorten the latency window.
        left_s = max(plan.window_s, plan.max_seconds - sum(window.device_ms) / 1000)
        listener.busy(min(plan.latency_batches * step_ms / 1000, max(left_s, plan.least_batches * step_ms / 1000)))
        singles = one_at_a_time(
            device,
            work.single,
            plan.latency_batches,
            least=plan.least_batches,
            seconds=left_s,
            enough=None if plan.every_latency else enough,
            restore=work.restore(),
        )
    load.leave(slowed=window.slowed)
    return Windows(window, singles.synchronised_ms, singles.submission_ms, one, work.held())


class _Sampler:
    """Takes the batches of a throughput window in blocks, and keeps their times in ms.

    The host waits between blocks. A block begins with lead-in batches. The launch of a long batch is negligible, so
    long batches are timed one at a time, which gives their latencies too. ``others`` counts the untimed batches.
    """

    def __init__(self, device: Device, work: Work, stopwatch: Stopwatch) -> None:
        """Run and time the first step, which is not part of the window."""
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
        """Discard the batches so far; count them, and as many ``others``, as untimed."""
        self.others += len(self.device_ms) + others
        self.device_ms, self.singles = [], Singles([], [])

    def take_extra_step(self) -> None:
        """Take one untimed step; its time, which has no kernel loading in it, becomes ``step_ms``."""
        self.step_ms = steps_ms(self._device, self._work.fresh_step, 1)
        self.one_by_one = self.one_by_one and self.step_ms >= _LONG_MS
        self.others += 1

    def take(self, batches: int) -> None:
        if self.one_by_one:
            watches = [self._stopwatch] * batches
            restore = self._work.restore()
            singles = one_at_a_time(self._device, self._work.single, batches, stopwatches=watches, restore=restore)
            self.singles.submission_ms.extend(singles.submission_ms)
            self.singles.synchronised_ms.extend(singles.synchronised_ms)
            spans_ms = self._stopwatch.spans_ms()[::2]  # the spans in between are waits
        else:
            work = self._work
            spans_ms = back_to_back(work.step, self._stopwatch, batches, work.lead_in, work.restore())
            self.others += self._work.lead_in
        self.device_ms += spans_ms
        self.step_ms = max(median(spans_ms), LEAST_SPAN_MS)

    def goes_over(self) -> bool:
        """Switch to batches back to back if the host's part of each batch would count; return whether it switched.

        A switch discards the batches so far. It is also due if the batches are short, and only the first step was long
        because it loaded kernels.
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
    """Submit batches back to back until enough of them follow the transient at their start.

    If a power limit slows the device, it works until its throughput has settled, and the batches are taken again. If
    the limit slowed the previous row, that work comes first.
    """
    load.begin()
    sampler, moment = _Sampler(device, work, stopwatch), moments(device, work)
    begin_ns, brought_up = perf_counter_ns(), load.goes_on()
    warm = partial(_warm, device, plan, moment)
    if brought_up:
        sampler.take_extra_step()
        plan = _under_load(sampler, plan, listener, load, moment)
    elif not sampler.one_by_one:
        sampler.others += warm()
    before_ns = perf_counter_ns() - begin_ns
    sampler.others += listener.meet(moment)
    begin_ns = perf_counter_ns() - before_ns  # the wait for other processes is no warm-up
    start, steady, ended_by, end_ns = _fill(sampler, plan, listener, warm)
    slowed = slowed_by_power(device)
    if slowed and not brought_up:
        plan = _under_load(sampler, plan, listener, load, moment)
        start, steady, ended_by, end_ns = _fill(sampler, plan, listener, warm)
    listener.meet(moment)
    if not plan.window_s:  # the plan sets a number of batches, not a time
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
    """Work until throughput under a power limit has settled; return the plan of the window that follows."""
    # The device idles while the first step loads kernels: the time beyond an ordinary step is a pause.
    load.add_pause(max(0.0, sampler.first_ms - sampler.step_ms) / 1000)
    listener.busy(load.seconds())
    sampler.begin_anew(load.bring_up(moment))
    if not plan.window_s:
        return plan
    return replace(plan, window_s=max(plan.window_s, WINDOW_S), max_seconds=max(plan.max_seconds, 2 * WINDOW_S))


def _warm(device: Device, plan: Plan, moment: Callable[[], int]) -> int:
    """Work until the readings of the device's power and clocks show the load; return the number of steps."""
    if not device.capabilities.health:
        return 0
    return work_for(max(_METER_S, _LIMIT_SHOWS_S - plan.window_s), moment)


def _fill(
    sampler: _Sampler, plan: Plan, listener: Listener, warm: Callable[[], int]
) -> tuple[int, bool | None, WindowEnd, int]:
    """Take batches until a window is full, and announce its begin and end.

    Return the index of the first batch that counts, whether the times have settled (None: too few batches), the reason
    for the end, and the end in ns.

    Each block has as many batches as the window is expected to lack, so there are few blocks: one of slow batches,
    three or four of fast ones. If the first block shows that batches must be taken back to back, the window begins
    again after ``warm``.
    """
    listener.window(begins=True)
    begin_ns = perf_counter_ns()
    while True:
        elapsed_s = (perf_counter_ns() - begin_ns) / 1e9
        left_out = plan.warmup - sampler.others
        if elapsed_s >= plan.max_seconds:  # leave enough batches in the window
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
    """Return the reason why a window of this many batches ends; None if it goes on."""
    if not lacking and steady is not False:
        return "full"
    if not lacking and elapsed_s >= _UNSETTLED_FOR * plan.window_s:
        return "unsettled"
    return "time" if elapsed_s >= plan.max_seconds and batches >= plan.least_batches else None


def lacking_batches(plan: Plan, kept_ms: Sequence[float], step_ms: float) -> int:
    """Return how many batches a window still lacks.

    From ``MOST_MARKED`` batches on, only ``plan.batches`` counts, not ``plan.window_s``.
    """
    lacking_ms = 1000 * plan.window_s - sum(kept_ms)
    for_length = min(math.ceil(lacking_ms / step_ms), MOST_MARKED - len(kept_ms))
    return max(0, plan.batches - len(kept_ms), for_length)


def settled_from(spans_ms: Sequence[float], least: int = 0) -> tuple[int, bool | None]:
    """Return the index of the first batch after the transient, and whether the times have settled from there on.

    The second value is None for too few batches. If the means of both halves agree within ``REPEATABILITY``, no
    batch is cut and the times have settled, since a transient would not show in any result. Otherwise, times that keep
    rising or falling steadily after the cut have not settled. At least ``least`` batches are left out.
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


_WARM_UP_S: Final = 0.2
"""Minimum seconds of a warm-up."""
_LEADS_IN_MS: Final = 100.0
"""Longer steps have no lead-in step.

The device's previous work matters little to them, and a lead-in would take as long as the window.
"""


def turns(
    device: Device, work: Work, stopwatch: Stopwatch, announce: Announce, window_s: float
) -> Callable[..., Singles]:
    """Warm up; return a function that takes one window of ``window_s`` seconds and returns the times of its steps.

    With ``alone``, steps are timed one at a time, as latencies, instead of back to back, before which short ones have a
    lead-in, since other processes have used the caches since the last window. Only the former have times of submission.
    """
    gc.collect()
    gc.freeze()  # as for the windows of a row
    step_ms = max(warm_up(device, work, announce, seconds=_WARM_UP_S, steps=1), LEAST_SPAN_MS)
    steps = max(1, min(math.ceil(1000 * window_s / step_ms), MOST_MARKED // 2))
    lead_in = work.lead_in if step_ms < _LEADS_IN_MS else 0

    def take(*, alone: bool) -> Singles:
        announce((steps + lead_in) * step_ms / 1000)
        if alone and device.capabilities.events:
            taken = one_at_a_time(device, work.single, steps, restore=work.restore())
        else:
            taken = Singles([], back_to_back(work.step, stopwatch, steps, lead_in, work.restore()))
        return Singles(*([max(span_ms, LEAST_SPAN_MS) for span_ms in spans_ms] for spans_ms in taken))

    return take
