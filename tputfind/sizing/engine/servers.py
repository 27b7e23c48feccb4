"""Servers: the defaults of each, and the class of its station, modelled on the server's source."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from math import floor, inf
from typing import Any, Final, Literal, NamedTuple

from tputfind.sizing.engine.events import Alone, Device, Routing, Station

Batcher = Literal["greedy", "triton", "mosec", "litserve", "ray"]


class Greedy(Station):
    """A free device takes the waiting requests, up to its largest batch."""

    def arrive(self, request: int, items: int) -> None:
        """Start a batch of one item on an idle device: no other waits."""
        if self.idle and items == 1:
            self.begin(self.idle.popleft(), [request])
        else:
            super().arrive(request, items)

    def free(self, device: Device) -> None:
        if self.queue:
            self.begin(device, self.take(device.cap))
        else:
            self.idle.append(device)

    def settle(self) -> None:
        while self.idle and self.queue:
            device = self.idle.popleft()
            self.begin(device, self.take(device.cap))


class Mosec(Station):
    """mosec, ``protocol.rs``: free workers form a line, and each takes one request at a time.

    The first request of a worker starts its timer. When that ends, or the batch is full, the worker begins.
    """

    has_rule = True

    def arrive(self, request: int, items: int) -> None:
        """Give each item of a request to the worker that is first in line."""
        for left in range(items, 0, -1):
            if not self.idle:
                super().arrive(request, left)
                break
            if self._gives(self.idle[0], request):
                self.idle.popleft()
            else:
                self.idle.rotate(-1)

    def join(self, came: Sequence[float], head: int, until: float) -> int:
        """Give the next requests to workers in line, up to one that opens or fills a batch."""
        idle, cap = self.idle, self.cap
        if not idle:
            return super().join(came, head, until)
        while head < len(came) and came[head] <= until and 0 < len(idle[0].batch) < cap - 1:
            idle[0].batch.append(head)
            idle.rotate(-1)
            head += 1
        return head

    def free(self, device: Device) -> None:
        """Let a worker take the waiting requests; if they fill no batch, it joins the line."""
        if len(self.queue) >= device.cap:
            self.begin(device, self.take(device.cap))
            return
        if self.queue:
            device.batch = self.take(device.cap)
            self._opens(device)
        self.idle.append(device)

    def _gives(self, worker: Device, request: int) -> bool:
        """Add a request to a worker's batch, and return whether that fills it; the worker then begins."""
        batch = worker.batch
        batch.append(request)
        if len(batch) >= worker.cap:
            self._closes(worker)
            return True
        if len(batch) == 1:
            self._opens(worker)
        return False

    def _opens(self, worker: Device) -> None:
        closes = self.window_ends(self.clock.now, worker.freed, self.delay_ms)
        self.clock.at(closes, self._is_over, (worker, worker.turn))

    @staticmethod
    def window_ends(first: float, freed: float, delay_ms: float) -> float:  # noqa: ARG004  # LitServe uses it
        """Return when a batch closes, from the arrival of its first request and the time its worker was freed."""
        return first + delay_ms

    def _is_over(self, timer: tuple[Device, int]) -> None:
        worker, turn = timer
        if worker.turn == turn:
            self.idle.remove(worker)
            self._closes(worker)

    def _closes(self, worker: Device) -> None:
        batch, worker.batch = worker.batch, []
        self.begin(worker, batch)

    @classmethod
    def alone(cls, came: Sequence[float], cap: int, delay_ms: float) -> Alone:
        count = len(came)

        def batch(head: int, free: float) -> tuple[float, int]:
            first, last = max(free, came[head]), head + cap - 1
            closes = cls.window_ends(first, free, delay_ms)
            if last < count and came[last] <= closes:
                return max(first, came[last]), last + 1
            return closes, bisect_right(came, closes, head + 1, min(last, count))

        return batch


class LitServe(Mosec):
    """LitServe, ``loops/base.py``: windows of a worker follow each other from when it is free.

    The whole window passes, whether or not requests wait, unless the batch is full.
    """

    @staticmethod
    def window_ends(first: float, freed: float, delay_ms: float) -> float:
        """Return the end of the window in which the first request of a worker arrives."""
        empty = floor((first - freed) / delay_ms)
        return max(freed + (empty + 1) * delay_ms, first)


