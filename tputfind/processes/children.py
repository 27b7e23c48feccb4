"""The parent's side of the child processes: ask one question of a fresh process and wait, asleep, for its answers."""

from __future__ import annotations

import fcntl
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Final, Self, TypeVar

import msgspec

from tputfind.errors import BrokenInstall, OutOfTime, TputfindError
from tputfind.processes import failures
from tputfind.processes.messages import Envelope, Group, Question, Reply
from tputfind.record.record import Failure
from tputfind.record.untrusted import printable_json
from tputfind.units import printable

Answer = TypeVar("Answer")

COMPILER_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
"""Names the folder that compilers keep what they made in: a fresh one for each run, so that its times are the same.
The server makes it: see ``folder``."""
TRUSTED: Final = "TPUTFIND_TRUST_MODEL_FILE"
"""Tells the server and its children whether the user trusts the files of models; no record can say so."""
LIVE_OBJECT: Final = "TPUTFIND_LIVE_OBJECT"
"""Tells the server and its children which open file holds the user's own object, by number; no record can say so."""
ONLY_DEVICE: Final = "TPUTFIND_ONLY_DEVICE"
"""Names the one device that a server and its children see, as they name it, whatever it is called in what they are
asked: ``cuda:2`` of the host is ``cuda:0`` where no other is visible."""
KILL: Final = b"kill"
"""What the parent sends the server to end the child at work."""
IMPORT: Final = b"import "
"""What the parent sends the server, and a name, to have it import what the children to come need."""
_TAIL_BYTES: Final = 4096
_GRACE_S: Final = 3.0
"""What a child that says no more is given to end by itself, so that its own status is known. A GPU's memory is given
back before the status is there."""
_LAST_S: Final = 30.0
"""What a child that was killed is given to end; one that hangs in a driver does not, whatever is sent to it."""
_START_S: Final = 600.0
_LONGEST_MESSAGE_BYTES: Final = 2**28
_OUT_OF_TIME: Final = ("--budget ended before a batch was timed", "give it more time")
_OF_THE_REST: Final = 2 / 3
"""A trial that starts just before its share of the time ends may take this fraction of the time beyond."""
_LEFT_S: Final = 2.0
"""Least time that such a trial leaves, so that what fits is still timed."""
_PATIENCE: Final = 3
"""A stage may take this many times as long as the child said it would."""


