"""A model served and driven, and the same simulated: what the comparisons of both are made of."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from client import Answer, drive
from numpy.typing import NDArray
from scipy.optimize import minimize
from step import CAP, MODEL, OPTIONS

import tputfind
from tputfind.record import Record
from tputfind.sizing.arrivals import arrivals_ms
from tputfind.sizing.demand import Demand, read_demand
from tputfind.sizing.plan import service_of
from tputfind.sizing.simulate import Server, serve

FOLDER = Path(__file__).parent
_WARM_UP_SHARE = 0.1
_SEEDS = 5
_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class Case(NamedTuple):
    """What is served, by what, and by how many processes the requests are sent."""

    model: str
    options: dict[str, object]
    server: str
    cap: int
    wait_ms: float
    devices: int = 1
    clients: int = 1

    def demand(self) -> Demand:
        """Return the queue and the batcher of the server; rate and target are for the caller to set."""
        asked = {"rate": 1.0, "slo": 1e6, "batcher": self.server, "delay": self.wait_ms, "max_batch": self.cap}
        return read_demand(asked)


class Latency(NamedTuple):
    """Mean and percentiles, in ms."""

    mean: float
    p50: float
    p95: float
    p99: float


class Overheads(NamedTuple):
    """What a server adds to each batch, for each request in it, and to a latency beside the queue, in ms."""

    per_batch: float = 0.0
    per_request: float = 0.0
    beside: float = 0.0

    def on(self, demand: Demand) -> Demand:
        """Return the demand with what batches take longer for the server's sake."""
        return msgspec.structs.replace(
            demand, overhead_per_batch_ms=self.per_batch, overhead_per_request_ms=self.per_request
        )


class Load(NamedTuple):
    """Requests at a rate: when they were due, and the answers."""

    rate_per_s: float
    due_ms: NDArray[np.float64]
    answers: list[Answer]

    @property
    def latency(self) -> Latency:
        """What the callers waited."""
        return latency_of(np.array([answer.latency_ms for answer in self.answers]))

    @property
    def mean_batch(self) -> float:
        """Requests over batches."""
        return float(1 / np.mean([1 / answer.batch_size for answer in self.answers]))


def measured(case: Case, folder: str | None = None) -> Record:
    """Return the tool's record of the model up to the cap, as the server is going to run it; keep it in a folder."""
    sizes = sorted({size for size in (*_SIZES, case.cap) if size <= case.cap})
    return tputfind.find(
        case.model, batch_sizes=sizes, processes=2, min_seconds=1, max_seconds=10, latency_batches=200, output=folder,
        **case.options,
    )  # fmt: skip


def loaded(port: int, case: Case, rate_per_s: float, requests: int) -> Load:
    """Send so many requests of a Poisson stream and return the answers."""
    due_ms = arrivals_ms(case.demand(), requests, rate_per_s, 1.0, seed=7)
    return Load(rate_per_s, due_ms, drive(port, due_ms.tolist(), case.clients))


@contextmanager
def served(case: Case) -> Iterator[int]:
    """Serve a model on a free port of this machine as long as this lasts, warm and with connections made."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, f"with_{case.server}.py", f"{case.wait_ms:g}", f"{case.devices}"]
    command += (
        ["--address", "127.0.0.1", "--port", str(port), "--timeout", "600000"]
        if case.server == "mosec"
        else [str(port)]
    )
    environment = {MODEL: case.model, OPTIONS: json.dumps(case.options), CAP: str(case.cap)}
    process = subprocess.Popen(command, cwd=FOLDER, env=os.environ | environment, start_new_session=True)
    try:
        _await(port, process)
        drive(port, list(np.arange(200) * 20.0), case.clients)
        yield port
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # workers outlive a server of LitServe


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when the server answers."""
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        try:
            drive(port, [0.0])
        except RuntimeError:
            time.sleep(0.5)
        else:
            return
    raise RuntimeError("the server does not answer")


def pace(record: Record, case: Case, load: Load) -> float:
    """Return how many times as long the model's steps took in the server as by the record."""
    service = service_of(record, case.demand())
    batches = [(answer.step_ms, service.mean_ms(answer.batch_size), 1 / answer.batch_size) for answer in load.answers]
    return sum(step * share for step, _, share in batches) / sum(told * share for _, told, share in batches)


def most_per_s(record: Record, case: Case, overheads: Overheads) -> float:
    """Return the requests per second that one device answers with full batches."""
    return 1000 * service_of(record, overheads.on(case.demand())).per_ms(case.cap)


def simulated(record: Record, case: Case, due_ms: NDArray[np.float64], overheads: Overheads) -> Latency:
    """Return the latencies of requests that are due at these times, by simulation."""
    demand = overheads.on(case.demand())
    server = Server(case.cap, service_of(record, demand), demand)
    found = [latency_of(serve(due_ms, case.devices, server, seed).done_ms - due_ms) for seed in range(_SEEDS)]
    return Latency(*(float(value) + overheads.beside for value in np.mean(found, axis=0)))


def latency_of(latencies_ms: NDArray[np.float64]) -> Latency:
    """Return mean and percentiles, without those of the first requests."""
    steady = latencies_ms[int(_WARM_UP_SHARE * len(latencies_ms)) :]
    return Latency(float(steady.mean()), *(float(value) for value in np.quantile(steady, [0.5, 0.95, 0.99])))


def fitted(record: Record, case: Case, loads: list[Load]) -> Overheads:
    """Return the overheads with which mean, median and 95th percentile come nearest to those measured."""
    wanted = [(load.due_ms, np.array(load.latency[:3])) for load in loads]

    def distance(tried: NDArray[np.float64]) -> float:
        overheads = Overheads(*np.abs(tried).tolist())
        errors = [np.log(np.array(simulated(record, case, due, overheads)[:3]) / told) for due, told in wanted]
        return float(np.sum(np.square(errors)))

    start = loads[0].latency.p50 * 0.05
    corners = start * np.array([[0.1, 0.01, 0.1], [2, 0.01, 0.1], [0.1, 0.2, 0.1], [0.1, 0.01, 4]])
    options = {"initial_simplex": corners, "maxfev": 300, "xatol": start / 100, "fatol": 1e-5}
    return Overheads(*np.abs(minimize(distance, corners[0], method="Nelder-Mead", options=options).x).tolist())
