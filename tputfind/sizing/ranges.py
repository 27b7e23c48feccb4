"""Between which numbers of devices the true one lies: what chance leaves open of a plan."""

from __future__ import annotations

from math import ceil, exp, hypot, sqrt
from typing import Final

from tputfind.sizing.fleets import Search
from tputfind.sizing.least_number import least_number
from tputfind.sizing.noise import of_streams
from tputfind.sizing.simulate import PILOT, SEEDS, Outcome, closes_by_clock

_RANGE_QUANTILE: Final = 1.645
"""Standard errors to either side that hold 90 % of a normal distribution."""
_NOTHING: Final = 1e-9
"""Widths below this are what is left of equal numbers."""
_FARTHEST: Final = 4
"""Times the devices of a plan, beyond which nothing is told apart."""
_LITTLE: Final = 0.25
"""Of the record's error: where short simulations err by less, they do for the ends of a range."""


def range_of(search: Search, found: Outcome) -> tuple[int, int | None]:
    """Return the least and the most devices that chance leaves open: those for a looser and for a tighter target.

    How much looser is by how far the percentile is known: by the streams, and by samples of the record drawn anew,
    both of the fleet that was found. Where load decides, it is by how far the rate of a device is known. The most is
    None where no number of devices is sure to meet the target.
    """
    by_streams, by_record = of_streams(found), search.noise.of_record(found)
    width = _RANGE_QUANTILE * hypot(by_streams, by_record)
    if width < _NOTHING:
        return found.devices, found.devices
    briefly = by_streams * sqrt(SEEDS / PILOT) < _LITTLE * by_record
    fewest, most = (_least_within(search, exp(way), found, briefly=briefly) for way in (width, -width))
    slower = exp(_RANGE_QUANTILE * search.noise.of_rate(search.caps))
    fewest = _least_if_faster(search, min(fewest or found.devices, found.devices), slower)
    # By the clock a device does less than with full batches, and its load alone says how much less.
    load = found.load if closes_by_clock(search.demand) else search.least_load(found.devices)
    keeping_up = ceil(found.devices * load * slower / search.most_share)
    return fewest, None if most is None else max(most, found.devices, keeping_up)


def _least_if_faster(search: Search, fewest: int, faster: float) -> int:
    """Return the least number that meets the target if batches take shorter by that factor.

    It is asked where one device fewer cannot keep up: a looser target then does not help it.
    """
    if fewest == 1 or search.that_keep_up(fewest - 1):
        return fewest
    # A faster device with the same requests does what this one does with fewer, in shorter time.
    rate_per_s = search.demand.rate_per_s / faster

    def meets(devices: int) -> bool:
        return devices == fewest or search.may_meet(devices, faster, rate_per_s)

    lowest = min(fewest, search.keeping_up(fewest, 1 / faster))
    return least_number(meets, fewest, lowest, lambda _: True) or fewest


def _least_within(search: Search, margin: float, found: Outcome, *, briefly: bool) -> int | None:
    """Return the least number of devices whose percentile is within a multiple of the target; None where none is.

    It is simulated in full, or ``briefly``.
    """
    target_ms, load_allowed = margin * search.demand.target_ms, search.demand.load_allowed

    def meets(devices: int) -> bool:
        if briefly:
            return search.may_meet(devices, margin)
        outcome = search.best(devices)
        return outcome.steady and outcome.load <= load_allowed and outcome.tail_ms <= target_ms

    return least_number(meets, found.devices, 1, lambda more: more > _FARTHEST * found.devices)
