"""Work before a window: untimed steps until batch times, or the rate under a power limit, have settled."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Final, NamedTuple

from tputfind.stats import spread
from tputfind.worker.devices.protocol import Device
from tputfind.worker.loops import Announce, steps_ms

_CHUNK_MS: Final = 20.0
"""Warm-up waits for the device this often, and no more: an idle device would cool down and clock up."""
_WARMUP_OF_WINDOW: Final = 0.5, 4.0
"""The least and the most that warm-up takes beyond its steps, in shares of the least time of a window."""
_STEADY: Final = 0.01
_MOST_SCATTER: Final = 0.02
_LEAST_CHUNKS: Final = 12


class WarmUp(NamedTuple):
    """The untimed steps: how many, how long, the first of them, and what a step took when nothing disturbed it."""

    steps: int
    seconds: float
    first_step_ms: float
    fastest_ms: float


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
    first_ms = steps_ms(device, lambda: device.first_step(step), 1)
    announce(max(most_s, min(max_seconds, steps * first_ms / 1000)))
    begin_ns = perf_counter_ns()
    taken, chunk, spans_ms = 1, 1, list[float]()
    while True:
        spans_ms.append(steps_ms(device, step, chunk))
        taken += chunk
        seconds = (perf_counter_ns() - begin_ns) / 1e9
        steady = _settled(spans_ms, seconds, window_s)
        enough = (taken >= steps and seconds >= least_s) or seconds >= max_seconds
        if enough and (steady or seconds >= most_s):
            fastest_ms = min(spans_ms[-max(1, len(spans_ms) // 3) :])
            return WarmUp(taken, first_ms / 1000 + seconds, first_ms, fastest_ms)
        chunk = max(1, min(int(_CHUNK_MS / spans_ms[-1]), 2 * chunk))
        if taken < steps and seconds >= least_s:  # it is only steps that are lacking
            chunk = min(chunk, steps - taken)


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


_LOAD_S: Final = 3.0
"""Work after which the rate falls by less than 1 %: ViT-B/16 on an H200 fell by 4 % in as long, after 8 s of rest."""
_SWING_S: Final = 1.0
"""The same behind a pause. Be it of 0.05 s or of 2.5 s, the limiter of an H100 began anew: ViT-B/16 ran up to 3 % too
fast for most of a second, then 10 % too slow for a moment. The seconds behind the first differed by some 0.5 %."""
_PAUSE_S: Final = 3.0
"""What is longer is a rest."""
WINDOW_S: Final = 1.0
"""Of a window under load: the rate goes on swinging about its mean once a second, less each time."""
_CLOCK_THAT_TELLS: Final = 0.98
"""Of the highest. Under it a power limit counts: at 0.99, as of ResNet-50 at batch 4096, rates do not fall."""


class Load:
    """How long a process's device has been at work, as far as its power limit remembers it."""

    def __init__(self) -> None:
        self._slowed = False
        self._pause_s = 0.0
        self._since_s = self._left_s = perf_counter()

    def begin(self) -> None:
        """Note that the device is at work from now on, behind a pause."""
        self._since_s = perf_counter()
        self._pause_s = self._since_s - self._left_s

    def goes_on(self) -> bool:
        """Whether the power limit slowed the device in the row before, and the pause since then was short."""
        return self._slowed and self._pause_s <= _PAUSE_S

    def rested(self, seconds: float) -> None:
        """Note that it was no work but a pause for so long since this row began, as while kernels are loaded."""
        self._since_s += seconds
        self._pause_s += seconds

    def seconds(self) -> float:
        """Return how long the device has to work yet until its rate has fallen."""
        needed_s = _SWING_S if self.goes_on() else _LOAD_S
        return max(0.0, needed_s - (perf_counter() - self._since_s))

    def bring_up(self, moment: Callable[[], int]) -> int:
        """Work moment by moment until the rate has fallen; return the steps that it took."""
        return work_for(self.seconds(), moment)

    def leave(self, *, slowed: bool) -> None:
        """Note that the device was at work until now, and whether its power limit slowed it."""
        self._left_s, self._slowed, self._pause_s = perf_counter(), slowed, 0.0


def work_for(seconds: float, moment: Callable[[], int]) -> int:
    """Work moment by moment for so long; return the steps that it took."""
    steps, end_s = 0, perf_counter() + seconds
    while perf_counter() < end_s:
        steps += moment()
    return steps


def slowed_by_power(device: Device) -> bool:
    """Whether the device, which was at work just now, is slowed by its power limit by so much that rates tell."""
    return device.clock_under_power_limit() < _CLOCK_THAT_TELLS
