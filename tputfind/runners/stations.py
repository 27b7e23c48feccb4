"""Devices at work: a thread and a server of processes for each, which do one job at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple, Self

from tputfind.processes import signals
from tputfind.processes.children import Children
from tputfind.runners.devices import HostPlace
from tputfind.session.barrier import Meeting


class Done(NamedTuple):
    """The result of a device's work, or its error."""

    place: HostPlace
    result: object
    error: BaseException | None = None


Work = Callable[[], object]
"""A job for a device, which runs in the device's thread."""


class Stations:
    """The devices of one run, by place; use it as a context manager, in the main thread.

    A signal that stops the run interrupts all devices, without an exception that could lose finished work.
    """

    def __init__(self, *, trust_model_file: bool) -> None:
        self.interrupted = False
        self._events: SimpleQueue[Done | None] = SimpleQueue()  # None: a signal came
        self._trust_model_file = trust_model_file
        self._stations: dict[str, _Station] = {}
        self._signals = ExitStack()

    def __enter__(self) -> Self:
        self._signals.enter_context(signals.handled_by(lambda *_: self._events.put(None)))
        return self

    def __exit__(self, *_: object) -> None:
        with self._signals:
            for station in self._stations.values():
                station.children.interrupt()
            for station in self._stations.values():
                station.close()

    def children(self, place: HostPlace) -> Children:
        return self._station(place).children

    def give(self, place: HostPlace, work: Work) -> None:
        """Make a device do some work; ``next_done`` returns the result."""
        self._station(place).give(work)

    def next_done(self, meeting: Meeting | None = None) -> Done:
        """Return the next finished work of any device; a signal interrupts all devices and the ``meeting``."""
        while (done := self._events.get()) is None:
            self.interrupted = True
            for station in self._stations.values():
                station.children.interrupt()
            if meeting is not None:
                meeting.interrupt()
        return done

    def _station(self, place: HostPlace) -> _Station:
        if place.name not in self._stations:
            variables, cores = place.variables, place.cores
            children = Children(trust_model_file=self._trust_model_file, variables=variables, cores=cores)
            self._stations[place.name] = _Station(place, children, self._events)
        return self._stations[place.name]


class _Station:
    def __init__(self, place: HostPlace, children: Children, events: SimpleQueue[Done | None]) -> None:
        self.children = children
        self._place = place
        self._events = events
        self._given: SimpleQueue[Work | None] = SimpleQueue()
        self.give = self._given.put
        self._thread = Thread(target=self._work, name=place.name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._given.put(None)
        self._thread.join()

    def _work(self) -> None:
        with self.children:
            while (work := self._given.get()) is not None:
                try:
                    done = Done(self._place, work())
                except BaseException as error:  # of any kind: the main thread waits for an answer
                    done = Done(self._place, None, error)
                self._events.put(done)
