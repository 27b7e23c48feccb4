"""A model served and driven, and the same simulated: what the comparisons of both are made of."""

from __future__ import annotations

import json
import multiprocessing
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
from numpy.typing import NDArray
from scipy.stats import theilslopes
from serving.client import Answer, drive
from serving.step import CAP, MODEL, OPTIONS

import tputfind
from tputfind.record.record import Record
from tputfind.sizing.arrivals import arrivals_ms
from tputfind.sizing.batchers import held_ms
from tputfind.sizing.demand import Demand, read_demand
from tputfind.sizing.service import service_of
from tputfind.sizing.simulate import Server, places_in_batch, serve

FOLDER = Path(__file__).parent
_WARM_UP_SHARE = 0.1
_SEEDS = 5
_ON_THE_WAY_MS = 2.0
"""A request that was due so long ago is in the queue."""
_MOST_POINTS = 3000
_GETS = 2000


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
    """What a server adds to a batch, for each request in it, to get it, to answer it, and beside the queue, in ms."""

    per_batch: float = 0.0
    per_request: float = 0.0
    per_get: float = 0.0
    per_answer: float = 0.0
    beside: float = 0.0

    def on(self, demand: Demand) -> Demand:
        """Return the demand with what batches take longer for the server's sake."""
        return msgspec.structs.replace(
            demand,
            overhead_per_batch_ms=self.per_batch,
            overhead_per_request_ms=self.per_request,
            overhead_per_get_ms=self.per_get,
            overhead_per_answer_ms=self.per_answer,
        )


class Batches(NamedTuple):
    """When batches began and ended, their sizes, and when the first request of each was due; times in ms.

    ``batch_of`` is the number of each request's.
    """

    begun: NDArray[np.float64]
    ended: NDArray[np.float64]
    sizes: NDArray[np.float64]
    first_due: NDArray[np.float64]
    batch_of: NDArray[np.int64]


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
    def batches(self) -> Batches:
        """The batches that were made, in order."""
        told = np.array([(each.begun_ms, each.step_ms, each.batch_size) for each in self.answers])
        begun, first, batch_of = np.unique(told[:, 0], return_index=True, return_inverse=True)
        first_due = np.full(len(begun), np.inf)
        np.minimum.at(first_due, batch_of, self.due_ms)
        return Batches(begun, begun + told[first, 1], told[first, 2], first_due, batch_of)

    @property
    def mean_batch(self) -> float:
        """Requests over batches."""
        return float(1 / np.mean([1 / answer.batch_size for answer in self.answers]))


def measured(case: Case, folder: str | None = None) -> Record:
    """Return the tool's record of the model at every size up to the cap, as the server is going to run it; keep it."""
    return tputfind.find(
        case.model, batch_sizes=range(1, case.cap + 1), processes=2, batches=100, max_seconds=2.5,
        output=folder, **case.options,  # type: ignore[arg-type]  # read from JSON
    )  # fmt: skip


def loaded(port: int, case: Case, rate_per_s: float, requests: int) -> Load:
    """Send so many requests of a Poisson stream and return the answers."""
    due_ms = arrivals_ms(case.demand(), requests, rate_per_s, 1.0, seed=(7,))
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
    demand = overheads.on(case.demand())
    return 1000 * service_of(record, demand).per_ms(min(case.cap, demand.most_in_window or case.cap))


def simulated(record: Record, case: Case, due_ms: NDArray[np.float64], overheads: Overheads) -> Latency:
    """Return the latencies of requests that are due at these times, by simulation."""
    demand = overheads.on(case.demand())
    server = Server(case.cap, service_of(record, demand), demand)
    idle_ms = [0.0] * case.devices
    found = [latency_of(serve(due_ms, idle_ms, server, (seed,)).done_ms - due_ms) for seed in range(_SEEDS)]
    return Latency(*(float(value) + overheads.beside for value in np.mean(found, axis=0)))


def latency_of(latencies_ms: NDArray[np.float64]) -> Latency:
    """Return mean and percentiles, without those of the first requests."""
    steady = latencies_ms[int(_WARM_UP_SHARE * len(latencies_ms)) :]
    return Latency(float(steady.mean()), *(float(value) for value in np.quantile(steady, [0.5, 0.95, 0.99])))


def fitted(record: Record, case: Case, loads: list[Load], per_get: float = 0.0) -> Overheads:
    """Return the overheads of a server with one device, from when its batches began and its answers came.

    What it adds to a batch and for each request in it is seen where requests waited as the batch before ended: the
    device then did nothing for as long as the server holds a batch back by its rule, and for the overheads. The answers
    of a batch come one after the other from then on. How long it takes to get a request does not show at low loads, and
    is told. What is left of the median latency lies beside the queue.

    Raises:
        ValueError: there is nothing to see them by, as with batches of one.
    """
    if case.cap == 1:
        raise ValueError("overheads are not found with batches of one")
    demand = case.demand()
    held = held_ms(demand.batcher, demand.wait_ms)
    pauses = _some(np.concatenate([_pauses(load, case.cap, held) for load in loads]))
    per_request = max(0.0, float(theilslopes(pauses[:, 1], pauses[:, 0])[0]))
    per_batch = max(0.0, float(np.median(pauses[:, 1] - per_request * pauses[:, 0])))
    late = _some(np.concatenate([_late(load, per_batch, per_request) for load in loads]))
    per_answer = max(0.0, float(theilslopes(late[:, 1], late[:, 0])[0]))
    overheads = Overheads(per_batch, per_request, per_get, per_answer)
    rest = [load.latency.p50 - simulated(record, case, load.due_ms, overheads).p50 for load in loads]
    return overheads._replace(beside=max(0.0, float(np.mean(rest))))


def _pauses(load: Load, cap: int, held: float) -> NDArray[np.float64]:
    """Return of the pauses of a device between batches the size of the batch before, and ms beyond the rule's.

    Of those only that requests waited through, and whose next batch was not full: that is sent without being held.
    """
    begun, ended, sizes, first_due, _ = load.batches
    waited = (first_due[1:] < ended[:-1] - _ON_THE_WAY_MS) & (sizes[1:] < cap)
    return np.column_stack([sizes[:-1], begun[1:] - ended[:-1] - held])[waited]


def _late(load: Load, per_batch: float, per_request: float) -> NDArray[np.float64]:
    """Return of the answers which of their batch they were, and how many ms after it and its overheads they came.

    In the order of requests, as servers answer: that in which they came would take scatter for time between them.
    """
    _, ended, sizes, _, batch_of = load.batches
    done = (ended + per_batch + per_request * sizes)[batch_of]
    came = load.due_ms + np.array([answer.latency_ms for answer in load.answers])
    return np.column_stack([places_in_batch(batch_of), came - done])


def _some(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return as many of them, by chance, as pairs can be made of."""
    return np.random.default_rng(0).permutation(points)[:_MOST_POINTS]


def get_ms() -> float:
    """Return how long it takes to get something from a queue as LitServe's are: one in a process of its own."""
    with multiprocessing.Manager() as manager:
        queue = manager.Queue()
        spans = []
        for number in range(_GETS):
            queue.put((0, str(number), time.monotonic(), 1))
        for _ in range(_GETS):
            start = time.perf_counter()
            queue.get(timeout=0.001)
            spans.append((time.perf_counter() - start) * 1000)
    return float(np.median(spans))
