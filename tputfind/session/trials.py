"""Trials and timings of one spec on one device, in fresh processes. A process that dies is a result too."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from statistics import median
from time import perf_counter
from typing import Final

import msgspec

from tputfind.errors import BadRequest, DeviceInUse, NoSuchDevice, OutOfTime
from tputfind.processes import cores
from tputfind.processes.children import Children
from tputfind.processes.failures import (
    UNUSED_PARAMETERS,
    ChildFailed,
    Passed,
    explain_death,
    is_kernel_fault,
    misuse_failure,
)
from tputfind.processes.messages import Diagnose, Diagnosis, Plan, TimeBatches, Timed, TryBatch
from tputfind.record.environment import Capabilities, Environment
from tputfind.record.record import TRIAL_STEPS, Failure, Health, OutputCheck, Row, Trial
from tputfind.record.spec import Spec
from tputfind.record.types import NEGLIGIBLE_BYTES
from tputfind.search.forecast import going_on
from tputfind.session import health
from tputfind.session.barrier import Seat
from tputfind.session.host_load import HostWatch
from tputfind.units import format_bytes

FIRST_TIMEOUT_S: Final = 600.0
"""Timeout of the first trial, in seconds: it builds the model from a cold disk, and there are no step times yet."""
LEAST_TIMEOUT_S: Final = 30.0
LEAST_OF_BUDGET_S: Final = 10.0
"""Minimum timeout under ``--budget``, in seconds: the budget has better uses than a trial that takes far too long."""
_NEEDED: Final = 2.5
"""A trial starts only if the rest of ``--budget`` is this many times its expected seconds: for itself and for a row.

