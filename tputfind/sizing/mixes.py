"""The search for the cheapest mix of two kinds of devices that meets a demand, by simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from math import ceil, floor
from typing import Final, NamedTuple

from tputfind.record.record import Record
from tputfind.sizing.demand import Demand
from tputfind.sizing.fleets import MORE_EFFORT, Search, Tell
from tputfind.sizing.mixed import Kind, Mixed, load_of, simulate_mix, unsupported
from tputfind.sizing.plan import Mix, Part, Plan
from tputfind.sizing.simulate import PILOT, SEEDS

_TRIED: Final = 12
"""Counts of the one kind for which the fewest of the other are looked for: those with the lowest cost."""
_FULL: Final = 3
"""Pairs of caps that are simulated in full for two counts."""
_CHEAPER: Final = 1 - 1e-9
"""Costs that differ by less are equal."""


class Priced(NamedTuple):
    """A kind of device: the record of its best recipe, its plan alone, and the price of one for an hour."""

    record: Record
    plan: Plan
    per_hour: float


class _Costed(NamedTuple):
    """Two kinds' counts, and what they do."""

    counts: tuple[int, int]
    caps: tuple[int, int]
    mixed: Mixed
    cost_per_hour: float


def cheapest_mix(plans: Sequence[tuple[Record, Plan]], demand: Demand, tell: Tell | None = None) -> Mix | str:
    """Return the cheapest mix of two kinds of devices that meets a demand, or say why there is none that is cheaper.

    Each pair of kinds is looked at. For each of up to 12 counts of the one kind the fewest of the other are found with
    which the mix meets the target, as fleets of one kind are found to. Only what is cheaper than the cheapest plan of
    one kind is simulated. Caps are those of the plans of one kind, and those beside them.

    Args:
        plans: of one model, with their records, the cheapest first.
        demand: what is asked.
        tell: is told what is simulated.
    """
    if (why := unsupported(demand)) is not None:
        return why
    kinds = list(_kinds(plans))
    if len(kinds) < 2:  # a pair
        return "there is one kind of device with a plan and a price"
    alone = min(kinds, key=lambda kind: kind.per_hour * kind.plan.outcome.devices)
    bound = alone.per_hour * alone.plan.outcome.devices
    best: tuple[_Costed, tuple[Priced, Priced]] | None = None
    for pair in combinations(kinds, 2):
        found = _Pair(pair, demand, tell).cheapest(bound)
        if found is not None:
            best, bound = (found, pair), found.cost_per_hour
    if best is None:
        return f"none is cheaper than {alone.plan.outcome.devices} x {alone.plan.device_name}"
    return _mix_of(*best, demand.rate_per_s)


def _kinds(plans: Sequence[tuple[Record, Plan]]) -> Iterator[Priced]:
    """Yield each kind of device with a price once, in the recipe that is the cheapest."""
    seen: set[str] = set()
    for record, plan in plans:
        if plan.price is not None and plan.device_name not in seen:
            seen.add(plan.device_name)
            yield Priced(record, plan, plan.price.price_per_hour)


def _mix_of(found: _Costed, pair: tuple[Priced, Priced], rate_per_s: float) -> Mix:
    parts = zip(pair, found.counts, found.caps, found.mixed.shares, strict=True)
    return Mix(
        parts=tuple(
            Part(
                recipe=kind.plan.recipe,
                device_name=kind.plan.device_name,
                devices=devices,
                batch_cap=cap,
                share=share,
                cost_per_hour=devices * kind.per_hour,
            )
            for kind, devices, cap, share in parts
        ),
        outcome=found.mixed.outcome,
        cost_per_hour=found.cost_per_hour,
        cost_per_million=found.cost_per_hour / (3600 * rate_per_s) * 1e6,
    )