class ChildFailed(TputfindError):
    """Raised when a child ends without having said all: killed, aborted, exited, silent, or speaking rubbish.

    ``failure`` says which, as a record would: ``died`` or ``timeout``.
    """

    exit_code = BrokenInstall.exit_code

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Children:
    """Asks questions of fresh child processes; use it as a context manager.

    One server process per run imports torch once, and what else is needed, and forks a child for every question, so
    that a trial costs a fork and not an import, and starts from the same memory as every other. It is not
    multiprocessing's forkserver because that imports the caller's ``__main__`` again in every child and keeps import
    errors to itself.
    """

    def __init__(
        self,
        *,
        trust_model_file: bool = False,
        live: IO[bytes] | None = None,
        variables: Mapping[str, str] | None = None,
        cores: frozenset[int] | None = None,
    ) -> None:
        """Take whether the files of models are trusted, and the file of the user's own object, where that is measured.

        The caller closes the file; children open it again by its number, so that it needs no name. ``variables`` are
        added to the environment of the server and its children, which run on these ``cores`` only.
        """
        self._shared = () if live is None else (live.fileno(),)
        self._told = {TRUSTED: "1" if trust_model_file else "0", LIVE_OBJECT: "".join(map(str, self._shared))}
        self._told |= variables or {}
        self.cores = cores
        self._interrupted, self._interrupting = Pipe(duplex=False)
        self._server: subprocess.Popen[bytes] | None = None
        self._control: Connection | None = None
        self._log: IO[bytes] | None = None
        self._cache: Path | None = None
        self._imports: dict[str, str] = {}
        self._sending = Lock()
        self._deadline_s: float | None = None
        self._last_start_s: float | None = None
        self._end_s = math.inf  # of the whole, of which trials may start in a share

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server, and with it every child."""
        if self._control is not None:
            self._control.close()  # at which the server ends what it has started, and itself
        if self._server is not None:
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(_GRACE_S)
            self._server.kill()
            self._server.wait()
        if self._log is not None:
            self._log.close()
        if self._cache is not None:
            shutil.rmtree(self._cache, ignore_errors=True)  # of a server that was killed
        self._server = self._control = self._log = self._cache = None

    def end_within(self, seconds: float | None) -> None:
        """Kill what is still at work this long after now; None lets it work on."""
        self._deadline_s = None if seconds is None else time.monotonic() + seconds

    def interrupt(self) -> None:
        """Have the thread that asks, now or next, meet a KeyboardInterrupt. Another thread may call it."""
        self._interrupting.send_bytes(b"")

    def end_child(self) -> None:
        """End the child at work, if there is one; whoever hears it sees it die. Another thread may call it."""
        with self._sending:
            if self._control is not None:
                with suppress(OSError):
                    self._control.send_bytes(KILL)

    @property
    def server_pid(self) -> int | None:
        """The process that every child descends from; None where it has not started."""
        return None if self._server is None else self._server.pid

    @contextmanager
    def for_a_share(self, share: float) -> Iterator[None]:
        """Let trials start within this share of the time that is left, and take up to two thirds of the rest.

        A trial that is killed has cost its time for nothing. Two seconds are left in any case.
        """
        whole_s = self._deadline_s
        if whole_s is not None:
            now_s = time.monotonic()
            self._last_start_s, self._end_s = now_s + share * (whole_s - now_s), whole_s
            rest_s = whole_s - self._last_start_s
            self._deadline_s = self._last_start_s + max(0.0, min(_OF_THE_REST * rest_s, rest_s - _LEFT_S))
        try:
            yield
        finally:
            self._deadline_s, self._last_start_s = whole_s, None

    def check_start(self, needed_s: float) -> None:
        """Raise OutOfTime if the share of the time in which trials may start is over, or does not leave so much."""
        if self._last_start_s is not None and time.monotonic() > min(self._last_start_s, self._end_s - needed_s):
            raise OutOfTime(*_OUT_OF_TIME)

    def preload(self, package: str) -> str:
        """Have the server import a package, so that every child finds it there; return nothing, or why it cannot be.

        Raises:
            BrokenInstall: the server does not start, or torch does not import.
        """
        control = self._connected()
        if package not in self._imports:
            self._imports[package] = self._imported(control, package)
        return self._imports[package]

    def ask(
        self,
        question: Question,
        answer_type: type[Answer],
        timeout_s: float | None = None,
        gate: int | None = None,
        group: Group | None = None,
    ) -> Generator[Answer]:
        """Yield the answers of one fresh child as they come, and end when it has ended.

        Leaving early kills the child. So does a silence of ``timeout_s`` seconds beyond what the child announced. From
        ``gate``, the reading end of a pipe, the child reads when it may go on: see ``worker.handlers``. It is one of a
        ``group`` if there is one: see ``ranks``.

        Raises:
            TputfindError: the child refused the question.
            ChildFailed: the child ended without having said all, or was silent for too long.
            OutOfTime: the end that ``end_within`` set has come.
            KeyboardInterrupt: ``interrupt`` was called.
        """
        control = self._connected()
        answers, theirs = os.pipe()
        with tempfile.TemporaryFile() as output:
            try:
                try:
                    handles = (theirs, output.fileno(), output.fileno() if gate is None else gate)
                    with self._sending:
                        _hand_over(control, Envelope(question=question, group=group), handles)
                finally:
                    os.close(theirs)
                yield from self._heard(control, answers, output, answer_type, timeout_s)
            finally:
                os.close(answers)

    def ask_one(self, question: Question, answer_type: type[Answer], timeout_s: float | None = None) -> Answer:
        """Return the one answer of a fresh child; errors as for ``ask``."""
        answers = list(self.ask(question, answer_type, timeout_s))
        if len(answers) != 1:
            raise ChildFailed(Failure(kind="died", message=f"gave {len(answers)} answers to one question"))
        return answers[0]

    def _heard(
        self,
        control: Connection,
        answers: int,
        output: IO[bytes],
        answer_type: type[Answer],
        timeout_s: float | None,
    ) -> Generator[Answer]:
        """Yield the answers, see the child to its end, and say what became of it if that was not the end of them."""
        failure: Failure | None = None
        finished, leaving = False, True
        lines = _Lines(answers, control, self._interrupted, self._deadline_s)
        try:
            finished = yield from _answers(lines, answer_type, timeout_s)
            leaving = False
        except _Silent as silence:
            failure = failures.of_silence(silence.seconds)
        finally:
            killed = not control.poll(0 if leaving else _GRACE_S)
            if killed:
                with suppress(OSError):
                    control.send_bytes(KILL)
            status = self._exit_status(control)
        if not finished:
            if killed and status == -signal.SIGKILL:  # one that was dying of something else keeps that status
                failure = failure or failures.of_misuse()
            raise ChildFailed(failure or failures.of_death(status, _last_line(output), lines.doing))

    def _connected(self) -> Connection:
        if self._control is None:
            ours, theirs = Pipe(duplex=True)
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close
            self._cache = new_path()
            pinned = "" if self.cores is None else f"os.sched_setaffinity(0, {sorted(self.cores)}); "
            program = (
                f"import os, sys; {pinned}sys.path[:] = {sys.path!r}; "
                f"from tputfind.worker.server import serve; serve({theirs.fileno()}); "
                "os._exit(0)"  # taking torch down in order takes time, and serves nobody
            )
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno(), *self._shared],
                start_new_session=True,
                env={**os.environ, COMPILER_CACHE: str(self._cache), **self._told},
            )
            theirs.close()
            self._control = ours
            problem = self._word(ours)
            if problem:
                self.close()
                raise BrokenInstall(f"torch does not import: {problem}", REINSTALL)
            for package in self._imports:  # of the server before, which died
                self._imported(ours, package)
        return self._control

    def _imported(self, control: Connection, package: str) -> str:
        with suppress(OSError):  # a dead server shows as it is listened to
            control.send_bytes(IMPORT + package.encode())
        return self._word(control)

    def _word(self, control: Connection) -> str:
        """Return what the server says of an import: nothing, or why it failed."""
        ready = wait([control, self._interrupted], _START_S)
        if self._interrupted in ready:
            raise KeyboardInterrupt
        with suppress(EOFError, OSError):
            if ready:
                return control.recv_bytes().decode()
        failure = self._death() if ready else failures.of_silence(_START_S)
        self.close()
        hint = RUN_AGAIN if failures.for_want_of_memory(failure) else REINSTALL
        raise BrokenInstall(f"the measuring process does not start: {failure.message}", hint)

    def _death(self) -> Failure:
        """Return how the server ended."""
        status = None
        if self._server is not None:
            with suppress(subprocess.TimeoutExpired):
                status = self._server.wait(_GRACE_S)
        return failures.of_death(status, _last_line(self._log))

    def _exit_status(self, control: Connection) -> int | None:
        """Wait for the child's exit status; None where the server died too, or both hang: the next one is new."""
        try:
            if control.poll(_LAST_S):
                return int(control.recv_bytes())
        except (EOFError, OSError, ValueError):
            pass
        self.close()
        return None


