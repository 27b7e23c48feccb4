"""Runs one job in several processes, the ranks, and merges their answers to a question into one answer or failure."""

import itertools
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Condition, Thread
from time import sleep
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tputfind.errors import ModelFailed, NoSuchDevice, TputfindError
from tputfind.processes import beats, failures
from tputfind.processes.beats import Beat
from tputfind.processes.children import Answer, ChildFailed, Children
from tputfind.processes.cores import device_cores, here, is_host
from tputfind.processes.messages import Diagnosis, Group, Inspection, ListDevices, Question, Timed, Turn
from tputfind.record.environment import Environment, RankDevice
from tputfind.record.record import Failure
from tputfind.record.spec import Spec

_LISTS: Final = "tputfind devices lists what is here"
_AGAIN_S: Final = 0.2
_PATIENCE_S: Final = 60.0
"""Time in seconds for the other ranks to answer after rank 0, if the question sets none."""


class Ranks(Children):
    """Sends every question to as many processes as its spec has ranks or instances; ranks form a torch process group.

    A failure of one process fails the job: all are ended at once. This object is rank 0, which starts the steps.
    """

    def __init__(self, **options: Any) -> None:
        """Take the options of ``Children``, which apply to every rank."""
        super().__init__(**options)
        self._options = MappingProxyType(options)
        self._others: list[Children] = []
        self._numbers = itertools.count()
        self._checked: set[tuple[str, int]] = set()

    @property
    def server_pid(self) -> int | None:
        """None for a job of several processes, which have several servers."""
        return None if self._others else super().server_pid

    def close(self) -> None:
        """End the servers of all ranks, and every child."""
        with ExitStack() as stack:
            for other in self._others:
                stack.callback(other.close)
            super().close()

    def preload(self, package: str) -> str:
        """Import a package in each server; errors as for ``Children.preload``."""
        for other in self._others:
            other.preload(package)
        return super().preload(package)

    def ask(
        self,
        question: Question,
        answer_type: type[Answer],
        timeout_s: float | None = None,
        gate: int | None = None,
        group: Group | None = None,
    ) -> Generator[Answer]:
        """Yield one merged answer for each answer of the ranks.

        The errors are those of ``Children.ask``, with the rank in the message.
        """
        spec = getattr(question, "spec", None)
        size = None if spec is None else spec.ranks
        if spec is None or size is None:
            yield from super().ask(question, answer_type, timeout_s, gate, group)
            return
        if (spec.device, size) not in self._checked:
            self._check_devices(spec, size)
            self._checked.add((spec.device, size))
        while len(self._others) < size - 1:
            other = Children(**self._options)
            for package in self._imports:
                other.preload(package)
            self._others.append(other)
        folder = self._meeting_place(size)
        job = _Job(self, timeout_s, folder, spec)
        try:
            names = spec.devices if len(spec.devices) == size else spec.devices * size
            members = [
                Group(rank=rank, size=size, device=name, folder=str(folder), instances=spec.instances > 1)
                for rank, name in enumerate(names)
            ]
            for member, other in zip(members[1:], self._others, strict=False):
                job.begin(other, question, answer_type, member)
            yield from job.answers(super().ask(question, answer_type, timeout_s, gate, members[0]))
        finally:
            job.end()
            shutil.rmtree(folder, ignore_errors=True)

    def _check_devices(self, spec: Spec, size: int) -> None:
        """Raise NoSuchDevice if there are fewer devices than ranks, before a process per rank is started."""
        listed = [one.device for one in super().ask(ListDevices(), Environment)]
        accelerators = [name for name in listed if not is_host(name)]
        on_host = is_host(spec.device) or (spec.device == "auto" and not accelerators)
        if spec.instances > 1 and not on_host:
            raise NoSuchDevice(
                f"--instances {size} divides the cores of a CPU, and {spec.device} is none",
                "--device cpu runs them; --device all --all-busy runs a copy on each accelerator",
            )
        given = spec.device if spec.instances > 1 else "cpu"
        count = len(device_cores(given) or here()) if on_host else len(accelerators)
        if count < size:
            who, what = "instances" if spec.instances > 1 else "ranks", "cores" if on_host else "accelerators"
            there = "is 1" if count == 1 else f"are {count}"
            raise NoSuchDevice(f"{size} {who} need {size} {what}, and there {there}", _LISTS)

    def _meeting_place(self, size: int) -> Path:
        """Make the folder in which the ranks of a question meet.

        It lies in the server's folder, which the server removes at its end.
        """
        self._connect()
        assert self._cache is not None
        folder = self._cache / f"ranks-{next(self._numbers)}"
        folder.mkdir(parents=True)
        for rank in range(1, size):
            os.mkfifo(folder / f"{rank}")
            os.mkfifo(folder / f"{rank}-back")
        return folder


