"""Compare the simulator with the batching code of Ray Serve, run unchanged on a simulated clock.

    python benchmarks/servers.py --requests 100000 --processes 2 > results/simulated/sizing/servers.txt

Both get the same requests. Batch durations are drawn from one record; the n-th batch takes the same time in both.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.record.files import load_record
from tputfind.sizing.engine.servers import Server
from tputfind.sizing.engine.service_times import service_times_of
from tputfind.sizing.engine.serving import Kind, serve

RECORD: Final = Path(__file__).parents[1] / "tests/records/nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-0.json"
"""A record with steady batches."""
SEED: Final = 0, 1
"""Seed of the batch durations, in both."""
PERCENTILES: Final = 50, 95, 99
WARM_UP: Final = 0.1
"""Fraction of the requests at the start that are left out."""


class Case(NamedTuple):
    """The largest batch of a replica, the number of replicas, and the request rate."""

    cap: int
    devices: int
    rate: float

    def label(self) -> str:
        """Return a short description."""
        routing = ", two-choices" if self.devices > 1 else ""
        devices = f"{self.devices} device{'s' * (self.devices > 1)}{routing}"
        return f"ray blocking, batches up to {self.cap}, {devices}, {self.rate:g}/s"


CASES: Final = (
    *(Case(32, 1, rate) for rate in (2000, 5500)),
    *(Case(5, 4, rate) for rate in (750, 4000)),
    Case(32, 4, 16000),
)
DELAY_MS: Final = 10.0
ENOUGH_ONGOING: Final = 10_000
"""Maximum requests of a replica, so high that it has no effect."""


def arrivals_ms(case: Case, requests: int) -> NDArray[np.float64]:
    """Return the arrival times of a case's requests, in ms."""
    times: NDArray[np.float64] = np.cumsum(np.random.default_rng(0).exponential(1000 / case.rate, requests))
    return times


def ours_ms(case: Case, requests: int) -> NDArray[np.float64]:
    """Return the times of the simulator's answers, in ms."""
    kinds = [Kind(case.devices, case.cap, service_times_of(load_record(RECORD)))]
    server = Server("ray", DELAY_MS, "two-choices")
    return serve(arrivals_ms(case, requests), None, kinds, server, free_ms=[0.0] * case.devices, seed=SEED).done_ms


def theirs_ms(case: Case, came_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the times of the answers of Ray Serve's own code, in ms, for requests that arrive at ``came_ms``."""
    from serving import virtual_ray

    draw = service_times_of(load_record(RECORD)).drawn(case.cap, SEED)
    answered_ms: NDArray[np.float64] = virtual_ray.answered_ms(
        came_ms,
        [lambda size: draw(size, size)] * case.devices,
        cap=case.cap,
        delay_ms=DELAY_MS,
        max_ongoing=ENOUGH_ONGOING,
        blocking=True,
    )
    return answered_ms


class Row(NamedTuple):
    """Percentiles of latency in ms: theirs and ours."""

    case: Case
    theirs: Sequence[float]
    ours: Sequence[float]

    def off(self) -> list[float]:
        """Return the relative error of each percentile of ours."""
        return [ours / theirs - 1 for theirs, ours in zip(self.theirs, self.ours, strict=True)]


def figures(done_ms: NDArray[np.float64], case: Case) -> list[float]:
    """Return the percentiles of latency, in ms."""
    warm = int(WARM_UP * len(done_ms))
    latency_ms = (done_ms - arrivals_ms(case, len(done_ms)))[warm:]
    found: list[float] = np.percentile(latency_ms, PERCENTILES).tolist()
    return found


def compared(case: Case, requests: int) -> Row:
    """Return both, side by side."""
    theirs = theirs_ms(case, arrivals_ms(case, requests))
    return Row(case, figures(theirs, case), figures(ours_ms(case, requests), case))


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table, each as soon as its row is known."""
    widest = max(len(case.label()) for case in CASES)
    heads = [f"{'p' + str(percentile):>8} {'ours':>8} {'off':>7}" for percentile in PERCENTILES]
    yield f"{'':{widest}} {' '.join(heads)}"
    for row in rows:
        cells = [
            f"{theirs:8.2f} {ours:8.2f} {off:+7.1%}"
            for theirs, ours, off in zip(row.theirs, row.ours, row.off(), strict=True)
        ]
        yield f"{row.case.label():{widest}} {' '.join(cells)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        rows = pool.map(compared, CASES, [options.requests] * len(CASES))
        device = "ResNet-50 fp16 as a CUDA graph on an H200"
        print(f"{options.requests} Poisson requests a line; batch times of {device}; latencies in ms.")
        print(f"ray {version('ray')}, Python {python_version()}\n")
        for line in table(rows):
            print(line, flush=True)


if __name__ == "__main__":
    main()
