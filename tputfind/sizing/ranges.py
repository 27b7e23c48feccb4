"""Between which numbers of devices the true one lies: what chance leaves open of a plan."""

from __future__ import annotations

from math import ceil, exp, hypot, inf, log, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tputfind.record.record import Record
from tputfind.sizing.fleets import SEEDS, Search
from tputfind.sizing.least_number import least_number
from tputfind.sizing.service import ServiceTimes, service_of
from tputfind.sizing.simulate import Fleet, Outcome, closes_by_clock
from tputfind.stats import t_quantile

_RESAMPLES: Final = 12
_RANGE_QUANTILE: Final = 1.645
"""Standard errors to either side that hold 90 % of a normal distribution."""
_NOTHING: Final = 1e-9
"""Widths below this are what is left of equal numbers."""
_FAR: Final = 4.0
_FARTHEST: Final = 4
"""Times the percentile of a plan, and times its devices, beyond which nothing is told apart."""


def range_of(search: Search, found: Outcome) -> tuple[int, int | None]:
    """Return the least and the most devices that chance leaves open: those for a looser and for a tighter target.

    How much looser is by how far the percentile is known: by the streams, and by samples of the record drawn anew,
    both of the fleet that was found. Where load decides, it is by how far the rate of a device is known. The most is
    None where no number of devices is sure to meet the target.
    """
    draw = np.random.default_rng([search.demand.seed, _RESAMPLES])
    drawn = [service_of(search.record, search.demand, draw) for _ in range(_RESAMPLES)]
    width = _RANGE_QUANTILE * hypot(_error_of_streams(found), _error_of_record(search, found, drawn))
    if width < _NOTHING:
        return found.devices, found.devices
    fewest = _least_within(search, search.demand.target_ms * exp(width), found)
    most = _least_within(search, search.demand.target_ms * exp(-width), found)
    slower = exp(_RANGE_QUANTILE * _error_of_rate(search, drawn))
    fewest = _least_if_faster(search, min(fewest or found.devices, found.devices), slower)
    # By the clock a device does less than with full batches, and its load alone says how much less.
    load = found.load if closes_by_clock(search.demand) else search.least_load(found.devices)
    keeping_up = ceil(found.devices * load * slower / search.most_share)
    return fewest, None if most is None else max(most, found.devices, keeping_up)


def _error_of_streams(found: Outcome) -> float:
    """Return the standard error of the logarithm of a fleet's percentile, by how its streams differ."""
    return log(found.tail_high_ms / found.tail_low_ms) / 2 / t_quantile(SEEDS - 1)


def _error_of_record(search: Search, found: Outcome, drawn: list[ServiceTimes]) -> float:
    """Return the same by how it differs between samples of the record, in the same streams."""
    fleet = Fleet(found.devices, found.batch_cap, search.demand.rate_per_s)
    tails_ms = [search.pilot_with(one, fleet).tail_ms for one in drawn]
    # A sample with which the queue grows says no more than that.
    return _error_of(search.record, np.clip(np.log(tails_ms), None, log(_FAR * found.tail_ms)))


def _error_of_rate(search: Search, drawn: list[ServiceTimes]) -> float:
    """Return the standard error of the logarithm of what a device does at most, by samples of the record."""
    return _error_of(search.record, np.log([max(map(one.per_ms, search.caps)) for one in drawn]))


def _error_of(record: Record, by_sample: NDArray[np.float64]) -> float:
    """Return the standard error of what samples of the record differ in.

    Of n processes drawn with replacement the variance is (n - 1) / n of what it is in others (Davison and Hinkley,
    section 2.3).
    """
    processes = [sum(bool(timing.latency_ms) for timing in row.timings) for row in record.rows]
    few = min((number for number in processes if number > 1), default=inf)
    return float(np.std(by_sample, ddof=1)) * (sqrt(few / (few - 1)) if few < inf else 1.0)


def _least_if_faster(search: Search, fewest: int, faster: float) -> int:
    """Return the least number that meets the target if batches take shorter by that factor.

    It is asked where one device fewer cannot keep up: a looser target then does not help it.
    """
    if fewest == 1 or search.that_keep_up(fewest - 1):
        return fewest
    # A faster device with the same requests does what this one does with fewer, in shorter time.
    rate_per_s, target_ms = search.demand.rate_per_s / faster, search.demand.target_ms * faster

    def meets(devices: int) -> bool:
        fleets = search.that_keep_up(devices, rate_per_s)
        pilots = map(search.pilot, fleets)
        return devices == fewest or any(pilot.steady and pilot.tail_ms <= target_ms for pilot in pilots)

    lowest = min(fewest, search.keeping_up(fewest, 1 / faster))
    return least_number(meets, fewest, lowest, lambda _: True) or fewest


def _least_within(search: Search, target_ms: float, found: Outcome) -> int | None:
    """Return the least number of devices that meets another target by its percentile; None where no number does."""

    def meets(devices: int) -> bool:
        outcome = search.best(devices)
        return outcome.steady and outcome.load <= search.demand.load_allowed and outcome.tail_ms <= target_ms

    return least_number(meets, found.devices, 1, lambda more: more > _FARTHEST * found.devices)
