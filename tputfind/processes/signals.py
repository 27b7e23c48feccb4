"""Handlers of the signals that stop a run, set for a limited time."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, the polite request to end, and a closed terminal."""
Handler = Callable[[int, FrameType | None], Any] | int


@contextmanager
def restore_handlers() -> Iterator[Mapping[int, Handler]]:
    """Yield the handlers of the signals that stop a run, and restore them at the end.

    Only the main thread may set handlers; in any other thread the mapping is empty.
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
    """Set a handler for the signals that stop a run; yield the previous handlers, and restore them at the end.

    A signal that was ignored from the start, as under nohup, stays ignored.
    """
    with restore_handlers() as before:
        set_handlers({each: handler for each, was in before.items() if was != signal.SIG_IGN})
        yield before


def set_handlers(handlers: Mapping[int, Handler]) -> None:
    for each, handler in handlers.items():
        signal.signal(each, handler)