REINSTALL: Final = "install the pair that goes together: pip install --upgrade --force-reinstall torch torchvision"
RUN_AGAIN: Final = "free memory of the host, and run it again"


def _hand_over(control: Connection, envelope: Envelope, handles: Sequence[int]) -> None:
    """Send the server a question, the pipe for its answers, the file for what the child prints, and its gate."""
    with suppress(OSError):  # a dead server shows as the end of both pipes
        control.send_bytes(msgspec.json.encode(envelope))
        for handle in handles:
            send_handle(control, handle, None)


def _answers(lines: _Lines, answer_type: type[Answer], timeout_s: float | None) -> Generator[Answer, None, bool]:
    """Yield each answer; return (as the generator's value) whether the child said that it had said all."""
    allowed_s = timeout_s
    while (line := lines.read(allowed_s)) is not None:
        try:
            reply = msgspec.json.decode(printable_json(line), type=Reply)
            answer = msgspec.json.decode(reply.answer, type=answer_type) if bytes(reply.answer) else None
        except (msgspec.DecodeError, RecursionError):
            return False
        if reply.refusal is not None:
            raise reply.refusal.to_error()
        if reply.done:
            return True
        lines.doing = reply.doing
        allowed_s = None if timeout_s is None else timeout_s + _PATIENCE * (reply.busy_s or 0.0)
        if answer is not None:
            yield answer
    return False


