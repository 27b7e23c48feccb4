"""Requests of several samples through batchers and devices, where requests are routed, or batched, as a whole."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf

import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.batchers import Rule
from tputfind.sizing.queues import Served, in_order

Span = Callable[[int, int], float]
"""``(samples, requests)`` of a batch to how long it takes, in ms."""


def in_one_queue(
    arrivals: Sequence[float],
    counts: Sequence[int],
    free_ms: Sequence[float],
    cap: int,
    *,
    span: Span,
    rule: Rule,
) -> Served:
    """Serve one queue of requests that stay whole: a batch is closed by a rule, or when the next one does not fit.

    ``counts`` are the samples of each, no more than the cap.
    """
    before = [0, *accumulate(counts)]
    ends: list[float] = []
    marks = [0]
    free = sorted(free_ms)
    busy_ms, closed, count, head = 0.0, 0.0, len(arrivals), 0
    while head < count:
        most = before[head] + cap
        filled = bisect_left(before, most, head + 1) - 1
        full = arrivals[filled] if filled < count else inf
        closed = rule(free[0], closed, arrivals[head], full)
        tail = bisect_right(arrivals, closed, head + 1, bisect_right(before, most, head + 1) - 1)
        taken = span(before[tail] - before[head], tail - head)
        busy_ms += taken
        end = max(closed, free[0]) + taken
        ends.append(end)
        heapq.heapreplace(free, end)
        marks.append(tail)
        head = tail
    return in_order(ends, marks, busy_ms)


class InQueues:
    """Devices with a queue each; a request goes to the one that has the fewest unanswered, of all or of ``among``.

    With all its samples: each of its ``items`` is batched by itself, and it is answered when the last one is.
    """

    def __init__(
        self,
        free_ms: Sequence[float],
        cap: int,
        span: Span,
        rule: Rule,
        among: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        """Take from when on each is free, by which rule it makes its batches, and which are asked for a request."""
        devices = len(free_ms)
        self._among = among
        self._cap, self._span, self._rule = cap, span, rule
        self._waiting: list[deque[tuple[int, float, int, bool]]] = [deque() for _ in range(devices)]
        self._samples, self._full_ms = [0] * devices, [inf] * devices
        self._unanswered = [0] * devices
        self._free_ms, self._closed_ms, self._closes_ms = list(free_ms), [0.0] * devices, [inf] * devices
        self._events: list[tuple[float, int, int]] = []
        self._ends: list[tuple[list[int], float]] = []
        self._busy_ms = 0.0

    def serve(self, arrivals: Sequence[float], items: Sequence[int], samples: Sequence[int]) -> Served:
        """Serve requests that come at these times, each of some items, which have as many samples each.

        What is served are the items, in the order of their requests.
        """
        item = 0
        for came, count, size in zip(arrivals, items, samples, strict=True):
            self._until(came)
            device = self._fewest()
            self._unanswered[device] += 1
            for left in range(count - 1, -1, -1):
                self._waiting[device].append((item, came, size, left == 0))
                item += 1
            self._samples[device] += count * size
            if self._samples[device] >= self._cap:
                self._full_ms[device] = min(self._full_ms[device], came)
            self._plan(device)
        self._until(inf)
        done_ms, batch = np.zeros(item), np.zeros(item, dtype=np.int64)
        for number, (its_items, end_ms) in enumerate(self._ends):
            done_ms[its_items], batch[its_items] = end_ms, number
        return Served(done_ms, batch, len(self._ends), self._busy_ms)

    def _fewest(self) -> int:
        if self._among is None:
            return self._unanswered.index(min(self._unanswered))
        return min(self._among(), key=self._unanswered.__getitem__)

    def _until(self, now: float) -> None:
        while self._events and self._events[0][0] < now:
            at, device, answered = heapq.heappop(self._events)
            if answered >= 0:
                self._unanswered[device] -= answered
            elif at == self._closes_ms[device]:
                self._close(device, at)

    def _plan(self, device: int) -> None:
        """Work out anew when the next batch of a device is closed."""
        first_ms, full_ms = self._waiting[device][0][1], self._full_ms[device]
        closes = self._rule(self._free_ms[device], self._closed_ms[device], first_ms, full_ms)
        if closes != self._closes_ms[device]:
            self._closes_ms[device] = closes
            heapq.heappush(self._events, (closes, device, -1))

    def _close(self, device: int, now: float) -> None:
        waiting = self._waiting[device]
        batch, samples, answered = [], 0, 0
        while waiting and samples + waiting[0][2] <= self._cap:
            item, _, size, last = waiting.popleft()
            batch.append(item)
            samples, answered = samples + size, answered + last
        taken = self._span(samples, len(batch))
        end = max(now, self._free_ms[device]) + taken
        self._ends.append((batch, end))
        self._busy_ms += taken
        self._free_ms[device], self._closed_ms[device], self._closes_ms[device] = end, now, inf
        self._samples[device] -= samples
        self._full_ms[device] = self._full(device)
        heapq.heappush(self._events, (end, device, answered))
        if waiting:
            self._plan(device)

    def _full(self, device: int) -> float:
        """Return when what waits began to be a full batch, by the samples of the first of them."""
        if self._samples[device] < self._cap:
            return inf
        samples = 0
        for _, came, size, _ in self._waiting[device]:
            samples += size
            if samples >= self._cap:
                return came
        return inf


def of_requests(served: Served, items: NDArray[np.int64]) -> Served:
    """Return when requests are answered, each when the last of its items is: the items are in their order."""
    ends = np.cumsum(items)
    done_ms = np.maximum.reduceat(served.done_ms, ends - items)
    return served._replace(done_ms=done_ms, batch=served.batch[ends - 1])
