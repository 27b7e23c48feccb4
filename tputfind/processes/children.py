"""The parent's side of the child processes: send one question to a fresh process and wait for its answers."""

from __future__ import annotations

import itertools
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
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from threading import Lock
from typing import IO, Final, Self, TypeVar

import msgspec

from tputfind.errors import BadRequest, BrokenInstall, NoSuchDevice, OutOfTime
from tputfind.processes import failures
from tputfind.processes.cores import device_cores, here, is_host
from tputfind.processes.failures import ChildFailed
from tputfind.processes.messages import Envelope, Group, ListDevices, Question, Reply
from tputfind.processes.ranks import Job
from tputfind.record.environment import Environment
from tputfind.record.record import Failure
from tputfind.record.spec import Spec
from tputfind.record.untrusted import printable_json
from tputfind.units import printable

Answer = TypeVar("Answer")

COMPILER_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable with the compilers' cache folder. Each run has a fresh one, so that compile times do not
depend on earlier runs. The server makes and removes it; the parent removes that of a killed server."""
TRUSTED: Final = "TPUTFIND_TRUST_MODEL_FILE"
"""Environment variable that says whether the user trusts model files; a record cannot set it."""
LIVE_OBJECT: Final = "TPUTFIND_LIVE_OBJECT"
"""Environment variable with the number of the open file that holds the user's own object; a record cannot set it."""
ONLY_DEVICE: Final = "TPUTFIND_ONLY_DEVICE"
"""Environment variable with the name of the only device that a server and its children see. Questions may name it
otherwise: ``cuda:2`` of the host is ``cuda:0`` if no other device is visible."""
KILL: Final = b"kill"
"""Message to the server: end the child at work."""
COPY: Final = b"copy"
"""Message to the server, followed by a connection: fork another server, which answers there."""
COPY_WITH: Final = b"copy with"
"""As ``COPY``, followed by a further file, which holds the user's own object for the other server."""
IMPORT: Final = b"import "
"""Message to the server, followed by a package name: import the package, which later children need."""
OPENED: Final = b"opened"
"""Reply to a request to import a package: the import has opened the device, which no child can open any more."""
NO_FORK: Final = b"no fork "
"""Beginning of the reply to a question for which the machine allows no further process; the reason follows."""
_TAIL_BYTES: Final = 2**16
_AFTER_CAUSE: Final = re.compile(
    r"frame #\d+|Exception raised from|Extension modules:|File \"|Current thread|Thread 0x"
    r"|Search for .cuda|CUDA kernel errors might|For debugging consider|Compile with .TORCH_USE_CUDA_DSA"
)
"""Lines after the cause: of stacks that C++ and faulthandler print, and of advice that torch adds to CUDA's errors."""
_GRACE_S: Final = 3.0
"""Time for a child to exit by itself after its last message, so that its own exit status is seen. The GPU's memory
is free before the status arrives."""
_LAST_S: Final = 30.0
"""Time for a killed child to end. A child that hangs in a driver does not end, whatever signal it gets."""
_START_S: Final = 600.0
_LISTING_S: Final = 120.0
"""Time for a process to list the devices; a driver may hang."""
_LONGEST_MESSAGE_BYTES: Final = 2**28
OUT_OF_TIME: Final = ("--budget ended before a batch was timed", "give it more time")
_LONG_WAIT_S: Final = 5.0
"""Seconds without an answer after which a model may hang."""
_OF_THE_REST: Final = 2 / 3
"""A trial that starts just before its fraction of the time ends may take this fraction of the remaining time."""
_LEFT_S: Final = 2.0
"""Minimum time in seconds that such a trial leaves, so that the largest batch is still timed."""
_LISTS: Final = "tputfind devices lists what is here"
_PATIENCE: Final = 3
"""A stage may take this many times as long as the child announced."""


