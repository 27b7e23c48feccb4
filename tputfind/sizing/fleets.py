"""The search for the fleet that meets a demand, by simulation: how many devices, and batches up to which size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, floor, inf, log10
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record
from tputfind.sizing.demand import MOST_DEVICES, TAIL_REQUESTS, Demand
from tputfind.sizing.formulas import largest_within
from tputfind.sizing.least_number import least_number, none_helps, step_at
from tputfind.sizing.noise import Noise, of_streams
from tputfind.sizing.service import ServiceTimes, service_of
from tputfind.sizing.simulate import PILOT, SEEDS, Fleet, Outcome, simulate

MORE_TRAFFIC: Final = 1.2
_NEAR: Final = 1.3
"""Caps whose pilot comes this near to the target are simulated in full."""
MORE_EFFORT: Final = (4.0, 16.0)
"""What a fleet is simulated with in turn where chance leaves open whether it meets the target."""
_MANY: Final = 1_500_000
"""Requests of streams that are long to simulate, and"""
_LITTLE: Final = 0.1
"""of the record's error: where shorter ones err by less, they do."""
_AS_ASKED: Final = 0.9
"""Of the requests that an effort takes; where there are fewer, no stream is followed for longer."""
MOST_TAIL_REQUESTS: Final = SEEDS * MORE_EFFORT[-1] * TAIL_REQUESTS
"""Beyond the percentile in the longest simulation of a fleet."""
_BUSY: Final = 0.5
"""Beyond this load more devices would help."""
_PARTS: Final = 32
"""Batches that an average request is split into by the smallest cap that is tried: each takes its time by itself."""
_MOST_PARTS: Final = 100
"""Where even the largest batch splits it into more, its samples are too many to be followed."""

Tell = Callable[[str], None]
"""Is told what is simulated, before each fleet."""


class Found(NamedTuple):
    """What the least number of devices does, and the best that the next smaller one does; None where there is none."""

    outcome: Outcome
    fewer: Outcome | None


