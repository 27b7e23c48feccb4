"""The simulator beside the batching code of Ray Serve and BentoML, run as it is on a simulated clock.

    python benchmarks/servers.py --requests 100000 --processes 2 > results/simulated/sizing/servers.txt

Both get the same requests. How long a batch takes is drawn from one record; the n-th batch takes as long in both.
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
from tputfind.sizing.demand import Demand
from tputfind.sizing.options import read_demand
from tputfind.sizing.queues import Spans
from tputfind.sizing.saturation import answers_per_ms, most_per_ms
from tputfind.sizing.serve import Server, serve
from tputfind.sizing.service import service_of

RECORD: Final = Path(__file__).parents[1] / "results/nvidia-h200-x2/all-busy/cudagraph-resnet50-fp16-cuda-0.json"
"""Of steady batches: what a server learns of noisy ones in a minute is mostly chance."""
SEED: Final = 0, 1
"""Of the times of batches, in both."""
PERCENTILES: Final = 50, 95, 99
WARM_UP: Final = 0.1
"""Of the requests: not looked at."""


class Case(NamedTuple):
    """One server, its limits, and the load."""

    batcher: str
    handler: str
    cap: int
    devices: int
    rate: float
    max_ongoing: int | None = None
    max_queue: int | None = None
    max_latency: str | None = None

    def demand(self) -> Demand:
        """Return it as the tool is asked."""
        options = self._asdict()
        return read_demand({name: options[name] for name in options if name not in ("cap", "devices")} | {"slo": "1s"})

    def label(self) -> str:
        """Return it in a few words; a rate of 1 stands for none."""
        limits = [f"{name} {value}" for name, value in self._asdict().items() if name.startswith("max_") and value]
        routing = f", {self.demand().routing}" if self.devices > 1 else ""
        devices = f"{self.devices} device{'s' * (self.devices > 1)}{routing}"
        rate = [f"{self.rate:g}/s"] if self.rate > 1 else []
        return ", ".join([f"{self.batcher} {self.handler}, cap {self.cap}", *limits, devices, *rate])


CASES: Final = (
    *(Case("ray", handler, 32, 1, rate, 200) for handler in ("threaded", "blocking") for rate in (2000, 5500)),
    *(Case("ray", "blocking", 5, 4, rate) for rate in (400, 750)),
    *(Case("ray", "blocking", cap, 7, 1200) for cap in (2, 5)),
    Case("ray", "blocking", 16, 4, 4000, 32),
    *(Case("ray", handler, 32, 4, 16000, 200) for handler in ("threaded", "blocking")),
    *(Case("ray", handler, 5, 4, 8000, 5, 20) for handler in ("threaded", "blocking")),
    Case("ray", "threaded", 32, 1, 180, 5),
    *(Case("bentoml", handler, 32, 1, rate) for handler in ("threaded", "blocking") for rate in (1500, 4000, 6000)),
    *(Case("bentoml", handler, 32, 1, 7500, max_latency="20ms") for handler in ("threaded", "blocking")),
)
"""Where Ray Serve's queue has no limit, the load is below 1: above, it grows for good after any pause, and Ray
itself slows down with the square of what waits."""
WAITING: Final = tuple(
    Case("ray", handler, cap, devices, 1, limit)
    for cap, limit, devices in ((5, 5, 1), (5, 5, 4), (16, 32, 1), (16, 32, 4), (32, 100, 1))
    for handler in ("threaded", "blocking")
)
"""Servers before which many requests wait, all from the beginning on."""
_FILLS: Final = 40
"""How often those that wait fill all places of the replicas."""


def arrivals_ms(case: Case, requests: int) -> NDArray[np.float64]:
    """Return when the requests of a case come, in ms."""
    times: NDArray[np.float64] = np.cumsum(np.random.default_rng(0).exponential(1000 / case.rate, requests))
    return times


def ours_ms(case: Case, requests: int) -> NDArray[np.float64]:
    """Return when the simulator answers them; nan where it refuses one."""
    demand = case.demand()
    server = Server(case.cap, service_of(load_record(RECORD), demand), demand)
    return serve(arrivals_ms(case, requests), [0.0] * case.devices, server, SEED).done_ms


def theirs_ms(case: Case, came_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return when the server's own code answers requests that come at these times; nan where it refuses one."""
    demand = case.demand()
    spans = [Spans(service_of(load_record(RECORD), demand), case.cap, SEED)] * case.devices
    blocking = case.handler == "blocking"
    if case.batcher == "bentoml":
        from serving import virtual_bentoml

        latency_ms = int(demand.max_latency_ms or virtual_bentoml.MAX_LATENCY_MS)
        return virtual_bentoml.answered_ms(
            came_ms, spans[0], cap=case.cap, max_latency_ms=latency_ms, blocking=blocking
        )
    from serving import virtual_ray

    return virtual_ray.answered_ms(
        came_ms,
        spans,
        cap=case.cap,
        delay_ms=demand.wait_ms,
        max_ongoing=case.max_ongoing or virtual_ray.MAX_ONGOING,
        max_queued=case.max_queue or -1,
        blocking=blocking,
    )


