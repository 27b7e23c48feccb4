"""Event loops on one simulated clock: asyncio code runs unchanged, and waiting takes no real time.

Each loop stands for one thread. If a loop is blocked, it goes on later, and the others meanwhile. Their messages reach
it before its next step, as those of ``call_soon_threadsafe`` do between real threads.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from itertools import count
from math import inf
from typing import Any, Final

_LATE_S: Final = 1e-9
"""Delay of timers: they are never early, and code that reads the clock relies on that."""


class World:
    """Threads with an event loop each, and the clock that they share."""

    def __init__(self) -> None:
        self.loops: list[Loop] = []
        self.active: Loop | None = None

    def loop(self) -> Loop:
        """Return the loop of a new thread."""
        self.loops.append(Loop(self))
        return self.loops[-1]

    def time(self) -> float:
        """Return the time of the calling thread, in s."""
        return 0.0 if self.active is None else self.active.clock_s

    def block(self, duration_s: float) -> None:
        """Block the calling thread for a duration."""
        assert self.active is not None
        self.active.block(duration_s)

    async def compute(self, duration_s: float, *, blocking: bool) -> None:
        """Take a while, like a model that is called on the loop (``blocking``) or in another thread."""
        if blocking:
            self.block(duration_s)
        else:
            await asyncio.sleep(duration_s)

    def run(self, is_done: Callable[[], bool]) -> None:
        """Run all loops, the one with the earliest time first, until ``is_done``."""
        while not is_done():
            loop = min(self.loops, key=Loop.next_s)
            self.active = loop
            events._set_running_loop(loop)  # noqa: SLF001  # as asyncio's own run_forever has it
            loop.turn()
            events._set_running_loop(None)  # noqa: SLF001
        self.active = None


class Loop(asyncio.BaseEventLoop):
    """The event loop of one thread."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, world: World) -> None:
        super().__init__()
        self.set_exception_handler(_exit_on_error)
        self.clock_s = 0.0
        self._world = world
        self._mail: list[tuple[float, int, asyncio.Handle]] = []
        self._numbers = count()
        self._left, self._mark = 0, 0

    def time(self) -> float:
        """Return the time of this thread, in s."""
        return self.clock_s

    def next_s(self) -> float:
        """Return the time of its next event, in s."""
        if self._ready:
            return self.clock_s
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        timer_s = self._scheduled[0].when() if self._scheduled else inf
        mail_s = self._mail[0][0] if self._mail else inf
        return max(self.clock_s, min(timer_s, mail_s))

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call back at the time of the calling thread, or after the block that this thread is in."""
        handle = asyncio.Handle(callback, args, self, context)
        sent_s = self._world.time()
        if sent_s < self.clock_s:
            self._ready.insert(self._mark, handle)
            self._mark += 1
        else:
            heapq.heappush(self._mail, (sent_s, next(self._numbers), handle))
        return handle

    def block(self, duration_s: float) -> None:
        """Advance the clock of this thread."""
        self.clock_s += duration_s
        self._mark = len(self._ready) - self._left

    def turn(self) -> None:
        """Run the next events once, as ``BaseEventLoop._run_once`` does."""
        self.clock_s = now_s = self.next_s()
        while self._mail and self._mail[0][0] <= now_s:
            self._ready.append(heapq.heappop(self._mail)[2])
        while self._scheduled and self._scheduled[0].when() <= now_s:
            timer = heapq.heappop(self._scheduled)
            self.clock_s = now_s + _LATE_S
            if not timer.cancelled():
                self._ready.append(timer)
        for left in reversed(range(len(self._ready))):
            self._left = left
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001  # as asyncio's own loop does


def _exit_on_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exit on any error. A task that is left at the end is not an error."""
    if "exception" in context:
        raise SystemExit(f"{context['message']}: {context['exception']!r}")
