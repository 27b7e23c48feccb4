"""Compare predicted latencies with those of a real server: a model is measured, served, loaded, and simulated.

    python benchmarks/serve.py vit_l_16 --options '{"dtype": "fp32"}' --server mosec --cap 32 --wait 5 --csv FILE

The overheads of the server are estimated at 10 % and 50 % of the device's capacity, from the begin of its batches and
the arrival of its answers. The latencies at 70, 85 and 95 % are then predicted, for requests at the same times, and
compared. All traffic stays on this machine. Needs mosec or litserve.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import NamedTuple

import numpy as np
from serving.client import Answer
from serving.harness import (
    Case,
    Load,
    fitted,
    loaded,
    measured,
    most_per_s,
    pace,
    served,
    simulated,
)

import tputfind
from tputfind.record.record import Record
from tputfind.sizing.calibration import Estimate

FITTED, PREDICTED = (0.1, 0.5), (0.7, 0.85, 0.95)


class Line(NamedTuple):
    """One load: measured and simulated, with the overheads that were fitted at the loads marked ``fitted``.

    ``load`` is a fraction of the device's capacity with full batches: by the record for the fitted loads, and with the
    overheads for the others.
    """

    server: str
    model: str
    device_name: str
    batch_cap: int
    wait_ms: float
    load: float
    fitted: bool
    rate_per_s: float
    requests: int
    mean_batch: float
    steps_over_record: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    simulated_mean_ms: float
    simulated_p50_ms: float
    simulated_p95_ms: float
    simulated_p99_ms: float
    p99_error: float
    table_only_p99_ms: float
    overhead_per_batch_ms: float
    overhead_per_request_ms: float
    overhead_per_answer_ms: float
    overhead_beside_ms: float


def main() -> None:
    """Measure, serve, fit, predict, print and write."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("model")
    asked.add_argument("--options", default="{}", help="of the tool's, as JSON")
    asked.add_argument("--server", choices=("mosec", "litserve"), default="mosec")
    asked.add_argument("--cap", type=int, default=32)
    asked.add_argument("--wait", type=float, default=5.0, help="ms")
    asked.add_argument("--clients", type=int, default=1, help="processes that send")
    asked.add_argument("--seconds", type=float, default=30.0, help="of each load")
    asked.add_argument("--requests", type=int, default=3000, help="of each load at the least")
    asked.add_argument("--threads", type=int, help="of the model, on a CPU on which server and client have to run too")
    asked.add_argument("--record", help="of the model; without one it is measured")
    asked.add_argument("--output", help="folder for the record that is measured")
    asked.add_argument("--again", help="a file of --raw: nothing is served, and what it holds predicted anew")
    asked.add_argument("--raw", help="a .npz file: of every request when it was due, and its answer")
    asked.add_argument("--csv")
    given = asked.parse_args()
    if given.threads:
        os.environ["OMP_NUM_THREADS"] = str(given.threads)
    case = Case(given.model, json.loads(given.options), given.server, given.cap, given.wait, clients=given.clients)
    record = tputfind.load_record(given.record) if given.record else measured(case, given.output)
    if record.spec.model != case.model or max(row.batch_size for row in record.rows) < case.cap:
        asked.error(f"--record is of {record.spec.model}, or of smaller batches than --cap")
    if given.again:
        loads = read(given.again)
        overheads = fitted(record, case, [loads[load] for load in FITTED])
    else:
        loads, overheads = driven(case, record, given.seconds, given.requests)
    if given.raw:
        raw = {f"{load}": np.column_stack([each.due_ms, np.array(each.answers)]) for load, each in loads.items()}
        np.savez_compressed(given.raw, allow_pickle=False, **raw)
    lines = compare(case, record, loads, overheads)
    if given.csv:
        import pandas as pd

        pd.DataFrame([line._asdict() for line in lines]).to_csv(given.csv, index=False, float_format="%.5g")


def driven(case: Case, record: Record, seconds: float, requests: int) -> tuple[dict[float, Load], Estimate]:
    """Return the answers under every load, of at least these seconds and requests, and the overheads."""
    loads: dict[float, Load] = {}
    overheads = Estimate()
    with served(case) as port:
        for load in (*FITTED, *PREDICTED):
            rate_per_s = load * most_per_s(record, case, overheads)
            loads[load] = loaded(port, case, rate_per_s, max(requests, int(seconds * rate_per_s)))
            if load == FITTED[-1]:
                overheads = fitted(record, case, list(loads.values()))
    return loads, overheads


def read(path: str) -> dict[float, Load]:
    """Return the answers under every load in a file of ``--raw``."""
    loads = {}
    with np.load(path) as file:
        for name in file.files:
            due_ms, answers = file[name][:, 0], file[name][:, 1:].tolist()
            loads[float(name)] = Load(1000 * len(due_ms) / due_ms[-1], due_ms, [Answer(*each) for each in answers])
    return loads


def compare(case: Case, record: Record, loads: dict[float, Load], overheads: Estimate) -> list[Line]:
    """Return a line for every load; print them."""
    lines = []
    for load, (rate_per_s, due_ms, answers) in loads.items():
        told = loads[load].latency
        with_overheads = simulated(record, case, due_ms, overheads)
        lines.append(
            Line(
                case.server, case.model, record.environment.device_name, case.cap, case.wait_ms, load, load in FITTED,
                rate_per_s, len(answers), loads[load].mean_batch, pace(record, loads[load]), *told,
                *with_overheads, with_overheads.p99 / told.p99 - 1, simulated(record, case, due_ms, Estimate()).p99,
                *overheads,
            )
        )  # fmt: skip
        print(json.dumps(lines[-1]._asdict()), flush=True)
    return lines


if __name__ == "__main__":
    main()
