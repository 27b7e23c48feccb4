"""Promises that plans of ``tputfind size`` keep about each other on any record: more demand takes no fewer devices."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from support.folders import RECORDS, RESULTS, record_path, record_paths
from tputfind.errors import NoPlan
from tputfind.record.files import load_records
from tputfind.record.record import Record
from tputfind.sizing.engine.service_times import service_times_of
from tputfind.sizing.planner.plan import Plan, plan
from tputfind.sizing.planner.question import Demand, read_demand
from tputfind.sizing.planner.search import Search

TIGHT, MIDDLING, LOOSE = 1.3, 3.0, 20.0
"""Targets as multiples of the time of a lone request."""
_SEED: Final = 1789
_MORE: Final[dict[str, dict[str, object]]] = {
    "burstiness": {"burstiness": 2.0},
    "spare": {"spare": 1},
    "max-utilization": {"max_utilization": 0.7},
}
"""Changes of demand fields that need more of the same devices."""


def records() -> list[str]:
    """Return the record names in ``results`` and the tests for which devices can be planned.

    Behind a ``#``, the name has the place of the record in its file.
    """
    names = []
    for path in record_paths("**/*.json"):
        content = json.loads(path.read_text())
        folder = RESULTS if path.is_relative_to(RESULTS) else RECORDS
        for place, one in enumerate(content if isinstance(content, list) else [content]):
            if one.get("rows") and one["spec"].get("phase") == "infer":
                names.append(f"{path.relative_to(folder).with_suffix('')}#{place}")
    return names


@dataclass(frozen=True)
class Case:
    """A demand on a record, relative to the performance of one device."""

    name: str
    target: float
    """Multiple of the time of a lone request."""
    devices: float
    """Number of devices whose full batches serve the rate."""
    options: str = ""

    @property
    def file(self) -> str:
        return self.name.partition("#")[0]

    @cached_property
    def record(self) -> Record:
        place = self.name.partition("#")[2]
        return load_records(record_path(f"{self.file}.json"))[int(place or 0)]

    @cached_property
    def demand(self) -> Demand:
        options = dict(option.split("=") for option in self.options.split())
        open_demand = read_demand({"rate": 1, "slo": 1e8, **options})
        service = service_times_of(self.record, open_demand.overheads)
        slo_ms = self.target * (float(np.quantile(service.curve_ms(1), 0.99)) + open_demand.wait_ms)
        within = [size for size in service.sizes if service.mean_ms(size) <= slo_ms / 2] or service.sizes[:1]
        rate_per_s = 1000 * self.devices * max(map(service.per_ms, within))
        return msgspec.structs.replace(open_demand, rate_per_s=rate_per_s, slo_ms=slo_ms)

    def command(self, **changed: object) -> str:
        """Return the command of the demand, with some fields changed."""
        demand = msgspec.structs.replace(self.demand, **changed)
        more = "".join(f" --{option.replace('=', ' ')}" for option in self.options.split())
        fields = "".join(f" --{name.replace('_', '-')} {value}" for name, value in changed.items() if name in FIELDS)
        return (
            f"tputfind size results/{self.file}.json --rate {demand.rate_per_s:.6g} "
            f"--slo {demand.slo_ms:.6g}ms{more}{fields}"
        )

    def asked(self, **changed: object) -> Plan:
        return plan(self.record, msgspec.structs.replace(self.demand, **changed))


FIELDS: Final = ("burstiness", "spare", "max_utilization", "max_batch_size", "seed")


@dataclass(frozen=True)
class Told:
    """A promise, whether it was kept, and the evidence."""

    promise: str
    kept: bool
    seen: str


def told(case: Case) -> Iterator[Told]:
    """Yield each promise of a case; yield none if no number of devices meets the target."""
    try:
        base = case.asked()
    except NoPlan:
        return
    demand = case.demand
    harder: dict[str, dict[str, object]] = {
        "rate": {"rate_per_s": 1.05 * demand.rate_per_s},
        "target": {"slo_ms": demand.slo_ms / 1.1},
        **_MORE,
        "max-batch-size": {"max_batch_size": max(1, base.outcome.batch_cap - 1 - base.outcome.batch_cap // 5)},
    }
    for name, changed in harder.items():
        try:
            other = case.asked(**changed)
        except NoPlan:
            continue
        kept = (base.fewest or 0) <= (other.most or np.inf)
        yield Told(name, kept, f"{_range(base)}, then {_range(other)}: {case.command(**changed)}")
    yield from _check_other_streams(case, base)


def _check_other_streams(case: Case, base: Plan) -> Iterator[Told]:
    search = Search(case.record, msgspec.structs.replace(case.demand, seed=_SEED))
    devices = base.outcome.devices
    holds = search.outcome_with_room(devices)
    seen = f"{_range(base)}, then {holds.tail_ms:.4g} of {case.demand.target_ms:.4g} ms: {case.command(seed=_SEED)}"
    yield Told("holds", holds.verdict != "misses" or base.most != devices, seen)
    if devices > 1:
        fewer = search.best(devices - 1).outcome
        seen = f"{_range(base)}, then {fewer.tail_ms:.4g} of {case.demand.target_ms:.4g} ms: {case.command(seed=_SEED)}"
        yield Told("one fewer fails", not search.holds(fewer) or base.fewest != devices, seen)


def _range(found: Plan) -> str:
    return f"{found.outcome.devices} ({found.fewest} to {found.most})"
