"""Plans: the smallest fleet of each record for one demand, with its uncertainty, and the best of several records."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tputfind.errors import BadRequest, NoPlan, TputfindError
from tputfind.record.environment import ACCELERATORS_PER_HOST
from tputfind.record.identity import name_of, requests_key
from tputfind.record.record import Notice, Record, check_record
from tputfind.record.result import Result
from tputfind.record.types import Above0, Count, CountFromZero
from tputfind.sizing.calibration import Calibration, Estimate, Log, Observed, calibrate, notices_of_logs
from tputfind.sizing.engine.replications import Outcome, Verdict
from tputfind.sizing.engine.service_times import Overheads, service_times_of
from tputfind.sizing.planner.closed_forms import devices_at_full_batch, devices_by_batch_time, devices_by_mean
from tputfind.sizing.planner.costs import Energy, Price, check_prices, energy_of, power_of, price_of
from tputfind.sizing.planner.inverse import edge_of, range_of, solve_demand
from tputfind.sizing.planner.mixes import Mix, Offer, cheapest_mix
from tputfind.sizing.planner.notices import notices
from tputfind.sizing.planner.question import Demand, Solved, read_demand
from tputfind.sizing.planner.search import Search, Tell
from tputfind.units import echo

Ranking = Literal["cost", "devices", "rate", "target", "latency"]
_RANKED: Final[dict[Solved, Ranking]] = {"rate": "rate", "slo": "target", "nothing": "latency"}
_WORST_FIRST: Final[tuple[Verdict, ...]] = "misses", "undecided", "meets"
_IN_OVERHEADS: Final = "copies", "no_overhead"
"""Kinds of notices about costs that the overheads of a real server include."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Devices by rules of thumb; None if a rule has no answer."""

    full_batches: Count
    naive: Count | None
    nexus: Count | None
    mean: Count | None


class Plan(Result, msgspec.Struct, frozen=True, kw_only=True):
    """The devices with which a record's model meets a demand, and their performance.

    ``fewest`` and ``most`` are the 90 % range of the number of devices, by chance in streams and record and by
    undecided fleets; ``most`` is None if no number is sure to meet the target, and both are None for given devices.
    ``holds`` is whether the target is met at the allowed utilization, with and without the spare devices: given devices
    may miss it. ``without_spare`` is the outcome with the spare devices down, None without spare ones. ``fewer`` is the
    best outcome with one device less than that (up to 0.4 % less from five hundred on); None if there is only one.
    ``fewer_fails`` is whether that certainly misses the target. ``more_traffic`` is the same devices with 20 % more
    requests. ``slope_ms`` and ``intercept_ms`` are those of the line through batch times. ``arrivals`` is the number of
    recorded arrivals, which are not kept, and ``arrivals_per_s`` their rate. Costs are None if the price is unknown,
    and ``energy`` if the power of the devices is. ``cost_per_million`` is per million requests. ``mix`` is the cheapest
    mix of kinds of devices, if it is cheaper than this plan; ``no_mix`` is why there is none. Only the best plan of a
    model has either. ``observed`` are the overheads from logs of a real server. ``cpu_threads`` are the compute threads
    of a device that is a CPU; None for accelerators.
    """

    KIND = "plans"
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
    arrivals_per_s: Above0 | None = None
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
    devices_per_host: Count | None = ACCELERATORS_PER_HOST
    cpu_threads: Count | None = None
    mix: Mix | None = None
    no_mix: str = ""
    observed: Observed | None = None
    cost_per_million_samples: Above0 | None = None

    @property
    def serving(self) -> Outcome:
        """The outcome of the devices that must meet the target: all, or those without the spare ones."""
        return self.without_spare or self.outcome

    @property
    def worst(self) -> Outcome:
        """The outcome that decides on the target: that without the spare devices, unless only all devices miss it."""
        return min(self.serving, self.outcome, key=lambda one: _WORST_FIRST.index(one.verdict))

    @property
    def may_yet_hold(self) -> bool:
        """Whether chance leaves open if the target is met."""
        return self.worst.verdict == "undecided" and self.serving.utilization <= self.demand.highest_utilization

    @property
    def answers(self) -> Answers:
        """The answers with this plan alone, for its pages and files."""
        return Answers([self], [], "devices", [[self]], [])


