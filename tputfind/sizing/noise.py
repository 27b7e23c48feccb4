"""How far a record and its streams leave open what a fleet does: standard errors of logarithms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf, log, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tputfind.record.record import Record
from tputfind.sizing.demand import Demand
from tputfind.sizing.service import ServiceTimes, service_of
from tputfind.sizing.simulate import PILOT, SEEDS, Fleet, Outcome, simulate
from tputfind.stats import t_quantile

_RESAMPLES: Final = 12
_FAR: Final = 4.0
"""Times the percentile of a fleet beyond which nothing is told apart."""


def of_streams(outcome: Outcome) -> float:
    """Return the error of a fleet's percentile by how its streams differ."""
    return log(outcome.tail_high_ms / outcome.tail_low_ms) / 2 / t_quantile(SEEDS - 1)


class Noise:
    """What differs between samples of a record that are drawn anew, always the same ones."""

    def __init__(self, record: Record, demand: Demand) -> None:
        """Take what was measured, and what is asked of it."""
        self._record, self._demand = record, demand
        self._of_fleet: dict[Fleet, float] = {}

    def of_record(self, outcome: Outcome) -> float:
        """Return the error of a fleet's percentile by the record, in the same streams."""
        fleet = Fleet(outcome.devices, outcome.batch_cap, outcome.rate_per_s)
        if fleet not in self._of_fleet:
            pilots = [simulate(fleet, drawn, self._demand, seeds=1, effort=PILOT) for drawn in self._drawn]
            tails_ms = [pilot.tail_ms for pilot in pilots]
            # A sample with which the queue grows says no more than that.
            self._of_fleet[fleet] = self._error(np.clip(np.log(tails_ms), None, log(_FAR * outcome.tail_ms)))
        return self._of_fleet[fleet]

    def of_rate(self, caps: Sequence[int]) -> float:
        """Return the error of what a device does at most with the best of the caps."""
        return self._error(np.log([max(map(drawn.per_ms, caps)) for drawn in self._drawn]))

    @cached_property
    def _drawn(self) -> list[ServiceTimes]:
        draw = np.random.default_rng([self._demand.seed, _RESAMPLES])
        return [service_of(self._record, self._demand, draw) for _ in range(_RESAMPLES)]

    def _error(self, by_sample: NDArray[np.float64]) -> float:
        """Return the error of what samples of the record differ in.

        Of n processes drawn with replacement the variance is (n - 1) / n of what it is in others (Davison and Hinkley,
        section 2.3).
        """
        processes = [sum(bool(timing.latency_ms) for timing in row.timings) for row in self._record.rows]
        few = min((number for number in processes if number > 1), default=inf)
        return float(np.std(by_sample, ddof=1)) * (sqrt(few / (few - 1)) if few < inf else 1.0)
