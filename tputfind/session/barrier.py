"""Where the processes of several devices wait for each other, each through the thread of this process that hears it."""

import math
import os
from contextlib import suppress
from threading import Condition
from time import monotonic
from typing import Final, Self

from tputfind.analysis import fleet
from tputfind.processes.messages import Timed

_PATIENCE_S: Final = 300.0
"""Nobody waits longer than this for the slowest: who has come by then goes on without it."""


class Barrier:
    """What a process that times waits at, as a context manager: at nothing, since its device is measured alone."""

    reader: int | None = None
    """The descriptor from which the process reads that it may go on."""

    @property
    def all_busy_share(self) -> float | None:
        """The share of the process's throughput window during which all others worked; None if there are no others."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The process works no more."""

    def hear(self, word: Timed) -> None:
        """Take in what the process says; where it waits for others, return when it may go on."""


class Meeting:
    """A barrier that is passed again and again, and that whoever dies leaves."""

    def __init__(self, seats: int) -> None:
        """Take how many are to come."""
        self.seats = [Seat(self) for _ in range(seats)]
        self._changed = Condition()
        self._left = seats
        self._come = 0
        self._passed = 0
        self._interrupted = False

    def wait(self) -> None:
        """Wait until all that are left have come.

        Raises:
            KeyboardInterrupt: ``interrupt`` was called.
        """
        with self._changed:
            before = self._passed
            self._come += 1
            self._pass_if_all()
            self._changed.wait_for(lambda: self._passed > before or self._interrupted, _PATIENCE_S)
            if self._passed == before:
                self._pass()
            if self._interrupted:
                raise KeyboardInterrupt

    def leave(self) -> None:
        """Come no more."""
        with self._changed:
            self._left -= 1
            self._pass_if_all()

    def interrupt(self) -> None:
        """Send everybody home."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def _pass_if_all(self) -> None:
        if 0 < self._left <= self._come:
            self._pass()

    def _pass(self) -> None:
        self._come = 0
        self._passed += 1
        self._changed.notify_all()


class Seat(Barrier):
    """One device's place at a meeting, and when its process worked there, by the host's monotonic clock."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._writer: int | None = None
        self._window_s: tuple[float, float] | None = None
        self._busy_from_s: float | None = None
        self._busy_until_s = math.inf

    def __enter__(self) -> Self:
        self.reader, self._writer = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        for end in (self.reader, self._writer):
            if end is not None:
                os.close(end)

    def leave(self) -> None:
        """Work no more, or not at all."""
        if self._busy_until_s == math.inf:
            self._busy_until_s = monotonic()
            self._meeting.leave()

    def hear(self, word: Timed) -> None:
        """Keep when the process came where, and let it go on when all have come."""
        if word.at_s is None or self._writer is None:
            return
        if word.window == "meets":
            self._busy_from_s = word.at_s if self._busy_from_s is None else self._busy_from_s
            self._meeting.wait()
            with suppress(OSError):  # it died
                os.write(self._writer, b".")
        elif word.window == "begins" or self._window_s is None:
            self._window_s = word.at_s, word.at_s
        else:
            self._window_s = self._window_s[0], word.at_s

    @property
    def all_busy_share(self) -> float | None:
        others = [seat.busy_s for seat in self._meeting.seats if seat is not self]
        return None if self._window_s is None else fleet.all_busy_share_of_window(self._window_s, others)

    @property
    def busy_s(self) -> tuple[float, float] | None:
        """From when until when the process worked, as far as is known; None if it never did."""
        return None if self._busy_from_s is None else (self._busy_from_s, self._busy_until_s)