class Search:
    """The search for the least number of devices. What was simulated once is not again."""

    def __init__(self, record: Record, demand: Demand, tell: Tell | None) -> None:
        self.service = service = service_of(record, demand)
        self.record, self._tell = record, tell
        self.demand, self.noise = demand, Noise(record, demand)
        limits = filter(None, (demand.max_batch, demand.most_in_window, demand.most_ongoing))
        self.most = min((service.largest, *limits))
        if demand.preferred_batches and demand.preferred_batches[-1] > self.most:
            raise BadRequest(
                f"--preferred-batches: {demand.preferred_batches[-1]} is above {self.most}, the largest batch measured",
                "measure it, or leave it out",
            )
        self.caps = sorted(set(self._caps()))
        self._best: dict[int, Outcome] = {}
        self._at_first: dict[Fleet, Outcome] = {}
        self._full: dict[Fleet, Outcome] = {}
        self._pilots: dict[Fleet, Outcome] = {}

    def _caps(self) -> Iterator[int]:
        demand, service, target_ms = self.demand, self.service, self.demand.target_ms
        least = least_cap(demand, self.most)
        fastest_ms = alone_ms(service, demand)
        if fastest_ms > target_ms:
            small = service.sizes[0] > demand.least_cap
            what = f"of batches of {service.sizes[0]}" if small else "of requests that are alone"
            raise NoPlan(
                f"no device is fast enough: {demand.percentile:g} % {what} take up to {fastest_ms:.4g} ms, and the "
                f"target is {target_ms:g} ms",
                f"no --slo below {rounded_up(demand.network_ms + fastest_ms):g}ms can be met",
            )
        largest = largest_within(service, target_ms) or 1
        largest = max(least, min(largest, self.most))
        half = largest_within(service, target_ms / 2) or 1
        candidates = (least, largest, half, ceil(1.5 * half), *service.sizes)
        preferred = demand.preferred_batches[-1] if demand.preferred_batches else least
        yield preferred
        # Only where requests have waited as long as the delay do batches grow beyond what is preferred.
        if not demand.preferred_batches or demand.wait_ms > 0:
            yield from (size for size in candidates if preferred <= size <= largest)

    @property
    def most_share(self) -> float:
        """The highest load of devices that meet the demand: as many requests may be refused as may be late."""
        return self.demand.most_load if self.demand.load_allowed < inf else 100 / self.demand.percentile

    def least(self) -> Found:
        """Return the least number of devices that meets the demand, and the best that the next smaller one does.

        Short simulations say where it lies, and full ones which it is.

        Raises:
            NoPlan: none does.
        """
        lowest = self.keeping_up(1, 1.0)
        if lowest > MOST_DEVICES:
            raise NoPlan(
                f"{self.demand.rate_per_s:g} requests/s take {lowest} devices or more by their throughput alone, and "
                f"no more than {MOST_DEVICES} are planned with",
                "a lower --rate",
            )
        start = least_number(self.may_meet, lowest, lowest, none_helps(self.may_meet)) or MOST_DEVICES
        devices = least_number(self._meets, start, lowest, none_helps(self._meets))
        if devices is None:
            raise self._too_slow(self.best(MOST_DEVICES))
        return self.found(self.best(devices))

    def found(self, outcome: Outcome) -> Found:
        """Return a fleet, and the best that the next smaller one does."""
        devices = outcome.devices - step_at(outcome.devices)
        return Found(outcome, self.best(devices) if devices else None)

    def _too_slow(self, best: Outcome) -> NoPlan:
        return NoPlan(
            f"not even {best.devices} devices, the most that are planned with, answer {self.demand.percentile:g} % "
            f"of the requests within {self.demand.target_ms:g} ms: it takes {best.tail_high_ms:.4g} ms",
            "a lower --rate, or a longer --slo" if best.load > _BUSY else "a longer --slo",
        )

    def may_meet(self, devices: int, margin: float = 1.0, rate_per_s: float | None = None) -> bool:
        """Whether a short simulation of so many devices meets a multiple of the target with any of the caps.

        It is at the demand's rate, or at another.
        """
        pilots = map(self.pilot, self.that_keep_up(devices, rate_per_s))
        return any(pilot.steady and pilot.tail_ms <= margin * self.demand.target_ms for pilot in pilots)

    def holds(self, outcome: Outcome) -> bool:
        """Whether a fleet meets the target, and none of its devices is loaded more than it may be."""
        return outcome.load <= self.demand.load_allowed and outcome.meets(self.demand.target_ms)

    def with_room(self, least: Outcome) -> Outcome:
        """Return as many devices with the cap that bears 20 % more traffic best, or as they are where none bears it."""
        more_per_s = self.demand.rate_per_s * MORE_TRAFFIC
        caps = [fleet.cap for fleet in self.that_keep_up(least.devices)]
        pilots = {cap: self.pilot(Fleet(least.devices, cap, more_per_s)) for cap in caps}
        bearing = {cap: (pilot.tail_ms, pilot.refused) for cap, pilot in pilots.items() if pilot.steady}
        for cap in sorted(bearing, key=bearing.__getitem__):
            outcome = self.under(Fleet(least.devices, cap, self.demand.rate_per_s))
            if outcome.meets(self.demand.target_ms):
                return outcome
        return least

    def with_more_traffic(self, outcome: Outcome) -> Outcome:
        """Return what the same devices do under 20 % more traffic."""
        more = Fleet(outcome.devices, outcome.batch_cap, self.demand.rate_per_s * MORE_TRAFFIC)
        return self._simulated(more, SEEDS, 1.0)

    def keeping_up(self, devices: int, slower: float) -> int:
        """Return the least number that keeps up within the load allowed if a batch takes longer by that factor."""
        return max(1, ceil(devices * self.least_load(devices) * slower / self.most_share))

    def least_load(self, devices: int) -> float:
        """Return the load of so many devices with the cap with which it is the least."""
        fleets = [Fleet(devices, cap, self.demand.rate_per_s) for cap in self.caps]
        return min(fleet.load(self.service, self.demand) for fleet in fleets)

    def pilot(self, fleet: Fleet) -> Outcome:
        """Return what a short simulation of a fleet comes to."""
        if fleet not in self._pilots:
            self._pilots[fleet] = self._simulated(fleet, 1, PILOT)
        return self._pilots[fleet]

    def _simulated(self, fleet: Fleet, seeds: int, effort: float) -> Outcome:
        if self._tell is not None:
            devices = f"{fleet.devices} device{'s' * (fleet.devices > 1)}"
            self._tell(f"{self.record.spec.model}: simulating {devices} with batches of up to {fleet.cap}")
        return simulate(fleet, self.service, self.demand, seeds=seeds, effort=effort)

    def _meets(self, devices: int) -> bool:
        return self.holds(self.best(devices))

    def best(self, devices: int) -> Outcome:
        """Return what a number of devices does with the best of the caps."""
        if devices not in self._best:
            self._best[devices] = self._with_best_cap(devices)
        return self._best[devices]

    def _with_best_cap(self, devices: int) -> Outcome:
        target_ms = self.demand.target_ms
        fleets = self.that_keep_up(devices)
        fleets = fleets or [Fleet(devices, max(self.caps, key=self.service.per_ms), self.demand.rate_per_s)]
        unlike = self._unlike(fleets)
        near = [fleet for fleet in unlike if self.pilot(fleet).tail_ms <= _NEAR * target_ms]
        tried: dict[Fleet, Outcome] = {}
        for fleet in near or unlike[:1]:
            tried[fleet] = self._once(fleet)
            if tried[fleet].meets(target_ms):
                break
        best = min(tried, key=lambda fleet: _merit(tried[fleet]))
        tried[best] = self.under(best)
        return min(tried.values(), key=_merit)

    def _unlike(self, fleets: Sequence[Fleet]) -> list[Fleet]:
        """Return fleets by what their pilots came to, of those with the same the one with the smallest cap.

        Where no batch becomes as large as a cap, a larger one changes nothing.
        """
        pilots = {(pilot.tail_ms, pilot.refused, pilot.mean_ms): pilot for pilot in map(self.pilot, reversed(fleets))}
        unlike = [pilot for _, pilot in sorted(pilots.items(), key=itemgetter(0))]
        return [Fleet(pilot.devices, pilot.batch_cap, pilot.rate_per_s) for pilot in unlike]

    def under(self, fleet: Fleet) -> Outcome:
        """Return what a fleet does, simulated for longer where the streams leave open whether it meets the target.

        No longer, however, where that takes long and the record leaves far more open than they do.
        """
        if fleet not in self._full:
            self._full[fleet] = self._simulated_in_full(fleet)
        return self._full[fleet]

    def _once(self, fleet: Fleet) -> Outcome:
        """Return what a fleet does, simulated in full and no longer."""
        if fleet not in self._at_first:
            self._at_first[fleet] = self._simulated(fleet, SEEDS, 1.0)
        return self._at_first[fleet]

    def _simulated_in_full(self, fleet: Fleet) -> Outcome:
        target_ms, outcome = self.demand.target_ms, self._once(fleet)
        before, effort = 0.0, 1.0
        for more in MORE_EFFORT:
            as_long_as_can_be = outcome.requests < _AS_ASKED * effort * before
            if not outcome.steady or outcome.meets(target_ms) or outcome.misses(target_ms) or as_long_as_can_be:
                break
            long = outcome.requests / effort * more > _MANY and outcome.tail_high_ms < inf
            if long and of_streams(outcome) < _LITTLE * self.noise.of_record(outcome):
                break
            before, effort = outcome.requests / effort, more
            outcome = self._simulated(fleet, SEEDS, effort)
        return outcome

    def that_keep_up(self, devices: int, rate_per_s: float | None = None) -> list[Fleet]:
        """Return so many devices with each cap with which they keep up, with the demand's rate or another."""
        fleets = [Fleet(devices, cap, rate_per_s or self.demand.rate_per_s) for cap in self.caps]
        return [fleet for fleet in fleets if self._keeps_up(fleet)]

    def _keeps_up(self, fleet: Fleet) -> bool:
        load = fleet.load(self.service, self.demand)
        return (load < 1 or self.demand.max_queue is not None) and load <= self.demand.load_allowed


