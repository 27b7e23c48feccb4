"""Replicas with a queue each behind a router: which of them a request goes to, and how each makes its batches."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Protocol

from tputfind.sizing.batchers import Rule
from tputfind.sizing.queues import Ends, Served, Spans

_BACKOFF_MS: Final = (25.0, 50.0, 100.0, 200.0, 400.0, 500.0)
"""How long a request of Ray Serve that found no room waits before it asks again, each time in turn."""
LONGEST_BACKOFF_MS: Final = _BACKOFF_MS[-1]
_MOST_ASKING: Final = 50
"""Requests that ask for room at the same time, in Ray Serve; others wait behind them."""


class Replica(Protocol):
    """One device with its queue. ``next_ms`` is when it does something by itself."""

    next_ms: float

    def put(self, request: int, now: float) -> None:
        """Take a request."""

    def act(self, now: float) -> int:
        """Do what is due, and return how many requests have left."""


class ByRule:
    """A replica that closes its batches by a rule, one after the other."""

    def __init__(self, free_ms: float, cap: int, span: Spans, rule: Rule, ends: Ends) -> None:
        """Take from when on the device is free, and how it makes its batches."""
        self.next_ms = inf
        self._cap, self._span, self._rule, self._ends = cap, span, rule, ends
        self._tell = 1, cap  # numbers of waiting requests that a rule looks at; between them its answer stays
        self._free_ms, self._closed_ms = free_ms, 0.0
        self._waiting: deque[tuple[int, float]] = deque()
        self._running: deque[tuple[float, int]] = deque()

    def put(self, request: int, now: float) -> None:
        """Take a request."""
        self._waiting.append((request, now))
        if len(self._waiting) in self._tell:
            self._plan()

    def act(self, now: float) -> int:
        """Answer a batch, or close one."""
        if self._running and self._running[0][0] <= now:
            left = self._running.popleft()[1]
            self._plan()
            return left
        batch = [self._waiting.popleft()[0] for _ in range(min(len(self._waiting), self._cap))]
        taken = self._span(len(batch))
        end = max(now, self._free_ms) + taken
        self._ends.add(batch, end, taken)
        self._running.append((end, len(batch)))
        self._free_ms, self._closed_ms = end, now
        self._plan()
        return 0

    def _plan(self) -> None:
        """Work out anew when the next batch is closed."""
        closes_ms = inf
        if self._waiting:
            full = self._waiting[self._cap - 1][1] if len(self._waiting) >= self._cap else inf
            closes_ms = self._rule(self._free_ms, self._closed_ms, self._waiting[0][1], full)
        self.next_ms = min(closes_ms, self._running[0][0] if self._running else inf)


class Blocked:
    """A replica of Ray Serve whose handler blocks its event loop: nothing is put or closed while a batch is computed.

    When the loop goes on, what came meanwhile is put; what is full or has waited long enough is closed.
    """

    def __init__(self, free_ms: float, cap: int, span: Spans, wait_ms: float, ends: Ends) -> None:
        """Take from when on the device is free, and how it makes its batches."""
        self.next_ms = free_ms if free_ms > 0 else inf
        self._cap, self._span, self._wait_ms, self._ends = cap, span, wait_ms, ends
        self._free_ms = free_ms
        self._queue: deque[int] = deque()
        self._first_ms: float | None = None
        self._late: list[int] = []
        self._closed: deque[list[int]] = deque()
        self._running = 0

    def put(self, request: int, now: float) -> None:
        """Take a request."""
        if now < self._free_ms:
            self._late.append(request)
        else:
            self._queue.append(request)
            self._go_on(now)

    def act(self, now: float) -> int:
        """Go on after a batch, or after the wait for more."""
        left, self._running = self._running, 0
        self._queue.extend(self._late)
        self._late.clear()
        self._go_on(now)
        return left

    def _go_on(self, now: float) -> None:
        if self._queue and self._first_ms is None:
            self._first_ms = now
        while self._first_ms is not None and (len(self._queue) >= self._cap or now >= self._first_ms + self._wait_ms):
            self._closed.append([self._queue.popleft() for _ in range(min(len(self._queue), self._cap))])
            self._first_ms = now if self._queue else None
            if self._wait_ms == 0:
                break
        if self._closed:
            batch = self._closed.popleft()
            taken = self._span(len(batch))
            self._ends.add(batch, now + taken, taken)
            self._running = len(batch)
            self.next_ms = self._free_ms = now + taken
        else:
            self.next_ms = inf if self._first_ms is None else self._first_ms + self._wait_ms


class Router:
    """Gives each request to the replica that has the fewest unanswered, of all or of ``among``.

    With a ``limit`` on those of each replica it does as Ray Serve's: a request that finds no room asks again, twice at
    once and then ever later. What room it finds is for the oldest request that waits. No more than two for each replica
    ask at a time; others wait until one of these is gone, or are refused if they would be more than ``most_queued``.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        ends: Ends,
        among: Callable[[], Sequence[int]] | None = None,
        limit: float = inf,
        most_queued: float = inf,
    ) -> None:
        """Take the replicas, where what they do is noted, and which are asked for a request."""
        self._replicas, self._ends = replicas, ends
        everyone = range(len(replicas))
        self._among, self._limit, self._most_queued = among or (lambda: everyone), limit, most_queued
        self._unanswered = [0] * len(replicas)
        self._most_asking = min(2 * len(replicas), _MOST_ASKING)
        self._queued: deque[int] = deque()
        self._to_ask: deque[int] = deque()
        self._asking: dict[int, int] = {}
        self._acts: list[tuple[float, int]] = []
        self._asks: list[tuple[float, int]] = []
        for number in range(len(replicas)):
            self._note(number)

    def serve(self, arrivals: Sequence[float]) -> Served:
        """Serve requests that come at these times."""
        acts, asks = self._acts, self._asks
        for request, came in enumerate(arrivals):
            if (acts and acts[0][0] < came) or (asks and asks[0][0] < came):  # mostly not, and a call costs a tenth
                self._until(came)
            self._come(request, came)
        self._until(inf)
        return self._ends.served()

    def _until(self, now: float) -> None:
        """Let happen what happens before now."""
        acts, asks, replicas = self._acts, self._asks, self._replicas
        while True:
            act_ms = acts[0][0] if acts else inf
            ask_ms = asks[0][0] if asks else inf
            if act_ms >= now and ask_ms >= now:
                return
            if act_ms <= ask_ms:
                _, number = heapq.heappop(acts)
                replica = replicas[number]
                if act_ms == replica.next_ms:
                    self._unanswered[number] -= replica.act(act_ms)
                    self._note(number)
            else:
                _, request = heapq.heappop(asks)
                if request in self._asking:
                    self._ask(request, ask_ms)
                    self._start(ask_ms)

    def _note(self, number: int) -> None:
        next_ms = self._replicas[number].next_ms
        if next_ms < inf:
            heapq.heappush(self._acts, (next_ms, number))

    def _come(self, request: int, now: float) -> None:
        if len(self._queued) >= self._most_queued:
            self._ends.refuse(request)
        elif self._queued:
            self._queued.append(request)
            self._to_ask.append(request)
            self._start(now)
        elif (number := self._room()) is not None:  # most come so, and nothing of what follows is for them
            self._give(request, number, now)
        else:
            self._queued.append(request)
            self._asking[request] = 1
            self._ask(request, now)

    def _room(self) -> int | None:
        """Return the replica that has the fewest unanswered of those that are asked; None where it has no room."""
        number = min(self._among(), key=self._unanswered.__getitem__)
        return number if self._unanswered[number] < self._limit else None

    def _give(self, request: int, number: int, now: float) -> None:
        self._unanswered[number] += 1
        replica = self._replicas[number]
        before_ms = replica.next_ms
        replica.put(request, now)
        if replica.next_ms != before_ms:
            self._note(number)

    def _start(self, now: float) -> None:
        """Let as many ask as may, the oldest first."""
        while self._to_ask and len(self._asking) < min(len(self._queued), self._most_asking):
            request = self._to_ask.popleft()
            if self._queued[0] <= request:
                self._asking[request] = 0
                self._ask(request, now)

    def _ask(self, request: int, now: float) -> None:
        """Ask for room, which is the oldest request's, until it is this one's or it is time to wait."""
        while request in self._asking:
            number = self._room()
            if number is not None:
                oldest = self._queued.popleft()
                self._asking.pop(oldest, None)
                self._give(oldest, number, now)
            times = self._asking.get(request)
            if times is not None:
                self._asking[request] = times + 1
                if times > 0:
                    wait_ms = _BACKOFF_MS[min(times, len(_BACKOFF_MS)) - 1]
                    heapq.heappush(self._asks, (now + wait_ms, request))
                    return