class Children:
    """Sends questions to fresh child processes; use it as a context manager.

    One server process per run imports torch and the other packages once, and forks a child for every question. A trial
    therefore costs a fork, not an import, and every trial starts from the same memory. multiprocessing's forkserver is
    not used because it imports the caller's ``__main__`` again in every child and hides import errors.

    A question whose spec has ranks or instances goes to as many processes, each with a server of its own; ranks form a
    torch process group. A failure of one process fails the job: all are ended at once. This server's child is rank 0,
    which starts the steps. The servers of the other ranks are forked from this one, so that nothing is imported twice.
    """

    def __init__(
        self,
        *,
        trust_model_file: bool = False,
        live: IO[bytes] | None = None,
        variables: Mapping[str, str] | None = None,
        cores: frozenset[int] | None = None,
    ) -> None:
        """Start nothing yet; the first question starts the server.

        ``trust_model_file`` says whether model files may run code when they are loaded. ``live`` is the open file of
        the user's own object, which the caller closes; children open it again by its number, so that it needs no name.
        ``variables`` are added to the environment of the server and its children, which run on ``cores`` only, None
        for all.
        """
        self._copies: list[_Copy] = []
        self._others: list[_Copy] = []  # those of them that serve the other ranks
        self._numbers = itertools.count()
        self._checked: set[tuple[str, int]] = set()
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
        self._openers: set[str] = set()
        self._wanted: tuple[str, ...] = ()
        self._sending = Lock()
        self._deadline_s = self._last_start_s = self._end_s = math.inf
        """Monotonic times: the child at work is killed, the last trial may start, the budget ends; infinite without."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server with its copies, and every child."""
        for each in self._copies:
            each.close()
        if self._control is not None:
            self._control.close()  # the server then ends its children and itself
        if self._server is not None:
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(_GRACE_S)
            self._server.kill()
            self._server.wait()
        if self._log is not None:
            self._log.close()
        if self._cache is not None:
            shutil.rmtree(self._cache, ignore_errors=True)  # a killed server leaves it
        self._server = self._control = self._log = self._cache = None

    def end_within(self, seconds: float | None) -> None:
        """Kill the child that is still at work this many seconds from now; None sets no limit."""
        self._deadline_s = self._end_s = math.inf if seconds is None else time.monotonic() + seconds

    def seconds_left(self) -> float:
        """Return the seconds until a child at work would be killed; infinite without a limit."""
        return self._deadline_s - time.monotonic()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the thread that asks, now or at its next question. Another thread may call it."""
        self._interrupting.send_bytes(b"")

    def end_child(self) -> None:
        """End the child at work, if there is one. Another thread may call it.

        The thread that reads the child's answers sees it die.
        """
        with self._sending:
            if self._control is not None:
                with suppress(OSError):
                    self._control.send_bytes(KILL)

    @property
    def server_pid(self) -> int | None:
        """The process that every child descends from; None if it has not started."""
        return None if self._server is None else self._server.pid

    @contextmanager
    def for_a_share(self, share: float) -> Iterator[None]:
        """Let trials start within this fraction of the time left, and run for up to two thirds of the rest.

        A killed trial has used its time for nothing, hence the extra time. At least 2 s of the rest remain, if it is so
        long.
        """
        if self._end_s < math.inf:
            now_s = time.monotonic()
            self._last_start_s = now_s + share * (self._end_s - now_s)
            rest_s = self._end_s - self._last_start_s
            self._deadline_s = self._last_start_s + max(0.0, min(_OF_THE_REST * rest_s, rest_s - _LEFT_S))
        try:
            yield
        finally:
            self._deadline_s, self._last_start_s = self._end_s, math.inf

    def check_start(self, needed_s: float) -> None:
        """Raise OutOfTime if trials may no longer start, or if fewer than ``needed_s`` seconds of the time remain."""
        is_in_share = self._last_start_s < math.inf
        if is_in_share and time.monotonic() > min(self._last_start_s, self._end_s - needed_s):
            raise OutOfTime(*OUT_OF_TIME)

    def preload(self, package: str) -> str:
        """Import a package in the server, so that every child has it; return why the import failed, or an empty string.

        A package with a module that opens the device when it is imported is left to the children: see ``OPENED``.
        Errors as for ``connect``.
        """
        control = self.connect()
        if package.partition(".")[0] in self._openers:
            return ""
        if package not in self._imports:
            said = self._import_package(control, package)
            for each in self._copies:
                each.close()  # the next copy of this server has the package
            if said == OPENED.decode():
                self._openers.add(package.partition(".")[0])
                self.close()
                return ""
            self._imports[package] = said
        return self._imports[package]

    def ask(
        self,
        question: Question,
        answer_type: type[Answer],
        timeout_s: float | None = None,
        gate: int | None = None,
        group: Group | None = None,
    ) -> Generator[Answer]:
        """Yield the answers of one fresh child as they come, until it ends; those of all ranks are merged.

        The child is killed if the caller stops early, or if it is silent for ``timeout_s`` seconds longer than it
        announced. ``gate`` is the reading end of a pipe from which the child reads when it may go on: see
        ``worker.handlers``. ``group`` is the child's place in a job of several processes: see ``ranks``.

        Raises:
            TputfindError: the child refused the question.
            ChildFailed: the child ended before all its answers, or was silent for too long. The message has its rank.
            OutOfTime: the time set by ``end_within`` is over.
            BrokenInstall: the machine allows no further process.
            KeyboardInterrupt: ``interrupt`` was called.
        """
        for package in self._wanted if group is None else ():
            self.preload(package)
        spec: Spec | None = getattr(question, "spec", None)
        size = None if spec is None or group is not None else spec.ranks
        if spec is None or size is None:
            yield from self._ask_process(question, answer_type, timeout_s, gate, group)
            return
        if (spec.device, size) not in self._checked:
            self._check_devices(spec, size)
            self._checked.add((spec.device, size))
        folder = self.meeting_place(size)
        while len(self._others) < size - 1:
            self._others.append(self.copy())
        for other in self._others[: size - 1]:
            other.connect()  # now, while no child of this server is at work
        job = Job(self.end_child, timeout_s, folder, spec)
        try:
            names = spec.devices if len(spec.devices) == size else spec.devices * size
            members = [
                Group(rank=rank, size=size, device=name, folder=str(folder), instances=spec.has_instances)
                for rank, name in enumerate(names)
            ]
            for member, other in zip(members[1:], self._others, strict=False):
                job.begin(member.rank, other.ask(question, answer_type, group=member), other.end_child)
            yield from job.answers(self._ask_process(question, answer_type, timeout_s, gate, members[0]))
        finally:
            job.end()
            shutil.rmtree(folder, ignore_errors=True)

    def ask_one(self, question: Question, answer_type: type[Answer], timeout_s: float | None = None) -> Answer:
        """Return the one answer of a fresh child; errors as for ``ask``."""
        answers = list(self.ask(question, answer_type, timeout_s))
        if len(answers) != 1:
            raise ChildFailed(Failure(kind="died", message=f"gave {len(answers)} answers to one question"))
        return answers[0]

    def list_devices(self) -> list[Environment]:
        """Return the devices of this host, as torch sees them, the CPU last; NoSuchDevice if listing them fails."""
        try:
            return list(self.ask(ListDevices(), Environment, _LISTING_S))
        except ChildFailed as death:
            what = f"a process that only lists the devices fails: {death.failure.message}"
            raise NoSuchDevice(what, "see whether the driver answers, for example to nvidia-smi") from None

    def _ask_process(
        self,
        question: Question,
        answer_type: type[Answer],
        timeout_s: float | None,
        gate: int | None,
        group: Group | None,
    ) -> Generator[Answer]:
        control = self.connect()
        answers, theirs = os.pipe()
        with tempfile.TemporaryFile() as output:
            try:
                try:
                    handles = (theirs, output.fileno(), output.fileno() if gate is None else gate)
                    with self._sending, suppress(OSError):  # a dead server closes both pipes, which the reader sees
                        control.send_bytes(msgspec.json.encode(Envelope(question=question, group=group)))
                        for handle in handles:
                            send_handle(control, handle, None)
                finally:
                    os.close(theirs)
                sizes = getattr(question, "batch_sizes", (getattr(question, "batch_size", None),))
                lines = _Lines(
                    answers,
                    control,
                    self._interrupted,
                    self._deadline_s,
                    about="the model" if sizes[0] is None else f"batch {sizes[0]}",
                )
                yield from self._read_answers(control, lines, output, answer_type, timeout_s)
            finally:
                os.close(answers)

    def _check_devices(self, spec: Spec, size: int) -> None:
        """Raise NoSuchDevice if there are fewer devices than ranks, before a process per rank is started."""
        listed = [one.device for one in self.list_devices()]
        accelerators = [name for name in listed if not is_host(name)]
        on_host = is_host(spec.device) or (spec.device == "auto" and not accelerators)
        if spec.has_instances and not on_host:
            return  # the inspection tells whether they can share it
        given = spec.device if spec.has_instances else "cpu"
        count = len(device_cores(given) or here()) if on_host else len(accelerators)
        if count < size:
            who, what = "instances" if spec.has_instances else "ranks", "cores" if on_host else "accelerators"
            there = "is 1" if count == 1 else f"are {count}"
            raise NoSuchDevice(f"{size} {who} need {size} {what}, and there {there}", _LISTS)

    def meeting_place(self, size: int) -> Path:
        """Make the folder in which the ranks of a question meet.

        It lies in the server's folder, which the server removes at its end.
        """
        self.connect()
        assert self._cache is not None
        folder = self._cache / f"ranks-{next(self._numbers)}"
        folder.mkdir(parents=True)
        for rank in range(1, size):
            os.mkfifo(folder / f"{rank}")
            os.mkfifo(folder / f"{rank}-back")
        return folder

    def _read_answers(
        self, control: Connection, lines: _Lines, output: IO[bytes], answer_type: type[Answer], timeout_s: float | None
    ) -> Generator[Answer]:
        """Yield the answers, then wait for the child's end; raise ChildFailed if it ended before its last answer."""
        finished, leaving, killed_before = False, True, _oom_kills()
        try:
            finished = yield from _answers(lines, answer_type, timeout_s)
            leaving = False
        finally:
            killed = not (control.closed or control.poll(0 if leaving else _GRACE_S))
            if killed:
                with suppress(OSError):
                    control.send_bytes(KILL)
            status = self._exit_status(control)
            self._wanted = lines.imports
        if not finished:
            if killed and status == -signal.SIGKILL:  # a child that was dying of something else keeps that status
                raise ChildFailed(failures.misuse_failure())
            oom_kills = _oom_kills() - killed_before
            raise ChildFailed(failures.death_failure(status, _last_line(output), lines.doing, oom_kills=oom_kills))

    def connect(self) -> Connection:
        """Start the server unless it runs; return the connection to it.

        Raises:
            BrokenInstall: the server does not start, or torch does not import.
            BadRequest: the working directory was deleted.
            KeyboardInterrupt: ``interrupt`` was called.
        """
        if self._control is None:
            try:
                Path.cwd()  # where there is none, torch does not import, and blames its own files
            except FileNotFoundError:
                raise BadRequest("the working directory was deleted", "run it in one that exists") from None
            ours, theirs = Pipe(duplex=True)
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close
            self._cache = Path(tempfile.gettempdir(), f"tputfind-{secrets.token_hex(8)}")
            pinned = "" if self.cores is None else f"os.sched_setaffinity(0, {sorted(self.cores)}); "
            program = (
                f"import os, sys; {pinned}sys.path[:] = {sys.path!r}; "
                f"from tputfind.worker.server import serve; serve({theirs.fileno()}); "
                "os._exit(0)"  # an orderly exit of torch takes time and has no use
            )
            try:
                self._server = subprocess.Popen(
                    [sys.executable, "-P", "-W", "ignore", "-c", program],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    pass_fds=[theirs.fileno(), *self._shared],
                    start_new_session=True,
                    env={**os.environ, COMPILER_CACHE: str(self._cache), **self._told},
                )
            except OSError as error:
                raise _no_further_process(f"{error.strerror}") from None
            finally:
                theirs.close()
            self._control = ours
            problem = self._word(ours)
            if problem:
                self.close()
                raise BrokenInstall(f"torch does not import: {problem}", REINSTALL)
            for package in self._imports:  # the previous server, which ended, had them
                self._import_package(ours, package)
        return self._control

    def copy(self, live: IO[bytes] | None = None) -> _Copy:
        """Return children of a copy of this server, with all that it has imported, at the same addresses.

        ``live`` is the file of the user's own object for the copy; else it has that of this server.
        """
        self._copies.append(_Copy(self, live))
        return self._copies[-1]

    def copy_server(self, live: IO[bytes] | None = None) -> Connection:
        """Fork a copy of the server, which has no child at work; return the connection to it."""
        if self._server is not None and self._server.poll() is not None:
            self.close()  # it died, and is started again
        control = self.connect()
        ours, theirs = Pipe(duplex=True)
        with theirs, self._sending, suppress(OSError):  # reading from a dead server reports it
            control.send_bytes(COPY if live is None else COPY_WITH)
            for file in (theirs,) if live is None else (theirs, live):
                send_handle(control, file.fileno(), None)
        return ours

    def _import_package(self, control: Connection, package: str) -> str:
        with suppress(OSError):  # reading from a dead server reports it
            control.send_bytes(IMPORT + package.encode())
        return self._word(control)

    def _word(self, control: Connection) -> str:
        """Return the server's reply to an import: an empty string, or why the import failed.

        BrokenInstall if the server died or is silent; other errors as for ``ask``.
        """
        begin_s = time.monotonic()
        left_s = max(0.0, self._end_s - begin_s)
        ready = wait([control, self._interrupted], min(_START_S, left_s))
        if self._interrupted in ready:
            raise KeyboardInterrupt
        with suppress(EOFError, OSError):
            if ready:
                return control.recv_bytes().decode()
        failure = self._death() if ready else failures.silence_failure(_START_S)
        self.close()
        if not ready and left_s < _START_S:
            raise _late("the import of its packages", time.monotonic() - begin_s)
        hint = RUN_AGAIN if failures.for_want_of_memory(failure) else REINSTALL
        raise BrokenInstall(f"the measuring process does not start: {failure.message}", hint)

    def _death(self) -> Failure:
        status = None
        if self._server is not None:
            with suppress(subprocess.TimeoutExpired):
                status = self._server.wait(_GRACE_S)
        return failures.death_failure(status, _last_line(self._log))

    def _exit_status(self, control: Connection) -> int | None:
        """Wait for the child's exit status; if the server died too or both hang, close the server and return None.

        BrokenInstall if the machine allows no further process.
        """
        said = b""
        try:
            if control.poll(_LAST_S):
                said = control.recv_bytes()
                return int(said)
        except (EOFError, OSError, ValueError):
            pass
        self.close()
        if said.startswith(NO_FORK):
            raise _no_further_process(printable(said.removeprefix(NO_FORK).decode()))
        return None


