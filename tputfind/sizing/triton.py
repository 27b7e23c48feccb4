"""Triton's dynamic batcher, which makes batches ahead of a free device (``dynamic_batch_scheduler.cc``)."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from math import floor, inf, nan

import numpy as np

from tputfind.sizing.queues import Served, Spans

_AHEAD = 2
"""Batches that may be ready for each device (``RateLimiter::PayloadSlotAvailable``)."""
LOOKS_AGAIN_MS = 500.0
"""After this the batcher's thread looks at its queue, if nothing has woken it."""


class Triton:
    """Triton with one queue for all devices, a delay or preferred sizes, and inputs of fixed shape.

    Batches are made ahead of a free device, up to two for each. A batch that waits for a device may grow until its
    size is preferred. While its size is not, a request joins it only where the thread that makes batches wakes: for as
    many requests as the next preferred size lacks, for a device that takes a batch, and twice a second. Where the
    oldest request has waited as long as the delay, all go that the largest batch allows. Then a device also merges the
    batches that are ready, as far as they fit into the largest one.

    With a limit on the queue, no batch is made ahead. A device that is done wakes the thread before it asks for a
    batch, so that the thread finds no free device. It then sleeps on, until a request is let in, another device is
    done, or half a second is over: a full queue lets a free device wait.
    """

    def __init__(
        self,
        free_ms: Sequence[float],
        cap: int,
        span: Spans,
        wait_ms: float,
        *,
        preferred: Sequence[int] = (),
        most_waiting: int | None = None,
    ) -> None:
        """Take from when on each device is free, how long requests wait for more, and which batch sizes are preferred.

        Where none is, the cap is, as in Triton. With ``most_waiting`` no more requests than that are in the queue.
        """
        self._most_waiting = most_waiting
        self._cap, self._span, self._wait_ms = cap, span, wait_ms
        self._preferred = sorted(preferred) or [cap]
        self._slots = _AHEAD * len(free_ms)
        self._free_ms = sorted(free for free in free_ms if free > 0)
        self._idle = len(free_ms) - len(self._free_ms)
        self._queue: deque[int] = deque()
        self._ready: deque[list[int]] = deque()
        self._batch: list[int] = []
        self._is_closed = False
        self._wakes_for = 0
        self._wakes_ms, self._asleep_since_ms = inf, 0.0
        self._waits_for_device = False
        self._ends: list[tuple[list[int], float]] = []
        self._busy_ms = 0.0

    def serve(self, arrivals: Sequence[float], *, goes_on: bool = False) -> Served:
        """Serve requests that come at these times, of a stream that ``goes_on`` behind them, or of one that ends."""
        for request, came in enumerate(arrivals):
            self._until(came, arrivals)
            if len(self._queue) == self._most_waiting:
                continue
            self._queue.append(request)
            if self._is_woken_by(len(self._queue)):
                self._make(came, arrivals)
            elif self._wakes_ms == inf:
                looks = floor((came - self._asleep_since_ms) / LOOKS_AGAIN_MS) + 1
                self._wakes_ms = self._asleep_since_ms + looks * LOOKS_AGAIN_MS
        if goes_on:
            self._go_on(arrivals)
        self._until(inf, arrivals)
        done_ms, batch = np.full(len(arrivals), nan), np.full(len(arrivals), -1, dtype=np.int64)
        for number, (requests, end_ms) in enumerate(self._ends):
            done_ms[requests], batch[requests] = end_ms, number
        return Served(done_ms, batch, len(self._ends), self._busy_ms)

    def _go_on(self, arrivals: Sequence[float]) -> None:
        """Let the thread be woken as if requests went on to come, until none of these waits."""
        came_ms = arrivals[-1]
        gap_ms = (came_ms - arrivals[0]) / len(arrivals)
        while gap_ms > 0 and self._queue:
            came_ms += gap_ms
            self._until(came_ms, arrivals)
            if self._queue and self._is_woken_by(len(self._queue) + 1):
                self._make(came_ms, arrivals)

    def _until(self, now: float, arrivals: Sequence[float]) -> None:
        """Let happen what happens before now: devices that are done, and a thread that wakes by its timer."""
        while True:
            free_ms = self._free_ms[0] if self._free_ms else inf
            at = min(free_ms, self._wakes_ms)
            if at >= now:
                return
            if at < free_ms:
                self._make(at, arrivals, is_timer=True)
                continue
            heapq.heappop(self._free_ms)
            if self._most_waiting is not None:
                self._make(at, arrivals)
                self._idle += 1
                continue
            self._idle += 1
            self._start(at, arrivals)
            self._make(at, arrivals)

    def _is_woken_by(self, waiting: int) -> bool:
        """Whether a request that comes wakes the thread, where so many wait with it."""
        return self._has_room() and (self._is_closed or waiting >= self._wakes_for)

    def _has_room(self) -> bool:
        """Whether a batch may be made now."""
        return len(self._ready) < self._slots if self._most_waiting is None else self._idle > 0

    def _start(self, now: float, arrivals: Sequence[float]) -> None:
        """Let idle devices take batches that are ready."""
        while self._idle and self._ready:
            batch = self._take(self._ready.popleft())
            while self._wait_ms > 0 and self._ready and now - arrivals[self._ready[0][0]] > self._wait_ms:
                # One that is looked at grows no more, even where it does not fit.
                more = self._take(self._ready[0])
                if len(batch) + len(more) > self._cap:
                    break
                batch += self._ready.popleft()
            taken = self._span(len(batch))
            self._busy_ms += taken
            self._ends.append((batch, now + taken))
            self._idle -= 1
            heapq.heappush(self._free_ms, now + taken)

    def _take(self, batch: list[int]) -> list[int]:
        """Return a batch, and let it grow no more."""
        self._is_closed = self._is_closed or batch is self._batch
        return batch

    def _make(self, now: float, arrivals: Sequence[float], *, is_timer: bool = False) -> None:
        """Make batches of what waits, until nothing does, nothing may be made ready, or it is better to wait."""
        while True:
            if self._waits_for_device and not self._has_room() and not is_timer:
                return
            self._wakes_ms, self._waits_for_device = inf, False
            if self._is_closed:
                self._batch, self._is_closed, self._wakes_for = [], False, 0
            if not self._queue:
                self._asleep_since_ms = now
                return
            if not self._has_room():
                self._wakes_ms, self._waits_for_device = now + LOOKS_AGAIN_MS, True
                return
            closes_ms = arrivals[self._queue[0]] + self._wait_ms
            joining = self._joining(is_late=self._wait_ms > 0 and now >= closes_ms)
            if joining is None:
                self._wakes_ms = closes_ms
                return
            if joining > 0:
                if not self._batch:
                    self._ready.append(self._batch)
                self._batch += [self._queue.popleft() for _ in range(joining)]
                self._start(now, arrivals)

    def _joining(self, *, is_late: bool) -> int | None:
        """Return how many requests join the batch now, or None where they wait: ``GetDynamicBatch``, step by step."""
        size, pending, best, is_full = len(self._batch), 0, 0, False
        largest = self._preferred[-1]
        for _ in self._queue:
            if size + pending > 0:
                if size + pending >= largest and best == 0:
                    best, self._is_closed = pending, True
                if size + pending >= self._cap:
                    is_full = True
                    break
            pending += 1
            if size + pending in self._preferred:
                best = pending
        if best > 0 and not is_late:
            self._is_closed = self._is_closed or self._wait_ms == 0
            return best
        if is_full or size + pending >= largest:
            self._is_closed = True
            return pending
        if is_late or self._wait_ms == 0:
            return pending
        self._wakes_for = self._preferred[bisect_right(self._preferred, size + pending)] - size
        return pending if size > 0 and not self._is_closed and size not in self._preferred else None
