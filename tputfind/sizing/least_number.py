"""The least number of devices that does: by ever longer steps, then by halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tputfind.sizing.demand import MOST_DEVICES

_EXACTLY: Final = 1000
"""Of twice as many devices the least number is told to more than one."""
_HOPE: Final = 16
"""Where this many more devices make no difference, it is asked whether any number does."""


def step_at(devices: int) -> int:
    """Return to how many devices a fleet's size is told: of two thousand and more to a thousandth.

    How long batches take is not known any better.
    """
    return max(1, devices // _EXACTLY)


def least_number(meets: Callable[[int], bool], start: int, lowest: int, hopeless: Callable[[int], bool]) -> int | None:
    """Return the least number from ``lowest`` on that meets, where all above do: by ever longer steps from ``start``.

    It is told to ``step_at``. None where none does up to the most, or ``hopeless`` says so, asked with each step up
    that made no difference.
    """
    step = step_at(start)
    if meets(start):
        passes, fails = start, lowest - 1
        while passes > lowest:
            tried = max(lowest, passes - step)
            if not meets(tried):
                fails = tried
                break
            passes, step = tried, 2 * step
    else:
        passes, fails = min(start + step, MOST_DEVICES), start
        while fails == passes or not meets(passes):
            if passes == MOST_DEVICES or hopeless(2 * step):
                return None
            step *= 2
            fails, passes = passes, min(passes + step, MOST_DEVICES)
    while passes - fails > step_at(passes):
        middle = (passes + fails) // 2
        passes, fails = (middle, fails) if meets(middle) else (passes, middle)
    return passes


def none_helps(meets: Callable[[int], bool]) -> Callable[[int], bool]:
    """Return whether no number of devices meets, asked where so many more made no difference."""
    return lambda more: more >= _HOPE and not meets(MOST_DEVICES)
