"""What several records come to for one demand: the plans, the cheapest first, and those that have none."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from tputfind.errors import BadRequest, NoPlan, TputfindError
from tputfind.record.identity import requests_key
from tputfind.record.record import Record, check_record
from tputfind.record.types import Above0, Count
from tputfind.sizing.demand import Demand, Solved
from tputfind.sizing.fleets import Tell
from tputfind.sizing.mixes import cheapest_mix
from tputfind.sizing.observed import Fit, fitted
from tputfind.sizing.observed import notices as notices_of_logs
from tputfind.sizing.options import read_demand
from tputfind.sizing.overheads import Log
from tputfind.sizing.plan import Plan, Price, least, plan
from tputfind.sizing.prices import check_apart, price_of, read_price
from tputfind.sizing.simulate import Outcome
from tputfind.units import echoed

_SHARES = tuple(tenth / 10 for tenth in range(1, 13))
"""Of the rate, for a curve: what the same stream takes as it grows."""


Ranking = Literal["cost", "devices", "rate", "target", "latency"]
_RANKED: Final[dict[Solved, Ranking]] = {"rate": "rate", "slo": "target", "nothing": "latency"}


class Answers(NamedTuple):
    """Plans, the best of each model first, why there is none of the other records, and what plans are ranked by.

    ``models`` are the plans of each model for themselves: one does not take the place of another. ``unplanned`` are the
    models of which no record has a plan, with the reason of the first.
    """

    plans: list[Plan]
    without: list[tuple[Record, TputfindError]]
    ranked_by: Ranking
    models: list[list[Plan]]
    unplanned: list[tuple[Record, TputfindError]]


def size(*records: Record, prices: Sequence[Price] = (), **options: object) -> list[Plan]:
    """Return how many devices each record's model takes for a stream of requests, the best first.

    Plans of different models are no alternatives: those of the first record's model come first.

    Args:
        records: what was measured, as ``find`` or ``load_record`` returns it. Of devices that were busy together, give
            those records, and none of the same devices alone.
        prices: of devices; where all records' have one, the cheapest is the best, else the one with the fewest devices.
        options: the command line's of ``tputfind size``, with underscores: ``rate=5000, slo="50ms"``. Numbers are
            requests per second and milliseconds; ``gaps`` are times between recorded requests. With ``devices=4`` and
            one of ``rate`` and ``slo``, the other is the answer, in ``plan.demand``; with both, ``plan.holds`` is.

    Raises:
        BadRequest: the options, or all of the records, do not allow it.
        NoPlan: no number of devices meets the demand, whichever the record.
    """
    if not records:
        raise BadRequest("no record to size from")
    for number, record in enumerate(records, start=1):
        check_record(f"record {number}", record)
    found = answers(records, read_demand(options), _checked(prices))
    if not found.plans:
        raise found.without[0][1]
    return found.plans


def _checked(prices: Sequence[Price]) -> Sequence[Price]:
    """Return prices as they are; BadRequest where they cannot be those of devices."""
    if not isinstance(prices, (list, tuple)):
        raise BadRequest(f"prices: {echoed(prices)} is a {type(prices).__name__}, and no list of Price")
    for place, price in enumerate(prices):
        if not isinstance(price, Price):
            raise BadRequest(f"prices: number {place}: {echoed(price)} is a {type(price).__name__}, and no Price")
        try:
            read_price(msgspec.structs.asdict(price))
        except ValueError as problem:
            raise BadRequest(f"prices: number {place}: {problem}") from None
    try:
        check_apart({f"number {place}": price for place, price in enumerate(prices)})
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
    """Return the plans of records, and the errors of those that have none: ``NoPlan``, or rows that cannot tell.

    ``tell`` is told now and then what is simulated. ``logs`` are of the server, on a device of the only record.
    """
    models: dict[Hashable, list[tuple[Record, Plan]]] = {requests_key(record): [] for record in records}
    without: list[tuple[Record, TputfindError]] = []
    for record in records:
        try:
            price = price_of(record, prices)
            if logs:
                found = _observed(record, fitted(record, demand, logs), price, tell)
            else:
                found = plan(record, demand, price, tell)
            models[requests_key(record)].append((record, found))
        except (NoPlan, BadRequest) as error:
            without.append((record, error))
    unplanned = [next(one for one in without if requests_key(one[0]) == key) for key, of in models.items() if not of]
    planned = [of for of in models.values() if of]
    ranked_by = _ranking(demand, [each for of in planned for _, each in of])
    listed = [_ranked(of, demand, ranked_by, tell) for of in planned]
    return Answers([each for of in listed for each in of], without, ranked_by, listed, unplanned)


def _ranking(demand: Demand, plans: Sequence[Plan]) -> Ranking:
    """Return what plans are ranked by: by cost where all of them have one, in one currency."""
    if demand.devices is not None:
        return _RANKED[demand.solve]
    currencies = {each.price.currency if each.price else None for each in plans}
    return "cost" if len(currencies) == 1 and None not in currencies else "devices"


def _ranked(plans: Sequence[tuple[Record, Plan]], demand: Demand, ranked_by: Ranking, tell: Tell | None) -> list[Plan]:
    """Return the plans of one model, the best first; it has the cheapest mix where they are of several kinds."""
    ranked = sorted(plans, key=lambda each: _merit(each[1], ranked_by))
    listed = [each for _, each in ranked]
    if ranked_by == "cost" and len({each.device_name for each in listed}) > 1:
        mix = cheapest_mix(ranked, demand, tell)
        told = {"no_mix": mix} if isinstance(mix, str) else {"mix": mix}
        listed[0] = msgspec.structs.replace(listed[0], **told)
    return listed


def _merit(plan: Plan, ranked_by: Ranking) -> tuple[bool, float]:
    """Return what plans are sorted by: of given devices those that hold come first, the best answer before others."""
    answers: dict[Ranking, float] = {
        "cost": plan.cost_per_hour or 0.0,
        "devices": plan.outcome.devices,
        "rate": -plan.demand.rate_per_s,
        "target": plan.demand.slo_ms,
        "latency": plan.holding.tail_ms,
    }
    return not plan.holds, answers[ranked_by]


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """What the best plans of different models come to, each with devices of its own; the cost where all have one."""

    devices: Count
    cost_per_hour: Above0 | None = None
    currency: str = ""


def together(found: Answers) -> Together | None:
    """Return what different models take together; None of one model, of given devices, or where one has no plan."""
    best = [of[0] for of in found.models]
    if len(best) < 2 or found.unplanned or found.ranked_by not in ("cost", "devices"):  # several
        return None
    devices = sum(each.outcome.devices for each in best)
    prices = [each.price for each in best if each.price is not None]
    if found.ranked_by != "cost":
        return Together(devices=devices)
    costs = [each.mix.cost_per_hour if each.mix else each.cost_per_hour or 0.0 for each in best]
    devices = sum(each.mix.outcome.devices if each.mix else each.outcome.devices for each in best)
    return Together(devices=devices, cost_per_hour=sum(costs), currency=prices[0].currency)


_IN_OVERHEADS: Final = "copies", "one_by_one"
"""Kinds of notices of what the overheads of a real server hold."""


def _observed(record: Record, fit: Fit, price: Price | None, tell: Tell | None) -> Plan:
    """Return the plan of a server whose overheads are known from logs: its range holds what these leave open."""
    found = plan(record, fit.demand, price, tell)
    fewest, most = found.fewest, found.most
    if fewest is not None:
        low, high = (_devices(record, demand, tell) for demand in (fit.faster, fit.slower))
        fewest = min(fewest, low or fewest)
        most = None if most is None or high is None else max(most, high)
    kept = [notice for notice in found.notices if notice.kind not in _IN_OVERHEADS]
    told = (*kept, *notices_of_logs(fit.observed, fit.demand))
    return msgspec.structs.replace(found, fewest=fewest, most=most, notices=told, observed=fit.observed)


def _devices(record: Record, demand: Demand | None, tell: Tell | None) -> int | None:
    """Return the least number of devices with the spare ones; None where no number does."""
    if demand is None:
        return None
    try:
        return least(record, demand, tell).devices + demand.spare
    except NoPlan:
        return None


def curve(record: Record, demand: Demand, tell: Tell | None = None) -> Iterator[Outcome]:
    """Yield the least fleets for a tenth of the rate, two tenths and so on, up to a fifth more than the whole.

    Raises:
        BadRequest: the record has no rows that could tell.
        NoPlan: no number of devices meets the demand.
    """
    for share in _SHARES:
        yield least(record, msgspec.structs.replace(demand, rate_per_s=share * demand.rate_per_s), tell)