Only one trial before it is no measure: it also imports and compiles for the others, and its own time is enough."""
TIMEOUT_FACTOR: Final = 4
OTHERS_TOLERANCE_BYTES: Final = 2 * 2**20
"""Changes up to this in the memory of other processes are ignored: one block that the CUDA allocator requests."""
UNSTEADY_ATTEMPTS: Final = 3
"""Maximum number of tries of a trial if other processes allocate or free device memory during it."""


class TrialRunner:
    def __init__(self, children: Children, spec: Spec, environment: Environment) -> None:
        """Raise BadRequest if ``--headroom`` leaves no memory."""
        self._children = children
        self.spec = spec
        self._environment = environment
        self._uuids = environment.device_uuids[: spec.device_count]
        self._can = environment.can
        self._cores = cores.device_cores(environment.device)
        self.memory_limit_bytes = _limit_bytes(spec, environment)
        self.lowered_limit_bytes = _lowered_bytes(spec, environment)

    def single_device_runner(self) -> TrialRunner:
        """Return the runner for the first of several devices alone; on a CPU, for its part of the cores."""
        device = self.spec.devices[0]
        if self._can.is_cpu and device in ("auto", "cpu"):
            device = f"cpu:{cores.text(cores.split(cores.here(), self.spec.device_count)[0])}"
        gpus = 1 if self.spec.phase == "step" else None
        limit_bytes = self.memory_limit_bytes
        fields = {"parallel": None, "gpus": gpus, "device": device, "memory_limit_bytes": limit_bytes}
        return TrialRunner(self._children, msgspec.structs.replace(self.spec, **fields), self._environment)

    def seconds_left(self) -> float:
        """Return the seconds until ``--budget`` ends a trial; infinite without a budget."""
        return self._children.seconds_left()

    def memory_of_others_bytes(self) -> int | None:
        """Return the bytes of device memory that other processes hold now, or None; errors as for ``check_memory``."""
        others_bytes = health.memory_in_use_bytes(*self._environment.device_uuids)
        _check_others(self.spec, others_bytes)
        return others_bytes

    def try_batch(
        self,
        batch_size: int,
        passed: Passed | None,
        *,
        steps: int = TRIAL_STEPS,
        memory_limit_bytes: int | None,
        taken: Sequence[Trial],
    ) -> Trial:
        """Try in a fresh process whether a batch fits; a process that dies or exceeds its timeout is a failed trial.

        The trial is repeated if other processes allocated or freed memory during it. The first kernel error is also
        repeated: a true limit recurs at the same batch, and further kernel errors are then trusted. The trials
        ``taken`` before set the timeout. OutOfTime if the part of ``--budget`` in which trials may start is over.
        """
        self._check_start(taken)
        question = TryBatch(self.spec, batch_size, steps, memory_limit_bytes, passed, self._can)
        least_s = LEAST_TIMEOUT_S if self.spec.budget_s is None else LEAST_OF_BUDGET_S
        allowed_s = self._timeout_s(batch_size, taken, least_s)
        trial = self._try_steady(question, allowed_s)
        if is_kernel_fault(trial.failure) and not any(is_kernel_fault(before.failure) for before in taken):
            trial = self._try_steady(question, allowed_s)
        return trial

    def _check_start(self, taken: Sequence[Trial]) -> None:
        """Raise OutOfTime if the budget leaves no time for another trial like those before, and for a row."""
        passed_s = [trial.seconds for trial in taken if trial.failure is None]
        factor = 1.0 if len(passed_s) == 1 else _NEEDED
        self._children.check_start(factor * median(passed_s) if passed_s else 0.0)

    def _try_steady(self, question: TryBatch, timeout_s: float) -> Trial:
        """Repeat a trial until the memory of other processes does not change, at most ``UNSTEADY_ATTEMPTS`` times."""
        for _ in range(UNSTEADY_ATTEMPTS):
            trial = self._try_once(question, timeout_s)
            if is_other_memory_equal(trial.memory_of_others_bytes, self.memory_of_others_bytes()):
                break
        return trial

    def _try_once(self, question: TryBatch, timeout_s: float) -> Trial:
        others_bytes = self.memory_of_others_bytes()
        start = perf_counter()
        try:
            trial = self._children.ask_one(question, Trial, timeout_s)
        except ChildFailed as death:
            trial = self._failed_trial(question, death)
        seconds = perf_counter() - start
        return msgspec.structs.replace(trial, seconds=seconds, memory_of_others_bytes=others_bytes)

    def try_and_time(
        self, batch_size: int, passed: Passed | None, plan: Plan, taken: Sequence[Trial]
    ) -> Generator[Trial | Row]:
        """Try whether a batch fits, in a process that goes on to time it if it does: yield the trial, then the row.

        There is no row if the batch does not fit, or if the process ends early: the batch is then timed in another
        process. Closing the generator before the row ends the process. The trial is not repeated if the memory of other
        processes changed. Errors as for ``try_batch``.
        """
        self._check_start(taken)
        others_bytes = self.memory_of_others_bytes()
        question = TryBatch(self.spec, batch_size, TRIAL_STEPS, self.memory_limit_bytes, passed, self._can, plan)
        host = HostWatch(on_host=self._can.is_cpu, cores=self._cores, server_pid=self._children.server_pid)
        least_s = LEAST_TIMEOUT_S if self.spec.budget_s is None else LEAST_OF_BUDGET_S
        start, tried = perf_counter(), False
        with health.Watches(self._uuids) as watch:
            answers = self._children.ask(question, Timed, self._timeout_s(batch_size, taken, least_s))
            with closing(answers):
                try:
                    trial = _trial_of(next(answers, None))
                    seconds, tried = perf_counter() - start, True
                    yield msgspec.structs.replace(trial, seconds=seconds, memory_of_others_bytes=others_bytes)
                    for row in _rows(answers, watch, host, None, others_bytes):
                        if row.failure is None:
                            yield row
                except ChildFailed as death:
                    if not tried:
                        trial, seconds = self._failed_trial(question, death), perf_counter() - start
                        yield msgspec.structs.replace(trial, seconds=seconds, memory_of_others_bytes=others_bytes)

    def diagnose(self, batch_size: int, failure: Failure) -> Diagnosis:
        """Return the settings with which the model runs at a failed batch size; errors as for ``worker.diagnosis``.

        One device is used, unless all ranks fail alike: if one rank fails alone, the others wait for it in vain.
        """
        alone = self.spec.device_count > 1 and UNUSED_PARAMETERS not in failure.message
        spec = self.single_device_runner().spec if alone else self.spec
        return diagnosis_of(self._children, spec, batch_size, self._can)

    def time_batches(
        self,
        batch_sizes: Sequence[int],
        number: int,
        plan: Plan,
        passed: Passed | None,
        taken: Sequence[Trial],
        *,
        seat: Seat | None = None,
    ) -> Generator[Row]:
        """Time batch sizes in one fresh process, up to the first that fails; a dying process fails the current one.

        The process may end early with the batch sizes done so far, but with at least one. ``number`` is the number of
        the rows' process, from 0, and ``plan`` sets the steps; the trials ``taken`` before set the timeout. Each row
        holds one timing, with the device's health and the host's load during it. The process meets the processes of
        other devices at the meeting of its ``seat``.
        """
        others_bytes = self.memory_of_others_bytes()
        sizes, limit_bytes, timed = tuple(batch_sizes), self.memory_limit_bytes, 0
        host = HostWatch(on_host=self._can.is_cpu, cores=self._cores, server_pid=self._children.server_pid)
        with health.Watches(self._uuids) as watch, seat or nullcontext():
            gate = None if seat is None else seat.reader
            question = TimeBatches(self.spec, plan, sizes, number, limit_bytes, passed, self._can, gate is not None)
            answers = self._children.ask(question, Timed, self._timeout_s(max(sizes), taken), gate)
            try:
                with closing(answers):
                    for row in _rows(answers, watch, host, seat, others_bytes):
                        timed += 1
                        yield row
                failure = None if timed else misuse_failure()
            except ChildFailed as death:
                failure = self._explain(death, passed) if timed < len(sizes) else None
        if failure is not None:
            yield Row(batch_size=sizes[timed], failure=failure, memory_of_others_bytes=others_bytes)

    def _failed_trial(self, question: TryBatch, death: ChildFailed) -> Trial:
        failure, limit_bytes = self._explain(death, question.passed), question.memory_limit_bytes
        return Trial(
            batch_size=question.batch_size, steps=question.steps, memory_limit_bytes=limit_bytes, failure=failure
        )

    def _explain(self, death: ChildFailed, passed: Passed | None) -> Failure:
        return explain_death(death.failure, passed, own_memory=self._can.own_memory)

    def _timeout_s(self, batch_size: int, taken: Sequence[Trial], least_s: float = LEAST_TIMEOUT_S) -> float:
        return self.spec.trial_timeout_s or timeout_s(batch_size, taken, least_s)


def _trial_of(first: Timed | None) -> Trial:
    """Return the trial in a process's first answer; ChildFailed if there is none."""
    if first is None or first.trial is None:
        raise ChildFailed(Failure(kind="died", message="gave 0 answers to one question"))
    return first.trial


