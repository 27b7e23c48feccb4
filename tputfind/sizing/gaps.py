"""Times between recorded requests: they give a stream its shape."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from typing import Final

from tputfind import options as values
from tputfind.units import echoed

FEWEST_ARRIVALS: Final = 100
MOST_ARRIVALS: Final = 2_000_000
_LONGEST_GAP: Final = 1e15
_SHORTEST_GAP: Final = 1e-15
_gap: Final = values.number_within(0, _LONGEST_GAP)


def gaps_of(times: Sequence[float], names: Sequence[str]) -> tuple[float, ...]:
    """Return the times between requests that came at these times, each with a name for errors.

    Raises:
        ValueError: they are too few or too many, fall, or lie too far apart.
    """
    if len(times) < FEWEST_ARRIVALS:
        raise ValueError(f"{len(times)} requests show no stream: at least {FEWEST_ARRIVALS} are needed")
    if len(times) > MOST_ARRIVALS:
        raise ValueError(f"{len(times)} requests are more than are replayed: {MOST_ARRIVALS} at the most")
    gaps = tuple(later - earlier for earlier, later in pairwise(times))
    for number, gap in enumerate(gaps, start=1):
        if gap < 0:
            raise ValueError(f"{names[number]}: {times[number]!r} is before {times[number - 1]!r}: times must rise")
        if gap > _LONGEST_GAP:
            raise ValueError(f"{names[number]}: {times[number]!r} is more than {_LONGEST_GAP:g} after the one before")
    _check_mean(gaps)
    return gaps


def read_gaps(value: object) -> tuple[float, ...]:
    """Read times between requests: of a list, a tuple or an array."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, (list, tuple)):
        raise ValueError(f"{echoed(value)} is no list of times between requests")  # noqa: TRY004  # as of all readers
    if not FEWEST_ARRIVALS - 1 <= len(listed) < MOST_ARRIVALS:
        raise ValueError(f"{len(listed)} times between requests are not from {FEWEST_ARRIVALS - 1} to {MOST_ARRIVALS}")
    gaps = []
    for place, each in enumerate(listed):
        try:
            gaps.append(_gap(each))
        except ValueError as problem:
            raise ValueError(f"number {place}: {problem}") from None
    _check_mean(gaps)
    return tuple(gaps)


def _check_mean(gaps: Sequence[float]) -> None:
    mean = fsum(gaps) / len(gaps)
    if mean < _SHORTEST_GAP:
        raise ValueError(f"the times of requests must rise, by {_SHORTEST_GAP:g} on average, and rise by {mean:g}")
