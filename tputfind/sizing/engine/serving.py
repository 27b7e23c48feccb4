"""Simulation of requests in a fleet: event by event, or batch by batch if a simple rule determines the batches."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapreplace
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.engine.events import Answers, Clock, Device, Router
from tputfind.sizing.engine.servers import PROFILES, Greedy, Server
from tputfind.sizing.engine.service_times import ServiceTimes
from tputfind.sizing.traffic import without_idle

_EXACT: Final = 2.0**32
"""Longest replication, in shortest batches, with latencies exact to a millionth of one (float64 has 53 bits)."""


class Kind(NamedTuple):
    """Devices of one kind: their number, the largest batch of each, and their service times."""

    devices: int
    cap: int
    service: ServiceTimes

    @property
    def per_ms(self) -> float:
        return self.devices * self.service.per_ms(self.cap)


class Served(NamedTuple):
    """The answer time of each request (inf: refused), and a row for each batch, as in the log of a device.

    ``batch_of`` is the row of each request (-1: refused). It is None if an answer depends on more than one batch.
    """

    done_ms: NDArray[np.float64]
    batches: NDArray[np.float64]
    batch_of: NDArray[np.int64] | None


def serve(
    arrivals: NDArray[np.float64],
    samples: NDArray[np.int64] | None,
    fleet: Sequence[Kind],
    server: Server,
    *,
    free_ms: Sequence[float],
    seed: Sequence[int],
    by_events: bool = False,
) -> Served:
    """Return the answer times of requests that arrive at these times, in ms.

    ``samples`` are those of each request; None if all have one. Each device is free from its ``free_ms`` on. With
    ``by_events`` each request is simulated, whatever the server.
    """
    each = len(free_ms) if server.routing == "shared" else 1
    is_quick = is_by_batches(server, each, has_several_samples=samples is not None)
    if not by_events and is_quick and each == len(free_ms) and len(fleet) == 1:
        return _serve_by_batches(arrivals, samples, fleet[0], server, free_ms=free_ms, seed=seed)
    clock = Clock()
    whole = samples.tolist() if samples is not None and server.is_whole else None
    answers = Answers(whole, server.per_answer_ms)
    devices, log = list[Device](), list[float]()
    free = iter(free_ms)
    for number, kind in enumerate(fleet):
        draw = kind.service.drawn(kind.cap, (*seed, number) if number else seed)
        for _ in range(kind.devices):
            devices.append(Device(kind.cap, draw, log, number))
            devices[-1].freed = next(free)
    in_one = server.routing == "shared" or len(devices) == 1
    queues = [devices] if in_one and not PROFILES[server.batcher].in_replicas else [[device] for device in devices]
    stations = [server.station(clock, queue, server.held_ms, server.limit, answers) for queue in queues]
    route = Router(stations, server.routing, repr(tuple(seed))).route
    items = samples.tolist() if samples is not None and not server.is_whole else None
    join = stations[0].join if len(stations) == 1 and items is None else None
    events, advance, came, head = clock.events, clock.advance, arrivals.tolist(), 0
    while head < len(came):
        clock.now = time = came[head]
        if events and events[0][0] < time:
            advance(time)
            clock.now = time
        route(head, 1 if items is None else items[head])
        head += 1
        if join is not None:
            head = join(came, head, events[0][0] if events else inf)
    advance(inf)
    batches = np.array(log, np.float64).reshape(-1, 5)
    in_one_batch = items is None and server.per_answer_ms == 0
    done_ms, batch_of = _answers_by_request(answers, len(arrivals), batches[:, 2].astype(np.int64))
    return Served(done_ms, batches, batch_of if in_one_batch else None)


def is_by_batches(server: Server, devices: int, *, has_several_samples: bool) -> bool:
    """Whether a queue for this many devices can be simulated batch by batch instead of request by request."""
    has_rule = server.station is Greedy or (devices == 1 and server.station.has_rule)
    by_samples = server.is_whole and has_several_samples
    return has_rule and server.limit == inf and server.per_answer_ms == 0 and not by_samples


def _serve_by_batches(
    arrivals: NDArray[np.float64],
    samples: NDArray[np.int64] | None,
    kind: Kind,
    server: Server,
    *,
    free_ms: Sequence[float],
    seed: Sequence[int],
) -> Served:
    """Simulate one queue: a lone device by its rule, or the first free device takes the waiting items, up to its cap.

    An idle device takes a request on arrival, before the next one, even if both arrive at the same time.
    """
    came = array("d", (arrivals if samples is None else np.repeat(arrivals, samples)).tobytes())
    ends = None if samples is None else np.repeat(np.cumsum(samples), samples).tolist()
    cap, free, count = kind.cap, sorted(free_ms), len(came)
    curves: list[memoryview | None] = [None] * (cap + 1)
    starts_ms, spans_ms = array("d", bytes(8 * count)), array("d", bytes(8 * count))
    marks = array("q", bytes(8 * count + 8))
    alone = None if server.station is Greedy else server.station.alone(came, cap, server.held_ms)
    head = number = 0
    for place in kind.service.places(seed):
        start = free[0]
        if alone is not None:
            start, tail = alone(head, start)
        elif start < (first := came[head]):
            start = first
            tail = head + 1 if ends is None else min(head + cap, ends[head])
        else:
            tail = bisect_right(came, start, head + 1, min(head + cap, count))
        curve = curves[tail - head]
        if curve is None:
            curve = curves[tail - head] = kind.service.curve_ms(tail - head).data
        starts_ms[number] = start
        spans_ms[number] = took_ms = curve[place]
        heapreplace(free, start + took_ms)
        number += 1
        marks[number] = head = tail
        if head == count:
            break
    sizes = np.diff(marks[: number + 1])
    batches = np.stack([starts_ms[:number], sizes, sizes, spans_ms[:number], np.zeros(number)]).T
    done_ms = np.repeat(batches[:, 0] + batches[:, 3], sizes)
    if samples is not None:
        return Served(np.maximum.reduceat(done_ms, np.cumsum(samples) - samples), batches, None)
    return Served(done_ms, batches, np.repeat(np.arange(len(sizes)), sizes))


def exact_times(arrivals: NDArray[np.float64], fleet: Sequence[Kind], server: Server, most: int) -> NDArray[np.float64]:
    """Return times of requests with up to ``most`` samples, without the idle time if latencies would lose digits."""
    fastest_ms = min(kind.service.mean_ms(1) for kind in fleet)
    if arrivals[-1] <= _EXACT * fastest_ms:
        return arrivals
    alone_ms = max(float(kind.service.curve_ms(kind.cap)[-1]) for kind in fleet) + server.longest_wait_ms
    each_ms = server.per_answer_ms * most + max(kind.service.overheads.per_request_ms for kind in fleet) * most
    batches = 1 if server.is_whole else max(1, -(-most // min(kind.cap for kind in fleet)))
    return without_idle(arrivals, alone_ms * batches + each_ms, server.window_ms)


def _answers_by_request(
    answers: Answers, requests: int, items: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return when the last item of each request is answered, and a batch that it was in; ``items`` are per batch."""
    batched = np.array(answers.batched, np.int64)
    ends, batch_of = np.repeat(answers.from_ms, items), np.full(requests, -1)
    if answers.each_ms:
        ends += answers.each_ms * (np.arange(1, len(ends) + 1) - np.repeat(np.cumsum(items) - items, items))
    done = np.full(requests, -1.0)
    np.maximum.at(done, batched, ends)
    done[answers.refused] = inf
    batch_of[batched] = np.repeat(np.arange(len(items)), items)
    return done, batch_of
