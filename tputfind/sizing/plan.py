"""The least number of devices that meets a demand, by simulation, and what stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, exp, floor, hypot, log, log10
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from tputfind.errors import NoPlan
from tputfind.record.identity import name_of
from tputfind.record.record import Notice, Record
from tputfind.record.types import Above0, Count, CountFromZero
from tputfind.sizing.demand import Demand
from tputfind.sizing.formulas import (
    devices_at_full_batch,
    devices_by_batch_time,
    devices_by_mean,
    largest_within,
)
from tputfind.sizing.notices import notices
from tputfind.sizing.service import service_of
from tputfind.sizing.simulate import Fleet, Outcome, simulate
from tputfind.stats import t_quantile

MORE_TRAFFIC: Final = 1.2
_SEEDS: Final = 5
_PILOT: Final = 0.3
_NEAR: Final = 1.3
"""Caps whose pilot comes this near to the target are simulated in full."""
_MORE_EFFORT: Final = 4.0
_MOST_DEVICES: Final = 10_000_000
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


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How many devices the usual reckonings come to; None where one has no answer."""

    full_batches: Count
    naive: Count | None
    nexus: Count | None
    mean: Count | None


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour of a device costs, by whom and when."""

    device: Annotated[str, Meta(min_length=1)]
    price_per_hour: Above0
    currency: str
    source: str = ""
    date: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a record's model takes to meet a demand, and how they then do.

    ``fewest`` and ``most`` are the numbers of devices between which the true one lies with 90 %, by chance in the
    streams and in the record's samples; ``most`` is None where no number is sure to meet the target.
    ``fewer`` is the best that one device less does, None where there is but one, and ``fewer_fails`` whether it
    certainly misses the target, and is not merely too near to it to tell. ``more_traffic`` is the same devices with
    20 % more requests. ``slope_ms`` and ``intercept_ms`` are of the line through the times of a batch. Of recorded
    arrivals only their number is kept. Costs are None where the price is not known.
    """

    model: str
    recipe: str
    device_name: str
    demand: Demand
    outcome: Outcome
    fewest: Count
    most: Count | None
    arrivals: CountFromZero
    fewer: Outcome | None
    fewer_fails: bool
    more_traffic: Outcome
    rules: Rules
    slope_ms: float
    intercept_ms: float
    delay_ms: Annotated[float, Meta(ge=0)]
    notices: tuple[Notice, ...] = ()
    price: Price | None = None
    cost_per_hour: Above0 | None = None
    cost_per_million: Above0 | None = None


def plan(record: Record, demand: Demand, price: Price | None = None, tell: Tell | None = None) -> Plan:
    """Return the least number of devices whose percentile of latency is within the target, and the best cap for it.

    Every number of devices is tried with each of a few caps: the batch sizes measured, and those that rules of thumb
    come to. Each trial is a simulation of five streams; a fleet meets the target where the whole confidence interval of
    the percentile does. Of the caps with which the least number does, the one is taken that leaves the most room for
    more traffic.

    Args:
        record: what was measured.
        demand: what is asked.
        price: of the record's device.
        tell: is told what is simulated.

    Raises:
        BadRequest: the record has no rows that could tell.
        NoPlan: no number of devices meets the demand.
    """
    search = _Search(record, demand, tell)
    found = search.least()
    outcome, more_traffic = search.with_room(found.outcome)
    fewest, most = search.range_of(outcome)
    slope_ms, intercept_ms = search.service.line_ms()
    rate_per_s, target_ms = demand.rate_per_s, demand.target_ms
    per_hour = None if price is None else price.price_per_hour * outcome.devices
    return Plan(
        model=record.spec.model,
        recipe=name_of(record.spec),
        device_name=record.environment.device_name,
        demand=msgspec.structs.replace(demand, gaps=None),
        arrivals=0 if demand.gaps is None else len(demand.gaps) + 1,
        outcome=outcome,
        fewest=fewest,
        most=most,
        fewer=found.fewer,
        fewer_fails=found.fewer is None or found.fewer.misses(target_ms),
        more_traffic=more_traffic,
        rules=Rules(
            full_batches=devices_at_full_batch(search.service, rate_per_s, search.most),
            naive=devices_by_batch_time(search.service, rate_per_s, search.most, target_ms, 1),
            nexus=devices_by_batch_time(search.service, rate_per_s, search.most, target_ms, 2),
            mean=devices_by_mean(search.service, rate_per_s, target_ms),
        ),
        slope_ms=slope_ms,
        intercept_ms=intercept_ms,
        delay_ms=demand.wait_ms,
        notices=tuple(notices(record, outcome, search.service.largest, demand)),
        price=price,
        cost_per_hour=per_hour,
        cost_per_million=None if per_hour is None else per_hour / (3600 * rate_per_s) * 1e6,
    )


