"""One fleet of several kinds of devices under one stream of requests, simulated as fleets of one kind are."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from math import floor
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.arrivals import Seed, arrivals_ms
from tputfind.sizing.demand import Demand
from tputfind.sizing.queues import Spans
from tputfind.sizing.serve import Server, serve
from tputfind.sizing.service import ServiceTimes
from tputfind.sizing.simulate import (
    Fleet,
    Outcome,
    cell_of,
    grows,
    latency_figures,
    memory_of,
    requests_of,
    usual_ms_of,
)
from tputfind.sizing.stream import WARM_UP_SHARE, under_way_ms

_MEMORIES: Final = 100
"""Streams shorter than this many times what their queue remembers show no steady queue."""


class Kind(NamedTuple):
    """The devices of one kind in a fleet: how many, the largest batch of each, and how long batches take."""

    devices: int
    cap: int
    service: ServiceTimes

    @property
    def each_per_ms(self) -> float:
        """The samples per ms of one device with full batches."""
        return self.service.per_ms(self.cap)


class Mixed(NamedTuple):
    """What a fleet of several kinds does: all of it, and the share of the requests that each kind serves."""

    outcome: Outcome
    shares: tuple[float, ...]


def unsupported(demand: Demand) -> str | None:
    """Say why no mix of kinds can be simulated for a demand; None where one can.

    A shared queue is followed for servers that take what waits as soon as a device is free. Behind a random split each
    device is a server of its own, by whatever rule.
    """
    if demand.solve != "devices":
        return "a mix is not searched for a given number of devices"
    if demand.spare:
        return "a mix is not searched with --spare"
    if demand.gaps is not None:
        return "a mix is not searched for recorded --arrivals"
    if demand.several:
        return "a mix is not simulated for requests of several samples"
    if demand.max_queue is not None or demand.preferred_batches or demand.search_delay:
        return "a mix is not simulated with --max-queue, --preferred-batches or --delay auto"
    if demand.server.in_replicas:
        return f"a mix is not simulated with --batcher {demand.batcher}"
    if demand.routing not in ("shared", "random"):
        return f"a mix is not simulated with --routing {demand.routing}: shared or random"
    if demand.routing == "shared" and demand.server.waits:
        return f"a mix is not simulated behind one queue of {demand.batcher}: --batcher greedy, or --routing random"
    if demand.routing == "shared" and demand.overhead_per_answer_ms:
        return "a mix behind one queue is not simulated with a time for each answer: --routing random"
    return None


def load_of(kinds: Sequence[Kind], rate_per_s: float) -> float:
    """Return the rate over what all devices can do with full batches."""
    return rate_per_s / 1000 / sum(kind.devices * kind.each_per_ms for kind in kinds)


def simulate_mix(kinds: Sequence[Kind], rate_per_s: float, demand: Demand, *, seeds: int, effort: float = 1.0) -> Mixed:
    """Return what devices of several kinds do, from several streams of requests, each with a seed of its own.

    Behind a shared queue the device that has been idle for the longest takes the next batch, of whichever kind it is.
    A random split gives each device requests in proportion to what it can do with full batches. Of a large fleet a part
    is simulated, with each kind's share of the devices, and requests in proportion to what that part can do.

    Args:
        kinds: the devices; each kind has one at the least.
        rate_per_s: requests for all of them.
        demand: the stream's shape, the batcher, the target, and the first seed.
        seeds: how many streams; from two on there is an interval.
        effort: factor on the requests that the percentile takes.
    """
    load = load_of(kinds, rate_per_s)
    part = _cell(kinds, cell_of(demand))
    share = min(1.0, load / load_of(part, rate_per_s))
    devices = sum(kind.devices for kind in part)
    memory = memory_of(demand, devices, share, load)
    # As of fleets of one kind, each device of which gets what those of the kind get here.
    alike = [(Fleet(devices, kind.cap, devices * load * 1000 * kind.each_per_ms), kind.service) for kind in part]
    count = max(requests_of(fleet, service, demand, memory, effort) for fleet, service in alike)
    usual_ms = [usual_ms_of(fleet, service, demand) for fleet, service in alike]
    stream = _Stream(part, usual_ms, count, rate_per_s * share, share, demand)
    runs = [stream.run((demand.seed, number)) for number in range(seeds)]
    latencies = [run.latencies_ms[int(WARM_UP_SHARE * count) :] for run in runs]
    sure = count >= _MEMORIES * memory and not grows(latencies)
    outcome = Outcome(
        devices=sum(kind.devices for kind in kinds),
        batch_cap=max(kind.cap for kind in kinds),
        rate_per_s=rate_per_s,
        load=load,
        steady=load < 1 and sure,
        utilisation=float(np.mean([run.utilisation for run in runs])),
        mean_batch=seeds * count / sum(run.batches for run in runs),
        **latency_figures(latencies, demand, rate_per_s),  # type: ignore[arg-type]  # names of figures
    )
    return Mixed(outcome, tuple(float(each) for each in np.mean([run.shares for run in runs], axis=0)))


class _Run(NamedTuple):
    """What one stream shows: latencies, batches, how busy the devices are, and each kind's share of the requests."""

    latencies_ms: NDArray[np.float64]
    batches: int
    utilisation: float
    shares: list[float]


