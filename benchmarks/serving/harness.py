"""Serve, load and simulate a model: the common parts of the comparisons with real servers."""

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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from serving.client import Answer, drive
from serving.step import CAP, MODEL, OPTIONS

import tputfind
from tputfind.record.record import Record
from tputfind.sizing.calibration import Bench, Estimate, Log, fit_to_batches, steady
from tputfind.sizing.engine.service_times import Overheads, ServiceTimes, service_times_of
from tputfind.sizing.planner.question import Demand, read_demand
from tputfind.sizing.traffic import Traffic

FOLDER = Path(__file__).parent
_SEEDS = 5


class Case(NamedTuple):
    """The served model, its server, and the number of processes that send requests."""

    model: str
    options: dict[str, Any]
    server: str
    cap: int
    wait_ms: float
    devices: int = 1
    clients: int = 1

    def demand(self) -> Demand:
        """Return the queue and the batcher of the server; the caller sets rate and target."""
        asked = {"rate": 1.0, "slo": 1e6, "batcher": self.server, "delay": self.wait_ms, "max_batch_size": self.cap}
        return read_demand(asked)


class Latency(NamedTuple):
    """Mean and percentiles, in ms."""

    mean: float
    p50: float
    p95: float
    p99: float


class Load(NamedTuple):
    """Requests at a rate: their due times, and the answers."""

    rate_per_s: float
    due_ms: NDArray[np.float64]
    answers: list[Answer]

    @property
    def latency(self) -> Latency:
        """Return the latency of the callers."""
        return latency_of(np.array([answer.latency_ms for answer in self.answers]))

    @property
    def log(self) -> Log:
        """Return the same as a log of the server."""
        latency_ms, step_ms, begun_ms = np.array(
            [(each.latency_ms, each.step_ms, each.begun_ms) for each in self.answers]
        ).T
        return Log("", self.due_ms, self.due_ms + latency_ms, begun_ms, begun_ms + step_ms)

    @property
    def mean_batch(self) -> float:
        """Return the number of requests divided by the number of batches."""
        return float(1 / np.mean([1 / answer.batch_size for answer in self.answers]))


def measured(case: Case, folder: str | None = None) -> Record:
    """Measure the model at every batch size up to the cap, as the server will run it; return and keep the record."""
    record: Record = tputfind.find(
        case.model, batch_sizes=range(1, case.cap + 1), processes=2, batches=100, max_seconds=2.5,
        output=folder, **case.options,
    )  # fmt: skip
    return record


def loaded(port: int, case: Case, rate_per_s: float, requests: int) -> Load:
    """Send a number of requests of a Poisson stream and return the answers."""
    due_ms = Traffic().draw(requests, 1.0, (7,)).times * (1000 / rate_per_s)
    return Load(rate_per_s, due_ms, drive(port, due_ms.tolist(), case.clients))


@contextmanager
def served(case: Case) -> Iterator[int]:
    """Serve a model on a free port of this machine in this context, warm and with connections made."""
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
    environment["PYTHONPATH"] = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
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
    """Return as soon as the server answers."""
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        try:
            drive(port, [0.0])
        except RuntimeError:
            time.sleep(0.5)
        else:
            return
    raise RuntimeError("the server does not answer")


def pace(record: Record, load: Load) -> float:
    """Return the ratio of the model's step times in the server to those in the record."""
    service = service_times_of(record)
    batches = [(answer.step_ms, service.mean_ms(answer.batch_size), 1 / answer.batch_size) for answer in load.answers]
    return sum(step * share for step, _, share in batches) / sum(told * share for _, told, share in batches)


def service_of(record: Record, overheads: Overheads = Overheads()) -> ServiceTimes:  # noqa: B008  # it is immutable
    """Return the batch times in a server with overheads."""
    return service_times_of(record, overheads)


def most_per_s(record: Record, case: Case, estimate: Estimate) -> float:
    """Return the requests per second that one device answers with full batches."""
    return 1000 * service_of(record, estimate.overheads).per_ms(case.cap)


def simulated(record: Record, case: Case, due_ms: NDArray[np.float64], estimate: Estimate) -> Latency:
    """Return the simulated latencies of requests that are due at these times."""
    bench = Bench(service_times_of(record), case.demand().server, case.cap)
    found = [latency_of(bench.latencies_ms(due_ms, estimate, (seed,))) for seed in range(_SEEDS)]
    return Latency(*(float(value) for value in np.mean(found, axis=0)))


def latency_of(latencies_ms: NDArray[np.float64]) -> Latency:
    """Return mean and percentiles, without those of the first requests."""
    told = steady(latencies_ms)
    return Latency(float(told.mean()), *(float(value) for value in np.quantile(told, [0.5, 0.95, 0.99])))


def fitted(record: Record, case: Case, loads: list[Load]) -> Estimate:
    """Return the overheads of a server with one device, from the begin of its batches and the arrival of its answers.

    Raises:
        ValueError: the overheads cannot be separated, as with batches of one.
    """
    found = fit_to_batches(
        Bench(service_times_of(record), case.demand().server, case.cap), [load.log for load in loads]
    )
    if found is None:
        raise ValueError("overheads are not found with batches of one")
    return found.estimate
