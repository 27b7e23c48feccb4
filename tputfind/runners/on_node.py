"""A job of a cluster, on the node that measures it: the same session as on any host, its record returned as JSON."""

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, Final

import msgspec

from tputfind.errors import BadRequest, TputfindError
from tputfind.processes.messages import Refusal
from tputfind.processes.ranks import children_of
from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.runners.sweep import Job, sweep
from tputfind.version import __version__

_RECORD_EVERY_S: Final = 5.0
"""Seconds between two states of an unfinished record: it is wanted only where the run is interrupted."""
ALIVE_S: Final = 10.0
"""Seconds between two words of a job that has nothing else to say."""

Tell = Callable[[str, bytes], object]
"""Takes a line of JSON for the driver; of several in the same slot, the latest is enough."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is to measure; ``trust_model_file`` as the user said on the driver."""

    spec: Spec
    command: str
    trust_model_file: bool = False


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What comes back of a job, as it goes on and at its end: never anything but JSON. One without more says: alive.

    ``number`` says which job, ``node`` is Ray's id of the node. ``record`` is the record so far; with ``refusal``, if
    anything ended it early, it is the end.
    """

    number: int
    node: str
    started: bool = False
    doing: str = ""
    seconds_left: float | None = None
    record: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    refusal: Refusal | None = None


def answer(head: Mapping[str, Any], request: bytes, tell: Tell) -> bytes:
    """Measure what was asked, and return the last word of it."""
    word = Word(**head)
    record: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    ended_by: BaseException | None
    with suppress(OSError):  # Ray starts its workers at niceness 15, and only root may lower it again
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        asked = msgspec.json.decode(request, type=Request)
        job = Job([asked.spec], None, asked.command)
        with _alive(word, tell), children_of(asked.spec, trust_model_file=asked.trust_model_file) as children:
            (measured,) = sweep(job, children, _Telling(word, tell))
        ended_by, record = measured.ended_by, msgspec.Raw(msgspec.json.encode(measured.record))
    except TputfindError as refused:
        ended_by = refused
    except msgspec.ValidationError as unknown:  # of the request: what a child says is checked where it is heard
        what = f"tputfind {__version__} of the node does not understand the request: {unknown}"
        ended_by = BadRequest(what, "install the same tputfind on all nodes")
    except Exception as defect:  # of ours: told as one, and not pickled
        what = f"a fault of tputfind's on the node: {type(defect).__name__}: {defect}"
        ended_by = TputfindError(what, "", traceback.format_exc())
    refusal = Refusal.of(ended_by) if isinstance(ended_by, TputfindError) else None
    return msgspec.json.encode(msgspec.structs.replace(word, record=record, refusal=refusal))


@contextmanager
def _alive(word: Word, tell: Tell) -> Iterator[None]:
    """Say now and then that the job's process is there."""
    ended = Event()

    def say() -> None:
        while not ended.wait(ALIVE_S):
            tell("alive", msgspec.json.encode(word))

    thread = Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Telling:
    """Progress that goes to the driver."""

    def __init__(self, word: Word, tell: Tell) -> None:
        self._word = word
        self._tell = tell
        self._next_s = 0.0

    def about(self, subject: str) -> None:
        """The driver names the job itself."""

    def doing(self, what: str, seconds_left: float | None) -> None:
        word = msgspec.structs.replace(self._word, doing=what, seconds_left=seconds_left)
        self._tell("doing", msgspec.json.encode(word))

    def did(self, what: str) -> None:
        self.doing(what, None)

    def measured(self, record: Record) -> None:
        if time.monotonic() >= self._next_s:
            raw = msgspec.Raw(msgspec.json.encode(record))
            self._tell("record", msgspec.json.encode(msgspec.structs.replace(self._word, record=raw)))
            self._next_s = time.monotonic() + _RECORD_EVERY_S
