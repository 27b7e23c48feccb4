"""Work before a window, on a device that its power limit slows: its rate falls for seconds, to one that it keeps."""

from collections.abc import Callable
from time import perf_counter
from typing import Final

from tputfind.worker.devices.protocol import Device

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