class _Pair:
    """The search for the cheapest mix of one pair of kinds."""

    def __init__(self, pair: tuple[Priced, Priced], demand: Demand, tell: Tell | None) -> None:
        self._pair, self._demand, self._tell = pair, demand, tell
        searches = [Search(kind.record, demand, tell) for kind in pair]
        self._services = [search.service for search in searches]
        self._caps = [
            list(_beside(search.caps, kind.plan.outcome.batch_cap)) for search, kind in zip(searches, pair, strict=True)
        ]
        self._most_per_ms = [
            max(map(service.per_ms, caps)) for service, caps in zip(self._services, self._caps, strict=True)
        ]

    def cheapest(self, bound: float) -> _Costed | None:
        """Return the cheapest mix that costs less than a bound; None where none was found."""
        best: _Costed | None = None
        few = 0 if self._cost_of_throughput(0) > self._cost_of_throughput(1) else 1
        for cost, count, least in sorted(self._candidates(few, bound))[:_TRIED]:
            if cost >= bound * _CHEAPER:
                break
            found = self._fewest(few, count, least, bound)
            if found is not None:
                best, bound = found, found.cost_per_hour
        return best

    def _cost_of_throughput(self, place: int) -> float:
        return self._pair[place].per_hour / self._most_per_ms[place]

    def _candidates(self, few: int, bound: float) -> Iterator[tuple[float, int, int]]:
        """Yield counts of the one kind, with the fewest of the other that may do, and with their cost first.

        A mix may do where its devices are more, in all, than a fleet of one kind that is one device short: each counts
        as its share of the devices of its kind in such a fleet.
        """
        many = 1 - few
        short = [kind.plan.outcome.devices - 1 for kind in self._pair]
        for count in range(1, short[few] + 1):
            least = max(1, floor((1 - count / short[few]) * short[many]) + 1)
            cost = count * self._pair[few].per_hour + least * self._pair[many].per_hour
            if count * self._pair[few].per_hour + self._pair[many].per_hour >= bound * _CHEAPER:
                break
            if cost < bound * _CHEAPER:
                yield cost, count, least

    def _fewest(self, few: int, count: int, least: int, bound: float) -> _Costed | None:
        """Return the mix with the fewest of the other kind that meets the demand and costs less than a bound."""
        many = 1 - few
        left = bound * _CHEAPER - count * self._pair[few].per_hour
        most = ceil(left / self._pair[many].per_hour) - 1
        if most < least:
            return None

        def at(other: int) -> _Costed | None:
            return self._that_holds((count, other) if few == 0 else (other, count))

        best, low, high = at(most), least, most
        while best is not None and low < high:
            middle = (low + high) // 2
            found = at(middle)
            best, low, high = (best, middle + 1, high) if found is None else (found, low, middle)
        return best

    def _that_holds(self, counts: tuple[int, int]) -> _Costed | None:
        """Return what two counts do with caps with which they meet the demand; None where none was found."""
        demand, full = self._demand, 0
        for caps in product(*self._caps):
            kinds = [Kind(*one) for one in zip(counts, caps, self._services, strict=True)]
            load = load_of(kinds, demand.rate_per_s)
            if load >= 1 or load > demand.most_load:
                continue
            self._say(counts, (caps[0], caps[1]))
            pilot = simulate_mix(kinds, demand.rate_per_s, demand, seeds=1, effort=PILOT).outcome
            if not pilot.steady or pilot.tail_ms > demand.target_ms:
                continue
            mixed = self._in_full(kinds)
            if mixed.outcome.meets(demand.target_ms):
                cost = sum(count * kind.per_hour for count, kind in zip(counts, self._pair, strict=True))
                return _Costed(counts, (caps[0], caps[1]), mixed, cost)
            full += 1
            if full == _FULL:
                break
        return None

    def _in_full(self, kinds: Sequence[Kind]) -> Mixed:
        """Return what kinds do, simulated for longer where chance leaves open whether they meet the target."""
        demand, target_ms = self._demand, self._demand.target_ms
        for effort in (1.0, *MORE_EFFORT):
            mixed = simulate_mix(kinds, demand.rate_per_s, demand, seeds=SEEDS, effort=effort)
            outcome = mixed.outcome
            if not outcome.steady or outcome.meets(target_ms) or outcome.misses(target_ms):
                break
        return mixed

    def _say(self, counts: tuple[int, int], caps: tuple[int, int]) -> None:
        if self._tell is not None:
            parts = (
                f"{count} {kind.plan.device_name} of batch {cap}"
                for count, cap, kind in zip(counts, caps, self._pair, strict=True)
            )
            self._tell(f"{self._pair[0].plan.model}: simulating {' and '.join(parts)}")


def _beside(caps: Sequence[int], cap: int) -> Iterator[int]:
    """Yield a cap, the next larger one, and the next smaller one."""
    yield cap
    yield from [larger for larger in caps if larger > cap][:1]
    yield from [smaller for smaller in caps if smaller < cap][-1:]
