"""The outcome of a trial or of a whole run: why a batch does not fit, and the error or the failed row of a run."""

from typing import Final, cast

import msgspec

from tputfind.analysis import notices
from tputfind.analysis.answers import needed_bytes
from tputfind.errors import (
    BadRequest,
    BrokenInstall,
    DeviceInUse,
    ModelFailed,
    NoSuchDevice,
    NothingFits,
    OutOfTime,
    TputfindError,
)
from tputfind.processes.failures import for_want_of_memory
from tputfind.record.record import Failure, FailureKind, LimitedBy, Record, Row, Trial
from tputfind.record.spec import Spec
from tputfind.search.forecast import going_on
from tputfind.session.inspect import now

HOST_MAX_LATENCY_MS: Final = 1000.0
"""Default maximum step time on host memory; without it, the search would go on for hours to useless batch sizes."""
_FAR: Final = 2**20
_LEAST_SIZES: Final = 3
_NEAR_LINE: Final = 1e-3
_LEAST_RETURNED: Final = 0.75
"""Minimum fraction of the expected number of values in an output."""
_NEARLY_FULL: Final = 0.9
LIMITS: Final[dict[FailureKind, LimitedBy]] = {
    "out_of_memory": "memory",
    "index_limit": "index",
    "kernel_limit": "kernel",
    "host_memory": "host_memory",
    "unsupported": "unsupported",
    "died": "died",
    "timeout": "timeout",
    "wrong_output": "wrong_output",
    "error": "error",
}
NOT_OF_THE_MODEL: Final = (OutOfTime, DeviceInUse, BrokenInstall)
"""Errors of a run that say nothing about the model: ``--budget``, ``--strict`` or a broken server of processes ended it
before anything was timed."""


def obstacle(record: Record, trial: Trial) -> LimitedBy | None:
    """Return why a trial's batch does not count as fitting; None if it fits."""
    if trial.failure is not None:
        return LIMITS[trial.failure.kind]
    limit_ms = max_latency_ms(record)
    slow = limit_ms is not None and trial.step_ms is not None and trial.step_ms > limit_ms
    # The smallest batch passes however slow it is: a slow answer is better than none.
    return "latency" if slow and trial.batch_size > record.spec.granularity else None


def check_batch_size_counts(record: Record, trial: Trial) -> None:
    """Refuse a step of the user's own that ignores its batch size: each sample must need at least one byte.

    BadRequest if a million times the batch size takes neither more time nor more memory.
    """
    passed = [one for one in record.trials if one.failure is None]
    if record.spec.phase != "step" or not passed or trial.failure is not None:
        return
    first = min(passed, key=lambda one: one.batch_size)
    steps_ms, peaks = (first.step_ms, trial.step_ms), (first.peak_allocated_bytes, trial.peak_allocated_bytes)
    if trial.batch_size < _FAR * first.batch_size or None in steps_ms or None in peaks:
        return
    slower, grown = (steps_ms[1] or 0.0) >= 2 * (steps_ms[0] or 0.0), (peaks[1] or 0) - (peaks[0] or 0)
    if not slower and grown < trial.batch_size - first.batch_size:
        raise BadRequest(
            f"{record.spec.model}: batch size {trial.batch_size} takes neither more time nor more memory than "
            f"{first.batch_size}",
            "its batch must have as many samples as the batch size",
        )


def judge_output(record: Record, trial: Trial) -> Trial:
    """Return a trial as failed if its output is smaller than those of the batches below let expect.

    A model that catches every error may return less, or nothing, when memory runs out. The number of values must have
    grown in proportion over three batch sizes or more. An output that is not empty is smaller for other reasons if the
    peaks of those batches let expect enough memory.
    """
    passed = {one.batch_size: one.returned for one in record.trials if one.failure is None}
    below = sorted((size, count) for size, count in passed.items() if size < trial.batch_size and count is not None)
    if trial.failure is not None or trial.returned is None or len(below) < _LEAST_SIZES:
        return trial
    (least, few), *between, (most, many) = below
    each = (many - few) / (most - least)
    in_line = all(abs(few + each * (size - least) - count) <= _NEAR_LINE * count for size, count in between)
    if not in_line or trial.returned >= _LEAST_RETURNED * (many + each * (trial.batch_size - most)):
        return trial
    if trial.returned and _leaves_memory(record, trial):
        return trial
    found = f"batch {trial.batch_size} returned {trial.returned} values, and batch {most} {many}"
    return msgspec.structs.replace(trial, failure=Failure(kind="wrong_output", message=found))