def diagnosis_of(children: Children, spec: Spec, batch_size: int, can: Capabilities | None) -> Diagnosis:
    """Return the settings with which a model runs at a failed batch size; errors as for ``worker.diagnosis``."""
    timeout_s = spec.trial_timeout_s or FIRST_TIMEOUT_S
    with suppress(ChildFailed, OutOfTime):  # it crashes too, or the budget ends: the failure itself is known
        return children.ask_one(Diagnose(spec, batch_size, can), Diagnosis, timeout_s)
    return Diagnosis()


def _rows(
    answers: Iterable[Timed], watch: health.Watches, host: HostWatch, seat: Seat | None, others_bytes: int | None
) -> Iterator[Row]:
    """Yield a row of each batch, with the state of the device and the host during its throughput window.

    If the checks of a row end the process, or the budget ends during them, the row stays unchecked.
    """
    seen: Health | None = None
    others_busy_cores: float | None = None
    unchecked: Row | None = None

    def add_state(row: Row) -> Row:
        all_busy_share = None if seat is None else seat.all_busy_share
        beside = {"health": seen, "others_busy_cores": others_busy_cores, "all_busy_share": all_busy_share}
        timings = tuple(msgspec.structs.replace(timing, **beside) for timing in row.timings)
        return msgspec.structs.replace(row, timings=timings, memory_of_others_bytes=others_bytes)

    try:
        for answer in answers:
            if seat is not None:
                seat.hear(answer)
            if answer.window == "begins":
                watch.begin()
                host.begin()
            elif answer.window == "ended":
                seen, others_busy_cores = watch.end(), host.end()
            elif answer.row is not None:
                yield add_state(answer.row)
                seen = others_busy_cores = unchecked = None
            unchecked = answer.unchecked or unchecked
    except (ChildFailed, OutOfTime) as end:
        if unchecked is None:
            raise
        why = "--budget ended during the check"
        if isinstance(end, ChildFailed):
            why = f"the check ended the process: {end.failure.message}"
        output = OutputCheck(result="unchecked", remark=why)
        yield add_state(msgspec.structs.replace(unchecked, output=output))
        if isinstance(end, OutOfTime):
            raise


