"""Check on a real server whether the devices that `tputfind size` recommends meet the target, and one fewer does not.

    python benchmarks/serve.py vit_l_16 --options '{"dtype": "fp32"}' --output results --csv serving.csv ...
    python benchmarks/serve_fleet.py RECORD serving.csv --options '{"dtype": "fp32"}' --slo 200

With the overheads that serve.py fitted, simulation finds the highest rate that one device sustains, and two, and so on.
At a tenth below each rate, that number of devices must meet the target; at a tenth above, it must miss, and one more,
if there is one, must meet it. Needs all these devices.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pandas as pd
from serving.harness import Case, loaded, served

import tputfind
from tputfind.errors import NoPlan
from tputfind.record.record import Record
from tputfind.sizing.calibration import Estimate
from tputfind.sizing.planner.plan import Plan, add_estimate, answers
from tputfind.sizing.planner.question import Demand

_BELOW, _ABOVE = 0.9, 1.1
_HALVINGS = 10


class Line(NamedTuple):
    """A number of devices under a rate: the recommendation, and whether these met the target."""

    server: str
    model: str
    device_name: str
    slo_ms: float
    rate_per_s: float
    recommended: int
    devices: int
    batch_cap: int
    requests: int
    mean_batch: float
    p50_ms: float
    p99_ms: float
    simulated_p99_ms: float | None
    to_meet: bool
    met: bool


def main() -> None:
    """Find the rates, serve, send the requests, print and write."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("record")
    asked.add_argument("fitted", help="the CSV of serve.py")
    asked.add_argument("--options", default="{}", help="of the tool's, as for serve.py")
    asked.add_argument("--slo", type=float, required=True, help="ms, for the 99th percentile")
    asked.add_argument("--devices", type=int, default=2, help="that there are")
    asked.add_argument("--clients", type=int, default=1, help="processes that send")
    asked.add_argument("--seconds", type=float, default=20.0, help="of each load")
    asked.add_argument("--csv")
    asked.add_argument("--again", help="what --csv wrote: RECORD only counts devices under its rates")
    given = asked.parse_args()
    record = tputfind.load_record(given.record)
    told = pd.read_csv(given.fitted).iloc[0].to_dict()
    estimate = Estimate(*(told[f"overhead_{name}_ms"] for name in Estimate._fields))
    case = Case(
        record.spec.model, json.loads(given.options), told["server"], told["batch_cap"], float(told["wait_ms"]),
        clients=given.clients,
    )  # fmt: skip
    demand = add_estimate(msgspec.structs.replace(case.demand(), slo_ms=given.slo), estimate)
    if given.again:
        counted(record, demand, given.again)
        return
    lines = list(driven(record, case, demand, given.devices, given.seconds))
    if given.csv:
        pd.DataFrame([line._asdict() for line in lines]).to_csv(given.csv, index=False, float_format="%.5g")


def counted(record: Record, demand: Demand, path: str) -> None:
    """Print how many devices a plan from this record needs under each rate that was served."""
    device = f"{record.environment.device}{', all busy' * (record.spec.load == 'all_busy')}"
    for rate_per_s in sorted(set(pd.read_csv(path).rate_per_s)):
        devices = _plan(record, demand, rate_per_s).outcome.devices
        print(f"{rate_per_s:.1f}/s by {device}: devices {devices}", flush=True)


def driven(record: Record, case: Case, demand: Demand, most_devices: int, seconds: float) -> Iterator[Line]:
    """Yield and print a line for every number of devices under every rate."""
    for enough in range(1, most_devices + 1):
        most_per_s = _most_per_s(record, demand, enough)
        for share in (_BELOW, _ABOVE):
            plan = _plan(record, demand, share * most_per_s)
            for outcome in (plan.outcome, plan.fewer):
                if outcome is None or outcome.devices > most_devices or (share == _BELOW and outcome is plan.fewer):
                    continue
                its_case = case._replace(cap=outcome.batch_cap, devices=outcome.devices)
                with served(its_case) as port:
                    load = loaded(port, its_case, plan.outcome.rate_per_s, int(seconds * plan.outcome.rate_per_s))
                line = Line(
                    case.server, case.model, plan.device_name, demand.slo_ms, load.rate_per_s, plan.outcome.devices,
                    outcome.devices, outcome.batch_cap, len(load.answers), load.mean_batch, load.latency.p50,
                    load.latency.p99, outcome.p99_ms + demand.network_ms if not outcome.is_saturated else None,
                    outcome is plan.outcome, load.latency.p99 <= demand.slo_ms,
                )  # fmt: skip
                print(json.dumps(line._asdict()), flush=True)
                yield line


def _most_per_s(record: Record, demand: Demand, devices: int) -> float:
    """Return the highest rate that the devices sustain, to a fifth of a percent of their maximum throughput."""
    low, high = 0.0, 2.0 * devices * max(row.samples_per_s or 0.0 for row in record.rows)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        try:
            enough = _plan(record, demand, middle).outcome.devices <= devices
        except NoPlan:
            enough = False
        low, high = (middle, high) if enough else (low, middle)
    return low


def _plan(record: Record, demand: Demand, rate_per_s: float) -> Plan:
    found = answers([record], msgspec.structs.replace(demand, rate_per_s=rate_per_s))
    if not found.plans:
        raise found.without[0][1]
    return found.plans[0]


if __name__ == "__main__":
    main()
