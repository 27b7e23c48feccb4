"""The event engine: a clock, devices, stations where requests wait, and the router before them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any, Literal

Routing = Literal["shared", "random", "least-loaded", "two-choices"]
"""One queue for all devices, or a queue per device and how the router picks one."""
Alone = Callable[[int, float], tuple[float, int]]
"""For a lone device: takes the first item and the time at which the device is free; returns the start of the batch in
ms, and the number of the item after it."""


class Clock:
    """The current time, in ms, and the events to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._scheduled = 0

    def at(self, time: float, call: Callable[[Any], None], argument: object) -> None:
        self._scheduled += 1
        heappush(self.events, (time, self._scheduled, call, argument))

    def advance(self, until: float) -> None:
        events = self.events
        while events and events[0][0] < until:
            self.now, _, call, argument = heappop(events)
            call(argument)


class Device:
    """One device: its largest batch and service times, and the state that a server keeps for it.

    ``draw`` returns the ms of a batch, from its samples and items; ``log`` has five numbers for each batch, one after
    the other: its start in ms, samples, items, ms and kind of device. ``turn`` counts the batches that its worker
    began, and ``freed`` is when the last one ended.
    """

    def __init__(self, cap: int, draw: Callable[[int, int], float], log: list[float], kind: int) -> None:
        self.cap, self.draw, self.log, self.kind = cap, draw, log, kind
        self.batch: list[int] = []
        self.turn, self.freed = 0, 0.0
        self.answered = 0.0


class Answers:
    """The requests of each batch, and those refused. Answers of a device go out one by one, ``each_ms`` apart.

    ``batched`` are the requests of one batch after the other, and ``from_ms`` the time from which those of each are
    answered. ``samples`` are those of each item if requests stay whole; None if each item is one sample.
    """

    def __init__(self, samples: Sequence[int] | None, each_ms: float) -> None:
        self.samples, self.each_ms = samples, each_ms
        self.refused = list[int]()
        # Flat lists: garbage collections would go through a list for each batch.
        self.batched, self.from_ms = list[int](), list[float]()

    def size(self, batch: Sequence[int]) -> int:
        return len(batch) if self.samples is None else sum(map(self.samples.__getitem__, batch))

    def note(self, batch: Sequence[int], end: float, device: Device) -> None:
        if self.each_ms:
            end = max(end, device.answered)
            device.answered = end + self.each_ms * len(batch)
        self.batched.extend(batch)
        self.from_ms.append(end)


class Station:
    """A queue for one or several devices; a server's class decides which requests make a batch, and when.

    ``ahead`` is how many batches may be under way for a device when the next is made. With ``has_rule`` a lone device
    can be simulated batch by batch.
    """

    ahead = 0
    has_rule = False

    def __init__(
        self, clock: Clock, devices: Sequence[Device], delay_ms: float, limit: float, answers: Answers
    ) -> None:
        """Take devices, which are free from ``device.freed`` on, the delay, and how many requests may wait."""
        self.clock, self.delay_ms, self.limit, self.answers = clock, delay_ms, limit, answers
        self.devices, self.cap = len(devices), min(device.cap for device in devices)
        self.queue: deque[int] = deque()
        self.idle: deque[Device] = deque()
        self.left: Callable[[int], None] = lambda _: None
        for device in devices:
            if device.freed > 0:
                clock.at(device.freed, self.free, device)
            else:
                self.idle.append(device)

    @classmethod
    def alone(cls, came: Sequence[float], cap: int, delay_ms: float) -> Alone:
        """Return the batching rule of a lone device whose items arrive at these times."""
        raise NotImplementedError

    def arrive(self, request: int, items: int) -> None:
        if len(self.queue) + items <= self.limit:  # faster than the loop
            self.queue.extend((request,) * items)
        else:
            for _ in range(items):
                self.put(request)
        if self.idle:
            self.settle()

    def join(self, came: Sequence[float], head: int, until: float) -> int:
        """Queue the next requests that arrive up to a time and cause no event; return the first after them."""
        if self.idle or self.limit < inf:
            return head
        tail = bisect_right(came, until, head)
        self.queue.extend(range(head, tail))
        return tail

    def put(self, request: int) -> None:
        if len(self.queue) >= self.limit and not self.idle:
            self.refuse(request)
        else:
            self.queue.append(request)

    def settle(self) -> None:
        """Start the batches that can start on idle devices."""

    def free(self, device: Device) -> None:
        self.idle.append(device)
        self.settle()

    def refuse(self, request: int) -> None:
        self.answers.refused.append(request)
        self.left(1)

    def take(self, cap: int) -> list[int]:
        """Return the first requests of the queue, as many as fit into a batch."""
        queue, samples = self.queue, self.answers.samples
        if samples is None:
            if len(queue) <= cap:
                batch = list(queue)
                queue.clear()
                return batch
            return [queue.popleft() for _ in range(cap)]
        batch, room = [queue.popleft()], cap
        room -= samples[batch[0]]
        while queue and samples[queue[0]] <= room:
            batch.append(queue.popleft())
            room -= samples[batch[-1]]
        return batch

    def begin(self, device: Device, batch: list[int]) -> None:
        answers, clock, items = self.answers, self.clock, len(batch)
        size = items if answers.samples is None else answers.size(batch)
        took_ms = device.draw(size, items)
        device.log.extend((clock.now, size, items, took_ms, device.kind))
        device.turn += 1
        device.freed = end = clock.now + took_ms
        answers.note(batch, end, device)
        clock.at(end, self._ends, (device, items))

    def _ends(self, ended: tuple[Device, int]) -> None:
        device, items = ended
        self.left(items)
        self.free(device)