class Triton(Station):
    """Triton, ``dynamic_batch_scheduler.cc``, for inputs of fixed shape: batches are made before a device is free.

    Up to two batches are ready for each device. The delay counts from the arrival of the oldest request. A thread makes
    batches; it wakes when enough requests wait to fill a batch, when a device takes one, at the end of a delay, and
    twice a second. When the oldest request has waited for the delay, all waiting ones go, and a device merges ready
    batches. With a limit on the queue no batch is made ahead, and a finished device wakes the thread before it asks for
    a batch: while the queue is full, a free device may wait half a second.
    """

    looks_ms: Final = 500.0
    ahead = 3

    def __init__(self, *station: Any) -> None:
        super().__init__(*station)
        self._ready: deque[list[int]] = deque()
        self._batch: list[int] = []
        self._came: dict[int, float] = {}
        self._is_closed, self._waits_for_device = False, False
        self._wakes_for = self._alarm = 0
        self._has_alarm, self._asleep_ms = False, 0.0

    def arrive(self, request: int, items: int) -> None:  # noqa: ARG002  # requests stay whole
        """Queue a request, even if a device is free, and wake the thread if enough wait to fill a batch."""
        if len(self.queue) >= self.limit:
            self.refuse(request)
            return
        self.queue.append(request)
        self._came[request] = self.clock.now
        if self._has_room() and (self._is_closed or self.answers.size(self.queue) >= self._wakes_for):
            self._make()
        elif not self._has_alarm:
            looks = floor((self.clock.now - self._asleep_ms) / self.looks_ms) + 1
            self._wake_at(self._asleep_ms + looks * self.looks_ms)

    def join(self, came: Sequence[float], head: int, until: float) -> int:
        """Queue the next requests up to one that wakes the thread."""
        last = len(came)
        if self._has_room():
            last = head if self._is_closed or self.answers.samples else head + self._wakes_for - 1 - len(self.queue)
        if self.limit < inf or not self._has_alarm or last <= head:
            return head
        tail = bisect_right(came, until, head, min(last, len(came)))
        self.queue.extend(range(head, tail))
        self._came.update(zip(range(head, tail), came[head:tail], strict=True))
        return tail

    def free(self, device: Device) -> None:
        if self.limit < inf:
            self._make()
            self.idle.append(device)
        else:
            self.idle.append(device)
            self._start()
            self._make()

    def _has_room(self) -> bool:
        return len(self._ready) < 2 * self.devices if self.limit == inf else bool(self.idle)

    def _wake_at(self, time: float) -> None:
        self._alarm += 1
        self._has_alarm = True
        self.clock.at(time, self._alarms, self._alarm)

    def _alarms(self, alarm: int) -> None:
        if self._has_alarm and alarm == self._alarm:
            self._make(is_timer=True)

    def _start(self) -> None:
        now, size = self.clock.now, self.answers.size
        while self.idle and self._ready:
            batch = self._close_if_current(self._ready.popleft())
            while self.delay_ms > 0 and self._ready and now - self._came[self._ready[0][0]] > self.delay_ms:
                # The source closes a batch that it looks at, even if it does not fit.
                more = self._close_if_current(self._ready[0])
                if size(batch) + size(more) > self.cap:
                    break
                batch += self._ready.popleft()
            for request in batch:
                del self._came[request]
            self.begin(self.idle.popleft(), batch)

    def _close_if_current(self, batch: list[int]) -> list[int]:
        self._is_closed = self._is_closed or batch is self._batch
        return batch

    def _make(self, *, is_timer: bool = False) -> None:
        """Make batches until the queue is empty, no more may be ready, or it is better to wait."""
        now = self.clock.now
        while True:
            if self._waits_for_device and not self._has_room() and not is_timer:
                return
            self._has_alarm, self._waits_for_device = False, False
            if self._is_closed:
                self._batch, self._is_closed, self._wakes_for = [], False, 0
            if not self.queue:
                self._asleep_ms = now
                return
            if not self._has_room():
                self._waits_for_device = True
                self._wake_at(now + self.looks_ms)
                return
            closes_ms = self._came[self.queue[0]] + self.delay_ms
            joining = self._joining(is_late=self.delay_ms > 0 and now >= closes_ms)
            if joining is None:
                self._wake_at(closes_ms)
                return
            if joining > 0:
                if not self._batch:
                    self._ready.append(self._batch)
                self._batch += [self.queue.popleft() for _ in range(joining)]
                self._start()

    def _joining(self, *, is_late: bool) -> int | None:
        """Return how many requests join the batch now, or None if they wait (``GetDynamicBatch``)."""
        room = self.cap - self.answers.size(self._batch)
        fitting, is_full = self._count_fitting(room)
        if is_full:
            # The source leaves a batch open if it was filled just before the end of its delay.
            self._is_closed = self._is_closed or is_late or self.delay_ms == 0 or fitting == 0
            return fitting
        if is_late or self.delay_ms == 0:
            return fitting
        self._wakes_for = room
        return fitting if self._batch and not self._is_closed else None

    def _count_fitting(self, room: int) -> tuple[int, bool]:
        """Return how many requests of the queue fit into the room, and whether no room is left."""
        samples = self.answers.samples
        if samples is None:
            return min(len(self.queue), room), len(self.queue) >= room
        for number, request in enumerate(self.queue):
            room -= samples[request]
            if room <= 0:
                return (number, True) if room < 0 else (number + 1, True)
        return len(self.queue), False


