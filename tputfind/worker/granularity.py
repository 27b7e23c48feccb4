"""Multiples of which number batch sizes are, if a model or its inputs fail on the smallest."""

import re
from collections.abc import Callable
from typing import Final

from tputfind.processes.failures import said
from tputfind.record.record import Notice

_MULTIPLES: Final = (2, 4, 8)
_LARGEST_NAMED: Final = 512
_MOST_NAMED: Final = 6
"""Maximum numbers of an error's text that are tried."""


def granularity_notice(number: int, why: str) -> Notice:
    """Return the notice that batch sizes are multiples of a number, which nobody has asked for."""
    return Notice(
        kind="granularity",
        seen=f"batch sizes are multiples of {number}",
        cause=f"smaller ones fail: {why}",
        advice=f"--granularity {number} says so beforehand",
    )


def candidates(text: str) -> list[int]:
    """Return the numbers that a granularity is looked for among: 2, 4, 8, and those that an error's text names."""
    named = dict.fromkeys(int(number) for number in re.findall(r"\d{1,4}", text))
    fitting = [number for number in named if 1 < number <= _LARGEST_NAMED and number not in _MULTIPLES]
    return sorted((*_MULTIPLES, *fitting[:_MOST_NAMED]))


def smallest_that_works(make: Callable[[int], object], error: BaseException) -> int | None:
    """Return the least granularity with which a function makes inputs; None if none is found."""
    for number in candidates(said(error)):
        try:
            for factor in (1, 2, 3):
                make(factor * number)
        except Exception:  # noqa: S112  # the user's function can raise anything
            continue
        return number
    return None
