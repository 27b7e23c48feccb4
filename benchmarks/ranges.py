"""Count how often the device range that a plan states contains the number that a known device needs.

    python benchmarks/ranges.py 200

Each record is drawn from one device whose latencies are known: every process has its own mean, every batch varies, and
one in fifty takes a third longer. The true number of devices comes from many processes of many batches, in streams that
are longer than a plan's.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
from msgspec.structs import replace

from tputfind.record.files import load_record
from tputfind.record.record import Record, Row, Timing
from tputfind.sizing.engine.replications import Effort, Fleet, Goal, simulate
from tputfind.sizing.engine.service_times import service_times_of
from tputfind.sizing.engine.serving import Kind
from tputfind.sizing.planner.plan import plan
from tputfind.sizing.planner.question import read_demand

LIKE: Final = Path(__file__).parents[1] / "tests/records/nvidia-h100/default/resnet50-fp16.json"
"""The record that supplies everything but the latencies."""
SIZES: Final = 1, 2, 4, 8, 16, 32, 64
NEAR: Final = 1.2
DEMANDS: Final = (("20000", "15ms"), ("20000", "8ms"), ("2000", "8ms"), ("100000", "30ms"))


def drawn(draw: np.random.Generator, processes: int, batches: int) -> Record:
    """Return a record of the device: about 3 ms a batch and 0.05 ms a sample."""
    rows = []
    for size in SIZES:
        timings = []
        for pace in draw.lognormal(0.0, 0.03, processes):
            slow = np.where(draw.random(batches) < 0.02, 1.33, 1.0)
            spans = tuple((pace * (3 + 0.05 * size) * draw.lognormal(0.0, 0.05, batches) * slow).tolist())
            timings.append(Timing(device_ms=spans, latency_ms=spans, ended_by="full"))
        rows.append(Row(batch_size=size, timings=tuple(timings)))
    return replace(load_record(LIKE), rows=tuple(rows), notices=())


def late(fleet: Fleet, goal: Goal) -> float:
    """Return the fraction of late requests in many long replications."""
    effort = Effort(3_000_000, 6_000_000)
    return fmean(simulate(fleet, goal, effort, (seed,)).outcome.late for seed in range(1000, 1020))


def true_devices(known: Record, rate: str, slo: str) -> int:
    """Return the minimum number of devices that meets the target with some batch limit; every third limit is tried.

    Near the target this takes many long replications: at 98 % of the highest rate, single replications of 3 million
    requests have 0.8 to 1.8 % late requests.
    """
    demand = read_demand({"rate": rate, "slo": slo, "seed": 1000})
    service = service_times_of(known)
    for devices in count(1):
        fleets = [Fleet([Kind(devices, cap, service)], demand.rate_per_s) for cap in range(1, SIZES[-1] + 1, 3)]
        able = [fleet for fleet in fleets if fleet.utilization < 1]
        tails = [simulate(fleet, demand.goal, Effort(200_000, 2_000_000), (1000,)).outcome.tail_ms for fleet in able]
        near = [fleet for fleet, tail_ms in zip(able, tails, strict=True) if tail_ms <= NEAR * demand.target_ms]
        if any(late(fleet, demand.goal) <= demand.goal.late for fleet in near):
            return devices
    raise AssertionError


def main() -> None:
    """Print for each demand how many of the stated ranges contain the true number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=int, help="how many are drawn, shared by the demands")
    asked = parser.parse_args()
    known = drawn(np.random.default_rng(7), 400, 50)
    held = total = 0
    for rate, slo in DEMANDS:
        truth = true_devices(known, rate, slo)
        told: Counter[str] = Counter()
        number = asked.records // len(DEMANDS)
        inside = 0
        for seed in range(number):
            record = drawn(np.random.default_rng(seed), 3, 34)
            found = plan(record, read_demand({"rate": rate, "slo": slo, "seed": seed}))
            most = found.most or 10**9
            inside += (found.fewest or 0) <= truth <= most
            told[f"{found.fewest} to {found.most}"] += 1
        held, total = held + inside, total + number
        often = ", ".join(f"{name} ({times})" for name, times in told.most_common(4))
        print(f"{rate}/s within {slo}: {truth} devices; {inside} of {number} ranges hold it; {often}", flush=True)
    print(f"{held} of {total} ranges hold the true number")


if __name__ == "__main__":
    main()