class Ray(Station):
    """Ray Serve, ``batching.py``: a replica closes a batch when it is full or its first request has waited.

    Closed batches wait for the device unchanged. The model blocks the event loop, which delays all of this.
    """

    has_rule = True

    def __init__(self, *station: Any) -> None:
        super().__init__(*station)
        self._closed: deque[list[int]] = deque()
        self._first_ms: float | None = None

    def settle(self) -> None:
        """Close batches that are full or have waited long enough, and start the first one."""
        now = self.clock.now
        if self.queue and self._first_ms is None:
            self._opens(now)
        while self._first_ms is not None and (len(self.queue) >= self.cap or now >= self._first_ms + self.delay_ms):
            self._closed.append(self.take(self.cap))
            self._first_ms = None
            if self.queue:
                self._opens(now)
            if self.delay_ms == 0:
                break
        if self._closed:
            self.begin(self.idle.popleft(), self._closed.popleft())

    def _opens(self, now: float) -> None:
        self._first_ms = now
        if self.delay_ms > 0 and len(self.queue) < self.cap:
            self.clock.at(now + self.delay_ms, self._is_over, now)

    def _is_over(self, opened_ms: float) -> None:
        if self._first_ms == opened_ms and self.idle:  # else the loop is blocked
            self.settle()

    @classmethod
    def alone(cls, came: Sequence[float], cap: int, delay_ms: float) -> Alone:
        closed, count = deque[int](), len(came)
        head, first_ms = 0, inf

        def batch(_: int, now: float) -> tuple[float, int]:
            nonlocal head, first_ms
            while True:
                waiting = bisect_right(came, now, head)
                if first_ms == inf and waiting > head:
                    first_ms = now
                while first_ms < inf and (waiting - head >= cap or now >= first_ms + delay_ms):
                    head = min(head + cap, waiting)
                    closed.append(head)
                    first_ms = now if waiting > head else inf
                    if delay_ms == 0:
                        break
                if closed:
                    return now, closed.popleft()
                last = head + cap - 1
                now = came[head] if first_ms == inf else min(first_ms + delay_ms, came[last] if last < count else inf)

        return batch


class Profile(NamedTuple):
    """Defaults of a server, and the class of its station.

    ``timer_ms`` is the mean time that its timers add to a delay; ``delays`` says which delays it accepts. With
    ``splits``, each sample of a request is an item; otherwise requests stay whole. With ``in_replicas`` each device has
    a queue of its own. ``max_ongoing`` bounds the requests that a device has, and so its batch.
    """

    station: type[Station]
    delay_ms: float = 0.0
    timer_ms: float = 0.0
    delays: Literal["none", "whole ms", "any"] = "any"
    splits: bool = True
    in_replicas: bool = False
    routing: Routing = "shared"
    max_ongoing: int | None = None


PROFILES: Final[dict[Batcher, Profile]] = {
    "greedy": Profile(Greedy, delays="none"),
    "triton": Profile(Triton, splits=False),
    # tokio's timers tick in whole ms; the tick and the wait for it are each rounded up, by half a ms on average.
    "mosec": Profile(Mosec, 10.0, timer_ms=1.0, delays="whole ms"),
    "litserve": Profile(LitServe),
    "ray": Profile(Ray, 10.0, in_replicas=True, routing="two-choices", max_ongoing=5),
}


class Server(NamedTuple):
    """A configured server: the delay in ms, the requests that may wait in each queue, and ms for each answer."""

    batcher: Batcher = "greedy"
    delay_ms: float = 0.0
    routing: Routing = "shared"
    is_whole: bool = False
    limit: float = inf
    per_answer_ms: float = 0.0

    @property
    def held_ms(self) -> float:
        """The mean time that a batch waits for more requests: the delay and the addition of timers."""
        return self.delay_ms + PROFILES[self.batcher].timer_ms

    @property
    def window_ms(self) -> float:
        """The window in which batches are made by the clock; 0 if they are not."""
        return self.held_ms if self.station is LitServe else 0.0

    @property
    def longest_wait_ms(self) -> float:
        """An upper bound on how long a request waits while a device is free."""
        return 2 * self.held_ms + (Triton.looks_ms if self.station is Triton and self.limit < inf else 0.0)

    @property
    def station(self) -> type[Station]:
        """The class of its stations. Without a delay, LitServe is greedy; so is Triton without a limit on the queue."""
        takes_what_waits = self.batcher == "litserve" or (self.batcher == "triton" and self.limit == inf)
        return Greedy if takes_what_waits and self.held_ms == 0 else PROFILES[self.batcher].station
