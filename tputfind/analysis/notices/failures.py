"""Notices of trials and rows that failed, and of outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tputfind.analysis.notices.words import batches, brief, few, sizes
from tputfind.record.choices import Mode
from tputfind.record.record import TRIAL_STEPS, Failure, FailureKind, Notice, Record, Row, Trial

ADVICE: Final[dict[FailureKind, str]] = {
    "out_of_memory": "take a smaller batch, dtype or input, or more memory",
    "index_limit": "more memory will not help: split the batch",
    "kernel_limit": "split the batch, or try another --dtype",
    "host_memory": "make the inputs in less host memory",
    "unsupported": "try --dtype amp-fp16 or --layout nchw",
    "died": "run the model by itself at that batch to see why",
    "timeout": "raise --trial-timeout if the model is only slow",
    "wrong_output": "do not deploy this batch",
    "error": "see its traceback",
}
"""What to do about each kind of failure, in one line."""


def advice(kind: FailureKind, mode: Mode) -> str:
    """Return what to do about a failure in a mode."""
    if mode != "eager" and kind in ("unsupported", "wrong_output"):
        return "--mode eager runs the model as it is"
    return ADVICE[kind]


_CAUSES: Final[dict[FailureKind, str]] = {
    "out_of_memory": "the memory ran out",
    "index_limit": "a kernel counts in 32 bits",
    "kernel_limit": "a kernel cannot do this size",
    "host_memory": "the host's memory is full",
    "unsupported": "it does not run so",
    "died": "a crash, or no host memory",
    "timeout": "it hangs, or is far slower",
    "wrong_output": "a kernel is wrong at this size",
    "error": "the model fails",
}


def of_failures(record: Record) -> Iterator[Notice]:
    """Notices of failures, those of one kind together, in the words of the smallest batch."""
    together: dict[tuple[str, str], dict[int, Failure]] = {}
    for kind, how, batch_size, failure in _failures(record):
        together.setdefault((kind, how), {})[batch_size] = failure
    for (kind, how), failures in together.items():
        sizes = tuple(sorted(failures))
        smallest = failures[sizes[0]]
        later = kind.startswith("failed_when")
        seen = f"{few(sizes)} {how}: "
        cause = _LATER if later else _CAUSES[smallest.kind]
        to_do = _advice(smallest, record.spec.mode, later=later)
        yield Notice(
            kind=kind,
            seen=seen + brief(smallest.plain, seen, cause, to_do),
            cause=cause,
            advice=to_do,
            batch_sizes=sizes,
        )


def _advice(failure: Failure, mode: Mode, *, later: bool) -> str:
    """Return what to do about a failure that a record keeps; its traceback is not on the screen."""
    where = "tputfind report RECORD --traceback shows its traceback" if failure.traceback else ""
    if later:
        return "; ".join(filter(None, ("do not deploy it", where)))
    if failure.kind == "error":
        return where or ADVICE["died"]
    return advice(failure.kind, mode)


_LATER: Final = "a trial is only a few steps"


def _failures(record: Record) -> Iterator[tuple[str, str, int, Failure]]:
    """Yield what a reader must know of: the kind of notice, how it failed, the batch size, the failure."""
    for trial in record.trials:
        if trial.failure is None:
            continue
        if trial.steps > TRIAL_STEPS:
            # Under --headroom's lower limit, memory that ran out says nothing against the batch itself.
            if not _lowered(record, trial) or trial.failure.kind != "out_of_memory":
                how = f"failed after its trial, within {trial.steps} steps"
                yield "failed_when_soaked", how, trial.batch_size, trial.failure
        elif trial.failure.kind != "out_of_memory":
            yield f"trial_{trial.failure.kind}", "failed in a trial", trial.batch_size, trial.failure
    tried = {trial.batch_size for trial in record.trials}
    passed = {trial.batch_size for trial in record.trials if trial.failure is None}
    for row in record.rows:
        if row.failure is None:
            continue
        if row.failure.kind == "wrong_output":
            yield "row_wrong_output", "computes wrong outputs", row.batch_size, row.failure
        elif row.batch_size in passed:
            how = "failed after its trial, when timed"
            yield "failed_when_timed", how, row.batch_size, row.failure
        elif row.failure.kind != "out_of_memory" and row.batch_size not in tried:
            yield f"row_{row.failure.kind}", "failed when timed", row.batch_size, row.failure


def _lowered(record: Record, trial: Trial) -> bool:
    return record.edge is not None and trial.memory_limit_bytes != record.edge.memory_limit_bytes


def of_outputs(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Notices of outputs that could not be checked, or that are no numbers in small batches either."""
    for remark in dict.fromkeys(row.output.remark for row in timed if row.output and row.output.result == "unchecked"):
        rows = [row for row in timed if row.output and row.output.remark == remark]
        seen, to_do = f"the outputs of {batches(rows)} were not checked", "compare them with a small batch's"
        yield Notice(
            kind="output_unchecked",
            seen=seen,
            cause=brief(remark, seen, to_do),
            advice=to_do,
            batch_sizes=sizes(rows),
        )
    no_numbers = [row for row in timed if row.output and row.output.result == "not_finite"]
    if no_numbers and record.spec.phase != "infer":
        yield Notice(
            kind="loss_not_finite",
            seen=f"the loss is NaN or infinite at {batches(no_numbers)}",
            cause="it overflows in this dtype, or training diverged",
            advice="do not rely on the times",
            batch_sizes=sizes(no_numbers),
        )
    elif no_numbers:
        yield Notice(
            kind="output_not_finite",
            seen=f"outputs hold NaN or infinity at {batches(no_numbers)}",
            cause="in small batches too: the dtype overflows",
            advice="the times stand; check with trained weights",
            batch_sizes=sizes(no_numbers),
        )