def _leaves_memory(record: Record, trial: Trial) -> bool:
    """Return whether a batch leaves a tenth of the memory free, by the peaks of smaller ones; False if unknown."""
    can, total_bytes = record.environment.can, record.environment.memory_total_bytes
    below = (one for one in record.trials if one.failure is None and one.batch_size < trial.batch_size)
    needed = {one.batch_size: needed_bytes(can, one.peak_allocated_bytes, one.peak_reserved_bytes) for one in below}
    expected_bytes = going_on({size: count for size, count in needed.items() if count is not None})
    limit_bytes = trial.memory_limit_bytes or (total_bytes or 0) - (trial.memory_of_others_bytes or 0)
    return expected_bytes is not None and expected_bytes(trial.batch_size) < _NEARLY_FULL * limit_bytes


def max_latency_ms(record: Record) -> float | None:
    """Return the maximum step time of the search in milliseconds; None for no limit."""
    limit_ms = record.spec.max_latency_ms
    if limit_ms == "auto":
        return None if record.environment.can.own_memory else HOST_MAX_LATENCY_MS
    return limit_ms


def error_of(record: Record) -> TputfindError | None:
    """Return the error of a record in which no row passed: that of its first row; None if a row passed."""
    failures = [row.failure for row in record.rows]
    if None not in failures and failures and failures[0] is not None:
        return no_answer(record.spec, record.rows[0].batch_size, failures[0])
    return None


def failed_record(record: Record, error: TputfindError, kind: FailureKind | None = None) -> Record:
    """Return the record with one failed row that holds the error, so that lists show it too.

    If the error says nothing about the model, the record has no row and can be resumed. ``kind`` defaults to that of
    the error.
    """
    if kind is None and isinstance(error, NOT_OF_THE_MODEL):
        return msgspec.structs.replace(record, notices=notices.of(record))
    kind = kind or cast("FailureKind", error.kind)
    row = Row(
        batch_size=record.spec.smallest_batch,
        failure=Failure(kind=kind, message=error.message, traceback=error.traceback),
    )
    failed = msgspec.structs.replace(record, rows=(row,), finished=now())
    return msgspec.structs.replace(failed, notices=notices.of(failed))


def no_answer(spec: Spec, batch_size: int, failure: Failure, *, smallest: bool = True) -> TputfindError:
    """Return the error of a run in which no batch passed: that of the smallest batch, or of the only one requested."""
    if for_want_of_memory(failure):
        advice = "try a smaller batch, dtype or input, or a device with more memory"
        if failure.kind == "host_memory":
            advice = notices.advice(failure.kind, spec)
        how = f"not even batch {batch_size} fits" if smallest else f"batch {batch_size} does not fit"
        return NothingFits(f"{spec.model}: {how} ({failure.message})", advice)
    advice = notices.advice(failure.kind, spec)
    # The traceback helps the author of the model.
    shown = failure.traceback if spec.own_code else ""
    if failure.kind == "error" and not failure.traceback:
        advice = ""  # none of the user's code had begun to run
    by_default = (spec.dtype, spec.layout, spec.mode) == ("fp32", "nchw", "eager") or spec.phase == "step"
    if failure.kind == "unsupported" and not (spec.own_code and by_default):
        mode = "" if spec.mode == "eager" else f" --mode {spec.mode}"
        mode += "" if spec.phase == "infer" else f" --phase {spec.phase}"
        asked = f"--dtype {spec.dtype} --layout {spec.layout}{mode}"
        where = "this device" if spec.device == "auto" else spec.device
        return NoSuchDevice(f"{spec.model} cannot do {asked} on {where}: {failure.message}", advice, shown)
    shape = spec.input_size or spec.image_size
    axis = _batch_axis_in(spec) if failure.kind == "error" else ""
    if failure.kind == "error" and shape is not None and spec.source == "torchvision":
        why = f"{spec.model} does not take an input of that size: {failure.message}"
        return BadRequest(why, axis or "leave the size out")
    failed = ModelFailed(
        f"{spec.model} fails at batch {batch_size}: {failure.message}", axis or advice, failure.traceback
    )
    failed.kind = "error" if failure.kind == "kernel_limit" else failure.kind  # the smallest batch has no such limit
    return failed


def _batch_axis_in(spec: Spec) -> str:
    """Return a hint if the shape of a sample may begin with a batch axis of 1; else an empty string."""
    first, *rest = spec.input_size or (0,)
    if first != 1 or not rest:
        return ""
    return f"--input-size is one sample, without the batch axis: write {'x'.join(map(str, rest))} if the 1 is a batch"
