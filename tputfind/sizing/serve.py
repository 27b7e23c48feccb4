"""Requests through the server before one fleet: which engine follows its batcher, its routing and its limits."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from math import ceil, inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.adaptive import Adaptive
from tputfind.sizing.arrivals import Seed
from tputfind.sizing.batchers import held_ms, rule_of
from tputfind.sizing.demand import IN_QUEUES, Demand
from tputfind.sizing.queues import Ends, Getters, Served, Spans, Workers, by_rule, greedy, greedy_within
from tputfind.sizing.replicas import LONGEST_BACKOFF_MS, Blocked, ByRule, Replica, Router
from tputfind.sizing.service import ServiceTimes
from tputfind.sizing.triton import LOOKS_AGAIN_MS, Triton
from tputfind.sizing.whole import InQueues, Span, in_one_queue, of_requests

_LARGE: Final = 4
_PAIRS: Final = 2**12
"""Drawn at once."""


class Server(NamedTuple):
    """What stands before each device: the largest batch, how long batches take, and how they are made."""

    cap: int
    service: ServiceTimes
    demand: Demand

    def request_and_window_ms(self) -> tuple[float, float]:
        """Return more than one request can take by itself, and the window in which batches are made by the clock."""
        demand = self.demand
        wait_ms = held_ms(demand.batcher, demand.wait_ms)
        alone_ms = float(self.service.curve_ms(self.cap)[-1]) + 2 * wait_ms
        if demand.batcher == "triton" and demand.max_queue is not None:
            alone_ms += LOOKS_AGAIN_MS
        if demand.most_ongoing is not None:
            alone_ms += LONGEST_BACKOFF_MS
        window_ms = wait_ms if demand.server.windows else 0.0
        each_ms = demand.overhead_per_get_ms + demand.overhead_per_answer_ms
        if demand.whole:
            return alone_ms + each_ms + self.cap * demand.overhead_per_request_ms, window_ms
        most = demand.samples_per_request[-1][0]
        return alone_ms * ceil(most / self.cap) + each_ms * most, window_ms


def is_triton(demand: Demand) -> bool:
    """Whether Triton does more than to take what waits. Of requests of several samples that is not simulated."""
    limited = demand.max_queue is not None or bool(demand.preferred_batches)
    return demand.batcher == "triton" and (demand.wait_ms > 0 or limited) and not demand.several


def takes_what_waits(demand: Demand, devices: int) -> bool:
    """Whether a free device takes what waits in its queue, one sample a request, and nothing else is to be followed."""
    return _is_greedy(demand, devices) and not demand.several and demand.overhead_per_answer_ms == 0


def _is_greedy(demand: Demand, devices: int) -> bool:
    """Whether a free device takes what waits in its queue, or in that of all."""
    delays_ms = held_ms(demand.batcher, demand.wait_ms), demand.overhead_per_get_ms
    in_queues = demand.server.in_replicas or (devices > 1 and demand.routing in IN_QUEUES)
    return not in_queues and not is_triton(demand) and demand.max_queue is None and not any(delays_ms)


def serve(
    arrivals: NDArray[np.float64],
    free_ms: Sequence[float],
    server: Server,
    seed: Seed,
    counts: NDArray[np.int64] | None = None,
) -> Served:
    """Return when each of the requests that come at these times, in ms, is answered.

    ``free_ms`` are the times from which on each device is free. The seed is that of the times of batches, and of chance
    in routing. ``counts`` are the samples of each request; None where all have one.
    """
    demand = server.demand
    if demand.routing == "random" and len(free_ms) > 1:
        return _split(arrivals, free_ms, server, seed, counts)
    if counts is None:
        served = _served(arrivals, free_ms, server, seed)
    elif demand.whole or (demand.routing in IN_QUEUES and len(free_ms) > 1 and not demand.server.in_replicas):
        served = _served_as_requests(arrivals, counts, free_ms, server, seed)
    else:
        served = _served(np.repeat(arrivals, counts), free_ms, server, seed)
    per_answer_ms = demand.overhead_per_answer_ms
    if per_answer_ms > 0:
        served = served._replace(done_ms=_answered_ms(served, len(free_ms), per_answer_ms))
    return served if counts is None or demand.whole else of_requests(served, counts)


def places_in_batch(batch: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of its batch each request is, from 1 on, by the numbers of their batches."""
    order = np.argsort(batch, kind="stable")
    firsts = np.flatnonzero(np.diff(batch[order], prepend=-1))
    numbers = np.arange(len(batch))
    places = np.empty_like(numbers)
    places[order] = 1 + numbers - np.repeat(firsts, np.diff(firsts, append=len(batch)))
    return places


def _answered_ms(served: Served, devices: int, per_answer_ms: float) -> NDArray[np.float64]:
    """Return when answers are out that go one by one, batch after batch, on as many lines as there are devices."""
    if served.batch.min() < 0:
        done_ms, answered = served.done_ms.copy(), served.batch >= 0
        those = served._replace(done_ms=done_ms[answered], batch=served.batch[answered])
        done_ms[answered] = _answered_ms(those, devices, per_answer_ms)
        return done_ms
    sizes = np.bincount(served.batch)
    ends = np.zeros(len(sizes))
    ends[served.batch] = served.done_ms
    lines = [0.0] * devices
    begins = np.zeros(len(sizes))
    for number in np.argsort(ends, kind="stable").tolist():
        begins[number] = max(ends[number], lines[0])
        heapq.heapreplace(lines, begins[number] + per_answer_ms * sizes[number])
    return begins[served.batch] + per_answer_ms * places_in_batch(served.batch)