class _Copy(Children):
    """Sends questions to children of a copy of another server, which ends with that one."""

    def __init__(self, original: Children, live: IO[bytes] | None) -> None:
        super().__init__(cores=original.cores)
        self._original, self._live = original, live

    @property
    def server_pid(self) -> int | None:
        """The process of the original, which every child descends from."""
        return self._original.server_pid

    def connect(self) -> Connection:
        """Fork the copy unless it runs; return the connection to it. Errors as for ``Children.connect``."""
        if self._control is None:
            self._control = self._original.copy_server(self._live)
            for package in self._imports:  # the previous copy, which ended, had them
                self._import_package(self._control, package)
        return self._control

    def meeting_place(self, size: int) -> Path:
        """Make the folder in that of the original; see ``Children.meeting_place``."""
        return self._original.meeting_place(size)


REINSTALL: Final = "install the pair that goes together: pip install --upgrade --force-reinstall torch torchvision"
RUN_AGAIN: Final = "free memory of the host, and run it again"


def _no_further_process(reason: str) -> BrokenInstall:
    hint = "raise its limit on processes, or free memory of the host, and run it again"
    return BrokenInstall(f"the machine allows no further process: {reason}", hint)


_PREPARING: Final = Lock()


def decoder_of(kind: type[Answer]) -> msgspec.json.Decoder[Answer]:
    """Return the decoder of a type.

    msgspec prepares a type at its first use. A second thread that uses the type meanwhile would find it half prepared,
    and crash.
    """
    with _PREPARING:
        return msgspec.json.Decoder(kind)


