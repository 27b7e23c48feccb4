"""Work before a window: untimed steps, and work until the throughput under a power limit has settled."""

import math
from collections.abc import Callable
from time import perf_counter
from typing import Final

from tputfind.worker.devices.protocol import Device
from tputfind.worker.loops import Announce, Work, moments, steps_ms

_MOST_S: Final = 60.0
"""Maximum seconds of a warm-up by a number of steps."""


def warm_up(device: Device, work: Work, announce: Announce, *, seconds: float, steps: int) -> float:
    """Take at least ``steps`` untimed steps, for at least ``seconds``; return the time of an undisturbed step in ms.

    Both exclude the first step, which loads and chooses kernels. After 60 s the warm-up ends with fewer steps.
    """
    first_ms = steps_ms(device, lambda: device.first_step(work.fresh_step), 1)
    announce(max(seconds, min(_MOST_S, steps * first_ms / 1000)))
    moment, taken, fastest_ms = moments(device, work), 0, math.inf
    begin_s = now_s = perf_counter()
    while not taken or now_s - begin_s < (_MOST_S if taken < steps else seconds):
        count, before_s = moment(), now_s
        now_s = perf_counter()
        taken += count
        fastest_ms = min(fastest_ms, 1000 * (now_s - before_s) / count)
    return fastest_ms


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