class _Stream(NamedTuple):
    """What is simulated of a fleet, the usual batch of each of its kinds, and the requests that it gets."""

    kinds: Sequence[Kind]
    usual_ms: Sequence[float]
    requests: int
    rate_per_s: float
    share: float
    demand: Demand

    def run(self, seed: Seed) -> _Run:
        """Return what one stream shows."""
        demand = self.demand
        arrivals = arrivals_ms(demand, self.requests, self.rate_per_s, self.share, seed)
        kind_of = [number for number, kind in enumerate(self.kinds) for _ in range(kind.devices)]
        servers = [Server(kind.cap, kind.service, demand) for kind in self.kinds]
        drawn = under_way_ms(len(kind_of), 1.0, servers[0], seed)
        free_ms = [draw * self.usual_ms[kind] for draw, kind in zip(drawn, kind_of, strict=True)]
        serve_all = split if demand.routing == "random" else greedy
        dealt = serve_all(arrivals, free_ms, kind_of, servers, seed)
        shares = np.bincount(np.array(kind_of)[dealt.device], minlength=len(self.kinds)) / self.requests
        utilisation = dealt.busy_ms / (len(kind_of) * float(dealt.done_ms.max()))
        return _Run(dealt.done_ms - arrivals, dealt.batches, utilisation, shares.tolist())


class Dealt(NamedTuple):
    """When each request is answered and by which device, the batches, and how long the devices were busy."""

    done_ms: NDArray[np.float64]
    device: NDArray[np.int64]
    batches: int
    busy_ms: float


def greedy(
    arrivals: NDArray[np.float64],
    free_ms: Sequence[float],
    kind_of: Sequence[int],
    servers: Sequence[Server],
    seed: Seed,
) -> Dealt:
    """Serve one queue: the device that is free first takes all that waits, up to the cap of its kind.

    Of several idle devices that is the one that has been idle for the longest.
    """
    spans = [Spans(server.service, server.cap, (*seed, 6, kind)) for kind, server in enumerate(servers)]
    came = arrivals.tolist()
    ends: list[float] = []
    takers: list[int] = []
    marks = [0]
    free = sorted((at, device) for device, at in enumerate(free_ms))
    busy_ms, count, head = 0.0, len(came), 0
    while head < count:
        free_from, device = free[0]
        kind = kind_of[device]
        start = max(free_from, came[head])
        tail = bisect_right(came, start, head + 1, min(head + servers[kind].cap, count))
        taken = spans[kind](tail - head)
        busy_ms += taken
        ends.append(start + taken)
        takers.append(device)
        heapq.heapreplace(free, (start + taken, device))
        marks.append(tail)
        head = tail
    sizes = np.diff(marks)
    return Dealt(np.repeat(ends, sizes), np.repeat(takers, sizes), len(ends), busy_ms)


def split(
    arrivals: NDArray[np.float64],
    free_ms: Sequence[float],
    kind_of: Sequence[int],
    servers: Sequence[Server],
    seed: Seed,
) -> Dealt:
    """Serve requests dealt out by chance, in proportion to what each device can do, to devices with a queue each."""
    can = np.cumsum([servers[kind].service.per_ms(servers[kind].cap) for kind in kind_of])
    drawn = np.random.default_rng([*seed, 1]).uniform(0.0, can[-1], len(arrivals))
    device_of = np.searchsorted(can[:-1], drawn, side="right")
    done_ms = np.zeros(len(arrivals))
    batches, busy_ms = 0, 0.0
    for device, free in enumerate(free_ms):
        its_own = np.flatnonzero(device_of == device)
        if len(its_own):
            served = serve(arrivals[its_own], [free], servers[kind_of[device]], (*seed, 5, device))
            done_ms[its_own] = served.done_ms
            batches, busy_ms = batches + served.batches, busy_ms + served.busy_ms
    return Dealt(done_ms, device_of, batches, busy_ms)


def _cell(kinds: Sequence[Kind], most: int) -> list[Kind]:
    """Return no more devices than that, with each kind's share of them, and one of each kind at the least."""
    devices = sum(kind.devices for kind in kinds)
    if devices <= most:
        return list(kinds)
    exact = [kind.devices * most / devices for kind in kinds]
    counts = [max(1, floor(share)) for share in exact]
    by_rest = sorted(range(len(kinds)), key=lambda number: counts[number] - exact[number])
    for number in by_rest[: max(0, most - sum(counts))]:
        counts[number] += 1
    return [kind._replace(devices=count) for kind, count in zip(kinds, counts, strict=True)]
