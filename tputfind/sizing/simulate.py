"""One fleet under one stream of requests, simulated: latency, load and batches, each with what chance leaves open."""

from __future__ import annotations

from math import ceil, floor, inf, sqrt
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tputfind.record.types import Amount, Count
from tputfind.sizing.arrivals import dispersion_of
from tputfind.sizing.demand import IN_QUEUES, TAIL_REQUESTS, Demand
from tputfind.sizing.power import Computing, mean_of
from tputfind.sizing.saturation import most_per_ms
from tputfind.sizing.serve import Server, is_triton
from tputfind.sizing.service import ServiceTimes
from tputfind.sizing.stream import Pace, are_side_by_side, run
from tputfind.stats import t_quantile

SEEDS: Final = 5
"""Streams of a full simulation."""
PILOT: Final = 0.35
"""Of the requests of a full simulation: a third is the least that shows whether a queue is steady."""
_BATCHES: Final = 200
"""Full batches of each device, at the least."""
_TARGETS: Final = 20
"""Least length of a stream, in latency targets, and"""
_MEMORIES: Final = 300
"""in times that a queue remembers: of M/D/1 queues the 99th percentile then comes out 2 % too low at the
most. Within a third of that no fleet is taken to meet a target."""
_WANDERS, _EVEN, _FILLS = 20, 0.05, 5
"""Of queues with a limit: the square of the limit over this is what one remembers, of batches alone at least so much
chance comes, and it takes a fifth of this number of memories to fill one up."""
_MOST_REQUESTS: Final = 2_000_000
_MOST_ONE_BY_ONE: Final = 500_000
"""Of a stream; fewer where requests are followed one by one, which takes ten times as long."""
_LONG: Final = 1000
"""Most of a target that counts for that, in usual batches: where nothing takes as long as the target, a longer stream
shows nothing new."""
_PART_BATCHES, _PART_REQUESTS = 20, 500
"""Of a part of a stream, at the least: batches of each device, and requests of all."""
_LOOK: Final = 10_000
"""Requests that show how long batches take together, before it is known how many requests a stream takes."""
_ROUNDS: Final = 200
"""Of finding a usual batch: near the limit each is hardly larger than the one before."""
_DRIFT: Final = 0.2
"""Second halves of the streams that are slower than the first ones by more than this share, and by more than chance:
the queue grows."""


