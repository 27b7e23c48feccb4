"""The search for the cheapest mix of two kinds of devices that meets a demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, product
from math import ceil, floor
from typing import Final, NamedTuple, TypeAlias

import msgspec

from tputfind.record.record import Record
from tputfind.record.types import Above0, Amount, Count
from tputfind.sizing.engine.replications import Effort, Fleet, Outcome, Simulated, is_quick, simulate
from tputfind.sizing.engine.servers import Triton
from tputfind.sizing.engine.serving import Kind
from tputfind.sizing.planner.question import Demand
from tputfind.sizing.planner.search import LATE_REQUESTS, Search, Tell

_TRIED: Final = 12
"""Counts of one kind for which the minimum of the other is searched: those with the lowest cost."""
_JUDGED: Final = 3
"""Pairs of batch limits that are judged for two counts."""
_CHEAPER: Final = 1 - 1e-9
"""Costs that differ by less count as equal."""
_PILOT, _MOST, _MOST_QUICK = 5_000, 600_000, 3_000_000
"""Requests of a pilot, and the maximum of a judgement: request by request, and batch by batch."""
_NEAR, _HALF_WIDTH = 0.04, 0.05
_MIX: Final = 8
"""Separates these random streams from those of plans."""
Counts: TypeAlias = tuple[int, int]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one kind in a mix, the largest batch of each, and the fraction of the samples that they serve."""

    recipe: str
    device_name: str
    devices: Count
    batch_cap: Count
    share: Amount
    cost_per_hour: Above0


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of several kinds that meet a demand together, their cost, and their outcome, with the largest cap."""

    parts: tuple[Part, ...]
    outcome: Outcome
    cost_per_hour: Above0
    cost_per_million: Above0


class Offer(NamedTuple):
    """A kind of device: the record of its best recipe, its plan alone, and the price of one device per hour."""

    record: Record
    recipe: str
    device_name: str
    alone: Outcome
    per_hour: float

    @property
    def cost(self) -> float:
        return self.per_hour * self.alone.devices


def cheapest_mix(offers: Sequence[Offer], demand: Demand, tell: Tell | None = None) -> Mix | str:
    """Return the cheapest mix of two kinds of devices that meets a demand, or why none is cheaper.

    For each pair of kinds, and each of up to 12 counts of one kind, find the minimum of the other with which the mix
    meets the target. Batch limits are those of the plans of one kind, the next smaller and larger, and the fastest.
    """
    if demand.spare:
        return "a mix is not searched with --spare"
    if len(offers) < 2:  # a pair
        return "there is one kind of device with a plan and a price"
    alone = min(offers, key=lambda offer: offer.cost)
    best: Mix | None = None
    for pair in combinations(offers, 2):
        best = _Pair(pair, demand, tell).cheapest(best.cost_per_hour if best else alone.cost) or best
    return best or f"none is cheaper than {alone.alone.devices} x {alone.device_name}"


class _Pair:
    """The search for the cheapest mix of one pair of kinds."""

    def __init__(self, pair: tuple[Offer, Offer], demand: Demand, tell: Tell | None) -> None:
        self._pair, self._demand, self._tell = pair, demand, tell
        searches = [Search(offer.record, demand, tell) for offer in pair]
        self._services = [search.service for search in searches]
        self._caps = [
            list(_beside(search, offer.alone.batch_cap)) for search, offer in zip(searches, pair, strict=True)
        ]
        self._pairs_of_caps = list(product(*self._caps))
        if demand.routing == "shared" and demand.server.station is Triton:  # makes batches before it picks a device
            both = dict.fromkeys(chain(*self._caps))
            alike = [cap for cap in both if all(search.least_cap <= cap <= search.most for search in searches)]
            self._pairs_of_caps = [(cap, cap) for cap in alike]
        self._most_per_ms = [
            max(map(service.per_ms, caps)) for service, caps in zip(self._services, self._caps, strict=True)
        ]

    def cheapest(self, bound: float) -> Mix | None:
        best: Mix | None = None
        costs = [offer.per_hour / per_ms for offer, per_ms in zip(self._pair, self._most_per_ms, strict=True)]
        few = 0 if costs[0] > costs[1] else 1
        for cost, count, least in sorted(self._candidates(few, bound))[:_TRIED]:
            if cost >= bound * _CHEAPER:
                break
            best = self._mix_with_fewest(few, count, least, bound) or best
            bound = best.cost_per_hour if best else bound
        return best

    def _candidates(self, few: int, bound: float) -> Iterator[tuple[float, int, int]]:
        """Yield the cost of a mix, a count of one kind, and the least count of the other that may suffice.

        A mix may suffice if it has more devices than a fleet of one kind that is one device short, when each device
        counts as its fraction of such a fleet of its kind.
        """
        many = 1 - few
        short = [offer.alone.devices - 1 for offer in self._pair]
        for count in range(1, short[few] + 1):
            least = max(1, floor((1 - count / short[few]) * short[many]) + 1)
            cost = count * self._pair[few].per_hour + least * self._pair[many].per_hour
            if count * self._pair[few].per_hour + self._pair[many].per_hour >= bound * _CHEAPER:
                break
            if cost < bound * _CHEAPER:
                yield cost, count, least

    def _mix_with_fewest(self, few: int, count: int, least: int, bound: float) -> Mix | None:
        """Return the mix with the fewest of the other kind that meets the demand below a cost; None if none does."""
        left = bound * _CHEAPER - count * self._pair[few].per_hour
        low, high = least, ceil(left / self._pair[1 - few].per_hour) - 1

        def at(other: int) -> Mix | None:
            return self._mix_that_meets((count, other) if few == 0 else (other, count))

        best = at(high) if low <= high else None
        while best is not None and low < high:
            middle = (low + high) // 2
            found = at(middle)
            best, low, high = (best, middle + 1, high) if found is None else (found, low, middle)
        return best

    def _mix_that_meets(self, counts: Counts) -> Mix | None:
        """Return a mix of these counts with batch limits that meet the demand; None if none was found."""
        demand, judged = self._demand, 0
        floor_requests = LATE_REQUESTS / demand.goal.late
        # Two kinds behind one queue are simulated request by request.
        is_by_batch = demand.routing == "random" and is_quick(demand.server, demand.traffic)
        most = _MOST_QUICK if is_by_batch else _MOST
        for caps in self._pairs_of_caps:
            kinds = [Kind(*one) for one in zip(counts, caps, self._services, strict=True)]
            fleet = Fleet(kinds, demand.rate_per_s, demand.server, demand.traffic)
            if not demand.keeps_up_at(fleet.utilization):
                continue
            if self._tell is not None:
                each = [
                    f"{kind.devices} {offer.device_name} of batch {kind.cap}"
                    for kind, offer in zip(kinds, self._pair, strict=True)
                ]
                self._tell(f"{self._pair[0].record.spec.model}: simulating {' and '.join(each)}")
            effort = Effort(_PILOT, _MOST / 10, cell=64, is_pilot=True)
            pilot = simulate(fleet, demand.goal, effort, (demand.seed, _MIX, 0))
            if pilot.outcome.tail_ms > demand.target_ms:
                continue
            effort = Effort(floor_requests, max(most, 1.3 * floor_requests), _NEAR, _HALF_WIDTH)
            simulated = simulate(fleet, demand.goal, effort, (demand.seed, _MIX, 1))
            if simulated.outcome.meets_target:
                return self._mix(kinds, simulated)
            judged += 1
            if judged == _JUDGED:
                break
        return None

    def _mix(self, kinds: Sequence[Kind], simulated: Simulated) -> Mix:
        parts = tuple(
            Part(
                recipe=offer.recipe,
                device_name=offer.device_name,
                devices=kind.devices,
                batch_cap=kind.cap,
                share=share,
                cost_per_hour=kind.devices * offer.per_hour,
            )
            for offer, kind, share in zip(self._pair, kinds, simulated.shares, strict=True)
        )
        per_hour = sum(part.cost_per_hour for part in parts)
        answered_per_s = self._demand.rate_per_s * (1 - simulated.outcome.refused)
        per_million = per_hour / (3600 * answered_per_s) * 1e6
        return Mix(parts=parts, outcome=simulated.outcome, cost_per_hour=per_hour, cost_per_million=per_million)


def _beside(search: Search, cap: int) -> Iterator[int]:
    """Yield a batch limit, the one of the highest throughput, and the next larger and the next smaller candidate."""
    larger = [one for one in search.caps if one > cap][:1]
    smaller = [one for one in search.caps if one < cap][-1:]
    yield from dict.fromkeys([cap, max(search.caps, key=search.service.per_ms), *larger, *smaller])
