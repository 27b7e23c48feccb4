"""Where the processes of several devices wait for each other, each through the thread of this process that hears it."""

from __future__ import annotations

from threading import Condition
from typing import Final

_PATIENCE_S: Final = 300.0
"""Nobody waits longer than this for the slowest: who has come by then goes on without it."""


class Meeting:
    """A barrier that is passed again and again, and that whoever dies leaves."""

    def __init__(self, seats: int) -> None:
        """Take how many are to come."""
        self._changed = Condition()
        self._seats = seats
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
            self._seats -= 1
            self._pass_if_all()

    def interrupt(self) -> None:
        """Send everybody home."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def _pass_if_all(self) -> None:
        if 0 < self._seats <= self._come:
            self._pass()

    def _pass(self) -> None:
        self._come = 0
        self._passed += 1
        self._changed.notify_all()


class Seat:
    """One device's place at a meeting, and when its process worked there, by the host's monotonic clock."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.busy_from_s: float | None = None
        self.window_s: tuple[float, float] | None = None
        self.busy_until_s: float | None = None

    def meets(self, at_s: float) -> None:
        """The process has come so far, and works on until the others have."""
        self.busy_from_s = at_s if self.busy_from_s is None else self.busy_from_s
        self._meeting.wait()

    def window(self, at_s: float, *, begins: bool) -> None:
        """The window of the process begins, or has ended."""
        self.window_s = (at_s, at_s) if begins or self.window_s is None else (self.window_s[0], at_s)

    def leave(self, at_s: float) -> None:
        """The process works no more."""
        if self.busy_until_s is None:
            self.busy_until_s = at_s
            self._meeting.leave()
