"""The signals that stop a run: who takes them, and for how long."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, what ends a process politely, and a terminal that is gone."""
Handler = Callable[[int, FrameType | None], Any] | int


@contextmanager
def restored() -> Iterator[Mapping[int, Handler]]:
    """Yield what takes the signals that stop a run, and have it take them again in the end.

    In another thread than the main one, which alone may set handlers, there is nothing to keep.
    """
    in_main = threading.current_thread() is threading.main_thread()
    before: dict[int, Handler] = {
        each: was for each in STOPPING if in_main and (was := signal.getsignal(each)) is not None
    }
    try:
        yield before
    finally:
        set_handlers(before)


@contextmanager
def handled_by(handler: Handler) -> Iterator[Mapping[int, Handler]]:
    """Have a handler take the signals that stop a run meanwhile; yield those before it.

    A signal that was ignored from the start, as under nohup, stays ignored.
    """
    with restored() as before:
        set_handlers({each: handler for each, was in before.items() if was != signal.SIG_IGN})
        yield before


def set_handlers(handlers: Mapping[int, Handler]) -> None:
    """Set the handler of each signal."""
    for each, handler in handlers.items():
        signal.signal(each, handler)