class _Silent(Exception):
    """Raised when a child says nothing for as long as it may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class _Lines:
    """The lines that a child writes, none waited for longer than is allowed, whatever it writes instead."""

    def __init__(self, answers: int, control: Connection, interrupted: Connection, deadline_s: float | None) -> None:
        self._answers = answers
        self._control = control
        self._interrupted = interrupted
        self._deadline_s = math.inf if deadline_s is None else deadline_s
        self._held = bytearray()
        self.doing = ""
        """What the child does until its next message, if it said so."""

    def read(self, allowed_s: float | None) -> bytes | None:
        """Return the next line, or None where the child has ended or writes what is no line of ours.

        Raises:
            _Silent: it did neither until the time-out.
            OutOfTime: nor until the deadline.
            KeyboardInterrupt: another thread interrupts.
        """
        silent_s = math.inf if allowed_s is None else time.monotonic() + allowed_s
        until_s = min(silent_s, self._deadline_s)
        while (end := self._held.find(b"\n")) < 0:
            left = None if until_s == math.inf else max(0.0, until_s - time.monotonic())
            ready = wait([self._answers, self._control, self._interrupted], left)
            if self._interrupted in ready:
                raise KeyboardInterrupt
            if not ready and until_s == self._deadline_s:
                raise OutOfTime(*_OUT_OF_TIME)
            if not ready:
                raise _Silent(allowed_s or 0.0)
            # The end of the process may be told before its last words were read.
            more = os.read(self._answers, 2**16) if self._answers in wait([self._answers], 0) else b""
            if not more or len(self._held) > _LONGEST_MESSAGE_BYTES:
                return None
            self._held += more
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return line


def _last_line(output: IO[bytes] | None) -> str:
    if output is None:
        return ""
    end = output.seek(0, os.SEEK_END)
    output.seek(max(0, end - _TAIL_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    return printable(next((line.strip() for line in reversed(lines) if line.strip()), ""))


_OURS: Final = re.compile("tputfind-compiled-[0-9a-f]{16}")
"""Nothing else is ever removed: a user may well have a /tmp/tputfind-results."""


def new_path() -> Path:
    """Return where a folder may be made that nothing else has the name of."""
    return Path(tempfile.gettempdir(), f"tputfind-compiled-{secrets.token_hex(8)}")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Make the folder, hold it against every sweep, and remove it in the end; remove what was left beside it."""
    lock = _made(path)
    try:
        _sweep(path.parent)
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _made(path: Path) -> int:
    """Return the lock on a folder that was made, again where a sweep came between the two."""
    while True:
        path.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return lock
            os.close(lock)


def _sweep(temporary: Path) -> None:
    """Remove the folders of this user's runs that were killed: those that nobody holds."""
    with suppress(OSError):  # nothing of the run depends on it
        for entry in list(os.scandir(temporary)):
            if _OURS.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    with suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