class Answers(NamedTuple):
    """Plans, the best of each model first, the errors of records without a plan, and the ranking.

    ``models`` are the plans of each model separately, because models cannot replace each other. ``unplanned`` are the
    models without a plan for any record, with the error of the first.
    """

    plans: list[Plan]
    without: list[tuple[Record, TputfindError]]
    ranked_by: Ranking
    models: list[list[Plan]]
    unplanned: list[tuple[Record, TputfindError]]


class Plans(Result, list[Plan]):
    """Plans, the best of each model first, and the answers that they belong to."""

    KIND = "plans"
    __slots__ = ("answers",)

    def __init__(self, found: Answers) -> None:
        super().__init__(found.plans)
        self.answers = found


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of the best plans of different models, each with devices of its own; the cost if all have one."""

    devices: Count
    cost_per_hour: Above0 | None = None
    currency: str = ""


def size(*records: Record, prices: Sequence[Price] = (), **options: object) -> Plans:
    """Return the number of devices that each record's model needs for a stream of requests, the best plan first.

    Plans of different models are no alternatives: those of the first record's model come first.

    Args:
        records: measurements, as ``find`` or ``load_record`` returns them. For devices that were busy together, pass
            those records, and none of the same devices alone.
        prices: of devices; if all records have one, the cheapest plan is the best, else the one with the fewest
            devices.
        options: options of ``tputfind size``, with underscores: ``rate=5000, slo="50ms"``. Numbers are requests per
            second and milliseconds; ``gaps`` are seconds between recorded requests. With ``devices=4`` and one of
            ``rate`` and ``slo``, the other is the answer, in ``plan.demand``; with both, ``plan.holds`` is.

    Raises:
        BadRequest: an option is wrong, or no record can be planned with.
        NoPlan: no number of devices meets the demand for any record.
    """
    if not records:
        raise BadRequest("no record to size from")
    for number, record in enumerate(records, start=1):
        check_record(f"record {number}", record)
    found = answers(records, read_demand(options), _valid_prices(prices))
    if not found.plans:
        raise found.without[0][1]
    return Plans(found)


def _valid_prices(prices: Sequence[Price]) -> Sequence[Price]:
    """Return the prices; raise BadRequest if they are not valid prices of devices."""
    if not isinstance(prices, (list, tuple)):
        raise BadRequest(f"prices: {echo(prices)} is a {type(prices).__name__}, not a list of Price")
    for place, price in enumerate(prices):
        if not isinstance(price, Price):
            raise BadRequest(f"prices: number {place}: {echo(price)} is a {type(price).__name__}, not a Price")
    try:
        check_prices({f"number {place}": price for place, price in enumerate(prices)})
    except ValueError as problem:
        raise BadRequest(f"prices: {problem}") from None
    return prices


def answers(
    records: Sequence[Record],
    demand: Demand,
    prices: Sequence[Price] = (),
    tell: Tell | None = None,
    logs: Sequence[Log] = (),
) -> Answers:
    """Return the plans of records, and the errors of those without one: ``NoPlan``, or unsuitable rows.

    ``tell`` gets a message before each simulation. ``logs`` are of the server, on a device of the only record.
    """
    models: dict[Hashable, list[tuple[Record, Plan]]] = {requests_key(record): [] for record in records}
    without: list[tuple[Record, TputfindError]] = []
    for record in records:
        try:
            price = price_of(record, prices)
            found = plan_by_logs(record, demand, logs, price, tell) if logs else plan(record, demand, price, tell)
            models[requests_key(record)].append((record, found))
        except (NoPlan, BadRequest) as error:
            without.append((record, error))
    unplanned = [next(one for one in without if requests_key(one[0]) == key) for key, of in models.items() if not of]
    planned = [of for of in models.values() if of]
    ranked_by = _ranking(demand, [each for of in planned for _, each in of])
    listed = [_rank_plans(of, demand, ranked_by, tell) for of in planned]
    return Answers([each for of in listed for each in of], without, ranked_by, listed, unplanned)


def _ranking(demand: Demand, plans: Sequence[Plan]) -> Ranking:
    """Return the ranking of plans: by cost if all have a price in one currency."""
    if demand.devices is not None:
        return _RANKED[demand.solve]
    currencies = {each.price.currency if each.price else None for each in plans}
    return "cost" if len(currencies) == 1 and None not in currencies else "devices"


def _rank_plans(
    plans: Sequence[tuple[Record, Plan]], demand: Demand, ranked_by: Ranking, tell: Tell | None
) -> list[Plan]:
    """Return the plans of one model, the best first; that one gets the cheapest mix if there are several kinds."""
    ranked = sorted(plans, key=lambda each: _merit(each[1], ranked_by))
    listed = [each for _, each in ranked]
    if ranked_by == "cost" and len({each.device_name for each in listed}) > 1:
        offers: dict[str, Offer] = {}
        for record, each in ranked:
            if each.price is not None:
                offer = Offer(record, each.recipe, each.device_name, each.outcome, each.price.price_per_hour)
                offers.setdefault(each.device_name, offer)
        mix = cheapest_mix(list(offers.values()), demand, tell)
        changed: dict[str, object] = {"no_mix": mix} if isinstance(mix, str) else {"mix": mix}
        listed[0] = msgspec.structs.replace(listed[0], **changed)
    return listed


def _merit(plan: Plan, ranked_by: Ranking) -> tuple[bool, float]:
    """Return the sort key of plans: those that meet the target come first, the best answer before others."""
    merits: dict[Ranking, float] = {
        "cost": plan.cost_per_hour or 0.0,
        "devices": plan.outcome.devices,
        "rate": -plan.demand.rate_per_s,
        "target": plan.demand.slo_ms,
        "latency": plan.serving.tail_ms,
    }
    return not plan.holds, merits[ranked_by]


def together(found: Answers) -> Together | None:
    """Return the sum over different models; None for one model, for given devices, or if a model has no plan."""
    best = [of[0] for of in found.models]
    if len(best) < 2 or found.unplanned or found.ranked_by not in ("cost", "devices"):  # several
        return None
    chosen = [each.mix or each for each in best]
    devices = sum(each.outcome.devices for each in chosen)
    if found.ranked_by == "devices":
        return Together(devices=devices)
    currency = next(each.price.currency for each in best if each.price is not None)
    return Together(devices=devices, cost_per_hour=sum(each.cost_per_hour or 0.0 for each in chosen), currency=currency)


def plan(record: Record, demand: Demand, price: Price | None = None, tell: Tell | None = None) -> Plan:
    """Return the least number of devices whose latency percentile is within the target, and the best batch limit.

    For a given number of devices, return their performance: at the given rate and target, or at the highest rate or the
    tightest target that they can meet. Raise BadRequest without service times, NoPlan if the demand cannot be met.
    """
    demand = solve_demand(record, demand, tell)
    search = Search(record, demand, tell)
    bounds: tuple[int | None, int | None] = None, None
    if demand.devices is None:
        serving = search.least()
        bounds = range_of(search, serving)
    else:
        serving = search.outcome_with_room(demand.devices - demand.spare)
        if demand.spare and not search.holds(serving):  # the batch limit is that of the full fleet
            serving = search.judge(serving.devices, search.best(demand.devices).outcome.batch_cap).outcome
    fewest, most = (None if bound is None else bound + demand.spare for bound in bounds)
    fewer = search.fewer(serving.devices)
    edge = edge_of(search, serving, fewer) if demand.devices is None else None
    simulated = search.judge(serving.devices + demand.spare, serving.batch_cap)
    outcome, service, samples = simulated.outcome, search.service, demand.mean_samples
    smallest = demand.samples_per_request[0][0] if demand.is_whole else 1
    fills = simulated.largest_batch > outcome.batch_cap - smallest
    slope_ms, intercept_ms = service.line_ms()
    rate_per_s, target_ms = demand.rate_per_s, demand.target_ms
    per_hour = None if price is None else price.price_per_hour * outcome.devices
    answered_per_s = max(rate_per_s * (1 - outcome.refused), 1e-300)
    sizes, environment = demand.traffic.dispersion(0.0), record.environment
    return Plan(
        model=record.spec.model,
        recipe=name_of(record.spec),
        device_name=environment.device_name,
        input_shape=record.input_shape,
        devices_per_host=environment.devices_per_host,
        cpu_threads=max(1, environment.torch_threads) if environment.can.is_cpu else None,
        demand=msgspec.structs.replace(demand, gaps=None, counts=None),
        samples_per_s=rate_per_s * samples,
        arrivals=0 if demand.gaps is None else len(demand.gaps) + 1,
        arrivals_per_s=demand.recorded_per_s,
        outcome=outcome,
        fewest=fewest,
        most=most,
        without_spare=serving if demand.spare else None,
        fewer=fewer,
        fewer_fails=fewer is None or fewer.verdict == "misses" or fewer.utilization > demand.highest_utilization,
        holds=search.holds_with_spare(serving),
        more_traffic=search.outcome_under_more_traffic(outcome),
        rules=Rules(
            full_batches=devices_at_full_batch(service, rate_per_s * samples, search.most),
            naive=devices_by_batch_time(service, rate_per_s * samples, search.most, target_ms, 1),
            nexus=devices_by_batch_time(service, rate_per_s * samples, search.most, target_ms, 2),
            mean=devices_by_mean(service, rate_per_s, target_ms, samples, sizes),
        ),
        slope_ms=slope_ms,
        intercept_ms=intercept_ms,
        delay_ms=demand.wait_ms,
        notices=tuple(notices(record, outcome, service.largest, demand, edge, fills=fills)),
        price=price,
        cost_per_hour=per_hour,
        cost_per_million=None if per_hour is None else per_hour / (3600 * answered_per_s) * 1e6,
        energy=energy_of(power_of(record), simulated, samples),
        cost_per_million_samples=None if per_hour is None else per_hour / (3600 * samples * answered_per_s) * 1e6,
    )


def plan_by_logs(
    record: Record, demand: Demand, logs: Sequence[Log], price: Price | None = None, tell: Tell | None = None
) -> Plan:
    """Return the plan of a server with overheads from logs; its range includes their uncertainty."""
    if demand.traffic.has_several_samples:
        raise BadRequest("--observed does not go with requests of several samples")
    if demand.overheads != Overheads():
        raise BadRequest("--observed does not go with --overhead: logs show the overheads")
    found = calibration_of(record, demand, logs)
    calibrated = add_estimate(demand, found.estimate)
    planned = plan(record, calibrated, price, tell)
    fewest, most = planned.fewest, planned.most
    if fewest is not None:
        low, high = (_least_or_none(record, demand, estimate, tell) for estimate in (found.faster, found.slower))
        fewest = min(fewest, low or fewest)
        most = None if most is None or high is None else max(most, high)
    kept = [notice for notice in planned.notices if notice.kind not in _IN_OVERHEADS]
    noticed = (*kept, *notices_of_logs(found.observed))
    return msgspec.structs.replace(planned, fewest=fewest, most=most, notices=noticed, observed=found.observed)


def calibration_of(record: Record, demand: Demand, logs: Sequence[Log]) -> Calibration:
    """Return the overheads of a server from its logs; errors as for ``calibrate``."""
    cap = demand.largest_batch(service_times_of(record).largest)
    return calibrate(record, demand.server._replace(limit=inf, per_answer_ms=0.0), cap, logs, demand.seed)


def add_estimate(demand: Demand, estimate: Estimate) -> Demand:
    """Return the demand with overheads and with time in transit; raise BadRequest if that leaves none of the target."""
    network_ms = demand.network_ms + estimate.beside
    if network_ms >= demand.slo_ms:
        raise BadRequest(
            f"--observed: {network_ms:.3g} ms pass on the way to the queue and back, and leave nothing of --slo "
            f"{demand.slo_ms:g} ms",
        )
    return msgspec.structs.replace(demand.replace_overheads(estimate.overheads), network_ms=network_ms)


def _least_or_none(record: Record, demand: Demand, estimate: Estimate, tell: Tell | None) -> int | None:
    """Return the least number of devices, including the spare ones; None if no number suffices."""
    try:
        return Search(record, add_estimate(demand, estimate), tell).least().devices + demand.spare
    except (NoPlan, BadRequest):
        return None