class Row(NamedTuple):
    """Percentiles of latency in ms, and the share of requests refused: theirs and ours."""

    case: Case
    theirs: Sequence[float]
    ours: Sequence[float]

    def off(self) -> list[float]:
        """Return by what share each percentile of ours is off."""
        return [ours / theirs - 1 for theirs, ours in zip(self.theirs[:-1], self.ours[:-1], strict=True)]


def figures(done_ms: NDArray[np.float64], case: Case) -> list[float]:
    """Return the percentiles of latency of answered requests, in ms, and the share of those that were refused."""
    warm = int(WARM_UP * len(done_ms))
    latency_ms = (done_ms - arrivals_ms(case, len(done_ms)))[warm:]
    return [*np.nanpercentile(latency_ms, PERCENTILES).tolist(), float(np.isnan(latency_ms).mean())]


def compared(case: Case, requests: int) -> Row:
    """Return both, side by side."""
    theirs = theirs_ms(case, arrivals_ms(case, requests))
    return Row(case, figures(theirs, case), figures(ours_ms(case, requests), case))


def while_waiting(case: Case) -> tuple[float, float]:
    """Return the answers per second of each device while many requests wait: theirs and ours."""
    demand = case.demand()
    requests = _FILLS * case.devices * (case.max_ongoing or 1)
    theirs = answers_per_ms(theirs_ms(case, np.zeros(requests))) / case.devices
    return 1000 * theirs, 1000 * most_per_ms(case.cap, service_of(load_record(RECORD), demand), demand)


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table, each as soon as its row is there."""
    widest = max(len(case.label()) for case in CASES)
    heads = [f"{'p' + str(percentile):>8} {'ours':>8} {'off':>7}" for percentile in PERCENTILES]
    yield f"{'':{widest}} {' '.join(heads)} {'refused':>8} {'ours':>7}"
    for row in rows:
        cells = [
            f"{theirs:8.2f} {ours:8.2f} {off:+7.1%}"
            for theirs, ours, off in zip(row.theirs, row.ours, row.off(), strict=False)
        ]
        yield f"{row.case.label():{widest}} {' '.join(cells)} {row.theirs[-1]:8.2%} {row.ours[-1]:7.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        rows = pool.map(compared, CASES, [options.requests] * len(CASES))
        device = "ResNet-50 fp16 as a CUDA graph on an H200"
        print(f"{options.requests} Poisson requests a line; batch times of {device}; latencies in ms.")
        versions = f"ray {version('ray')}, bentoml {version('bentoml')}, Python {python_version()}"
        print(f"{versions}; refused: the share of requests.\n")
        for line in table(rows):
            print(line, flush=True)
        print("\nAnswers/s of each device while many requests wait, all from the beginning on\n")
        widest = max(len(case.label()) for case in WAITING)
        for case, (theirs, ours) in zip(WAITING, pool.map(while_waiting, WAITING), strict=True):
            print(f"{case.label():{widest}} {theirs:8.1f} {ours:8.1f} {ours / theirs - 1:+7.1%}", flush=True)


if __name__ == "__main__":
    main()
