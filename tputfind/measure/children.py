"""The parent's side of the child processes: ask one question of a fresh process and wait, asleep, for its answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from types import TracebackType
from typing import IO, Final, Self, TypeVar

import msgspec

from tputfind.errors import BY_NAME, BrokenInstall, TputfindError
from tputfind.measure.messages import Question, Ready, Reply

Answer = TypeVar("Answer")

KILL: Final = b"kill"
"""What the parent sends the server to end the child at work."""
_TAIL_BYTES: Final = 4096
_GRACE_S: Final = 1.0
"""What a child that says no more is given to end by itself, so that its own status is known."""


class ChildDied(TputfindError):
    """Raised when a child ends without having said all: killed, aborted, exited, or speaking rubbish."""

    exit_code = BrokenInstall.exit_code


class Children:
    """Asks questions of fresh child processes; use it as a context manager.

    One server process per run imports torch and torchvision once and forks a child for every question, so that a trial
    costs a fork and not an import, and starts from the same memory as every other. It is not multiprocessing's
    forkserver because that imports the caller's ``__main__`` again in every child and keeps import errors to itself.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._control: Connection | None = None
        self._log: IO[bytes] | None = None
        self._ready: Ready | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server, and with it every child."""
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        if self._log is not None:
            self._log.close()
        self._server = self._control = self._log = None

    def ready(self) -> Ready:
        """Start the server if there is none, and return what it could import.

        Raises:
            BrokenInstall: the server does not start, or torch does not import.
        """
        self._connected()
        assert self._ready is not None
        return self._ready

    def ask(self, question: Question, answer_type: type[Answer]) -> Generator[Answer]:
        """Yield the answers of one fresh child as they come, and end when it has ended.

        Leaving early kills the child.

        Raises:
            TputfindError: the child refused the question.
            ChildDied: the child ended without having said all; the message says how, with its last line of output.
        """
        control = self._connected()
        answers, theirs = Pipe(duplex=False)
        with answers, tempfile.TemporaryFile() as output:
            with theirs:
                _hand_over(control, question, theirs, output)
            finished, leaving = False, True
            try:
                finished = yield from _answers(control, answers, answer_type)
                leaving = False
            finally:
                if not finished and not control.poll(0 if leaving else _GRACE_S):
                    with suppress(OSError):
                        control.send_bytes(KILL)
                status = self._exit_status(control)
            if not finished:
                raise ChildDied(_cause_of_death(status, output))

    def ask_one(self, question: Question, answer_type: type[Answer]) -> Answer:
        """Return the one answer of a fresh child; errors as for ``ask``."""
        answers = list(self.ask(question, answer_type))
        if len(answers) != 1:
            raise ChildDied(f"gave {len(answers)} answers to one question")
        return answers[0]

    def _connected(self) -> Connection:
        if self._control is None:
            ours, theirs = Pipe(duplex=True)
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                f"from tputfind.measure.server import serve; serve({theirs.fileno()})"
            )
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
            self._control = ours
            self._ready = self._greeting(ours)
        return self._control

    def _greeting(self, control: Connection) -> Ready:
        try:
            ready = msgspec.json.decode(control.recv_bytes(), type=Ready)
        except (EOFError, OSError, msgspec.DecodeError):
            last = _last_line(self._log)
            self.close()
            raise BrokenInstall(f"the measuring process does not start: {last}", REINSTALL) from None
        if ready.torch_problem:
            self.close()
            raise BrokenInstall(f"torch does not import: {ready.torch_problem}", REINSTALL)
        return ready

    def _exit_status(self, control: Connection) -> int | None:
        """Wait for the child's exit status; None where the server died too, which the next question replaces."""
        try:
            return int(control.recv_bytes())
        except (EOFError, OSError, ValueError):
            self.close()
            return None


REINSTALL: Final = "install the pair that goes together: pip install --upgrade --force-reinstall torch torchvision"


def _hand_over(control: Connection, question: Question, answers: Connection, output: IO[bytes]) -> None:
    """Send the server a question, the pipe for its answers and the file for what the child prints."""
    with suppress(OSError):  # a dead server shows as the end of both pipes
        control.send_bytes(msgspec.json.encode(question))
        for handle in (answers.fileno(), output.fileno()):
            send_handle(control, handle, None)


def _answers(control: Connection, answers: Connection, answer_type: type[Answer]) -> Generator[Answer, None, bool]:
    """Yield each answer; return (as the generator's value) whether the child said that it had said all."""
    while True:
        ended = answers not in wait([answers, control])
        if ended and not answers.poll():
            return False
        try:
            reply = msgspec.json.decode(answers.recv_bytes(), type=Reply)
            answer = msgspec.json.decode(reply.answer, type=answer_type) if bytes(reply.answer) else None
        except (EOFError, OSError, msgspec.DecodeError):
            return False
        if reply.refusal is not None:
            said = reply.refusal
            raise BY_NAME[said.error](said.message, said.hint, said.traceback)
        if reply.done:
            return True
        if answer is not None:
            yield answer


def _cause_of_death(status: int | None, output: IO[bytes]) -> str:
    if status is None:
        how = "the measuring process was killed from outside"
    elif status < 0:
        how = f"killed by {signal.Signals(-status).name}"
    else:
        how = f"exited with status {status} before it had answered"
    last = _last_line(output)
    return f"{how}: {last}" if last else how


def _last_line(output: IO[bytes] | None) -> str:
    if output is None:
        return ""
    end = output.seek(0, os.SEEK_END)
    output.seek(max(0, end - _TAIL_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