def least(record: Record, demand: Demand, tell: Tell | None = None) -> Outcome:
    """Return what the least number of devices that meets a demand does; errors as for ``plan``."""
    return _Search(record, demand, tell).least().outcome


class _Found(NamedTuple):
    outcome: Outcome
    fewer: Outcome | None


class _Search:
    """The search for the least number of devices. What was simulated once is not again."""

    def __init__(self, record: Record, demand: Demand, tell: Tell | None) -> None:
        self.service = service = service_of(record, demand)
        self._record, self._tell = record, tell
        self._demand = demand
        self.most = min((service.largest, *filter(None, (demand.max_batch, demand.most_in_window))))
        self.caps = sorted(set(self._caps()))
        self._best: dict[int, Outcome] = {}
        self._full: dict[Fleet, Outcome] = {}

    def _caps(self) -> Iterator[int]:
        demand, service, target_ms = self._demand, self.service, self._demand.target_ms
        alone_ms = float(np.quantile(service.curve_ms(1), demand.percentile / 100))
        alone_ms += demand.overhead_per_get_ms + demand.overhead_per_answer_ms
        if alone_ms > target_ms:
            what = "of requests that are alone" if service.sizes[0] == 1 else f"of batches of {service.sizes[0]}"
            raise NoPlan(
                f"no device is fast enough: {demand.percentile:g} % {what} take up to {alone_ms:.4g} ms, and the "
                f"target is {target_ms:g} ms",
                f"no --slo below {_rounded_up(demand.network_ms + alone_ms):g}ms can be met",
            )
        largest = largest_within(service, target_ms) or 1
        largest = min(largest, self.most)
        half = largest_within(service, target_ms / 2) or 1
        candidates = (1, largest, half, ceil(1.5 * half), *service.sizes)
        yield from (size for size in candidates if size <= largest)

    def least(self) -> _Found:
        """Return the least number of devices that meets the demand, and the best that one fewer does.

        Raises:
            NoPlan: none does.
        """
        most_per_ms = max(self.service.per_ms(cap) for cap in self.caps)
        fails = max(0, ceil(self._demand.rate_per_s / 1000 / most_per_ms) - 1)
        step, passes = 1, fails + 1
        if passes > _MOST_DEVICES:
            raise NoPlan(
                f"{self._demand.rate_per_s:g} requests/s take {passes} devices or more by their throughput alone, and "
                f"no more than {_MOST_DEVICES} are planned with",
                "a lower --rate",
            )
        while not self._meets(passes):
            if passes == _MOST_DEVICES or (step == _HOPE and not self._meets(_MOST_DEVICES)):
                raise self._too_slow(self._at(_MOST_DEVICES))
            fails = passes
            passes = min(passes + step, _MOST_DEVICES)
            step *= 2
        while passes - fails > 1:
            middle = (passes + fails) // 2
            if self._meets(middle):
                passes = middle
            else:
                fails = middle
        return _Found(self._at(passes), self._at(fails) if fails else None)

    def _too_slow(self, best: Outcome) -> NoPlan:
        return NoPlan(
            f"not even {best.devices} devices, the most that are planned with, answer {self._demand.percentile:g} % "
            f"of the requests within {self._demand.target_ms:g} ms: it takes {best.tail_high_ms:.4g} ms",
            "a lower --rate, or a longer --slo" if best.load > _BUSY else "a longer --slo",
        )

    def with_room(self, least: Outcome) -> tuple[Outcome, Outcome]:
        """Return as many devices with the cap that bears more traffic best, and what they do under it."""
        more_per_s = self._demand.rate_per_s * MORE_TRAFFIC
        caps = [fleet.cap for fleet in self._that_keep_up(least.devices)]
        pilots = {cap: self._pilot(Fleet(least.devices, cap, more_per_s)) for cap in caps}
        for cap in sorted(pilots, key=lambda cap: (pilots[cap].load >= 1, pilots[cap].tail_ms)):
            outcome = self._in_full(Fleet(least.devices, cap, self._demand.rate_per_s))
            if outcome.meets(self._demand.target_ms):
                least = outcome
                break
        more = Fleet(least.devices, least.batch_cap, more_per_s)
        return least, self._simulated(more, _SEEDS, 1.0)

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
        """Return the least number of devices that meets another target by its percentile, with the cap that was found.

        None where no number does.
        """

        def meets(devices: int) -> bool:
            fleet = Fleet(devices, found.batch_cap, self._demand.rate_per_s)
            if fleet.load(self.service) >= 1:
                return False
            outcome = self._in_full(fleet)
            return outcome.steady and outcome.tail_ms <= target_ms

        step, passes, fails = 1, found.devices, 0
        while not meets(passes):
            if step > _FARTHEST * found.devices:
                return None
            fails, passes, step = passes, passes + step, 2 * step
        if not fails:
            step = 1
            while passes > 1 and meets(max(1, passes - step)):
                passes, step = max(1, passes - step), 2 * step
            fails = max(0, passes - step)
        while passes - fails > 1:
            middle = (passes + fails) // 2
            passes, fails = (middle, fails) if meets(middle) else (passes, middle)
        return passes

    def _pilot(self, fleet: Fleet) -> Outcome:
        return self._simulated(fleet, 1, _PILOT)

    def _simulated(self, fleet: Fleet, seeds: int, effort: float) -> Outcome:
        if self._tell is not None:
            devices = f"{fleet.devices} device{'s' * (fleet.devices > 1)}"
            self._tell(f"{self._record.spec.model}: simulating {devices} with batches of up to {fleet.cap}")
        return simulate(fleet, self.service, self._demand, seeds=seeds, effort=effort)

    def _meets(self, devices: int) -> bool:
        return self._at(devices).meets(self._demand.target_ms)

    def _at(self, devices: int) -> Outcome:
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
            tried.append(self._in_full(fleet))
            if tried[-1].meets(target_ms):
                break
        return min(tried, key=lambda outcome: (not outcome.steady, outcome.tail_high_ms))

    def _in_full(self, fleet: Fleet) -> Outcome:
        """Return what a fleet does, simulated for longer where chance leaves open whether it meets the target."""
        if fleet not in self._full:
            self._full[fleet] = self._simulated_in_full(fleet)
        return self._full[fleet]

    def _simulated_in_full(self, fleet: Fleet) -> Outcome:
        outcome = self._simulated(fleet, _SEEDS, 1.0)
        target_ms = self._demand.target_ms
        if outcome.meets(target_ms) or outcome.misses(target_ms):
            return outcome
        return self._simulated(fleet, _SEEDS, _MORE_EFFORT)

    def _that_keep_up(self, devices: int) -> list[Fleet]:
        fleets = [Fleet(devices, cap, self._demand.rate_per_s) for cap in self.caps]
        return [fleet for fleet in fleets if fleet.load(self.service) < 1]


def _rounded_up(value: float) -> float:
    """Return a value above 0 with four digits, and no less than it is."""
    step = 10.0 ** (floor(log10(value)) - 3)
    return ceil(value / step) * step
