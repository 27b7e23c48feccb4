"""The search for the fleet that meets a demand, by simulation: how many devices, and batches up to which size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, exp, floor, hypot, log, log10
from typing import Final, NamedTuple

import numpy as np

from tputfind.errors import NoPlan
from tputfind.record.record import Record
from tputfind.sizing.demand import MOST_DEVICES, Demand
from tputfind.sizing.formulas import largest_within
from tputfind.sizing.service import service_of
from tputfind.sizing.simulate import Fleet, Outcome, simulate
from tputfind.stats import t_quantile

MORE_TRAFFIC: Final = 1.2
_SEEDS: Final = 5
_PILOT: Final = 0.35
"""Of the requests of a full simulation: a third is the least that shows whether a queue is steady."""
_NEAR: Final = 1.3
"""Caps whose pilot comes this near to the target are simulated in full."""
_MORE_EFFORT: Final = (4.0, 16.0)
"""What a fleet is simulated with in turn where chance leaves open whether it meets the target."""
_HOPE: Final = 16
"""Where this many more devices make no difference, it is asked whether any number does."""
_BUSY: Final = 0.5
"""Beyond this load more devices would help."""
_RESAMPLES: Final = 12
_RANGE_QUANTILE: Final = 1.645
"""Standard errors to either side that hold 90 % of a normal distribution."""
_NOTHING: Final = 1e-9
"""Widths below this are what is left of equal numbers."""
_FAR: Final = 4.0
_FARTHEST: Final = 4
"""Times the percentile of a plan, and times its devices, beyond which nothing is told apart."""

Tell = Callable[[str], None]
"""Is told what is simulated, before each fleet."""


class Found(NamedTuple):
    """What the least number of devices does, and the best that one fewer does; None where there is none fewer."""

    outcome: Outcome
    fewer: Outcome | None


class Search:
    """The search for the least number of devices. What was simulated once is not again."""

    def __init__(self, record: Record, demand: Demand, tell: Tell | None) -> None:
        self.service = service = service_of(record, demand)
        self._record, self._tell = record, tell
        self._demand = demand
        self.most = min(
            (service.largest, *filter(None, (demand.max_batch, demand.most_in_window, demand.most_ongoing)))
        )
        self.caps = sorted(set(self._caps()))
        self._best: dict[int, Outcome] = {}
        self._full: dict[Fleet, Outcome] = {}
        self._pilots: dict[Fleet, Outcome] = {}

    def _caps(self) -> Iterator[int]:
        demand, service, target_ms = self._demand, self.service, self._demand.target_ms
        alone_ms = float(np.quantile(service.curve_ms(1), demand.percentile / 100))
        alone_ms += demand.overhead_per_get_ms + demand.overhead_per_answer_ms
        if alone_ms > target_ms:
            what = "of requests that are alone" if service.sizes[0] == 1 else f"of batches of {service.sizes[0]}"
            raise NoPlan(
                f"no device is fast enough: {demand.percentile:g} % {what} take up to {alone_ms:.4g} ms, and the "
                f"target is {target_ms:g} ms",
                f"no --slo below {rounded_up(demand.network_ms + alone_ms):g}ms can be met",
            )
        largest = largest_within(service, target_ms) or 1
        largest = min(largest, self.most)
        half = largest_within(service, target_ms / 2) or 1
        candidates = (1, largest, half, ceil(1.5 * half), *service.sizes)
        yield from (size for size in candidates if size <= largest)

    def least(self) -> Found:
        """Return the least number of devices that meets the demand, and the best that one fewer does.

        Short simulations say where it lies, and full ones which it is.

        Raises:
            NoPlan: none does.
        """
        most_per_ms = max(self.service.per_ms(cap) for cap in self.caps)
        lowest = max(1, ceil(self._demand.rate_per_s / 1000 / most_per_ms / self._demand.most_load))
        if lowest > MOST_DEVICES:
            raise NoPlan(
                f"{self._demand.rate_per_s:g} requests/s take {lowest} devices or more by their throughput alone, and "
                f"no more than {MOST_DEVICES} are planned with",
                "a lower --rate",
            )
        start = _first(self.may_meet, lowest, lowest, _none_helps(self.may_meet)) or MOST_DEVICES
        devices = _first(self._meets, start, lowest, _none_helps(self._meets))
        if devices is None:
            raise self._too_slow(self.best(MOST_DEVICES))
        return Found(self.best(devices), self.best(devices - 1) if devices > 1 else None)

    def _too_slow(self, best: Outcome) -> NoPlan:
        return NoPlan(
            f"not even {best.devices} devices, the most that are planned with, answer {self._demand.percentile:g} % "
            f"of the requests within {self._demand.target_ms:g} ms: it takes {best.tail_high_ms:.4g} ms",
            "a lower --rate, or a longer --slo" if best.load > _BUSY else "a longer --slo",
        )

    def may_meet(self, devices: int, margin: float = 1.0) -> bool:
        """Whether a short simulation of so many devices meets the target, or nearly, with any of the caps."""
        pilots = map(self._pilot, self._that_keep_up(devices))
        return any(pilot.steady and pilot.tail_ms <= margin * self._demand.target_ms for pilot in pilots)

    def holds(self, outcome: Outcome) -> bool:
        """Whether a fleet meets the target, and none of its devices is loaded more than it may be."""
        return outcome.load <= self._demand.most_load and outcome.meets(self._demand.target_ms)

    def with_room(self, least: Outcome) -> Outcome:
        """Return as many devices with the cap that bears 20 % more traffic best, or as they are where none bears it."""
        more_per_s = self._demand.rate_per_s * MORE_TRAFFIC
        caps = [fleet.cap for fleet in self._that_keep_up(least.devices)]
        pilots = {cap: self._pilot(Fleet(least.devices, cap, more_per_s)) for cap in caps}
        bearing = {cap: pilot.tail_ms for cap, pilot in pilots.items() if pilot.steady}
        for cap in sorted(bearing, key=bearing.__getitem__):
            outcome = self.under(Fleet(least.devices, cap, self._demand.rate_per_s))
            if outcome.meets(self._demand.target_ms):
                return outcome
        return least

    def with_more_traffic(self, outcome: Outcome) -> Outcome:
        """Return what the same devices do under 20 % more traffic."""
        more = Fleet(outcome.devices, outcome.batch_cap, self._demand.rate_per_s * MORE_TRAFFIC)
        return self._simulated(more, _SEEDS, 1.0)

    def range_of(self, found: Outcome) -> tuple[int, int | None]:
        """Return the least and the most devices that chance leaves open: those for a looser and for a tighter target.

        How much looser is by how far the percentile is known: by the streams, and by samples of the record drawn anew,
        both of the fleet that was found.
        """
        width = _RANGE_QUANTILE * hypot(self._error_of_streams(found), self._error_of_record(found))
        if width < _NOTHING:
            return found.devices, found.devices
        fewest = self._least_within(self._demand.target_ms * exp(width), found)
        most = self._least_within(self._demand.target_ms * exp(-width), found)
        return min(fewest or found.devices, found.devices), None if most is None else max(most, found.devices)

    def _error_of_streams(self, found: Outcome) -> float:
        """Return the standard error of the logarithm of a fleet's percentile, by how its streams differ."""
        return log(found.tail_high_ms / found.tail_low_ms) / 2 / t_quantile(_SEEDS - 1)

    def _error_of_record(self, found: Outcome) -> float:
        """Return the same by how it differs between samples of the record drawn anew, in the same streams."""
        fleet = Fleet(found.devices, found.batch_cap, self._demand.rate_per_s)
        draw = np.random.default_rng([self._demand.seed, _RESAMPLES])
        drawn = [service_of(self._record, self._demand, draw) for _ in range(_RESAMPLES)]
        tails_ms = [simulate(fleet, one, self._demand, seeds=1, effort=_PILOT).tail_ms for one in drawn]
        # A sample with which the queue grows says no more than that.
        return float(np.std(np.clip(np.log(tails_ms), None, log(_FAR * found.tail_ms)), ddof=1))

    def _least_within(self, target_ms: float, found: Outcome) -> int | None:
        """Return the least number of devices that meets another target by its percentile; None where no number does."""

        def meets(devices: int) -> bool:
            outcome = self.best(devices)
            return outcome.steady and outcome.load <= self._demand.most_load and outcome.tail_ms <= target_ms

        return _first(meets, found.devices, 1, lambda more: more > _FARTHEST * found.devices)

    def _pilot(self, fleet: Fleet) -> Outcome:
        if fleet not in self._pilots:
            self._pilots[fleet] = self._simulated(fleet, 1, _PILOT)
        return self._pilots[fleet]

    def _simulated(self, fleet: Fleet, seeds: int, effort: float) -> Outcome:
        if self._tell is not None:
            devices = f"{fleet.devices} device{'s' * (fleet.devices > 1)}"
            self._tell(f"{self._record.spec.model}: simulating {devices} with batches of up to {fleet.cap}")
        return simulate(fleet, self.service, self._demand, seeds=seeds, effort=effort)

    def _meets(self, devices: int) -> bool:
        return self.holds(self.best(devices))

    def best(self, devices: int) -> Outcome:
        """Return what a number of devices does with the best of the caps."""
        if devices not in self._best:
            self._best[devices] = self._with_best_cap(devices)
        return self._best[devices]

    def _with_best_cap(self, devices: int) -> Outcome:
        target_ms = self._demand.target_ms
        fleets = self._that_keep_up(devices)
        fleets = fleets or [Fleet(devices, max(self.caps, key=self.service.per_ms), self._demand.rate_per_s)]
        pilots = {fleet: self._pilot(fleet).tail_ms for fleet in fleets}
        by_pilot = sorted(fleets, key=lambda fleet: pilots[fleet])
        tried: list[Outcome] = []
        for fleet in by_pilot:
            if tried and pilots[fleet] > _NEAR * target_ms:
                break
            tried.append(self.under(fleet))
            if tried[-1].meets(target_ms):
                break
        return min(tried, key=lambda outcome: (not outcome.steady, outcome.tail_high_ms))

    def under(self, fleet: Fleet) -> Outcome:
        """Return what a fleet does, simulated for longer where chance leaves open whether it meets the target."""
        if fleet not in self._full:
            self._full[fleet] = self._simulated_in_full(fleet)
        return self._full[fleet]

    def _simulated_in_full(self, fleet: Fleet) -> Outcome:
        target_ms = self._demand.target_ms
        for effort in (1.0, *_MORE_EFFORT):
            outcome = self._simulated(fleet, _SEEDS, effort)
            if not outcome.steady or outcome.meets(target_ms) or outcome.misses(target_ms):
                break
        return outcome

    def _that_keep_up(self, devices: int) -> list[Fleet]:
        fleets = [Fleet(devices, cap, self._demand.rate_per_s) for cap in self.caps]
        return [fleet for fleet in fleets if self._keeps_up(fleet)]

    def _keeps_up(self, fleet: Fleet) -> bool:
        load = fleet.load(self.service, self._demand)
        return load < 1 and load <= self._demand.most_load


def _none_helps(meets: Callable[[int], bool]) -> Callable[[int], bool]:
    """Return whether no number of devices meets, asked once: where so many more made no difference."""
    return lambda more: more == _HOPE and not meets(MOST_DEVICES)


def _first(meets: Callable[[int], bool], start: int, lowest: int, hopeless: Callable[[int], bool]) -> int | None:
    """Return the least number from ``lowest`` on that meets, where all above do: by ever longer steps from ``start``.

    None where none does up to the most, or ``hopeless`` says so, asked with each step up that made no difference.
    """
    step = 1
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
    while passes - fails > 1:
        middle = (passes + fails) // 2
        passes, fails = (middle, fails) if meets(middle) else (passes, middle)
    return passes


def rounded_up(value: float) -> float:
    """Return a value above 0 with four digits, and no less than it is."""
    step = 10.0 ** (floor(log10(value)) - 3)
    return ceil(value / step) * step
