"""Merges the answers of several processes, the ranks of one job, to a question into one answer or failure."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from threading import Condition, Thread
from time import sleep
from typing import Any, Final

import msgspec

from tputfind.errors import ModelFailed, TputfindError
from tputfind.processes import beats, failures
from tputfind.processes.beats import Beat
from tputfind.processes.cores import device_cores, here, is_host
from tputfind.processes.failures import ChildFailed
from tputfind.processes.messages import Diagnosis, Inspection, Timed, Turn
from tputfind.record.environment import Environment, RankDevice
from tputfind.record.record import Failure
from tputfind.record.spec import Spec

_AGAIN_S: Final = 0.2
_PATIENCE_S: Final = 60.0
"""Time in seconds for the other ranks to answer after rank 0, if the question sets none."""


class Job:
    """Collects the answers of all ranks to one question.

    The calling thread reads the answers of rank 0; each other rank has its own thread.
    """

    def __init__(self, end_leader: Callable[[], None], timeout_s: float | None, folder: Path, spec: Spec) -> None:
        self._end_rank_0 = end_leader
        self._timeout_s = timeout_s
        self._folder = folder
        self._spec = spec
        self._size = spec.ranks or 1
        self._changed = Condition()
        self._enders: list[Callable[[], None]] = []
        self._threads: list[Thread] = []
        self._answers: dict[int, list[Any]] = {}
        self._working: set[int] = set()
        self._failed: tuple[int, BaseException] | None = None
        self._over = False

    def begin(self, rank: int, answers: Iterable[Any], end: Callable[[], None]) -> None:
        """Read the answers of a rank other than 0, in a new thread; ``end`` ends its process."""
        self._enders.append(end)
        self._answers[rank] = []
        self._working.add(rank)

        def hear() -> None:
            error: BaseException | None = None
            try:
                for answer in answers:
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

    def answers(self, leading: Generator[Any]) -> Generator[Any]:
        """Yield each answer of rank 0, merged with the same answer of the other ranks."""
        number = 0
        Thread(target=self._watch, name="watch of ranks", daemon=True).start()
        with closing(leading):
            try:
                for answer in leading:
                    told = isinstance(answer, Timed) and (answer.window is not None or answer.unchecked is not None)
                    if told or (isinstance(answer, Turn) and answer.failure is None):  # of rank 0 alone
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
        for end, thread in zip(self._enders, self._threads, strict=True):
            while thread.is_alive():  # repeated, as in ``_end_leader``
                end()
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
            self._end_rank_0()
            sleep(_AGAIN_S)

    def _wait_for(self, number: int, *, optional: bool) -> None:
        """Wait until every other rank has given answer ``number``, or a rank has failed.

        An ``optional`` answer may be missing at the end of the wait. ChildFailed if a rank failed or was silent for too
        long, or the error with which a rank refused the question.
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
        return f"{'instance' if self._spec.has_instances else 'rank'} {rank}"

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
            return msgspec.structs.replace(answer, environment=self._whole_environment(answer.environment, others))
        if _failure_in(answer) is not None:
            return _add_rank(answer, self._who(0))
        failing = self._first_failed_answer(number)
        if failing is not None:
            return _add_rank(failing[1], self._who(failing[0]))
        return take_highest_peaks(answer, others)

    def _whole_environment(self, seen: Environment, others: Sequence[Inspection]) -> Environment:
        """Return the environment of rank 0 with the devices of the others, and the cores of all if they compute."""
        spec, whole = self._spec, seen
        if is_host(seen.device):
            used = [device_cores(name) or here() for name in spec.devices]
            whole = msgspec.structs.replace(whole, cpu_count=len(frozenset[int]().union(*used)))
        if spec.has_instances:  # each has a part of the same device
            return msgspec.structs.replace(whole, device=seen.device if spec.device == "auto" else spec.device)
        devices = [other.environment for other in others]
        beside = msgspec.convert(devices, tuple[RankDevice, ...], from_attributes=True)
        return msgspec.structs.replace(whole, others=beside)


def _part_of(answer: Any) -> tuple[str, Any]:
    """Return the name of an answer's field, and the row or trial in that field.

    If the answer itself is the result, return an empty name and the answer.
    """
    if isinstance(answer, Timed):
        return ("trial", answer.trial) if answer.trial is not None else ("row", answer.row)
    return "", answer


def _replace_part(answer: Any, name: str, part: Any) -> Any:
    return msgspec.structs.replace(answer, **{name: part}) if name else part


def _failure_in(answer: Any) -> Failure | None:
    return getattr(_part_of(answer)[1], "failure", None)


def _add_rank(answer: Any, who: str) -> Any:
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
