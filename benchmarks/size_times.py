"""Time plans of ``tputfind size`` by batcher, rate and target.

    python benchmarks/size_times.py --every 3 --cpu > results/simulated/sizing/times.txt

The goal for a plan is less than 10 s, and for half of them less than 1 s, at rates up to 100 million a second and
targets up to an hour.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

from tputfind import load_record
from tputfind.errors import NoPlan
from tputfind.sizing.planner.plan import plan
from tputfind.sizing.planner.question import read_demand

RECORD: Final = Path(__file__).parents[1] / "tests/records/nvidia-h100/default/vit_b_16-fp16.json"
SERVERS: Final[tuple[dict[str, object], ...]] = (
    {"batcher": "greedy"},
    {"batcher": "greedy", "routing": "random"},
    {"batcher": "greedy", "burstiness": 4},
    {"batcher": "greedy", "percentile": 99.9},
    {"batcher": "greedy", "routing": "least-loaded"},
    {"batcher": "triton", "delay": "5ms"},
    {"batcher": "mosec"},
    {"batcher": "litserve", "delay": "5ms"},
    {"batcher": "ray"},
)
RATES: Final = 10.0, 5e3, 1e5, 1e6, 1e8
TARGETS: Final = "6ms", "15ms", "100ms", "10s", "1h"
GOAL_S = 10.0


def main() -> None:
    """Print a line for each plan, then how many took longer than the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take one plan in so many")
    parser.add_argument("--cpu", action="store_true", help="count seconds of the processor, on a busy machine")
    asked = parser.parse_args()
    clock = time.process_time if asked.cpu else time.perf_counter
    record = load_record(RECORD)
    plans = list(product(SERVERS, RATES, TARGETS))[:: asked.every]
    late, times = 0, list[float]()
    for server, rate, slo in plans:
        options: dict[str, object] = {"rate": rate, "slo": slo, **server}
        began = clock()
        try:
            said = f"{plan(record, read_demand(options)).outcome.devices} devices"
        except NoPlan:
            said = "no plan"
        took_s = clock() - began
        times.append(took_s)
        late += took_s > GOAL_S
        words = " ".join(f"{name}={value}" for name, value in options.items())
        print(f"{took_s:6.1f} s  {'late' if took_s > GOAL_S else '    '}  {said:16}  {words}", flush=True)
    print(
        f"median {median(times):.1f} s, worst {max(times):.1f} s; {late} of {len(plans)} took longer than {GOAL_S:g} s"
    )


if __name__ == "__main__":
    main()
