"""Work before a window, on a device that its power limit slows: its rate falls for seconds, to one that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from tputfind.worker.devices.protocol import Device

_LOAD_S: Final = 3.0
"""Work after which the rate falls no more: ViT-B/16 on an H200 fell by 4 % in as long, after 8 s of rest."""
_FOR_PAUSE: Final = 3.0
"""Work for as many times a pause makes up for it."""
WINDOW_S: Final = 1.0
"""Of a window under load: the power limit is kept on the average, and rates of half seconds differ by 2 %."""
_CLOCK_THAT_TELLS: Final = 0.98
"""Of the highest. Under it a power limit counts: at 0.99, as of ResNet-50 at batch 4096, rates do not fall."""


class Load:
    """How long a process's device has been at work, as far as its power limit remembers it.

    The windows of a row are work too: what they took need not be worked again before the next.
    """

    def __init__(self) -> None:
        self._before_s = 0.0
        self._since_s = self._left_s = perf_counter()

    def begin(self) -> None:
        """Note that the device is at work from now on, behind a pause."""
        self._since_s = perf_counter()
        self._before_s = max(0.0, self._before_s - _FOR_PAUSE * (self._since_s - self._left_s))

    def goes_on(self) -> bool:
        """Whether the power limit slowed the device in the row before, and the pause since then was short."""
        return self._before_s > 0

    def rested(self, seconds: float) -> None:
        """Note that it was no work but a pause for so long since this row began, as while kernels are loaded."""
        self._before_s = max(0.0, self._before_s - _FOR_PAUSE * seconds)
        self._since_s += seconds

    def seconds(self) -> float:
        """Return how long the device has to work yet until its rate has fallen."""
        return max(0.0, _LOAD_S - self._before_s - (perf_counter() - self._since_s))

    def bring_up(self, moment: Callable[[], int]) -> int:
        """Work moment by moment until the rate has fallen; return the steps that it took."""
        return work_for(self.seconds(), moment)

    def leave(self, *, slowed: bool) -> None:
        """Note that the device was at work until now; it counts only where its power limit slowed it."""
        self._left_s = perf_counter()
        self._before_s = _LOAD_S - self.seconds() if slowed else 0.0


def work_for(seconds: float, moment: Callable[[], int]) -> int:
    """Work moment by moment for so long; return the steps that it took."""
    steps, end_s = 0, perf_counter() + seconds
    while perf_counter() < end_s:
        steps += moment()
    return steps


def slowed_by_power(device: Device) -> bool:
    """Whether the device, which was at work just now, is slowed by its power limit by so much that rates tell."""
    return device.clock_under_power_limit() < _CLOCK_THAT_TELLS