def _served(arrivals: NDArray[np.float64], free_ms: Sequence[float], server: Server, seed: Seed) -> Served:
    """Return when the batch of each request is done."""
    devices = len(free_ms)
    cap, service, demand = server
    span = Spans(service, cap, seed)
    wait_ms = held_ms(demand.batcher, demand.wait_ms)
    if demand.server.in_replicas or (devices > 1 and demand.routing in ("least-loaded", "two-choices")):
        return _routed(free_ms, server, span, len(arrivals), seed).serve(arrivals.tolist())
    rule = rule_of(demand.batcher, wait_ms)
    get_ms = demand.overhead_per_get_ms
    if is_triton(demand):
        preferred = demand.preferred_batches
        triton = Triton(free_ms, cap, span, wait_ms, preferred=preferred, most_waiting=demand.max_queue)
        return triton.serve(arrivals.tolist(), goes_on=True)
    if demand.max_queue is not None:
        if demand.server.one_by_one == "workers":
            return Workers(free_ms, cap, span, wait_ms, demand.max_queue).serve(arrivals.tolist())
        return greedy_within(arrivals.tolist(), free_ms, cap, span, demand.max_queue)
    if _is_greedy(demand, devices):
        # A list is read faster, and takes longer to make than reading a few of its items where batches are large.
        each_ms = float(arrivals[-1]) * devices / len(arrivals)
        listed = arrivals.tolist() if service.mean_ms(1) < _LARGE * each_ms else arrivals.data
        return greedy(listed, free_ms, cap, span)
    if demand.server.one_by_one == "getters" and (devices > 1 or get_ms > 0):
        return Getters(free_ms, cap, span, wait_ms, get_ms).serve(arrivals.tolist())
    if demand.server.one_by_one == "workers" and devices > 1:
        return Workers(free_ms, cap, span, wait_ms).serve(arrivals.tolist())
    return by_rule(arrivals.tolist(), free_ms, cap, span, rule)


def _routed(free_ms: Sequence[float], server: Server, span: Spans, requests: int, seed: Seed) -> Router:
    """Return a router with a replica for each device."""
    cap, _, demand = server
    ends, replicas = Ends(requests), list[Replica]()
    wait_ms, most_latency_ms = held_ms(demand.batcher, demand.wait_ms), demand.most_latency_ms
    for free in free_ms:
        if most_latency_ms is not None:
            blocking = demand.handled == "blocking"
            replicas.append(Adaptive(free, cap, span, most_latency_ms, ends, blocking=blocking))
        elif demand.handled == "blocking":
            replicas.append(Blocked(free, cap, span, wait_ms, ends))
        else:
            replicas.append(ByRule(free, cap, span, rule_of(demand.batcher, wait_ms), ends))
    among = None
    if demand.routing == "two-choices" and len(free_ms) > 1:
        among = _pairs(len(free_ms), seed).__next__
    return Router(replicas, ends, among, demand.most_ongoing or inf, demand.max_queue or inf)


def _served_as_requests(
    arrivals: NDArray[np.float64], counts: NDArray[np.int64], free_ms: Sequence[float], server: Server, seed: Seed
) -> Served:
    """Return when the batch is done of each request that stays whole, or of each sample of those that do not."""
    devices = len(free_ms)
    cap, service, demand = server
    rule = rule_of(demand.batcher, held_ms(demand.batcher, demand.wait_ms))
    span = _span_of_requests(Spans(service, cap, seed), demand)
    if demand.routing not in IN_QUEUES or devices == 1:
        return in_one_queue(arrivals.tolist(), counts.tolist(), free_ms, cap, span=span, rule=rule)
    among = None
    if demand.routing == "two-choices":
        among = _pairs(devices, seed).__next__
    ones = np.ones_like(counts)
    items, samples = (ones, counts) if demand.whole else (counts, ones)
    return InQueues(free_ms, cap, span, rule, among).serve(arrivals.tolist(), items.tolist(), samples.tolist())


def _span_of_requests(span: Spans, demand: Demand) -> Span:
    """Return how long batches take, by their samples and requests: whole ones have their overhead whatever their size.

    The times of batches have it for each sample, as it is on average.
    """
    if not demand.whole or demand.overhead_per_request_ms == 0:
        return lambda samples, _: span(samples)
    each_ms, mean = demand.overhead_per_request_ms, demand.mean_samples
    return lambda samples, requests: span(samples) + each_ms * (requests - samples / mean)


def _pairs(devices: int, seed: Seed) -> Iterator[list[int]]:
    """Yield two devices, drawn by chance and never the same one twice, as Ray Serve draws them."""
    draw = np.random.default_rng([*seed, 2])
    while True:
        one, step = draw.integers(devices, size=_PAIRS), draw.integers(1, devices, size=_PAIRS)
        yield from np.stack([one, (one + step) % devices], axis=1).tolist()


def _split(
    arrivals: NDArray[np.float64],
    free_ms: Sequence[float],
    server: Server,
    seed: Seed,
    counts: NDArray[np.int64] | None,
) -> Served:
    """Serve requests that are dealt out by chance, to devices with a queue each."""
    device_of = np.random.default_rng([*seed, 1]).integers(len(free_ms), size=len(arrivals))
    done_ms, batch = np.zeros(len(arrivals)), np.zeros(len(arrivals), dtype=np.int64)
    batches, busy_ms = 0, 0.0
    for device, free in enumerate(free_ms):
        its_own = np.flatnonzero(device_of == device)
        if len(its_own):
            its_counts = None if counts is None else counts[its_own]
            served = serve(arrivals[its_own], [free], server, (*seed, 5, device), its_counts)
            done_ms[its_own] = served.done_ms
            batch[its_own] = np.where(served.batch < 0, -1, batches + served.batch)
            batches, busy_ms = batches + served.batches, busy_ms + served.busy_ms
    return Served(done_ms, batch, batches, busy_ms)
