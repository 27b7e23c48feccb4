"""A second simulator of servers, small and slow: event by event, one request at a time, from a record's JSON.

It shares no code with ``tputfind.sizing``. Its rules come from the servers' sources: ``protocol.rs`` of mosec
over async_channel, ``loops/base.py`` of LitServe, ``batching.py`` and ``pow_2_router.py`` of Ray Serve, and
``dynamic_batch_scheduler.cc`` of Triton.
"""

import json
import math
import random
import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, count, pairwise
from operator import mul
from pathlib import Path
from typing import Final

GRID: Final = 1000
"""Equally likely times of a batch of each size."""
FEWEST_SAMPLES: Final = 10
TOKIO_MS: Final = 1.0
"""mosec's timers tick in whole milliseconds: a tick and its wait are each rounded up, by half on average."""
COLD: Final = 0.15
"""Fraction of requests that arrive while queues fill up; they are discarded."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """The simulation's parameters: the server, its devices, and the requests."""

    batcher: str
    routing: str
    devices: int
    cap: int
    rate_per_s: float
    percentile: float = 99.0
    burstiness: float = 1.0
    wait_ms: float = 0.0
    per_batch_ms: float = 0.0
    per_request_ms: float = 0.0


@dataclass(frozen=True)
class Answer:
    """A latency percentile and its standard error."""

    tail_ms: float
    error_ms: float


class Times:
    """Batch times: drawn from the measured times, no shorter for a larger batch.

    Compiled and captured models take as long as for the next larger size that was measured.
    """

    def __init__(self, record: Path) -> None:
        measured: dict[int, list[float]] = {}
        saved = json.loads(record.read_text())
        self._padded = saved["spec"]["mode"] != "eager"
        for row in saved["rows"]:
            parts = row.get("timings", [row])
            samples = sorted(ms for part in parts for ms in part.get("latency_ms") or ())
            if not row.get("failure") and len(samples) >= FEWEST_SAMPLES:
                measured[row["batch_size"]] = samples
        self.sizes = sorted(measured)
        weights = [len(measured[size]) for size in self.sizes]
        columns = []
        for place in range(GRID):
            likely = (place + 0.5) / GRID
            column = [measured[size][math.ceil(likely * len(measured[size])) - 1] for size in self.sizes]
            columns.append(rising(column, weights))
        self._curves: dict[int, list[float]] = dict(zip(self.sizes, map(list, zip(*columns, strict=True)), strict=True))

    def draw_ms(self, batch: int, chance: random.Random) -> float:
        place = chance.randrange(GRID)
        above = self.sizes[bisect_left(self.sizes, batch)]
        if self._padded or above in (batch, self.sizes[0]):
            return self._curves[above][place]
        below = self.sizes[self.sizes.index(above) - 1]
        low, high = self._curves[below][place], self._curves[above][place]
        return low + (high - low) * (batch - below) / (above - below)


def rising(values: list[float], weights: list[int]) -> list[float]:
    """Return the nearest non-decreasing values, by the min-max formula of weighted means."""
    if all(low <= high for low, high in pairwise(values)):
        return values
    places = range(len(values))
    sums = [0.0, *accumulate(map(mul, values, weights))]
    masses = [0, *accumulate(weights)]
    means = [
        [(sums[last + 1] - sums[first]) / (masses[last + 1] - masses[first]) for last in places[first:]]
        for first in places
    ]
    return [max(min(means[first][place - first :]) for first in places[: place + 1]) for place in places]


