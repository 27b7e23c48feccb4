"""What a reader must know to use the numbers of a record: seen, likely cause, what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tputfind.record import TRIAL_STEPS, Failure, FailureKind, Notice, Record, Row, Trial
from tputfind.stats import mean, percentile, samples_for_percentile
from tputfind.summary import host_bound
from tputfind.units import format_bytes

NEGLIGIBLE_BYTES: Final = 16 * 2**20
"""Less than this, held by others, is what drivers and monitors keep: it changes no answer that is worth a notice."""


ADVICE: Final[dict[FailureKind, str]] = {
    "out_of_memory": "take a smaller batch, dtype or input, or a device with more memory",
    "index_limit": "more memory will not help: split the batch, or try another --layout or --dtype",
    "unsupported": "try another --dtype (amp-fp16 and amp-bf16 leave such operators in fp32) or --layout nchw",
    "died": "run the model by itself at that batch to see why",
    "timeout": "if the model is only slow, raise --trial-timeout",
    "wrong_output": "do not deploy this batch; a smaller one is computed right",
    "error": "the model's own traceback says where: does it take this batch and this input?",
}
"""What to do about each kind of failure, in one line."""

_CAUSES: Final[dict[FailureKind, str]] = {
    "out_of_memory": "the memory ran out",
    "index_limit": "a kernel or a library counts in 32 bits there; it is not memory that is lacking",
    "unsupported": "an operator has no kernel for it, whatever the memory",
    "died": "the model's code or a kernel ended its process, or the system did for want of host memory",
    "timeout": "it hangs, or takes far longer than the trials before it",
    "wrong_output": "a kernel computes something else at this size: such is what an overflowed index does",
    "error": "the model's code or a kernel fails there, not the device's memory",
}


def of(record: Record) -> tuple[Notice, ...]:
    """Return the notices of a record: of the search, of failures, of the rows; each kind once for all its rows."""
    timed = [row for row in record.rows if row.failure is None]
    found = [*_of_search(record), *_of_others(record), *_of_failures(record), *_of_outputs(timed)]
    found += [*_of_windows(record, timed), *_of_allocator(timed), *_of_hosts(timed)]
    return tuple(found)


def _of_search(record: Record) -> Iterator[Notice]:
    edge = record.edge
    if edge is not None and edge.limited_by == "latency" and record.spec.max_latency_ms == "auto":
        yield Notice(
            kind="default_latency_limit",
            seen=f"the search stopped where a step takes more than 1 s, before memory ran out (batch {edge.fails_at})",
            cause="that is the default on the CPU",
            advice="--max-latency none searches up to the end of memory",
        )


def _of_others(record: Record) -> Iterator[Notice]:
    """Notices of other processes on the device, and of what they did meanwhile."""
    before = record.environment.memory_of_others_bytes
    held = [trial.memory_of_others_bytes for trial in record.trials]
    held += [row.memory_of_others_bytes for row in record.rows]
    known = [count for count in (before, *held) if count is not None]
    total_bytes, free_bytes = record.environment.memory_total_bytes, record.environment.memory_free_bytes
    own_limit = record.environment.device == "cpu" and record.spec.memory_limit_bytes is None
    if own_limit and record.edge is not None and record.edge.limited_by == "memory" and total_bytes and free_bytes:
        yield Notice(
            kind="memory_of_others",
            seen=f"the search went up to {format_bytes(free_bytes)}, what was available of {format_bytes(total_bytes)}",
            cause="the system and other processes hold the rest",
            advice="--memory-limit says how much the model may have",
        )
    steady = record.edge is None or record.edge.steady
    if known and (max(known) - min(known) > NEGLIGIBLE_BYTES or not steady):
        yield Notice(
            kind="memory_of_others_changed",
            seen=f"other processes held {format_bytes(min(known))} to {format_bytes(max(known))} of the device's "
            "memory in the course of the run",
            cause="the device is shared: times and the edge are those of the moment"
            if steady
            else "the device is shared, and both sides of the edge were not tried while others held the same",
            advice="measure on a device of one's own (--strict insists on it)",
        )
    elif before is not None and before > NEGLIGIBLE_BYTES:
        yield Notice(
            kind="memory_of_others",
            seen=f"other processes hold {format_bytes(before)} of the device's memory",
            cause="the device is shared; the largest batch is one for what is left, and times may suffer",
            advice="end them (nvidia-smi lists them); --strict refuses to go on beside them",
        )


def _of_failures(record: Record) -> Iterator[Notice]:
    """Notices of failures, those of one kind together, in the words of the smallest batch."""
    together: dict[tuple[str, str], dict[int, Failure]] = {}
    for kind, how, batch_size, failure in _failures(record):
        together.setdefault((kind, how), {})[batch_size] = failure
    for (kind, how), failures in together.items():
        sizes = tuple(sorted(failures))
        smallest = failures[sizes[0]]
        later = kind.startswith("failed_when")
        yield Notice(
            kind=kind,
            seen=f"batch {', '.join(map(str, sizes))} {how}: {smallest.message}",
            cause=_LATER if later else _CAUSES[smallest.kind],
            advice="do not deploy such a batch; the answer lies below it" if later else ADVICE[smallest.kind],
            batch_sizes=sizes,
        )


_LATER: Final = "a trial takes a few steps, and the failure came in a later one"


def _failures(record: Record) -> Iterator[tuple[str, str, int, Failure]]:
    """Yield what a reader must know of: the kind of notice, how it failed, the batch size, the failure."""
    for trial in record.trials:
        if trial.failure is None:
            continue
        if trial.steps > TRIAL_STEPS:
            # Under --headroom's lower limit, memory that ran out says nothing against the batch itself.
            if not _lowered(record, trial) or trial.failure.kind != "out_of_memory":
                how = f"passed its trial and failed within {trial.steps} steps"
                yield "failed_when_soaked", how, trial.batch_size, trial.failure
        elif trial.failure.kind != "out_of_memory":
            yield f"trial_{trial.failure.kind}", "failed its trial", trial.batch_size, trial.failure
    tried = {trial.batch_size for trial in record.trials}
    passed = {trial.batch_size for trial in record.trials if trial.failure is None}
    for row in record.rows:
        if row.failure is None:
            continue
        if row.failure.kind == "wrong_output":
            yield "row_wrong_output", "computed something else than small batches do", row.batch_size, row.failure
        elif row.batch_size in passed:
            how = "passed its trial and failed when timed in full"
            yield "failed_when_timed", how, row.batch_size, row.failure
        elif row.failure.kind != "out_of_memory" and row.batch_size not in tried:
            yield f"row_{row.failure.kind}", "failed when timed", row.batch_size, row.failure


def _lowered(record: Record, trial: Trial) -> bool:
    return record.edge is not None and trial.memory_limit_bytes != record.edge.memory_limit_bytes


def _of_outputs(timed: Sequence[Row]) -> Iterator[Notice]:
    """Notices of outputs that could not be checked, or that are no numbers in small batches either."""
    for remark in dict.fromkeys(row.output.remark for row in timed if row.output and row.output.result == "unchecked"):
        rows = [row for row in timed if row.output and row.output.remark == remark]
        yield Notice(
            kind="output_unchecked",
            seen=f"whether the outputs are right was not checked at {_batches(rows)}",
            cause=remark,
            advice="compare them with a small batch's yourself before you deploy a large one",
            batch_sizes=_sizes(rows),
        )
    no_numbers = [row for row in timed if row.output and row.output.result == "not_finite"]
    if no_numbers:
        yield Notice(
            kind="output_not_finite",
            seen=f"outputs hold NaN or infinity at {_batches(no_numbers)}, and in small batches too",
            cause="the weights overflow in this dtype; random ones often do",
            advice="the times stand; check the outputs with trained weights, or take bf16",
            batch_sizes=_sizes(no_numbers),
        )


def _of_windows(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    spec = record.spec
    short = [row for row in timed if len(row.device_ms) < spec.batches or len(row.latency_ms) < spec.latency_batches]
    if short:
        least, least_latency = (min(map(len, column)) for column in zip(*map(_windows, short), strict=True))
        yield Notice(
            kind="cut_short",
            seen=f"not all batches were timed at {_batches(short)}: at the least {least} of {spec.batches}, "
            f"and {least_latency} of {spec.latency_batches} for the latency",
            cause=f"all of them would have taken more than --max-seconds {spec.max_seconds:g}",
            advice="raise --max-seconds",
            batch_sizes=_sizes(short),
        )
    few = [row for row in timed if percentile(row.latency_ms, spec.percentile) is None]
    if spec.slo_ms is not None and few:
        needed = samples_for_percentile(spec.percentile)
        yield Notice(
            kind="few_latency_samples",
            seen=f"p{spec.percentile:g} of the latency is unknown at {_batches(few)}",
            cause=f"it needs {needed} latency batches, and they were {min(len(row.latency_ms) for row in few)}",
            advice="raise --latency-batches or --max-seconds, or ask for a lower --percentile",
            batch_sizes=_sizes(few),
        )


def _of_allocator(timed: Sequence[Row]) -> Iterator[Notice]:
    """The first retry or two fall into the first step; a row that goes on retrying is timed at it."""
    busy = [row for row in timed if (row.allocator_retries or 0) >= len(row.device_ms)]
    if busy:
        yield Notice(
            kind="allocator_retries",
            seen=f"the allocator gave memory back and asked again {_counts(busy)} times at {_batches(busy)}",
            cause="the batch fits only if the memory's pieces are rearranged in every step, which costs time",
            advice="take a smaller batch, or try PYTORCH_ALLOC_CONF=expandable_segments:True",
            batch_sizes=_sizes(busy),
        )


def _counts(rows: Sequence[Row]) -> str:
    return ", ".join(str(row.allocator_retries) for row in rows)


def _of_hosts(timed: Sequence[Row]) -> Iterator[Notice]:
    bound = [row for row in timed if host_bound(row)]
    if bound:
        shares = [(mean(row.enqueue_ms) or 0.0) / (mean(row.device_ms) or 1.0) for row in bound]
        yield Notice(
            kind="host_bound",
            seen=f"submitting a batch takes {min(shares):.0%} to {max(shares):.0%} of its time at {_batches(bound)}",
            cause="the device waits for Python to launch its kernels",
            advice="take a larger batch, a CUDA graph or torch.compile",
            batch_sizes=_sizes(bound),
        )


def _windows(row: Row) -> tuple[Sequence[float], Sequence[float]]:
    return row.device_ms, row.latency_ms


def _sizes(rows: Sequence[Row]) -> tuple[int, ...]:
    return tuple(row.batch_size for row in rows)


def _batches(rows: Sequence[Row]) -> str:
    return f"batch {', '.join(map(str, _sizes(rows)))}"
