"""Devices at work: a thread and a server of processes for each, which do one thing at a time and tell what they do."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import NamedTuple, Self

from tputfind.fleet.devices import Place
from tputfind.processes.children import Children
from tputfind.record.record import Record
from tputfind.session.progress import Progress


class Told(NamedTuple):
    """What a device tells of what it does: a method of ``Progress``, and what that takes."""

    place: Place
    method: str
    arguments: tuple[object, ...]


class Done(NamedTuple):
    """What came of the work that a device was given, or why nothing did."""

    place: Place
    result: object
    error: BaseException | None = None


class Stop(NamedTuple):
    """Somebody had enough: a signal came."""


Event = Told | Done | Stop
Work = Callable[[Children, Progress], object]
"""What a device is given to do. It works in the device's own thread, and asks the device's own processes."""


@contextmanager
def signals_among(events: SimpleQueue[Event]) -> Iterator[None]:
    """Have the signals that interrupt stand among the events meanwhile: an exception could lose one of these."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {each: handler for each, handler in before.items() if callable(handler)}
    for each in before:
        signal.signal(each, lambda *_: events.put(Stop()))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Stations:
    """The devices of one run, by place; use it as a context manager, in the thread that listens to them."""

    def __init__(self, places: list[Place], *, trust_model_file: bool) -> None:
        """Take where to work; nothing starts before it is needed."""
        self.events: SimpleQueue[Event] = SimpleQueue()
        self._trust_model_file = trust_model_file
        self._stations = {place.name: _Station(place, self.events) for place in places}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupt()
        for station in self._stations.values():
            station.close()

    def give(self, place: Place, work: Work) -> None:
        """Have a device do something; what comes of it is among the events."""
        self._stations[place.name].give(work, trust_model_file=self._trust_model_file)

    def interrupt(self) -> None:
        """Have every device stop what it does."""
        for station in self._stations.values():
            station.interrupt()


class _Station:
    """One device, with its thread and its processes."""

    def __init__(self, place: Place, events: SimpleQueue[Event]) -> None:
        self._place = place
        self._events = events
        self._given: SimpleQueue[Work | None] = SimpleQueue()
        self._children: Children | None = None
        self._thread = Thread(target=self._work, name=place.name, daemon=True)

    def give(self, work: Work, *, trust_model_file: bool) -> None:
        if self._children is None:
            place = self._place
            self._children = Children(trust_model_file=trust_model_file, variables=place.variables, cores=place.cores)
            self._thread.start()
        self._given.put(work)

    def interrupt(self) -> None:
        if self._children is not None:
            self._children.interrupt()

    def close(self) -> None:
        """End the thread, which ends the processes."""
        self._given.put(None)
        if self._children is not None:
            self._thread.join()

    def _work(self) -> None:
        assert self._children is not None
        listener = _Listener(self._place, self._events)
        with self._children as children:
            while (work := self._given.get()) is not None:
                try:
                    done = Done(self._place, work(children, listener))
                except BaseException as error:  # whatever it is, the main thread is waiting for word
                    done = Done(self._place, None, error)
                self._events.put(done)


class _Listener:
    """Passes on what a device tells to the main thread, which shows it."""

    def __init__(self, place: Place, events: SimpleQueue[Event]) -> None:
        self._place = place
        self._events = events

    def about(self, subject: str) -> None:
        """Say what the next words are about."""
        self._tell("about", subject)

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Something starts."""
        self._tell("doing", what, seconds_left)

    def did(self, what: str) -> None:
        """Something has ended."""
        self._tell("did", what)

    def measured(self, record: Record) -> None:
        """The record has grown."""
        self._tell("measured", record)

    def _tell(self, method: str, *arguments: object) -> None:
        self._events.put(Told(self._place, method, arguments))