def _answers(lines: _Lines, answer_type: type[Answer], timeout_s: float | None) -> Generator[Answer, None, bool]:
    """Yield each answer; return (as the generator's value) whether the child sent its closing message."""
    allowed_s = timeout_s
    while (line := lines.read(allowed_s)) is not None:
        try:
            reply = decoder_of(Reply).decode(printable_json(line))
            answer = decoder_of(answer_type).decode(reply.answer) if bytes(reply.answer) else None
        except (msgspec.DecodeError, RecursionError):
            return False
        if reply.refusal is not None:
            raise reply.refusal.make_error()
        if reply.done:
            return True
        lines.imports = reply.imports or lines.imports
        lines.doing = reply.doing
        allowed_s = None if timeout_s is None else timeout_s + _PATIENCE * (reply.busy_s or 0.0)
        if answer is not None:
            yield answer
    return False


def _late(about: str, waited_s: float) -> OutOfTime:
    """Return the error of a budget that ended during a question; it has the waiting time if that was long."""
    if waited_s < _LONG_WAIT_S:
        return OutOfTime(*OUT_OF_TIME)
    problem, advice = OUT_OF_TIME
    return OutOfTime(f"{problem}: {about} gave no answer within {waited_s:.0f} s", f"{advice}, or see where it hangs")


