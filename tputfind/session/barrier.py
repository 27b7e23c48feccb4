"""Barriers at which the processes of several devices wait for each other.

Each process waits through the thread of the parent that reads its messages.
"""

import math
import os
from contextlib import suppress
from threading import Condition
from time import monotonic
from typing import Final, Self

from tputfind.analysis import fleet
from tputfind.processes.messages import Timed

_PATIENCE_S: Final = 300.0
"""Maximum wait for the slowest process, in seconds; the processes that have arrived by then go on without it."""


class Meeting:
    """A reusable barrier for a fixed number of seats; a process that dies leaves it."""

    def __init__(self, seats: int) -> None:
        self.seats = [Seat(self) for _ in range(seats)]
        self._changed = Condition()
        self._left = seats
        self._come = 0
        self._passed = 0
        self._interrupted = False

    def wait(self) -> None:
        """Wait until every process that has not left has arrived; KeyboardInterrupt if ``interrupt`` was called."""
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
        with self._changed:
            self._left -= 1
            self._pass_if_all()

    def interrupt(self) -> None:
        """Make every waiting thread raise KeyboardInterrupt."""
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


class Seat:
    """One device's place at a meeting, as a context manager; records when its process worked, in monotonic seconds.

    ``reader`` is the file descriptor from which the process reads the signal to go on.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.reader: int | None = None
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
        """End the work of this device; the others no longer wait for it."""
        if self._busy_until_s == math.inf:
            self._busy_until_s = monotonic()
            self._meeting.leave()

    def hear(self, word: Timed) -> None:
        """Record the time of the message; let a waiting process go on when all have arrived."""
        if word.at_s is None or self._writer is None:
            return
        if word.window == "meets":
            self._busy_from_s = word.at_s if self._busy_from_s is None else self._busy_from_s
            self._meeting.wait()
            with suppress(OSError):  # the process died
                os.write(self._writer, b".")
        elif word.window == "begins" or self._window_s is None:
            self._window_s = word.at_s, word.at_s
        else:
            self._window_s = self._window_s[0], word.at_s

    @property
    def all_busy_share(self) -> float | None:
        """Fraction of the process's throughput window during which all other devices worked; None without a window."""
        others = [seat.busy_s for seat in self._meeting.seats if seat is not self]
        return None if self._window_s is None else fleet.all_busy_share_of_window(self._window_s, others)

    @property
    def busy_s(self) -> tuple[float, float] | None:
        """Start and end of the process's work (infinity while it works); None if it never worked."""
        return None if self._busy_from_s is None else (self._busy_from_s, self._busy_until_s)
