"""Predicted latencies beside those of a real server: a model is measured, served, driven, and simulated.

    python benchmarks/serve.py vit_l_16 --options '{"dtype": "fp16"}' --server mosec --cap 32 --wait 5 --csv FILE

The overheads of the server (for each batch, for each request, and beside the queue) are fitted at 10 % and 50 % of what
the device can do; the latencies at 70, 85 and 95 % are then predicted, for requests that come at the same times, and
compared. All traffic stays on this machine. Needs mosec or litserve, and scipy.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

import tputfind
from tputfind.record import Record
from tputfind.sizing.arrivals import arrivals_ms
from tputfind.sizing.demand import Demand, read_demand
from tputfind.sizing.plan import service_of
from tputfind.sizing.simulate import Server, serve

FOLDER = Path(__file__).parent / "serving"
sys.path.insert(0, str(FOLDER))

from client import Answer, drive  # noqa: E402
from step import CAP, MODEL, OPTIONS  # noqa: E402

FITTED, PREDICTED = (0.1, 0.5), (0.7, 0.85, 0.95)
_WARM_UP_SHARE = 0.1
_SEEDS = 5


class Latency(NamedTuple):
    """Mean and percentiles, in ms."""

    mean: float
    p50: float
    p95: float
    p99: float


class Overheads(NamedTuple):
    """What a server adds to each batch, for each request in it, and to a latency beside the queue, in ms."""

    per_batch: float
    per_request: float
    beside: float


def main() -> None:
    """Measure, serve, fit, predict, print and write."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("model")
    asked.add_argument("--options", default="{}", help="of the tool's, as JSON")
    asked.add_argument("--server", choices=("mosec", "litserve"), default="mosec")
    asked.add_argument("--cap", type=int, default=32)
    asked.add_argument("--wait", type=float, default=5.0, help="ms")
    asked.add_argument("--seconds", type=float, default=30.0, help="of each load")
    asked.add_argument("--requests", type=int, default=3000, help="of each load at the least")
    asked.add_argument("--threads", type=int, help="of the model, on a CPU on which server and client have to run too")
    asked.add_argument("--csv")
    given = asked.parse_args()
    if given.threads:
        os.environ["OMP_NUM_THREADS"] = str(given.threads)
    options = json.loads(given.options)
    lines = compare(Case(given.model, options, given.server, given.cap, given.wait), given.seconds, given.requests)
    rows = [line._asdict() for line in lines]
    if given.csv:
        import pandas as pd

        pd.DataFrame(rows).to_csv(given.csv, index=False, float_format="%.5g")


class Line(NamedTuple):
    """One load: measured and simulated, with the overheads that were fitted at the loads that are marked so."""

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
    overhead_beside_ms: float


class Case(NamedTuple):
    """What is served, and how."""

    model: str
    options: dict[str, object]
    server: str
    cap: int
    wait_ms: float


class Load(NamedTuple):
    """Requests at a rate: when they were due, and the answers."""

    rate_per_s: float
    due_ms: NDArray[np.float64]
    answers: list[Answer]


def compare(case: Case, seconds: float, requests: int) -> list[Line]:
    """Return a line for every load, each of so many seconds or requests, whichever is longer; print them."""
    model, options, server, cap, wait_ms = case
    record = measured(model, options, cap)
    base = read_demand({"rate": 1.0, "slo": 1e6, "batcher": server, "delay": wait_ms, "max_batch": cap})
    with served(case) as port:
        drive(port, list(np.arange(200) * 20.0))  # connections, and whatever else is slow at first
        loads: dict[float, Load] = {}
        fitted = Overheads(0.0, 0.0, 0.0)
        for load in (*FITTED, *PREDICTED):
            rate_per_s = load * _most_per_s(record, base, cap, fitted)
            count = max(requests, int(seconds * rate_per_s))
            due_ms = arrivals_ms(base, count, rate_per_s, 1.0, seed=7)
            loads[load] = Load(rate_per_s, due_ms, drive(port, due_ms.tolist()))
            if load == FITTED[-1]:
                fitted = _fitted(record, base, cap, list(loads.values()))
    lines = []
    for load, (rate_per_s, due_ms, answers) in loads.items():
        told = _told(np.array([answer.latency_ms for answer in answers]))
        with_overheads = _simulated(record, base, cap, due_ms, fitted)
        plain = _simulated(record, base, cap, due_ms, Overheads(0.0, 0.0, 0.0))
        lines.append(
            Line(
                server, model, record.environment.device_name, cap, wait_ms, load, load in FITTED, rate_per_s,
                len(answers), float(1 / np.mean([1 / answer.batch_size for answer in answers])), *told, *with_overheads,
                with_overheads.p99 / told.p99 - 1, plain.p99, *fitted,
            )
        )  # fmt: skip
        print(json.dumps(lines[-1]._asdict()), flush=True)
    return lines