class _Job:
    """Collects the answers of all ranks to one question.

    The calling thread reads the answers of rank 0; each other rank has its own thread.
    """

    def __init__(self, leader: Children, timeout_s: float | None, folder: Path, spec: Spec) -> None:
        self._leader = leader
        self._timeout_s = timeout_s
        self._folder = folder
        self._spec = spec
        self._size = spec.ranks or 1
        self._changed = Condition()
        self._others: dict[int, Children] = {}
        self._threads: list[Thread] = []
        self._answers: dict[int, list[Any]] = {}
        self._working: set[int] = set()
        self._failed: tuple[int, BaseException] | None = None
        self._over = False

    def begin(self, other: Children, question: Question, answer_type: type[Answer], group: Group) -> None:
        """Ask the question of a rank other than 0, in a new thread."""
        rank = group.rank
        self._others[rank] = other
        self._answers[rank] = []
        self._working.add(rank)

        def hear() -> None:
            error: BaseException | None = None
            try:
                for answer in other.ask(question, answer_type, group=group):
                    with self._changed:
                        self._answers[rank].append(answer)
                        self._changed.notify_all()
                        failed = _failure_in(answer) is not None
                    if failed:
                        self._end_leader()
            except BaseException as caught:  # whatever it is, the thread that waits for this rank must learn of it
                error = caught
            with self._changed:
                self._working.discard(rank)
                if error is not None and self._failed is None and not self._over:
                    self._failed = rank, error
                self._changed.notify_all()
            if error is not None:
                self._end_leader()

        thread = Thread(target=hear, name=f"rank {rank}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def answers(self, leading: Generator[Answer]) -> Generator[Answer]:
        """Yield each answer of rank 0, merged with the same answer of the other ranks."""
        number = 0
        Thread(target=self._watch, name="watch of ranks", daemon=True).start()
        with closing(leading):
            try:
                for answer in leading:
                    window = isinstance(answer, Timed) and answer.window is not None
                    if window or (isinstance(answer, Turn) and answer.failure is None):  # of rank 0 alone
                        yield answer
                        continue
                    failed = _failure_in(answer) is not None  # the others may wait for rank 0 in vain
                    if not failed and not isinstance(answer, Diagnosis):  # rank 0's is enough
                        self._wait_for(number, optional=isinstance(answer, Inspection))
                    yield self._whole(answer, number)
                    if failed or self._first_failed_answer(number) is not None:
                        return
                    number += 1
            except ChildFailed as death:
                failing = self._first_failed_answer(number)
                if self._failed is None and failing is not None:  # rank 0 was ended for it
                    rank, answer = failing
                    yield _add_rank(answer, self._who(rank))
                    return
                self._raise_failure()
                raise ChildFailed(self._add_slow_rank(death.failure, 0)) from None

    def end(self) -> None:
        """End the processes that are still at work, and wait for them."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for other, thread in zip(self._others.values(), self._threads, strict=True):
            while thread.is_alive():  # repeated, as in ``_end_leader``
                other.end_child()
                thread.join(_AGAIN_S)

    def _watch(self) -> None:
        """Fail the job when a rank waits in a collective that another rank skipped."""
        seen: Mapping[int, Beat] = {}
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._over or self._failed is not None, 2 * beats.INTERVAL_S):
                    return
            before, seen = seen, beats.read(self._folder, self._size)
            vain = beats.waits_in_vain(seen) if seen == before else None
            if vain is None:
                continue
            rank, message = vain
            with self._changed:
                if self._failed is None and not self._over:
                    self._failed = rank, ChildFailed(Failure(kind="error", message=message))
                self._changed.notify_all()
            self._end_leader()
            return

    def _add_slow_rank(self, failure: Failure, rank: int) -> Failure:
        """Return a failure with its rank in the message.

        After a time-out, the message names the rank that the others wait for, if the beats show one.
        """
        last = beats.latest(beats.read(self._folder, self._size), range(self._size))
        if failure.kind != "timeout" or last is None:
            return _add_name_to_failure(failure, self._who(rank))
        message = f"{failure.message}: rank {last} hangs or is slow, and the others wait in a collective for it"
        return msgspec.structs.replace(failure, message=message)

    def _end_leader(self) -> None:
        """End rank 0; repeat until the job is over, since rank 0 may not have started its process yet."""
        while not self._over:
            self._leader.end_child()
            sleep(_AGAIN_S)

    def _wait_for(self, number: int, *, optional: bool) -> None:
        """Wait until every other rank has given answer ``number``, or a rank has failed.

        Args:
            number: the answer's number, from 0.
            optional: do not fail if an answer is missing.

        Raises:
            ChildFailed: a rank failed, or was silent for too long.
            TputfindError: a rank refused the question.
        """
        patience_s = self._timeout_s or _PATIENCE_S
        with self._changed:
            heard = self._changed.wait_for(
                lambda: self._failed is not None or not self._missing_ranks(number),
                _PATIENCE_S if optional else patience_s,
            )
            late = min(self._missing_ranks(number), default=0)
        self._raise_failure()
        if not heard and not optional:
            raise ChildFailed(self._add_slow_rank(failures.silence_failure(patience_s), late))

    def _missing_ranks(self, number: int) -> list[int]:
        return [rank for rank, said in self._answers.items() if len(said) <= number and rank in self._working]

    def _first_failed_answer(self, number: int) -> tuple[int, Any] | None:
        """Return the first rank other than 0 whose answer has a failure, and that answer; None if no answer has one."""
        for rank, said in self._answers.items():
            if len(said) > number and _failure_in(said[number]) is not None:
                return rank, said[number]
        return None

    def _who(self, rank: int) -> str:
        return f"{'instance' if self._spec.instances > 1 else 'rank'} {rank}"

    def _raise_failure(self) -> None:
        if self._failed is None:
            return
        rank, error = self._failed
        if isinstance(error, ChildFailed):
            raise ChildFailed(_add_name_to_failure(error.failure, self._who(rank))) from None
        if isinstance(error, TputfindError):
            raise type(error)(f"{error.message} ({self._who(rank)})", error.hint, error.traceback) from None
        raise error

    def _whole(self, answer: Any, number: int) -> Any:
        others = [said[number] for said in self._answers.values() if len(said) > number]
        if isinstance(answer, Inspection):
            shapes = [one.input_shape for one in (answer, *others)]
            if len(set(shapes)) > 1:
                told = ", ".join(f"{shape} at rank {rank}" for rank, shape in enumerate(shapes))
                raise ModelFailed(
                    f"the ranks make batches of unlike samples or sizes: {told}",
                    "make as many samples as the batch size on every rank",
                )
            seen = answer.environment
            if self._spec.instances == 1:
                whole = msgspec.structs.replace(seen, others=tuple(_device_of(other.environment) for other in others))
            else:  # each has a part of the same device
                device = seen.device if self._spec.device == "auto" else self._spec.device
                whole = msgspec.structs.replace(seen, device=device, cpu_count=len(device_cores(device) or here()))
            return msgspec.structs.replace(answer, environment=whole)
        if _failure_in(answer) is not None:
            return _add_rank(answer, self._who(0))
        failing = self._first_failed_answer(number)
        if failing is not None:
            return _add_rank(failing[1], self._who(failing[0]))
        return take_highest_peaks(answer, others)


def _device_of(environment: Any) -> RankDevice:
    return RankDevice(**{name: getattr(environment, name) for name in RankDevice.__struct_fields__})


def _part_of(answer: Any) -> tuple[str, Any]:
    """Return the name of an answer's field, and the batch or trial in that field.

    If the answer itself is the result, return an empty name and the answer.
    """
    if isinstance(answer, Timed):
        return ("trial", answer.trial) if answer.trial is not None else ("batch", answer.batch)
    return "", answer


def _replace_part(answer: Any, name: str, part: Any) -> Any:
    return msgspec.structs.replace(answer, **{name: part}) if name else part


def _failure_in(answer: Any) -> Failure | None:
    return getattr(_part_of(answer)[1], "failure", None)


def _add_rank(answer: Any, who: str) -> Any:
    """Return an answer with the name of its process added to the failure's message."""
    name, part = _part_of(answer)
    return _replace_part(answer, name, msgspec.structs.replace(part, failure=_add_name_to_failure(part.failure, who)))


def _add_name_to_failure(failure: Failure, who: str) -> Failure:
    """Return a failure with the name of its process in the message; in a time-out of rank 0, any may be slow."""
    if failure.kind == "timeout" and who.endswith(" 0"):
        return msgspec.structs.replace(
            failure, message=f"{failure.message}: one of the {who[:-2]}s hangs, or all are slow"
        )
    return msgspec.structs.replace(failure, message=f"{who}: {failure.message}")


_PEAKS: Final = ("peak_allocated_bytes", "peak_reserved_bytes", "allocator_retries")


def take_highest_peaks(answer: Any, others: Sequence[Any]) -> Any:
    """Return the answer of one rank with the highest memory peaks of all ranks: the fullest device decides."""
    name, part = _part_of(answer)
    theirs = [_part_of(other)[1] for other in others]
    if not all(hasattr(part, peak) for peak in _PEAKS[:2]):
        return answer
    known = {
        peak: max(counts)
        for peak in _PEAKS
        if hasattr(part, peak)
        and (counts := [count for one in (part, *theirs) if (count := getattr(one, peak)) is not None])
    }
    return _replace_part(answer, name, msgspec.structs.replace(part, **known))