class Clock:
    """Future events, the next first."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time_ms: float, happens: Callable[[], None]) -> None:
        heappush(self._events, (time_ms, next(self._order), happens))

    def run(self, until: Callable[[], bool]) -> None:
        while self._events and not until():
            self.now_ms, _, happens = heappop(self._events)
            happens()


Run = Callable[[list[float], Callable[[], None]], None]
"""Runs a batch of requests, given by their arrival times, and calls back when its device is free."""


class Triton:
    """A batch begins when an instance is free, and it is full or its oldest request has waited for the delay."""

    def __init__(self, clock: Clock, run: Run, free_ms: list[float], cap: int, wait_ms: float) -> None:
        self._clock, self._run, self._cap, self._wait_ms = clock, run, cap, wait_ms
        self._idle = 0
        self._queue: deque[float] = deque()
        for free in free_ms:
            clock.at(free, self._free_instance)

    def comes(self) -> None:
        self._queue.append(self._clock.now_ms)
        if self._idle:
            if len(self._queue) == 1 and self._wait_ms:
                self._clock.at(self._queue[0] + self._wait_ms, self._look)
            self._look()

    def _look(self) -> None:
        while self._idle and self._queue:
            due_ms = self._queue[0] + self._wait_ms
            if len(self._queue) < self._cap and self._clock.now_ms < due_ms:
                self._clock.at(due_ms, self._look)
                return
            batch = [self._queue.popleft() for _ in range(min(self._cap, len(self._queue)))]
            self._idle -= 1
            self._run(batch, self._free_instance)

    def _free_instance(self) -> None:
        self._idle += 1
        self._look()


class Worker:
    """A process of mosec or LitServe, with the batch that it collects."""

    def __init__(self) -> None:
        self.batch: list[float] = []
        self.turn = 0


class Mosec:
    """Workers wait in line at one channel. Each takes a request, and then joins the end of the line for more."""

    def __init__(self, clock: Clock, run: Run, free_ms: list[float], cap: int, wait_ms: float) -> None:
        self.clock, self._run, self._cap, self.wait_ms = clock, run, cap, wait_ms
        self._channel: deque[float] = deque()
        self._line: deque[Worker] = deque()
        for free in free_ms:
            clock.at(free, partial(self.ready, Worker()))

    def comes(self) -> None:
        if self._line:
            worker = self._line.popleft()
            if not self._is_full_with(worker, self.clock.now_ms):
                self._line.append(worker)
        else:
            self._channel.append(self.clock.now_ms)

    def ready(self, worker: Worker) -> None:
        """Take waiting requests, or wait in line for one."""
        while self._channel:
            if self._is_full_with(worker, self._channel.popleft()):
                return
        self._line.append(worker)

    def _is_full_with(self, worker: Worker, request: float) -> bool:
        """Give a worker a request; begin its batch and return True if it is full."""
        worker.batch.append(request)
        if len(worker.batch) == 1:
            self.begins(worker)
        full = len(worker.batch) == self._cap
        if full:
            self.runs(worker)
        return full

    def begins(self, worker: Worker) -> None:
        if self._cap > 1:
            turn = worker.turn
            self.clock.at(self.clock.now_ms + self.wait_ms + TOKIO_MS, lambda: self.is_over(worker, turn))

    def is_over(self, worker: Worker, turn: int) -> None:
        if worker.turn == turn:
            self._line.remove(worker)
            self.runs(worker)

    def runs(self, worker: Worker) -> None:
        batch, worker.batch = worker.batch, []
        worker.turn += 1
        self._run(batch, lambda: self.ready(worker))


class LitServe(Mosec):
    """Workers wait in line at one queue in consecutive windows, even without requests."""

    def __init__(self, clock: Clock, run: Run, free_ms: list[float], cap: int, wait_ms: float) -> None:
        self._open: set[Worker] = set()
        super().__init__(clock, run, free_ms, cap, wait_ms)

    def ready(self, worker: Worker) -> None:
        if worker not in self._open:
            self._open.add(worker)
            self._opens(worker)
        super().ready(worker)

    def _opens(self, worker: Worker) -> None:
        turn = worker.turn
        self.clock.at(self.clock.now_ms + self.wait_ms, lambda: self.is_over(worker, turn))

    def begins(self, worker: Worker) -> None:
        """Do nothing: the window has already begun."""

    def is_over(self, worker: Worker, turn: int) -> None:
        if worker.turn == turn and not worker.batch:
            self._opens(worker)
        else:
            super().is_over(worker, turn)

    def runs(self, worker: Worker) -> None:
        self._open.discard(worker)
        super().runs(worker)


class Ray:
    """A replica closes batches by its timer or when they are full; its model blocks the event loop."""

    def __init__(self, clock: Clock, run: Run, free_ms: list[float], cap: int, wait_ms: float) -> None:
        self._clock, self._run, self._cap, self._wait_ms = clock, run, cap, wait_ms
        self._open: list[float] = []
        self._closed: deque[list[float]] = deque()
        self._ends = math.inf
        self._busy = True
        for free in free_ms:
            clock.at(free, self._looks)

    def comes(self) -> None:
        self._open.append(self._clock.now_ms)
        self._wakes()

    def _wakes(self) -> None:
        if not self._busy:
            self._looks()

    def _looks(self) -> None:
        """Close full or expired batches; requests that arrived meanwhile start their timer now."""
        while self._open:
            if self._ends == math.inf:
                self._ends = self._clock.now_ms + self._wait_ms
                self._clock.at(self._ends, self._wakes)
            if len(self._open) < self._cap and self._clock.now_ms < self._ends:
                break
            self._closed.append(self._open[: self._cap])
            self._open, self._ends = self._open[self._cap :], math.inf
        self._busy = bool(self._closed)
        if self._busy:
            self._run(self._closed.popleft(), self._looks)


def server(question: Question) -> type[Triton | Mosec | Ray]:
    """Return the class of the server. Without a wait, a LitServe worker is greedy."""
    rules: dict[str, type[Triton | Mosec | Ray]] = {"greedy": Triton, "triton": Triton, "mosec": Mosec, "ray": Ray}
    rules["litserve"] = LitServe if question.wait_ms else Triton
    return rules[question.batcher]


def gaps_ms(question: Question, chance: random.Random) -> Iterable[float]:
    """Yield interarrival times of a gamma distribution, whose coefficient of variation is the burstiness."""
    mean_ms, squared = 1000 / question.rate_per_s, question.burstiness**2
    while True:
        yield chance.gammavariate(1 / squared, squared * mean_ms) if squared else mean_ms


def latencies_ms(question: Question, times: Times, requests: int, seed: int) -> list[float]:
    """Return the latencies of requests in the order of their answers."""
    chance = random.Random(seed)
    clock = Clock()
    done: list[tuple[float, float]] = []
    shared = question.routing == "shared"
    queues = 1 if shared else question.devices
    unanswered = [0] * queues

    def runner(queue: int) -> Run:
        def run(batch: list[float], freed: Callable[[], None]) -> None:
            size = len(batch)
            took_ms = times.draw_ms(size, chance) + question.per_batch_ms + question.per_request_ms * size

            def ends() -> None:
                unanswered[queue] -= size
                done.extend((came_ms, clock.now_ms - came_ms) for came_ms in batch)
                freed()

            clock.at(clock.now_ms + took_ms, ends)

        return run

    def picked() -> int:
        if queues == 1 or question.routing == "random":
            return chance.randrange(queues)
        places = chance.sample(range(queues), queues if question.routing == "least-loaded" else 2)
        return min(places, key=unanswered.__getitem__)

    make = server(question)
    # Devices that begin together would stay synchronised for hundreds of batches.
    longest_ms = times.draw_ms(min(question.cap, times.sizes[-1]), chance)
    free_ms = [chance.uniform(0, longest_ms) for _ in range(question.devices)]
    at = [free_ms] if shared else [[free] for free in free_ms]
    stations = [make(clock, runner(queue), at[queue], question.cap, question.wait_ms) for queue in range(queues)]
    gaps = iter(gaps_ms(question, chance))

    def comes() -> None:
        queue = picked()
        unanswered[queue] += 1
        stations[queue].comes()
        clock.at(clock.now_ms + next(gaps), comes)

    clock.at(next(gaps), comes)
    clock.run(lambda: len(done) >= requests)
    done.sort()
    return [latency_ms for _, latency_ms in done[int(COLD * len(done)) : -max(1, len(done) // 50)]]


def answer(question: Question, times: Times, *, requests: int, streams: int, seed: int = 0) -> Answer:
    """Return the latency percentile: the mean over streams, with its standard error from their differences."""
    tails = []
    for stream in range(streams):
        ranked = sorted(latencies_ms(question, times, requests, 1000 * seed + stream))
        tails.append(ranked[math.ceil(question.percentile / 100 * len(ranked)) - 1])
    return Answer(statistics.fmean(tails), statistics.stdev(tails) / math.sqrt(streams))
