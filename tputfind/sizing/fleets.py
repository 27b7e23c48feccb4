"""The search for the fleet that meets a demand, by simulation: how many devices, and batches up to which size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, exp, floor, hypot, inf, log, log10, sqrt
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record
from tputfind.sizing.demand import MOST_DEVICES, TAIL_REQUESTS, Demand
from tputfind.sizing.formulas import largest_within
from tputfind.sizing.service import ServiceTimes, service_of
from tputfind.sizing.simulate import Fleet, Outcome, closes_by_clock, simulate
from tputfind.stats import t_quantile

MORE_TRAFFIC: Final = 1.2
_SEEDS: Final = 5
_PILOT: Final = 0.35
"""Of the requests of a full simulation: a third is the least that shows whether a queue is steady."""
_NEAR: Final = 1.3
"""Caps whose pilot comes this near to the target are simulated in full."""
_MORE_EFFORT: Final = (4.0, 16.0)
"""What a fleet is simulated with in turn where chance leaves open whether it meets the target."""
_AS_ASKED: Final = 0.9
"""Of the requests that an effort takes; where there are fewer, no stream is followed for longer."""
MOST_TAIL_REQUESTS: Final = _SEEDS * _MORE_EFFORT[-1] * TAIL_REQUESTS
"""Beyond the percentile in the longest simulation of a fleet."""
_EXACTLY: Final = 1000
"""Of twice as many devices the least number is told to more than one."""
_HOPE: Final = 16
"""Where this many more devices make no difference, it is asked whether any number does."""
_BUSY: Final = 0.5
"""Beyond this load more devices would help."""
_RESAMPLES: Final = 12
_RANGE_QUANTILE: Final = 1.645
"""Standard errors to either side that hold 90 % of a normal distribution."""
_PARTS: Final = 32
"""Batches that an average request is split into by the smallest cap that is tried: each takes its time by itself."""
_MOST_PARTS: Final = 100
"""Where even the largest batch splits it into more, its samples are too many to be followed."""
_NOTHING: Final = 1e-9
"""Widths below this are what is left of equal numbers."""
_FAR: Final = 4.0
_FARTHEST: Final = 4
"""Times the percentile of a plan, and times its devices, beyond which nothing is told apart."""

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
        self._record, self._tell = record, tell
        self._demand = demand
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
        demand, service, target_ms = self._demand, self.service, self._demand.target_ms
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
        return self._demand.most_load if self._demand.load_allowed < inf else 100 / self._demand.percentile

    def least(self) -> Found:
        """Return the least number of devices that meets the demand, and the best that the next smaller one does.

        Short simulations say where it lies, and full ones which it is.

        Raises:
            NoPlan: none does.
        """
        lowest = self._keeping_up(1, 1.0)
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
        return self.found(self.best(devices))

    def found(self, outcome: Outcome) -> Found:
        """Return a fleet, and the best that the next smaller one does."""
        devices = outcome.devices - step_at(outcome.devices)
        return Found(outcome, self.best(devices) if devices else None)

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
        return outcome.load <= self._demand.load_allowed and outcome.meets(self._demand.target_ms)

    def with_room(self, least: Outcome) -> Outcome:
        """Return as many devices with the cap that bears 20 % more traffic best, or as they are where none bears it."""
        more_per_s = self._demand.rate_per_s * MORE_TRAFFIC
        caps = [fleet.cap for fleet in self._that_keep_up(least.devices)]
        pilots = {cap: self._pilot(Fleet(least.devices, cap, more_per_s)) for cap in caps}
        bearing = {cap: (pilot.tail_ms, pilot.refused) for cap, pilot in pilots.items() if pilot.steady}
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
        both of the fleet that was found. Where load decides, it is by how far the rate of a device is known.
        """
        drawn = self._drawn_anew()
        width = _RANGE_QUANTILE * hypot(self._error_of_streams(found), self._error_of_record(found, drawn))
        if width < _NOTHING:
            return found.devices, found.devices
        fewest = self._least_within(self._demand.target_ms * exp(width), found)
        most = self._least_within(self._demand.target_ms * exp(-width), found)
        slower = exp(_RANGE_QUANTILE * self._error_of_rate(drawn))
        fewest = self._least_if_faster(min(fewest or found.devices, found.devices), slower)
        # By the clock a device does less than with full batches, and its load alone says how much less.
        load = found.load if closes_by_clock(self._demand) else self._least_load(found.devices)
        keeping_up = ceil(found.devices * load * slower / self.most_share)
        return fewest, None if most is None else max(most, found.devices, keeping_up)

    def _error_of_streams(self, found: Outcome) -> float:
        """Return the standard error of the logarithm of a fleet's percentile, by how its streams differ."""
        return log(found.tail_high_ms / found.tail_low_ms) / 2 / t_quantile(_SEEDS - 1)

    def _drawn_anew(self) -> list[ServiceTimes]:
        """Return how long batches take by samples of the record."""
        draw = np.random.default_rng([self._demand.seed, _RESAMPLES])
        return [service_of(self._record, self._demand, draw) for _ in range(_RESAMPLES)]

    def _error_of_record(self, found: Outcome, drawn: list[ServiceTimes]) -> float:
        """Return the same by how it differs between samples of the record, in the same streams."""
        fleet = Fleet(found.devices, found.batch_cap, self._demand.rate_per_s)
        tails_ms = [simulate(fleet, one, self._demand, seeds=1, effort=_PILOT).tail_ms for one in drawn]
        # A sample with which the queue grows says no more than that.
        return self._error_of(np.clip(np.log(tails_ms), None, log(_FAR * found.tail_ms)))

    def _error_of_rate(self, drawn: list[ServiceTimes]) -> float:
        """Return the standard error of the logarithm of what a device does at most, by samples of the record."""
        return self._error_of(np.log([max(map(one.per_ms, self.caps)) for one in drawn]))

    def _error_of(self, by_sample: NDArray[np.float64]) -> float:
        """Return the standard error of what samples of the record differ in.

        Of n processes drawn with replacement the variance is (n - 1) / n of what it is in others (Davison and Hinkley,
        section 2.3).
        """
        processes = [sum(bool(timing.latency_ms) for timing in row.timings) for row in self._record.rows]
        few = min((number for number in processes if number > 1), default=inf)
        return float(np.std(by_sample, ddof=1)) * (sqrt(few / (few - 1)) if few < inf else 1.0)

    def _keeping_up(self, devices: int, slower: float) -> int:
        """Return the least number that keeps up within the load allowed if a batch takes longer by that factor."""
        return max(1, ceil(devices * self._least_load(devices) * slower / self.most_share))

    def _least_load(self, devices: int) -> float:
        """Return the load of so many devices with the cap with which it is the least."""
        fleets = [Fleet(devices, cap, self._demand.rate_per_s) for cap in self.caps]
        return min(fleet.load(self.service, self._demand) for fleet in fleets)

    def _least_if_faster(self, fewest: int, faster: float) -> int:
        """Return the least number that meets the target if batches take shorter by that factor.

        It is asked where one device fewer cannot keep up: a looser target then does not help it.
        """
        if fewest == 1 or self._that_keep_up(fewest - 1):
            return fewest
        # A faster device with the same requests does what this one does with fewer, in shorter time.
        rate_per_s, target_ms = self._demand.rate_per_s / faster, self._demand.target_ms * faster

        def meets(devices: int) -> bool:
            fleets = [Fleet(devices, cap, rate_per_s) for cap in self.caps]
            pilots = (self._pilot(fleet) for fleet in fleets if self._keeps_up(fleet))
            return devices == fewest or any(pilot.steady and pilot.tail_ms <= target_ms for pilot in pilots)

        return _first(meets, fewest, min(fewest, self._keeping_up(fewest, 1 / faster)), lambda _: True) or fewest

    def _least_within(self, target_ms: float, found: Outcome) -> int | None:
        """Return the least number of devices that meets another target by its percentile; None where no number does."""

        def meets(devices: int) -> bool:
            outcome = self.best(devices)
            return outcome.steady and outcome.load <= self._demand.load_allowed and outcome.tail_ms <= target_ms

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
        unlike = self._unlike(fleets)
        near = [fleet for fleet in unlike if self._pilot(fleet).tail_ms <= _NEAR * target_ms]
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
        pilots = {(pilot.tail_ms, pilot.refused, pilot.mean_ms): pilot for pilot in map(self._pilot, reversed(fleets))}
        unlike = [pilot for _, pilot in sorted(pilots.items(), key=itemgetter(0))]
        return [Fleet(pilot.devices, pilot.batch_cap, pilot.rate_per_s) for pilot in unlike]

    def under(self, fleet: Fleet) -> Outcome:
        """Return what a fleet does, simulated for longer where chance leaves open whether it meets the target."""
        if fleet not in self._full:
            self._full[fleet] = self._simulated_in_full(fleet)
        return self._full[fleet]

    def _once(self, fleet: Fleet) -> Outcome:
        """Return what a fleet does, simulated in full and no longer."""
        if fleet not in self._at_first:
            self._at_first[fleet] = self._simulated(fleet, _SEEDS, 1.0)
        return self._at_first[fleet]

    def _simulated_in_full(self, fleet: Fleet) -> Outcome:
        target_ms, outcome = self._demand.target_ms, self._once(fleet)
        before, effort = 0.0, 1.0
        for more in _MORE_EFFORT:
            as_long_as_can_be = outcome.requests < _AS_ASKED * effort * before
            if not outcome.steady or outcome.meets(target_ms) or outcome.misses(target_ms) or as_long_as_can_be:
                break
            before, effort = outcome.requests / effort, more
            outcome = self._simulated(fleet, _SEEDS, effort)
        return outcome

    def _that_keep_up(self, devices: int) -> list[Fleet]:
        fleets = [Fleet(devices, cap, self._demand.rate_per_s) for cap in self.caps]
        return [fleet for fleet in fleets if self._keeps_up(fleet)]

    def _keeps_up(self, fleet: Fleet) -> bool:
        load = fleet.load(self.service, self._demand)
        return (load < 1 or self._demand.max_queue is not None) and load <= self._demand.load_allowed


def _merit(outcome: Outcome) -> tuple[bool, float, float]:
    """Order outcomes, the best first."""
    return not outcome.steady, outcome.tail_high_ms, outcome.refused


def _none_helps(meets: Callable[[int], bool]) -> Callable[[int], bool]:
    """Return whether no number of devices meets, asked where so many more made no difference."""
    return lambda more: more >= _HOPE and not meets(MOST_DEVICES)


def step_at(devices: int) -> int:
    """Return to how many devices a fleet's size is told: of two thousand and more to a thousandth.

    How long batches take is not known any better.
    """
    return max(1, devices // _EXACTLY)


def _first(meets: Callable[[int], bool], start: int, lowest: int, hopeless: Callable[[int], bool]) -> int | None:
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