def is_other_memory_equal(then_bytes: int | None, now_bytes: int | None) -> bool:
    """Whether other processes hold as much device memory at two moments; unknown values count as equal."""
    return then_bytes is None or now_bytes is None or abs(then_bytes - now_bytes) <= OTHERS_TOLERANCE_BYTES


def timeout_s(batch_size: int, taken: Sequence[Trial], least_s: float = LEAST_TIMEOUT_S) -> float:
    """Return the timeout of a process's silence in seconds: four times the trial expected from earlier trials.

    The timeout is at least ``least_s``; without an earlier trial it is ``FIRST_TIMEOUT_S``.
    """
    seconds = expected_s(batch_size, taken)
    return FIRST_TIMEOUT_S if seconds is None else max(least_s, TIMEOUT_FACTOR * seconds)


def expected_s(batch_size: int, taken: Sequence[Trial]) -> float | None:
    """Return the expected seconds of a trial, from earlier trials; None if none was answered.

    The steps of a batch larger than all that passed grow at least in proportion, and faster if their times bend
    upwards. Each earlier trial's seconds, which contain its own steps, are raised by the difference; the longest result
    counts. Trials whose process ended without an answer do not count.
    """
    answered = [trial for trial in taken if trial.failure is None or trial.failure.kind not in ("died", "timeout")]
    if not answered:
        return None
    times_ms = {trial.batch_size: trial.step_ms for trial in answered if trial.failure is None and trial.step_ms}
    largest = max(times_ms, default=batch_size)
    step_ms = 0.0
    if largest < batch_size:
        goes_on = going_on(times_ms)
        in_proportion_ms = times_ms[largest] * batch_size / largest
        step_ms = max(in_proportion_ms, goes_on(batch_size) if goes_on else 0.0)
    more_ms = (max(0.0, step_ms - times_ms.get(trial.batch_size, 0.0)) for trial in answered)
    return max(trial.seconds + TRIAL_STEPS * ms / 1000 for trial, ms in zip(answered, more_ms, strict=True))


def check_memory(spec: Spec, environment: Environment) -> None:
    """Raise BadRequest if ``--headroom`` leaves no memory, DeviceInUse if others hold some in spite of ``--strict``.

    ``--strict`` raises NoSuchDevice if the memory of others cannot be read.
    """
    _lowered_bytes(spec, environment)
    if spec.strict and environment.can.own_memory and environment.memory_of_others_bytes is None:
        raise NoSuchDevice("--strict: the memory that other processes hold cannot be read here", "leave it out")
    _check_others(spec, environment.memory_of_others_bytes)


def _check_others(spec: Spec, others_bytes: int | None) -> None:
    if spec.strict and others_bytes is not None and others_bytes > NEGLIGIBLE_BYTES:
        raise DeviceInUse(
            f"other processes hold {format_bytes(others_bytes)} of the device's memory, and --strict was given",
            "end them (nvidia-smi lists them), or go on against what is free without --strict",
        )


def _limit_bytes(spec: Spec, environment: Environment) -> int | None:
    """Return the memory limit of trials and rows in bytes, the same for the whole run; None for no limit.

    Host memory is limited to its free bytes per process by default, if the device supports a limit.
    """
    free_bytes = environment.memory_free_bytes
    if spec.memory_limit_bytes is not None or not environment.can.memory_limit or environment.can.own_memory:
        return spec.memory_of_each_bytes
    return None if free_bytes is None else free_bytes // (spec.ranks or 1)


def _lowered_bytes(spec: Spec, environment: Environment) -> int | None:
    """Return the limit in bytes that keeps ``--headroom`` free; a fraction is relative to the usable memory."""
    if spec.headroom is None or environment.memory_total_bytes is None:
        return None
    free_bytes = environment.memory_total_bytes - (environment.memory_of_others_bytes or 0)
    usable_bytes = min(free_bytes, _limit_bytes(spec, environment) or free_bytes)
    headroom_bytes = spec.headroom if isinstance(spec.headroom, int) else int(spec.headroom * usable_bytes)
    if headroom_bytes >= usable_bytes:
        raise BadRequest(
            f"--headroom {format_bytes(headroom_bytes)} leaves nothing of the {format_bytes(usable_bytes)} there is"
        )
    return usable_bytes - headroom_bytes
