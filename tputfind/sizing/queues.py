"""Requests through batchers and devices, batch by batch: when each is answered."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, count
from math import inf, nan, nextafter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.arrivals import Seed
from tputfind.sizing.batchers import Rule
from tputfind.sizing.service import ServiceTimes

_DRAWS = 2**10
"""Times that are drawn at once."""
_OFTEN = 100
"""Draws of a batch size after which all its times are computed at once."""


class Served(NamedTuple):
    """When each request's batch is done and its number, in the order in which they came, and what the devices did.

    A request that was refused is done at no time, which is nan, and is of no batch, which is -1.
    """

    done_ms: NDArray[np.float64]
    batch: NDArray[np.int64]
    batches: int
    busy_ms: float


class Spans:
    """Draws how long a batch takes."""

    def __init__(self, service: ServiceTimes, cap: int, seed: Seed) -> None:
        """Take what a batch can take, and the size that none is larger than."""
        self._service = service
        self._curves: list[list[float] | None] = [None] * (cap + 1)
        self._drawn = [0] * (cap + 1)
        draw, times = np.random.default_rng([*seed, 3]), len(service.curve_ms(1))
        self._draws: Iterator[int] = chain.from_iterable(draw.integers(times, size=_DRAWS).tolist() for _ in count())

    def __call__(self, size: int) -> float:
        """Return the next time of a batch of a size, in ms."""
        curve = self._curves[size]
        if curve is None:
            if self._drawn[size] < _OFTEN:
                self._drawn[size] += 1
                return self._service.one_ms(size, next(self._draws))
            curve = self._curves[size] = self._service.curve_ms(size).tolist()
        return curve[next(self._draws)]


def greedy(arrivals: Sequence[float], free_ms: Sequence[float], cap: int, span: Spans) -> Served:
    """Serve one queue, whose head is a batch for whichever device is free: all that waits, up to the cap.

    ``free_ms`` are the times from which on each device is free.
    """
    ends: list[float] = []
    marks = [0]
    free = sorted(free_ms)
    busy_ms, count, head = 0.0, len(arrivals), 0
    while head < count:
        start = free[0]
        if start < arrivals[head]:  # noqa: PLR1730  # max takes three times as long
            start = arrivals[head]
        tail = bisect_right(arrivals, start, head + 1, min(head + cap, count))
        taken = span(tail - head)
        busy_ms += taken
        ends.append(start + taken)
        heapq.heapreplace(free, start + taken)
        marks.append(tail)
        head = tail
    return in_order(ends, marks, busy_ms)


def by_rule(arrivals: Sequence[float], free_ms: Sequence[float], cap: int, span: Spans, rule: Rule) -> Served:
    """Serve one queue from which batches are taken by a rule, one after the other, for the device that is free next."""
    ends: list[float] = []
    marks = [0]
    free = sorted(free_ms)
    busy_ms, closed, count, head = 0.0, 0.0, len(arrivals), 0
    while head < count:
        full = arrivals[head + cap - 1] if head + cap <= count else inf
        closed = rule(free[0], closed, arrivals[head], full)
        tail = bisect_right(arrivals, closed, head + 1, min(head + cap, count))
        taken = span(tail - head)
        busy_ms += taken
        end = max(closed, free[0]) + taken
        ends.append(end)
        heapq.heapreplace(free, end)
        marks.append(tail)
        head = tail
    return in_order(ends, marks, busy_ms)


def greedy_within(
    arrivals: Sequence[float], free_ms: Sequence[float], cap: int, span: Spans, most_waiting: int
) -> Served:
    """Serve as ``greedy`` does, from a queue in which ``most_waiting`` requests wait at most; refuse the others."""
    done_ms, batch = np.full(len(arrivals), nan), np.full(len(arrivals), -1, dtype=np.int64)
    free = sorted(free_ms)
    waiting: list[int] = []
    busy_ms, batches, count, head = 0.0, 0, len(arrivals), 0
    while head < count or waiting:
        come = bisect_left(arrivals, free[0], head)
        waiting += range(head, min(come, head + most_waiting - len(waiting)))
        head = come
        if not waiting:
            if head == count:
                break
            # A device is free before the next request comes, which waits for nothing.
            waiting.append(head)
            head += 1
        start = max(free[0], arrivals[waiting[0]])
        come = bisect_right(arrivals, start, head)
        waiting += range(head, min(come, head + most_waiting - len(waiting)))
        head = come
        taking = waiting[:cap]
        del waiting[:cap]
        taken = span(len(taking))
        done_ms[taking], batch[taking] = start + taken, batches
        busy_ms, batches = busy_ms + taken, batches + 1
        heapq.heapreplace(free, start + taken)
    return Served(done_ms, batch, batches, busy_ms)


def in_order(ends: list[float], marks: list[int], busy_ms: float) -> Served:
    """Return what one queue was served: when each batch ends, and the first request of each, then their number."""
    sizes = np.diff(marks)
    return Served(np.repeat(ends, sizes), np.repeat(np.arange(len(ends)), sizes), len(ends), busy_ms)


class Ends:
    """Notes batch by batch when requests are done."""

    def __init__(self, requests: int) -> None:
        self._done_ms, self._batch = [nan] * requests, [-1] * requests  # lists: most batches have a few requests
        self._batches, self._busy_ms = 0, 0.0

    def add(self, batch: list[int], end_ms: float, taken_ms: float) -> None:
        """Note a batch: its requests, when it is done, and how long it takes."""
        done_ms, batches = self._done_ms, self._batch
        for request in batch:
            done_ms[request] = end_ms
            batches[request] = self._batches
        self._batches += 1
        self._busy_ms += taken_ms

    def refuse(self, request: int) -> None:
        """Note that a request is not answered."""
        self._done_ms[request], self._batch[request] = nan, -1

    def served(self) -> Served:
        """Return all of it."""
        return Served(np.array(self._done_ms), np.array(self._batch, dtype=np.int64), self._batches, self._busy_ms)


class Workers:
    """Workers that each collect a batch from one queue at the same time: a request goes to who has waited longest.

    So do mosec's. A worker waits for others from its first request on.
    """

    def __init__(
        self, free_ms: Sequence[float], cap: int, span: Spans, wait_ms: float, most_waiting: float = inf
    ) -> None:
        """Take from when on each is free, how they collect, and how many requests may wait for a worker."""
        devices = len(free_ms)
        self._cap, self._span, self._wait_ms, self._most_waiting = cap, span, wait_ms, most_waiting
        self._batches: list[list[int]] = [[] for _ in range(devices)]
        self._turns = [0] * devices
        self._listening = deque(worker for worker, free in enumerate(free_ms) if free <= 0)
        self._events = [(free, worker, -1) for worker, free in enumerate(free_ms) if free > 0]
        heapq.heapify(self._events)
        self._backlog: deque[int] = deque()

    def serve(self, arrivals: Sequence[float]) -> Served:
        """Serve requests that come at these times."""
        ends = Ends(len(arrivals))
        for request, came in enumerate(arrivals):
            self._until(came, ends)
            if self._listening:
                self._take(self._listening.popleft(), request, came, ends)
            elif len(self._backlog) < self._most_waiting:
                self._backlog.append(request)
        while self._backlog or any(self._batches):
            self._until(nextafter(self._events[0][0], inf), ends)
        return ends.served()

    def _until(self, now: float, ends: Ends) -> None:
        """Let happen what happens before now: windows that end, and workers that are done."""
        while self._events and self._events[0][0] < now:
            at, worker, turn = heapq.heappop(self._events)
            if turn < 0:
                self._begin(worker, at, ends)
            elif turn == self._turns[worker]:
                self._listening.remove(worker)
                self._run(worker, at, ends)

    def _begin(self, worker: int, now: float, ends: Ends) -> None:
        batch = self._batches[worker]
        while self._backlog and len(batch) < self._cap:
            batch.append(self._backlog.popleft())
        if len(batch) == self._cap:
            self._run(worker, now, ends)
            return
        self._listening.append(worker)
        if batch:
            self._wait(worker, now)

    def _take(self, worker: int, request: int, now: float, ends: Ends) -> None:
        batch = self._batches[worker]
        batch.append(request)
        if len(batch) == self._cap:
            self._run(worker, now, ends)
            return
        self._listening.append(worker)
        if len(batch) == 1:
            self._wait(worker, now)

    def _wait(self, worker: int, now: float) -> None:
        """Close the batch of a worker, whose first request has come, at the end of the window."""
        heapq.heappush(self._events, (now + self._wait_ms, worker, self._turns[worker]))

    def _run(self, worker: int, now: float, ends: Ends) -> None:
        batch = self._batches[worker]
        taken = self._span(len(batch))
        ends.add(batch, now + taken, taken)
        batch.clear()
        self._turns[worker] += 1
        heapq.heappush(self._events, (now + taken, worker, -1))


class Getters:
    """Workers that each get one request after the other from one queue, in windows that follow each other.

    So do LitServe's. To get one takes time, of the window too: a batch is closed when it is full, or when its worker
    has what it was getting as the window ended. Without a window it is closed when nothing waits.
    """

    def __init__(self, free_ms: Sequence[float], cap: int, span: Spans, wait_ms: float, get_ms: float) -> None:
        """Take from when on each is free, how long their windows are, and how long it takes to get a request."""
        devices = len(free_ms)
        self._cap, self._span, self._wait_ms, self._get_ms = cap, span, wait_ms, get_ms
        self._batches: list[list[int]] = [[] for _ in range(devices)]
        self._closes_ms = [free + wait_ms for free in free_ms]
        self._turns = [(free, worker, worker) for worker, free in enumerate(free_ms)]
        heapq.heapify(self._turns)
        self._last_turn = devices

    def serve(self, arrivals: Sequence[float]) -> Served:
        """Serve requests that come at these times."""
        ends, head = Ends(len(arrivals)), 0
        while self._turns:
            now, turn, worker = heapq.heappop(self._turns)
            batch, came = self._batches[worker], arrivals[head] if head < len(arrivals) else inf
            if batch and self._is_closed(worker, now, came):
                taken = self._span(len(batch))
                ends.add(batch, now + taken, taken)
                batch.clear()
                self._closes_ms[worker] = now + taken + self._wait_ms
                self._turn(worker, now + taken)
            elif came <= now and (now < self._closes_ms[worker] or self._wait_ms == 0):
                batch.append(head)
                head += 1
                self._turn(worker, now + self._get_ms)
            elif batch or came < inf:
                heapq.heappush(self._turns, (self._wakes(worker, came), turn, worker))
        return ends.served()

    def _turn(self, worker: int, at: float) -> None:
        """Let a worker go on from then, behind those that wait already."""
        self._last_turn += 1
        heapq.heappush(self._turns, (at, self._last_turn, worker))

    def _is_closed(self, worker: int, now: float, came: float) -> bool:
        if len(self._batches[worker]) == self._cap:
            return True
        return came > now if self._wait_ms == 0 else now >= self._closes_ms[worker]

    def _wakes(self, worker: int, came: float) -> float:
        """Return when a worker for which nothing is there looks again; its windows pass meanwhile if it has nothing."""
        if self._batches[worker]:
            return min(came, self._closes_ms[worker])
        if self._wait_ms > 0 and came >= self._closes_ms[worker]:
            windows = 1 + (came - self._closes_ms[worker]) // self._wait_ms
            # A window that is shorter than what a float tells at such times must end all the same.
            self._closes_ms[worker] = max(self._closes_ms[worker] + self._wait_ms * windows, nextafter(came, inf))
        return came