class _Lines:
    """Reads the lines that a child writes, and waits for each no longer than allowed."""

    def __init__(
        self, answers: int, control: Connection, interrupted: Connection, deadline_s: float, about: str
    ) -> None:
        self._answers = answers
        self._control = control
        self._interrupted = interrupted
        self._deadline_s = deadline_s
        self._held = bytearray()
        self._about = about
        self.doing = ""
        """The child's work on the host until its next message; empty if it named none."""
        self.imports: tuple[str, ...] = ()
        """The slow imports that the child's first answer names."""

    def read(self, allowed_s: float | None) -> bytes | None:
        """Return the next line; None if the child has ended or its line is too long. Errors as for ``Children.ask``."""
        begin_s = time.monotonic()
        silent_s = math.inf if allowed_s is None else begin_s + allowed_s
        until_s = min(silent_s, self._deadline_s)
        while (end := self._held.find(b"\n")) < 0:
            left = None if until_s == math.inf else max(0.0, until_s - time.monotonic())
            ready = wait([self._answers, self._control, self._interrupted], left)
            if self._interrupted in ready:
                raise KeyboardInterrupt
            if not ready and until_s == self._deadline_s:
                raise _late(self._about, time.monotonic() - begin_s)
            if not ready:
                raise ChildFailed(failures.silence_failure(allowed_s or 0.0))
            # The process's end may be reported before its last answer was read.
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
    lines = [line.strip() for line in output.read().decode(errors="replace").split("\n")]
    said = [line for line in lines if line and not _AFTER_CAUSE.match(line)]
    thrown = [line.removeprefix("what():").strip() for line in said if line.startswith("what():")]
    return printable((thrown or said or [""])[-1])


def _oom_kills() -> int:
    """Return how many processes the kernel has killed because memory ran out; 0 if that is unknown."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
