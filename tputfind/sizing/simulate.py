"""One fleet under one stream of requests, simulated: latency, load and batches, each with what chance leaves open."""

from __future__ import annotations

from math import ceil, sqrt
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tputfind.sizing.arrivals import arrivals_ms
from tputfind.sizing.batchers import rule_of
from tputfind.sizing.demand import Demand
from tputfind.sizing.queues import Replicas, Served, Spans, Workers, by_rule, greedy
from tputfind.sizing.service import ServiceTimes
from tputfind.spec import Amount, Count
from tputfind.stats import t_quantile

CELL: Final = 64
"""Of more devices so many are simulated, with their share of the requests: a fleet of cells behind a random split."""
_WARM_UP_SHARE: Final = 0.1
_TAIL_REQUESTS: Final = 200
"""Requests beyond the percentile asked for, in each of the streams."""
_BATCHES: Final = 50
"""Full batches of each device, at the least."""
_TARGETS: Final = 20
"""A stream lasts so many times the latency target at the least, so that a queue without end grows past it."""
_MOST_REQUESTS: Final = 2_000_000


class Fleet(NamedTuple):
    """Devices, each with batches up to a cap, and the requests per second that all of them get."""

    devices: int
    cap: int
    rate_per_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet does under a stream of requests. Latencies are from a request's coming to its answer, in ms.

    ``tail_ms`` is the percentile that was asked for, with its 95 % confidence interval over the streams;
    ``goodput_per_s`` counts the requests that are answered within the target.
    """

    devices: Count
    batch_cap: Count
    rate_per_s: Amount
    mean_ms: Amount
    p50_ms: Amount
    p95_ms: Amount
    p99_ms: Amount
    tail_ms: Amount
    tail_low_ms: Amount
    tail_high_ms: Amount
    goodput_per_s: Amount
    utilisation: Amount
    mean_batch: Amount
    requests: Annotated[int, Meta(ge=0)]

    def meets(self, target_ms: float) -> bool:
        """Whether the whole interval of the percentile lies within a target."""
        return self.tail_high_ms <= target_ms

    def misses(self, target_ms: float) -> bool:
        """Whether the whole interval lies beyond it."""
        return self.tail_low_ms > target_ms


def simulate(fleet: Fleet, service: ServiceTimes, demand: Demand, *, seeds: int, effort: float = 1.0) -> Outcome:
    """Return what a fleet does, from so many streams of requests, each with a seed of its own.

    Args:
        fleet: what is simulated.
        service: how long a batch takes on one of its devices.
        demand: the stream's shape, the batcher, the target, and the first seed.
        seeds: how many streams; from two on there is an interval.
        effort: so many times the requests that the percentile takes.
    """
    devices = min(fleet.devices, CELL)
    share = devices / fleet.devices
    rate_per_s = fleet.rate_per_s * share
    count = _requests(Fleet(devices, fleet.cap, rate_per_s), service, demand, effort)
    latencies, loads, batches = [], [], 0
    for seed in range(demand.seed, demand.seed + seeds):
        arrivals = arrivals_ms(demand, count, rate_per_s, share, seed)
        served = serve(arrivals, devices, Server(fleet.cap, service, demand), seed)
        latencies.append((served.done_ms - arrivals)[int(_WARM_UP_SHARE * count) :])
        loads.append(served.busy_ms / (devices * float(served.done_ms.max())))
        batches += served.batches
    return _outcome(fleet, demand, latencies, float(np.mean(loads)), seeds * count / batches)


def _requests(fleet: Fleet, service: ServiceTimes, demand: Demand, effort: float) -> int:
    tail = _TAIL_REQUESTS / (1 - demand.percentile / 100)
    meanwhile = fleet.rate_per_s / 1000 / fleet.devices * (service.mean_ms(fleet.cap) + demand.wait_ms)
    batches = _BATCHES * fleet.devices * min(fleet.cap, 1 + meanwhile)
    long = _TARGETS * demand.target_ms / 1000 * fleet.rate_per_s
    wanted = max(tail, batches, long) * effort
    return ceil(min(wanted, max(_MOST_REQUESTS, tail)))


class Server(NamedTuple):
    """What stands before each device: the largest batch, how long batches take, and how they are made."""

    cap: int
    service: ServiceTimes
    demand: Demand


def serve(arrivals: NDArray[np.float64], devices: int, server: Server, seed: int) -> Served:
    """Return when each of the requests that come at these times, in ms, is answered; the seed is that of the times of
    batches.
    """
    cap, service, demand = server
    span = Spans(service, cap, seed)
    wait_ms, rule = demand.wait_ms, rule_of(demand.batcher, demand.wait_ms)
    at_once = demand.batcher == "greedy" or (wait_ms == 0 and demand.batcher in ("triton", "mosec", "litserve"))
    if demand.routing == "random" and devices > 1:
        return _split(arrivals, devices, server, seed)
    if demand.routing == "least-loaded" and devices > 1:
        return Replicas(devices, cap, span, rule).serve(arrivals.tolist())
    if at_once:
        return greedy(arrivals.tolist(), devices, cap, span)
    if demand.batcher in ("mosec", "litserve") and devices > 1:
        return Workers(devices, cap, span, wait_ms, at_once=demand.batcher == "litserve").serve(arrivals.tolist())
    return by_rule(arrivals.tolist(), devices, cap, span, rule)


def _split(arrivals: NDArray[np.float64], devices: int, server: Server, seed: int) -> Served:
    """Serve requests that are dealt out by chance, to devices with a queue each."""
    device_of = np.random.default_rng([seed, 1]).integers(devices, size=len(arrivals))
    done_ms = np.zeros(len(arrivals))
    batches, busy_ms = 0, 0.0
    for device in range(devices):
        its_own = np.flatnonzero(device_of == device)
        if len(its_own):
            served = serve(arrivals[its_own], 1, server, seed + 1000 * device)
            done_ms[its_own] = served.done_ms
            batches, busy_ms = batches + served.batches, busy_ms + served.busy_ms
    return Served(done_ms, batches, busy_ms)


def _outcome(
    fleet: Fleet, demand: Demand, latencies: list[NDArray[np.float64]], load: float, mean_batch: float
) -> Outcome:
    together = np.concatenate(latencies)
    tails = [float(np.quantile(one, demand.percentile / 100)) for one in latencies]
    tail_ms, error_ms = float(np.mean(tails)), 0.0
    if len(tails) > 1:
        error_ms = t_quantile(len(tails) - 1) * float(np.std(tails, ddof=1)) / sqrt(len(tails))
    p50, p95, p99 = (float(value) for value in np.quantile(together, [0.5, 0.95, 0.99]))
    return Outcome(
        devices=fleet.devices,
        batch_cap=fleet.cap,
        rate_per_s=fleet.rate_per_s,
        mean_ms=float(together.mean()),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        tail_ms=tail_ms,
        tail_low_ms=max(0.0, tail_ms - error_ms),
        tail_high_ms=tail_ms + error_ms,
        goodput_per_s=fleet.rate_per_s * float(np.mean(together <= demand.target_ms)),
        utilisation=load,
        mean_batch=mean_batch,
        requests=len(together),
    )
