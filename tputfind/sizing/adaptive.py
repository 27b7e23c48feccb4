"""BentoML's adaptive batching, by ``marshal/dispatcher.py``: it learns how long batches take, and waits by that."""

from __future__ import annotations

from collections import deque
from math import ceil, inf
from typing import Final

import numpy as np

from tputfind.sizing.queues import Ends, Spans

_TICK_MS: Final = 1.0
"""It looks again this often while it waits."""
_KEPT: Final = 50
"""Batches that it learns from, and"""
_REFRESH_MS: Final = 5000.0
"""how often."""
_DECAY: Final = 0.95
_TAUGHT: Final = (1, 1, 1, 1, 1, 1, 1, 2, 3)
"""Batches that it begins with."""


class Adaptive:
    """A replica of BentoML: one batch at a time, which waits for more as long as that has been worth it lately.

    A request that would be late by what it has learned is refused. With a handler that blocks, requests that come while
    a batch is computed are seen when it is done.
    """

    def __init__(
        self, free_ms: float, cap: int, span: Spans, max_latency_ms: float, ends: Ends, *, blocking: bool
    ) -> None:
        """Take from when on the device is free, and how it makes its batches."""
        self.next_ms = inf
        self._cap, self._span, self._ends, self._blocking = cap, span, ends, blocking
        self._max_latency_ms = max_latency_ms
        self._free_ms = free_ms
        self._queue: deque[tuple[int, float]] = deque()
        self._looks_ms = inf
        self._running: tuple[list[int], float, float] | None = None
        self._seen: deque[tuple[int, float, float]] = deque(((size, span(size), 0.0) for size in _TAUGHT), maxlen=_KEPT)
        self._refreshed_ms = 0.0
        self._learn()

    def put(self, request: int, now: float) -> None:
        """Take a request."""
        seen_ms = max(now, self._free_ms) if self._blocking else now
        self._queue.append((request, seen_ms))
        if self._looks_ms == inf:
            self._looks_ms = seen_ms if self._running is not None else max(seen_ms, self._free_ms)
        self._plan()

    def act(self, now: float) -> int:
        """Answer a batch, or look at what waits: refuse what would be late, and begin a batch or wait for more."""
        if now >= self._free_ms and self._running is not None:
            return self._answer(now)
        return self._look(now)

    def _plan(self) -> None:
        self.next_ms = min(self._looks_ms, self._free_ms if self._running is not None else inf)

    def _answer(self, now: float) -> int:
        assert self._running is not None
        batch, waited_ms, taken = self._running
        self._running = None
        self._seen.append((len(batch), taken, waited_ms))
        if now >= self._refreshed_ms + _REFRESH_MS:
            self._refreshed_ms = now
            self._learn()
        self._plan()
        return len(batch)

    def _learn(self) -> None:
        """Fit a line through the times of batches, and note how long their oldest requests have waited."""
        sizes, times, waits = zip(*self._seen, strict=True)
        line = np.stack([sizes, np.ones(len(sizes))], axis=1)
        slope, intercept = np.linalg.lstsq(line, np.array(times), rcond=None)[0]
        self._slope_ms, self._intercept_ms = max(1e-3, float(slope)), max(0.0, float(intercept))
        self._worth_ms = max(0.0, sum(waits) / len(waits))

    def _look(self, now: float) -> int:
        refused = 0
        while self._queue and self._is_late(now):
            self._ends.refuse(self._queue.popleft()[0])
            refused += 1
        count = len(self._queue)
        if not count:
            self._looks_ms = inf
        elif self._running is not None:
            self._looks_ms = self._next_look(now)
        elif count < self._cap and count * (now - self._queue[-1][1] + _TICK_MS + self._slope_ms) <= (
            self._worth_ms * _DECAY
        ):
            self._looks_ms = now + _TICK_MS
        else:
            self._begin(now)
        self._plan()
        return refused

    def _is_late(self, now: float) -> bool:
        count, waited_ms = len(self._queue), now - self._queue[0][1]
        if count > 1:
            return waited_ms + self._slope_ms * count + self._intercept_ms >= self._max_latency_ms
        return self._running is not None and waited_ms >= self._max_latency_ms

    def _next_look(self, now: float) -> float:
        """Return when it looks again while a batch runs: at once when that is done, if nothing can be late before."""
        waits_ms = self._max_latency_ms - self._intercept_ms - self._slope_ms * 2 * self._cap
        ticks = 1
        if self._free_ms - self._queue[0][1] < waits_ms and len(self._queue) < self._cap:
            ticks = max(1, ceil((self._free_ms - now) / _TICK_MS))
        return now + ticks * _TICK_MS

    def _begin(self, now: float) -> None:
        first_ms = self._queue[0][1]
        batch = [self._queue.popleft()[0] for _ in range(min(len(self._queue), self._cap))]
        taken = self._span(len(batch))
        self._ends.add(batch, now + taken, taken)
        self._running, self._free_ms = (batch, now - first_ms, taken), now + taken
        if self._blocking:
            self._looks_ms = self._free_ms if self._queue else inf
        else:
            self._looks_ms = now + _TICK_MS if self._queue else inf
