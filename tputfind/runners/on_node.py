"""A job of a cluster, on its node: the same session as on any host; its record is returned as JSON."""

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, Final

import msgspec

from tputfind.errors import BadRequest, TputfindError
from tputfind.processes.children import Children
from tputfind.processes.messages import Refusal
from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.runners.sweep import Job, sweep
from tputfind.version import __version__

_RECORD_EVERY_S: Final = 5.0
"""Seconds between two states of an unfinished record, which are used if the run is interrupted or the node is lost."""
ALIVE_S: Final = 10.0
"""Seconds between two messages of a job that has nothing else to report."""

Tell = Callable[[str, bytes], object]
"""Sends a line of JSON to the driver; a newer line replaces an older one in the same slot."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A job for a node; ``trust_model_file`` is the user's choice on the driver."""

    spec: Spec
    command: str
    trust_model_file: bool = False


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message from a job, during its run and at its end, always as JSON. A message with only the ids means: alive.

    ``number`` is the number of the job, ``node`` is Ray's id of the node. ``record`` is the record so far; the last
    message holds the final record, and ``refusal`` if an error ended the job.
    """

    number: int
    node: str
    started: bool = False
    doing: str = ""
    seconds_left: float | None = None
    record: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    refusal: Refusal | None = None


def answer(head: Mapping[str, Any], request: bytes, tell: Tell) -> bytes:
    """Measure a request; return the last message, as JSON."""
    word = Word(**head)
    record: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    ended_by: BaseException | None
    with suppress(OSError):  # Ray starts its workers at niceness 15, and only root may lower it again
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        asked = msgspec.json.decode(request, type=Request)
        job, telling = Job([asked.spec], None, asked.command), _Telling(word, tell)
        with _alive(word, telling), Children(trust_model_file=asked.trust_model_file) as children:
            (measured,) = sweep(job, children, telling)
        ended_by, record = measured.ended_by, msgspec.Raw(msgspec.json.encode(measured.record))
    except TputfindError as refused:
        ended_by = refused
    except msgspec.ValidationError as unknown:  # in the request: messages of children are checked where they are read
        what = f"tputfind {__version__} of the node does not understand the request: {unknown}"
        ended_by = BadRequest(what, "install the same tputfind on all nodes")
    except Exception as defect:  # a bug of tputfind: reported as such, and not pickled
        what = f"a fault of tputfind's on the node: {type(defect).__name__}: {defect}"
        ended_by = TputfindError(what, "", traceback.format_exc())
    refusal = Refusal.of(ended_by) if isinstance(ended_by, TputfindError) else None
    return msgspec.json.encode(msgspec.structs.replace(word, record=record, refusal=refusal))


class _Telling:
    def __init__(self, word: Word, tell: Tell) -> None:
        self._word = word
        self.tell = tell
        self._next_s = 0.0
        self._unsent: Record | None = None

    def about(self, subject: str) -> None:
        """Do nothing: the driver names the job itself."""

    def doing(self, what: str, seconds_left: float | None) -> None:
        word = msgspec.structs.replace(self._word, doing=what, seconds_left=seconds_left)
        self.tell("doing", msgspec.json.encode(word))

    def did(self, what: str) -> None:
        self.doing(what, None)

    def measured(self, record: Record) -> None:
        self._unsent = record
        self.send()

    def send(self) -> None:
        """Send the latest record if it was not sent, at most every ``_RECORD_EVERY_S``; two threads call this."""
        record = self._unsent
        if record is not None and time.monotonic() >= self._next_s:
            self._unsent, self._next_s = None, time.monotonic() + _RECORD_EVERY_S
            raw = msgspec.Raw(msgspec.json.encode(record))
            self.tell("record", msgspec.json.encode(msgspec.structs.replace(self._word, record=raw)))


@contextmanager
def _alive(word: Word, telling: _Telling) -> Iterator[None]:
    """Send a message every ``ALIVE_S`` seconds while the job's process is alive, and a record that was kept back."""
    ended = Event()

    def say() -> None:
        while not ended.wait(ALIVE_S):
            telling.tell("alive", msgspec.json.encode(word))
            telling.send()

    thread = Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
