"""The least number of devices that meets a demand, and what stands beside it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tputfind.record.identity import name_of
from tputfind.record.record import Notice, Record
from tputfind.record.types import Above0, Amount, Count, CountFromZero
from tputfind.sizing.demand import Demand
from tputfind.sizing.energy import Energy, check_rack, energy_of
from tputfind.sizing.fleets import Search, Tell
from tputfind.sizing.formulas import devices_at_full_batch, devices_by_batch_time, devices_by_mean
from tputfind.sizing.notices import notices
from tputfind.sizing.observed import Observed
from tputfind.sizing.power import power_of
from tputfind.sizing.ranges import range_of
from tputfind.sizing.saturation import most_per_ms
from tputfind.sizing.simulate import Fleet, Outcome
from tputfind.sizing.solve import solved


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How many devices the usual reckonings come to; None where one has no answer."""

    full_batches: Count
    naive: Count | None
    nexus: Count | None
    mean: Count | None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one kind in a mix, the largest batch of each, and the share of the requests that they serve."""

    recipe: str
    device_name: str
    devices: Count
    batch_cap: Count
    share: Amount
    cost_per_hour: Above0


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of several kinds that meet a demand together, and what all of them do and cost.

    In the outcome ``batch_cap`` is the largest of the parts.
    """

    parts: tuple[Part, ...]
    outcome: Outcome
    cost_per_hour: Above0
    cost_per_million: Above0


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
    streams and in the record's samples; ``most`` is None where no number is sure to meet the target, and both are of
    given devices. ``holds`` says whether the target is met within the load allowed: given devices may miss it.
    ``without_spare`` is what they do with the spare ones gone, None where none was asked for. ``fewer`` is the best
    that one device less than that does, or a thousandth of two thousand and more; None where there is but one.
    ``fewer_fails`` says whether it certainly misses the target, and is not merely too near to it to tell.
    ``more_traffic`` is the same devices with 20 % more requests.
    ``slope_ms`` and ``intercept_ms`` are of the line through the times of a batch. Of recorded arrivals only their
    number is kept. Costs are None where the price is not known, and ``energy`` where the power of the devices is not.
    ``waiting_per_s`` are the requests that a device answers while others wait for room before it: None without a limit
    on those that it has at a time, ``full_per_s`` those with full batches.
    ``cost_per_million`` is of requests. ``mix`` is the cheapest mix of kinds of devices, if it is cheaper than this
    plan; ``no_mix`` says why there is none. Both stand in the best plan of a model. ``observed`` is what logs of a real
    server tell.
    """

    model: str
    recipe: str
    device_name: str
    demand: Demand
    samples_per_s: Above0
    outcome: Outcome
    fewest: Count | None
    most: Count | None
    holds: bool
    without_spare: Outcome | None = None
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
    energy: Energy | None = None
    input_shape: str = ""
    mix: Mix | None = None
    no_mix: str = ""
    observed: Observed | None = None
    cost_per_million_samples: Above0 | None = None
    full_per_s: Above0
    waiting_per_s: Above0 | None = None

    @property
    def holding(self) -> Outcome:
        """What the devices do that must hold the target: all, or those without the spare ones."""
        return self.without_spare or self.outcome


def plan(record: Record, demand: Demand, price: Price | None = None, tell: Tell | None = None) -> Plan:
    """Return the least number of devices whose percentile of latency is within the target, and the best cap for it.

    Of a given number of devices, what they do: at the rate and target asked for, or at the highest rate or the tightest
    target that they bear.

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
        BadRequest: the record has no rows that could tell, or no rack holds a device.
        NoPlan: no number of devices meets the demand.
    """
    check_rack(power_of(record), demand)
    demand = solved(record, demand, tell)
    search = Search(record, demand, tell)
    fewest: int | None = None
    most: int | None = None
    if demand.devices is None:
        found = search.least()
        holding = search.with_room(found.outcome)
        fewest, most = range_of(search, holding)
    else:
        holding = search.best(demand.devices - demand.spare)
        if search.holds(holding):
            holding = search.with_room(holding)
        elif demand.spare:  # the server is set to what serves while none is gone
            cap = search.best(demand.devices).batch_cap
            holding = search.under(Fleet(holding.devices, cap, demand.rate_per_s))
        found = search.found(holding)
    outcome = holding
    if demand.spare:
        outcome = search.under(Fleet(holding.devices + demand.spare, holding.batch_cap, demand.rate_per_s))
    slope_ms, intercept_ms = search.service.line_ms()
    rate_per_s, target_ms, samples = demand.rate_per_s, demand.target_ms, demand.mean_samples
    samples_per_s = rate_per_s * samples
    cap, each_per_s = outcome.batch_cap, 1000 / samples
    waiting_per_s = None if demand.most_ongoing is None else each_per_s * most_per_ms(cap, search.service, demand)
    per_hour = None if price is None else price.price_per_hour * outcome.devices
    answered = 1 - outcome.refused
    return Plan(
        model=record.spec.model,
        recipe=name_of(record.spec),
        device_name=record.environment.device_name,
        input_shape=record.input_shape,
        demand=msgspec.structs.replace(demand, gaps=None, counts=None),
        samples_per_s=samples_per_s,
        arrivals=0 if demand.gaps is None else len(demand.gaps) + 1,
        outcome=outcome,
        fewest=None if fewest is None else fewest + demand.spare,
        most=None if most is None else most + demand.spare,
        without_spare=holding if demand.spare else None,
        fewer=found.fewer,
        fewer_fails=found.fewer is None or found.fewer.misses(target_ms) or found.fewer.load > demand.load_allowed,
        holds=search.holds(holding),
        more_traffic=search.with_more_traffic(outcome),
        rules=Rules(
            full_batches=devices_at_full_batch(search.service, samples_per_s, search.most),
            naive=devices_by_batch_time(search.service, samples_per_s, search.most, target_ms, 1),
            nexus=devices_by_batch_time(search.service, samples_per_s, search.most, target_ms, 2),
            mean=devices_by_mean(search.service, rate_per_s, target_ms, samples, demand.samples_dispersion),
        ),
        slope_ms=slope_ms,
        intercept_ms=intercept_ms,
        delay_ms=demand.wait_ms,
        notices=tuple(notices(record, outcome, search.service.largest, demand)),
        price=price,
        cost_per_hour=per_hour,
        cost_per_million=None if per_hour is None else per_hour / (3600 * rate_per_s * answered) * 1e6,
        energy=energy_of(search.service.power, outcome, demand),
        full_per_s=each_per_s * search.service.per_ms(cap),
        waiting_per_s=waiting_per_s,
        cost_per_million_samples=None if per_hour is None else per_hour / (3600 * samples_per_s * answered) * 1e6,
    )


def least(record: Record, demand: Demand, tell: Tell | None = None) -> Outcome:
    """Return what the least number of devices that meets a demand does, as in its plan; errors as for ``plan``."""
    search = Search(record, demand, tell)
    return search.with_room(search.least().outcome)
