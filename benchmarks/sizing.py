"""How fast sizing is: simulated requests per second of each batcher, and the time of whole plans. Prints.

python benchmarks/sizing.py results/nvidia-h100/default/resnet50-fp16.json
"""

from __future__ import annotations

import argparse
import time

import tputfind
from tputfind.record.record import Record
from tputfind.sizing.demand import BATCHERS
from tputfind.sizing.options import read_demand
from tputfind.sizing.plan import plan
from tputfind.sizing.service import service_of
from tputfind.sizing.simulate import Fleet, simulate

LOADS = (0.1, 0.5, 0.9)


def main() -> None:
    """Print a line for every batcher and load, and for two plans."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("record")
    record = tputfind.load_record(asked.parse_args().record)
    for batcher in BATCHERS:
        for devices in (1, 8):
            for load in LOADS:
                print(
                    f"{batcher:10} {devices} devices, load {load:.0%}: {requests(record, batcher, devices, load)}",
                    flush=True,
                )
    for rate, slo in (("5000", "15ms"), ("5000", "50ms"), ("10000000", "50ms"), ("10000000", "200ms")):
        start = time.perf_counter()
        found = plan(record, read_demand({"rate": rate, "slo": slo}))
        took_s = time.perf_counter() - start
        print(f"plan for {rate}/s within {slo}: {took_s:.1f} s, {found.outcome.devices} devices", flush=True)


def requests(record: Record, batcher: str, devices: int, load: float) -> str:
    """Return the requests per second of one simulation, at a share of what the devices can do at batch 64."""
    demand = read_demand({"rate": 1, "slo": "50ms", "batcher": batcher})
    service = service_of(record, demand)
    rate_per_s = load * devices * 1000 * service.per_ms(64)
    start = time.perf_counter()
    outcome = simulate(Fleet(devices, 64, rate_per_s), service, demand, seeds=1, effort=10)
    took_s = time.perf_counter() - start
    return f"{outcome.requests / 0.9 / took_s / 1e6:.1f} million requests/s, mean batch {outcome.mean_batch:.1f}"


if __name__ == "__main__":
    main()