def measured(model: str, options: dict[str, object], cap: int) -> Record:
    """Return the tool's record of the model up to a batch size, as the server is going to run it."""
    sizes = sorted({1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, cap})
    sizes = [size for size in sizes if size <= cap]
    return tputfind.find(
        model, batch_sizes=sizes, processes=2, min_seconds=1, max_seconds=10, latency_batches=200, **options
    )


@contextmanager
def served(case: Case) -> Iterator[int]:
    """Serve a model on a free port of this machine as long as this lasts."""
    model, options, server, cap, wait_ms = case
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, f"with_{server}.py", f"{wait_ms:.0f}"]
    command += (
        ["--address", "127.0.0.1", "--port", str(port), "--timeout", "600000"] if server == "mosec" else [str(port)]
    )
    environment = {MODEL: model, OPTIONS: json.dumps(options), CAP: str(cap)}
    process = subprocess.Popen(command, cwd=FOLDER, env=os.environ | environment, start_new_session=True)
    try:
        _await(port, process)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when the server answers."""
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        try:
            drive(port, [0.0])
        except (OSError, RuntimeError, EOFError):
            time.sleep(0.5)
        else:
            return
    raise RuntimeError("the server does not answer")


def _most_per_s(record: Record, base: Demand, cap: int, overheads: Overheads) -> float:
    return 1000 * service_of(record, _with(base, overheads)).per_ms(cap)


def _with(base: Demand, overheads: Overheads) -> Demand:
    return msgspec.structs.replace(
        base, overhead_per_batch_ms=overheads.per_batch, overhead_per_request_ms=overheads.per_request
    )


def _simulated(record: Record, base: Demand, cap: int, due_ms: NDArray[np.float64], overheads: Overheads) -> Latency:
    demand = _with(base, overheads)
    server = Server(cap, service_of(record, demand), demand)
    found = [_told(serve(due_ms, 1, server, seed).done_ms - due_ms) for seed in range(_SEEDS)]
    return Latency(*(float(value) + overheads.beside for value in np.mean(found, axis=0)))


def _told(latencies_ms: NDArray[np.float64]) -> Latency:
    steady = latencies_ms[int(_WARM_UP_SHARE * len(latencies_ms)) :]
    return Latency(float(steady.mean()), *(float(value) for value in np.quantile(steady, [0.5, 0.95, 0.99])))


def _fitted(record: Record, base: Demand, cap: int, loads: list[Load]) -> Overheads:
    """Return the overheads with which mean, median and 95th percentile come nearest to those measured."""
    wanted = [(load.due_ms, _told(np.array([one.latency_ms for one in load.answers]))) for load in loads]

    def distance(tried: NDArray[np.float64]) -> float:
        overheads = Overheads(*np.abs(tried).tolist())
        errors = [
            np.log(np.array(_simulated(record, base, cap, due_ms, overheads)[:3]) / np.array(told[:3]))
            for due_ms, told in wanted
        ]
        return float(np.sum(np.square(errors)))

    start = wanted[0][1].p50 * 0.02
    found = minimize(distance, [start, start / 10, start], method="Nelder-Mead", options={"maxfev": 200, "xatol": 1e-4})
    return Overheads(*np.abs(found.x).tolist())


if __name__ == "__main__":
    main()