class Fleet(NamedTuple):
    """Devices, each with batches up to a cap, and the requests per second that all of them get."""

    devices: int
    cap: int
    rate_per_s: float

    def load(self, service: ServiceTimes, demand: Demand) -> float:
        """Return the rate over what the devices can do while more requests wait than they can take."""
        return self.rate_per_s / 1000 / self.devices * demand.mean_samples / most_per_ms(self.cap, service, demand)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet does under a stream of requests. Latencies are from a request's coming to its answer, in ms.

    ``load`` is the rate over what the devices do while many requests wait; where batches are closed by the clock, it is
    the time that batches take over that of the devices if that is more. ``tail_ms`` is the percentile that was asked
    for, of all streams together; its 95 % confidence interval is by how the streams differ. ``steady`` says that the
    queue stays as it is: where it is False it grows, or is so near to its limit that the streams are too short to tell,
    and the latencies say little. ``goodput_per_s`` counts the requests that are answered within the target. Batches are
    of samples. ``computing`` is None where the power is not known.

    ``refused`` is the share of requests that the server refused. The mean and p50 to p99 are of those that were
    answered. In ``tail_ms`` and its interval a request that was refused has an infinite latency: null in JSON.
    """

    devices: Count
    batch_cap: Count
    rate_per_s: Amount
    load: Amount
    steady: bool
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
    refused: Annotated[float, Meta(ge=0, le=1)] = 0.0
    computing: Computing | None = None

    def meets(self, target_ms: float) -> bool:
        """Whether the whole interval of the percentile lies within a target, and the queue does not grow."""
        return self.steady and self.tail_high_ms <= target_ms

    def misses(self, target_ms: float) -> bool:
        """Whether the whole interval lies beyond it, or the devices cannot keep up."""
        return (self.load >= 1 and self.refused == 0) or self.tail_low_ms > target_ms


def cell_of(demand: Demand) -> int:
    """Return of how many devices no more are simulated, with their share of the requests.

    The fleet is then one of such cells behind a random split. They are smaller where requests are followed one by one.
    """
    return 16 if _one_by_one(demand) and demand.routing != "random" else 64


def _one_by_one(demand: Demand) -> bool:
    routed = demand.routing in IN_QUEUES or demand.server.in_replicas
    return routed or demand.server.one_by_one is not None or is_triton(demand)


def simulate(fleet: Fleet, service: ServiceTimes, demand: Demand, *, seeds: int, effort: float = 1.0) -> Outcome:
    """Return what a fleet does, from several streams of requests, each with a seed of its own.

    Args:
        fleet: what is simulated.
        service: how long a batch takes on one of its devices.
        demand: the stream's shape, the batcher, the target, and the first seed. A recorded stream is the same each
            time, and only the times of batches differ.
        seeds: how many streams; from two on there is an interval.
        effort: factor on the requests that the percentile takes.
    """
    devices = min(fleet.devices, cell_of(demand))
    share = devices / fleet.devices
    cell = Fleet(devices, fleet.cap, fleet.rate_per_s * share)
    server = Server(fleet.cap, service, _of_cell(demand, share))
    load = at_least = fleet.load(service, demand)
    pause_ms = 0.0
    if load >= 1 and demand.most_ongoing is not None and server.demand.max_queue is not None:
        # Whether a queue of Ray Serve ever fills up is chance. Here it is full at first, and what follows is not.
        pause_ms = server.demand.max_queue / cell.rate_per_s * 1000
    pace = Pace(devices, cell.rate_per_s, share, usual_ms_of(cell, service, demand), pause_ms)
    if closes_by_clock(demand):
        load = max(at_least, run(server, pace, (demand.seed, 0), _LOOK).utilisation)
    memory = memory_of(demand, devices, share, load)
    count = requests_of(cell, service, demand, memory, effort)
    if demand.gaps is not None:
        turn = ceil(share * len(demand.gaps))
        count = turn * max(1, ceil(count / turn))  # a part of a turn would count for more than the rest
    parts = parts_of(pace, server, memory, count)
    streams = [run(server, pace, (demand.seed, number), count, parts) for number in range(seeds)]
    utilisation = float(np.mean([stream.utilisation for stream in streams]))
    if closes_by_clock(demand):
        load = max(at_least, utilisation)
        memory = memory_of(demand, devices, share, load)
    limited = demand.max_queue is not None
    latencies = [stream.latency_ms for stream in streams]
    sure = demand.gaps is not None or (count >= _MEMORIES / 3 * memory and (limited or not grows(latencies)))
    return Outcome(
        devices=fleet.devices,
        batch_cap=fleet.cap,
        rate_per_s=fleet.rate_per_s,
        load=load,
        steady=(load < 1 or limited) and sure,
        utilisation=min(1.0, utilisation),
        mean_batch=sum(stream.samples for stream in streams) / sum(stream.batches for stream in streams),
        computing=mean_of([stream.computing for stream in streams]),
        **latency_figures(latencies, demand, fleet.rate_per_s),  # type: ignore[arg-type]  # names of figures
    )


def closes_by_clock(demand: Demand) -> bool:
    """Whether batches are closed by the clock even while devices are busy: how large they get is not for the queue."""
    return demand.batcher == "ray" and demand.handled == "threaded"


def parts_of(pace: Pace, server: Server, memory: float, requests: int) -> int:
    """Return in how many parts a stream is served, each far longer than what a queue remembers.

    What a batch takes longer, the next is larger: batches remember the ones before, and that counts too. Devices that
    have a queue each do not take turns: their streams have parts only where that is faster. Servers whose load is
    measured are followed for long.
    """
    cap, service, demand = server
    if demand.gaps is not None:
        return 1
    each_ms = (service.mean_ms(cap) - service.mean_ms(1)) / cap
    larger_by = pace.rate_per_s / 1000 / pace.devices * demand.mean_samples * each_ms
    forgets = max(0.0, 1 - larger_by) ** 2
    batches = min(requests / pace.rate_per_s * 1000 / pace.usual_ms, requests / pace.devices)
    most = min(
        forgets * batches / _PART_BATCHES, requests / _PART_REQUESTS, 3 * requests / (_MEMORIES * max(1, memory))
    )
    parts = max(1, floor(most))
    alone = pace.devices == 1 or demand.routing == "random" or demand.server.in_replicas
    return 1 if alone and not are_side_by_side(demand, pace.devices, parts) else parts


def _of_cell(demand: Demand, share: float) -> Demand:
    """Return what is asked of a share of the devices that have a queue for all of them: it has that share of places."""
    if demand.max_queue is None or demand.routing == "random" or share == 1:
        return demand
    return msgspec.structs.replace(demand, max_queue=max(1, round(share * demand.max_queue)))


def memory_of(demand: Demand, devices: int, share: float, load: float) -> float:
    """Return how many requests a queue remembers: the square of how far it is from full, in units of their chance.

    A queue with a limit remembers no more than it takes to wander from empty to full. Under more than the devices can
    do it first fills up.
    """
    if load >= 1 and demand.max_queue is None:
        return inf
    queues = devices if demand.routing == "random" else 1
    dispersion = dispersion_of(demand, share / queues) + demand.samples_dispersion - 1
    gap = abs(1 - load)
    by_load = inf if gap == 0 else dispersion / gap**2
    if demand.max_queue is None:
        return queues * by_load
    places = demand.max_queue if queues > 1 else share * demand.max_queue
    wanders = places**2 / (_WANDERS * max(dispersion, _EVEN))
    fills = min(places / gap, wanders) / _FILLS if load > 1 else 0.0
    return queues * max(min(by_load, wanders), fills)


def requests_of(fleet: Fleet, service: ServiceTimes, demand: Demand, memory: float, effort: float) -> int:
    """Return how many requests a stream takes; few where no stream could tell, for its looks alone."""
    tail = TAIL_REQUESTS / (1 - demand.percentile / 100)
    batch_ms = service.mean_ms(fleet.cap) + demand.wait_ms
    meanwhile = fleet.rate_per_s / 1000 / fleet.devices * batch_ms
    samples = demand.mean_samples
    batches = _BATCHES * fleet.devices * min(fleet.cap / samples, 1 + meanwhile)
    long = _TARGETS * min(demand.target_ms, _LONG * usual_ms_of(fleet, service, demand)) / 1000 * fleet.rate_per_s
    followed = _MOST_ONE_BY_ONE if _one_by_one(demand) else _MOST_REQUESTS
    most = max(followed / (1 if demand.whole else samples), tail)
    if memory > 3 * most / _MEMORIES:
        return ceil(most / 40)
    return ceil(min(most, effort * max(tail, batches, long, _MEMORIES * memory)))


def usual_ms_of(fleet: Fleet, service: ServiceTimes, demand: Demand) -> float:
    """Return how long a batch takes with what comes while one like it is computed, waiting for more included."""
    size, batch_ms = 0, 0.0
    for _ in range(_ROUNDS):
        requests = 1 + fleet.rate_per_s / 1000 / fleet.devices * batch_ms
        larger = ceil(min(fleet.cap, demand.mean_samples * requests))
        if larger == size:
            break
        size, batch_ms = larger, service.mean_ms(larger) + demand.wait_ms
    return batch_ms


def grows(latencies: list[NDArray[np.float64]]) -> bool:
    """Whether second halves are slower than first halves, in all streams together and by more than chance."""
    halves = [np.array_split(one[np.isfinite(one)], 2) for one in latencies]
    drifts = np.array([second.mean() / first.mean() - 1 for first, second in halves])
    error = t_quantile(len(drifts) - 1) * float(drifts.std(ddof=1)) / sqrt(len(drifts)) if len(drifts) > 1 else 0.0
    return float(drifts.mean()) - error > 0 and float(drifts.mean()) > _DRIFT


def latency_figures(latencies: list[NDArray[np.float64]], demand: Demand, rate_per_s: float) -> dict[str, float | int]:
    """Return the figures of an outcome that latencies tell, infinite ones being of requests that were refused."""
    together = np.concatenate(latencies)
    requests, in_time = len(together), float(np.mean(together <= demand.target_ms))
    if demand.refuses:
        together = together[np.isfinite(together)]
    answered = len(together) / requests
    share = demand.percentile / 100
    mean_ms = float(together.mean())
    tail_ms = float(np.quantile(together, share / answered, overwrite_input=True)) if share <= answered else inf
    error = 0.0
    if len(latencies) > 1:
        within = [float(np.mean(np.isfinite(one) & (one <= tail_ms))) for one in latencies]
        error = t_quantile(len(within) - 1) * float(np.std(within, ddof=1)) / sqrt(len(within))
    ends = [max(0.0, share - error) / answered, min(1.0, share + error) / answered]
    low, high, p50, p95, p99 = (
        float(value) for value in np.quantile(together, [*np.minimum(ends, 1.0), 0.5, 0.95, 0.99], overwrite_input=True)
    )
    low, high = (inf if end > 1 else value for end, value in zip(ends, (low, high), strict=True))
    return {
        "mean_ms": mean_ms,
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "tail_ms": tail_ms,
        "tail_low_ms": low,
        "tail_high_ms": high,
        "goodput_per_s": rate_per_s * in_time,
        "requests": requests,
        "refused": 1 - answered,
    }
