"""Work before a window: untimed steps until batch times, or the throughput under a power limit, have settled."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Final, NamedTuple

from tputfind.stats import spread
from tputfind.worker.devices.protocol import Device
from tputfind.worker.loops import Announce, steps_ms

_CHUNK_MS: Final = 20.0
"""Milliseconds between waits for the device; a device that idles more often would cool down and clock up."""
_WARMUP_OF_WINDOW: Final = 0.5, 4.0
"""Minimum and maximum time of a warm-up, as multiples of the minimum time of a window."""
_STEADY: Final = 0.01
_MOST_SCATTER: Final = 0.02
_LEAST_CHUNKS: Final = 12


class WarmUp(NamedTuple):
    """The untimed steps: their number, their total time, the time of the first, and the time of an undisturbed step."""

    steps: int
    seconds: float
    first_step_ms: float
    fastest_ms: float


def warm_up(
    device: Device, step: Callable[[], object], announce: Announce, *, steps: int, window_s: float, max_seconds: float
) -> WarmUp:
    """Take at least ``steps`` untimed steps, for 0.5 to 4 times ``window_s``, until batch times have settled.

    The bounds exclude the first step, which loads and chooses kernels. After ``max_seconds`` the warm-up ends with
    fewer steps, but with at least two: the first has no ordinary step time.
    """
    least_s, most_s = (min(share * window_s, max_seconds) for share in _WARMUP_OF_WINDOW)
    first_ms = steps_ms(device, lambda: device.first_step(step), 1)
    announce(max(most_s, min(max_seconds, steps * first_ms / 1000)))
    begin_ns = perf_counter_ns()
    taken, chunk, spans_ms = 1, 1, list[float]()
    while True:
        spans_ms.append(steps_ms(device, step, chunk))
        taken += chunk
        seconds = (perf_counter_ns() - begin_ns) / 1e9
        steady = _is_steady(spans_ms, seconds, window_s)
        enough = (taken >= steps and seconds >= least_s) or seconds >= max_seconds
        if enough and (steady or seconds >= most_s):
            fastest_ms = min(spans_ms[-max(1, len(spans_ms) // 3) :])
            return WarmUp(taken, first_ms / 1000 + seconds, first_ms, fastest_ms)
        chunk = max(1, min(int(_CHUNK_MS / spans_ms[-1]), 2 * chunk))
        if taken < steps and seconds >= least_s:  # long enough, but short of steps
            chunk = min(chunk, steps - taken)


def _is_steady(spans_ms: Sequence[float], seconds: float, window_s: float) -> bool | None:
    """Return whether a warm-up of these spans has become steady; None for too few spans.

    The medians of the last third and of the third before are compared. Extrapolated to the length of the window, their
    difference must be at most 1 %. Spans that vary too much to show this are steady if the warm-up is as long as the
    window and the medians agree within twice the standard error of their difference, which may be 2 % at most.
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


_LOAD_S: Final = 3.0
"""Seconds of work after which the throughput falls by less than 1 %.

ViT-B/16 on an H200 lost 4 % in this time after 8 s of idling.
"""
_SWING_S: Final = 1.0
"""The same after a pause. The limiter of an H100 started over after pauses of 0.05 s and of 2.5 s alike: ViT-B/16 ran
up to 3 % too fast for most of a second, then 10 % too slow for a moment. Later seconds differed by some 0.5 %."""
_PAUSE_S: Final = 3.0
"""Longer pauses count as idle time."""
WINDOW_S: Final = 1.0
"""Minimum seconds of a window under load: throughput keeps oscillating about its mean once a second, damped."""
_CLOCK_THAT_TELLS: Final = 0.98
"""Clock under a power limit, as a fraction of the highest, below which the limit reduces throughput.

At 0.99, as with ResNet-50 at batch 4096, it does not.
"""


class Load:
    """How long a process's device has been at work, as far as it matters to its power limit."""

    def __init__(self) -> None:
        self._slowed = False
        self._pause_s = 0.0
        self._since_s = self._left_s = perf_counter()

    def begin(self) -> None:
        """Note that the device is at work from now on, after a pause."""
        self._since_s = perf_counter()
        self._pause_s = self._since_s - self._left_s

    def goes_on(self) -> bool:
        """Return whether the power limit slowed the device in the previous row and the pause since then was short."""
        return self._slowed and self._pause_s <= _PAUSE_S

    def add_pause(self, seconds: float) -> None:
        """Count this many seconds since the row began as a pause, for example while kernels were loaded."""
        self._since_s += seconds
        self._pause_s += seconds

    def seconds(self) -> float:
        """Return how many more seconds the device must work until its throughput has settled."""
        needed_s = _SWING_S if self.goes_on() else _LOAD_S
        return max(0.0, needed_s - (perf_counter() - self._since_s))

    def bring_up(self, moment: Callable[[], int]) -> int:
        """Work moment by moment until the throughput has settled; return the number of steps."""
        return work_for(self.seconds(), moment)

    def leave(self, *, slowed: bool) -> None:
        """Note that the device was at work until now, and whether its power limit slowed it."""
        self._left_s, self._slowed, self._pause_s = perf_counter(), slowed, 0.0


def work_for(seconds: float, moment: Callable[[], int]) -> int:
    """Work moment by moment for this many seconds; return the number of steps."""
    steps, end_s = 0, perf_counter() + seconds
    while perf_counter() < end_s:
        steps += moment()
    return steps


def slowed_by_power(device: Device) -> bool:
    """Return whether the power limit of the device, which has just worked, reduces its throughput."""
    return device.clock_under_power_limit() < _CLOCK_THAT_TELLS