class Router:
    """Sends each request to a station: a random one, or the one with the fewest unanswered items, of all or of two.

    Stations with the same number of unanswered items share a bucket, from which one is drawn.
    """

    def __init__(self, stations: Sequence[Station], routing: Routing, seed: str) -> None:
        self._arrive, self._draw = [station.arrive for station in stations], Random(seed).random  # noqa: S311
        self._unanswered = [0] * len(stations)
        self._buckets: list[list[int]] = [list(range(len(stations)))]
        self._places = list(range(len(stations)))
        self._lowest = 0
        self.route = self._arrive[0]
        if len(stations) > 1:
            ways = {
                "random": self._route_at_random,
                "least-loaded": self._route_to_least,
                "two-choices": self._route_to_less,
            }
            self.route = ways[routing]
            leaves = self._leaves_least if routing == "least-loaded" else self._leaves
            for number, station in enumerate(stations if routing != "random" else ()):
                station.left = partial(leaves, number)

    def _route_at_random(self, request: int, items: int) -> None:
        self._arrive[int(self._draw() * len(self._arrive))](request, items)

    def _route_to_less(self, request: int, items: int) -> None:
        draw, unanswered = self._draw, self._unanswered
        count = len(unanswered)
        one = int(draw() * count)
        other = int(draw() * (count - 1))
        if other >= one:
            other += 1
        if unanswered[other] < unanswered[one]:
            one = other
        unanswered[one] += items
        self._arrive[one](request, items)

    def _leaves(self, number: int, items: int) -> None:
        self._unanswered[number] -= items

    def _route_to_least(self, request: int, items: int) -> None:
        bucket = self._buckets[self._lowest]
        while not bucket:
            self._lowest += 1
            bucket = self._buckets[self._lowest]
        place = int(self._draw() * len(bucket))
        number = bucket[place]
        self._move(number, bucket, place, self._lowest + items)
        self._arrive[number](request, items)

    def _leaves_least(self, number: int, items: int) -> None:
        before = self._unanswered[number]
        self._move(number, self._buckets[before], self._places[number], before - items)
        self._lowest = min(self._lowest, before - items)

    def _move(self, number: int, bucket: list[int], place: int, unanswered: int) -> None:
        """Move a station from its place in a bucket to the bucket of stations with that many unanswered items."""
        last = bucket.pop()
        if last != number:
            bucket[place] = last
            self._places[last] = place
        while len(self._buckets) <= unanswered:
            self._buckets.append([])
        bucket = self._buckets[unanswered]
        self._places[number] = len(bucket)
        bucket.append(number)
        self._unanswered[number] = unanswered