def _merit(outcome: Outcome) -> tuple[bool, float, float]:
    """Order outcomes, the best first."""
    return not outcome.steady, outcome.tail_high_ms, outcome.refused


def least_cap(demand: Demand, most: int) -> int:
    """Return the smallest cap that is tried, of those up to the most.

    Raises:
        BadRequest: none can take the requests.
    """
    if demand.least_cap > most:
        raise BadRequest(
            f"a request of {demand.least_cap} samples stays in one batch, and batches have up to {most}: "
            f"{'the server' if demand.batcher == 'greedy' else demand.batcher} refuses it",
            "measure larger batches, let --max-batch be larger, or send smaller requests",
        )
    if demand.whole:
        return demand.least_cap
    if demand.mean_samples > _MOST_PARTS * most:
        raise BadRequest(
            f"requests have {demand.mean_samples:.4g} samples on average, and batches up to {most}: each is split into "
            f"more than {_MOST_PARTS}, which is not simulated",
            "measure larger batches, or let --max-batch be larger",
        )
    return min(most, ceil(demand.mean_samples / _PARTS))


def alone_ms(service: ServiceTimes, demand: Demand) -> float:
    """Return the percentile of the latency of requests that are alone.

    Of those that are split, that of one of their samples, which they take at the least: the rest is by the cap.
    """
    each_ms = demand.overhead_per_get_ms + demand.overhead_per_answer_ms
    share = demand.percentile / 100
    if not demand.whole:
        return float(np.quantile(service.curve_ms(1), share)) + each_ms
    curves, weights = [], []
    for samples, its_share in demand.samples_per_request:
        curve = service.curve_ms(min(samples, service.largest))
        curves.append(curve + demand.overhead_per_request_ms * (1 - samples / demand.mean_samples))
        weights.append(np.full(len(curve), its_share / len(curve)))
    times, shares = np.concatenate(curves), np.concatenate(weights)
    return float(np.quantile(times, share, method="inverted_cdf", weights=shares)) + each_ms


def rounded_up(value: float) -> float:
    """Return a value above 0 with four digits, and no less than it is."""
    step = 10.0 ** (floor(log10(value)) - 3)
    return ceil(value / step) * step
