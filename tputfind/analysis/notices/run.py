"""Notices of the search, of failed trials and rows, of outputs, and of other processes on the device."""

from collections.abc import Iterator, Sequence
from typing import Final

from tputfind.analysis.answers import others_busy_cores
from tputfind.analysis.notices.words import batches, brief, few, sizes, span
from tputfind.record.record import TRIAL_STEPS, Failure, FailureKind, Notice, Record, Row, Trial
from tputfind.record.spec import Spec
from tputfind.record.types import NEGLIGIBLE_BYTES
from tputfind.units import format_bytes

_MUCH_MORE: Final = 1.05
"""Factor on the batch from which another setting is worth trying."""
_BUSY_SHARE: Final = 0.15
"""Fraction of the host's cores; daemons of an idle machine stay below, including the error of short windows."""
_NEARLY_OVER: Final = 0.8
"""Fraction of ``--budget`` below which a run did not end by it; the search may take 0.85."""


def run_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    yield from _search_notices(record)
    yield from _budget_notices(record)
    yield from _other_process_notices(record)
    yield from _host_load_notices(record, timed)
    yield from _failure_notices(record)
    yield from _output_notices(record, timed)


def _search_notices(record: Record) -> Iterator[Notice]:
    edge = record.edge
    if edge is not None and edge.limited_by == "latency" and record.spec.max_latency_ms == "auto":
        yield Notice(
            kind="default_latency_limit",
            seen=f"batches from {edge.fails_at} on, whose steps take over 1 s, are left out of the search",
            cause="the CPU's default",
            advice="--max-latency none searches to the end of memory",
        )
    if edge is not None and edge.largest_batch and not edge.closed and record.spec.headroom is not None:
        yield Notice(
            kind="no_safe_batch",
            seen="no batch that keeps --headroom free was sought",
            cause="the largest batch is not known",
            advice=f"--max-batch {edge.largest_batch} seeks one up to there",
        )
    yield from _non_monotonic_notices(record)
    yield from _fragmentation_notices(record)


def _non_monotonic_notices(record: Record) -> Iterator[Notice]:
    """Yield notices of smaller batches that did not fit, which readers would deploy, and of larger ones that did."""
    edge = record.edge
    if edge is None:
        return
    taken = [trial for trial in record.trials if trial.memory_limit_bytes == edge.memory_limit_bytes]
    tried: tuple[Trial | Row, ...] = (*taken, *record.rows)
    beside = max((_others_bytes(one) for one in tried if one.batch_size == edge.largest_batch), default=0)
    full = (one for one in tried if one.failure and one.failure.kind == "out_of_memory")
    alike = (one for one in full if _others_bytes(one) <= beside + NEGLIGIBLE_BYTES)
    failed = sorted({one.batch_size for one in alike if one.batch_size < edge.largest_batch})
    grows = any("grows" in row.seen for row in record.rows)
    cause = "memory grows with each step" if grows else "memory is fragmented"
    fewer = ", or use --allocator expandable" if edge.expandable_forecast is not None else ""
    seen = f"{few(failed)} ran out of memory" if failed else f"batch {edge.smaller_forecast} is forecast not to fit"
    if failed or edge.smaller_forecast is not None:
        yield Notice(
            kind="smaller_batches_fail",
            seen=f"{seen}, though {edge.largest_batch} fits",
            cause=cause,
            advice=f"deploy only batches that were tried{fewer}",
            batch_sizes=tuple(failed or [edge.smaller_forecast or 0]),
        )
    longer = [t for t in taken if t.steps > TRIAL_STEPS and t.batch_size > edge.largest_batch]
    lasted = [trial for trial in longer if trial.failure is None and _others_bytes(trial) >= beside]
    if lasted and edge.limited_by == "memory" and edge.steady:
        larger = max(lasted, key=lambda trial: trial.batch_size)
        yield Notice(
            kind="larger_batches_fit",
            seen=f"batch {larger.batch_size} ran {larger.steps} steps, though {edge.fails_at} ran out of memory",
            cause=cause,
            advice=f"--batch-sizes {larger.batch_size} times it{fewer}",
            batch_sizes=(larger.batch_size,),
        )


def _others_bytes(taken: Trial | Row) -> int:
    return taken.memory_of_others_bytes or 0


def _fragmentation_notices(record: Record) -> Iterator[Notice]:
    """Yield the notice of memory that is reserved but unusable, if other settings are forecast to fit much more."""
    edge = record.edge
    row = None if edge is None else next((r for r in record.rows if r.batch_size == edge.largest_batch), None)
    if edge is None or row is None or row.peak_allocated_bytes is None or edge.expandable_forecast is None:
        return
    if edge.expandable_forecast >= _MUCH_MORE * edge.largest_batch:
        held_bytes = row.peak_reserved_bytes or edge.memory_limit_bytes or record.environment.memory_total_bytes or 0
        yield Notice(
            kind="fragmentation",
            seen=f"tensors use {format_bytes(row.peak_allocated_bytes)} of {format_bytes(held_bytes)} "
            f"held at batch {edge.largest_batch}",
            cause="the rest is fragmented",
            advice=f"--allocator expandable is forecast to fit batch {edge.expandable_forecast}",
        )


def _budget_notices(record: Record) -> Iterator[Notice]:
    """Yield the notice of searches, rows and processes that ``--budget`` left out."""
    spec, rows = record.spec, record.rows
    nothing_passed = bool(rows) and all(row.failure is not None for row in rows)
    if spec.budget_s is None or record.finished is None or nothing_passed:
        return
    passed = max((each.batch_size for each in record.attempts if each.failure is None), default=0)
    edge, in_time = record.edge, record.wall_s < _NEARLY_OVER * spec.budget_s
    timed_out = edge is not None and edge.limited_by == "timeout" and in_time
    searched = (edge is not None and edge.closed) or timed_out or spec.batch_sizes is not None
    timed = {row.batch_size for row in rows}
    largest = passed if edge is None else edge.largest_batch
    asked = spec.batch_sizes or spec.sizes_up_to(largest)
    lacking = [size for size in asked if size not in timed]
    early = [row.batch_size for row in rows if row.ended_by == "budget"]
    stopped = f"the search stopped at batch {largest}" if record.trials else "no larger batch sought"
    left_out = [
        *([] if searched else [stopped]),
        *([f"{few(lacking)} not timed"] if lacking else []),
        *([f"{few(early)} timed briefly"] if early else []),
    ]
    if edge is not None and edge.closed and edge.largest_batch:
        left_out += [f"batch {largest} not soaked"] if edge.soaked_batches < (spec.soak or 0) else []
        left_out += ["no safe batch sought"] if spec.headroom is not None and record.safe is None else []
    if left_out:
        yield Notice(
            kind="budget",
            seen="; ".join(left_out),
            cause="--budget left too little time",  # a race gives its winner the rest, which nobody typed
            advice="raise it",
            batch_sizes=tuple(early),
        )


def _other_process_notices(record: Record) -> Iterator[Notice]:
    """Yield notices of the memory that other processes held on the device, and of its changes."""
    before = record.environment.memory_of_others_bytes
    held = [trial.memory_of_others_bytes for trial in record.trials]
    held += [row.memory_of_others_bytes for row in record.rows]
    known = [count for count in (before, *held) if count is not None]
    total_bytes, free_bytes = record.environment.memory_total_bytes, record.environment.memory_free_bytes
    own_limit = not record.environment.can.own_memory and record.spec.memory_limit_bytes is None
    if own_limit and record.edge is not None and record.edge.limited_by == "memory" and total_bytes and free_bytes:
        yield Notice(
            kind="memory_of_others",
            seen=f"the search took up to {format_bytes(free_bytes)}, all that was free of {format_bytes(total_bytes)}",
            cause="other processes hold the rest",
            advice="--memory-limit sets how much the model may have",
        )
    steady = record.edge is None or record.edge.steady
    if known and (max(known) - min(known) > NEGLIGIBLE_BYTES or not steady):
        yield Notice(
            kind="memory_of_others_changed",
            seen=f"other processes held {format_bytes(min(known))} to {format_bytes(max(known))} of the device's "
            "memory",
            cause="times and the largest batch are of that moment" if steady else "the largest batch is uncertain",
            advice="measure on a free device (--strict)",
        )
    elif before is not None and before > NEGLIGIBLE_BYTES:
        yield Notice(
            kind="memory_of_others",
            seen=f"other processes hold {format_bytes(before)} of the device's memory",
            cause="the largest batch is for what is left",
            advice="end them (see nvidia-smi), or use --strict",
        )


def _host_load_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield the notice of other work on the processor that is measured; it takes time from the model."""
    cores = record.environment.cpu_count
    loads = [(row, busy) for row in timed if (busy := others_busy_cores(row)) is not None]
    slowed = [(row, busy) for row, busy in loads if busy >= _BUSY_SHARE * cores]
    if slowed:
        rows, cores_busy = [row for row, _ in slowed], [busy for _, busy in slowed]
        fewer = ", or with fewer threads: OMP_NUM_THREADS=1" if record.environment.torch_threads > 1 else ""
        when = "while this was measured" if len(rows) == len(timed) else f"at {batches(rows)}"
        yield Notice(
            kind="host_busy",
            seen=f"other processes kept {span(min(cores_busy), max(cores_busy), '.1f')} of {cores} cores busy {when}",
            cause="they take time from the model, and rates are too low",
            advice=f"measure on a quiet machine{fewer}",
            batch_sizes=sizes(rows),
        )


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


def advice(kind: FailureKind, spec: Spec) -> str:
    if spec.mode != "eager" and kind in ("unsupported", "wrong_output"):
        return "--mode eager runs the model as it is"
    if spec.phase == "step":  # which takes neither dtype nor layout
        return {"unsupported": ADVICE["error"], "kernel_limit": "split the batch"}.get(kind, ADVICE[kind])
    return ADVICE[kind]


_CAUSES: Final[dict[FailureKind, str]] = {
    "out_of_memory": "the memory ran out",
    "index_limit": "a kernel counts in 32 bits",
    "kernel_limit": "a kernel cannot do this size",
    "host_memory": "the host's memory is full",
    "unsupported": "it does not run so",
    "died": "a crash, an exit, or no host memory",
    "timeout": "it hangs, or is far slower",
    "wrong_output": "a kernel is wrong at this size, or the model caught an error",
    "error": "the model fails",
}


def _failure_notices(record: Record) -> Iterator[Notice]:
    """Yield notices of failures, those of one kind together, with the message of the smallest batch."""
    together: dict[tuple[str, str], dict[int, Failure]] = {}
    passed = _passed_trials(record)
    for kind, how, batch_size, failure in _failures(record):
        together.setdefault((kind, how), {})[batch_size] = failure
    for (kind, how), failures in together.items():
        sizes = tuple(sorted(failures))
        smallest = failures[sizes[0]]
        later = kind.startswith("failed_when")
        seen = f"{few(sizes)} {how}: "
        cause = "a trial is only a few steps" if later else _CAUSES[smallest.kind]
        if kind == "row_error" and any(size in passed for size in sizes):
            cause = f"the {'step' if record.spec.phase == 'step' else 'model'} fails after more steps than a trial has"
        to_do = _advice(smallest, record.spec, later=later)
        yield Notice(
            kind=kind,
            seen=seen + brief(smallest.plain, seen, cause, to_do),
            cause=cause,
            advice=to_do,
            batch_sizes=sizes,
        )


def _advice(failure: Failure, spec: Spec, *, later: bool) -> str:
    """Return the advice for a failure in a record, whose traceback was not printed."""
    where = "tputfind report RECORD --traceback shows its traceback" if failure.traceback else ""
    if later:
        return "; ".join(filter(None, ("do not deploy it", where)))
    if failure.kind == "error":
        return where or ADVICE["died"]
    return advice(failure.kind, spec)


def _failures(record: Record) -> Iterator[tuple[str, str, int, Failure]]:
    """Yield failures that a reader must know: the kind of notice, how it failed, the batch size, the failure."""
    for trial in record.trials:
        if trial.failure is None:
            continue
        if trial.steps > TRIAL_STEPS:
            # Out of memory under --headroom's lower limit is no fault of the batch itself.
            lower = record.edge is not None and trial.memory_limit_bytes != record.edge.memory_limit_bytes
            if not lower or trial.failure.kind != "out_of_memory":
                how = f"failed after its trial, within {trial.steps} steps"
                yield "failed_when_soaked", how, trial.batch_size, trial.failure
        elif trial.failure.kind != "out_of_memory":
            yield f"trial_{trial.failure.kind}", "failed in a trial", trial.batch_size, trial.failure
    tried = {trial.batch_size for trial in record.trials}
    passed = _passed_trials(record)
    for row in record.rows:
        if row.failure is None:
            continue
        if row.failure.kind == "wrong_output":
            yield "row_wrong_output", "computed wrong outputs", row.batch_size, row.failure
        elif row.batch_size in passed and row.failure.kind != "error":
            how = "failed after its trial, when timed"
            yield "failed_when_timed", how, row.batch_size, row.failure
        elif row.failure.kind != "out_of_memory" and (row.batch_size in passed or row.batch_size not in tried):
            yield f"row_{row.failure.kind}", "failed when timed", row.batch_size, row.failure


def _passed_trials(record: Record) -> set[int]:
    return {trial.batch_size for trial in record.trials if trial.failure is None}


_SMALL_RANGE: Final = ("fp16", "amp-fp16")
"""Dtypes whose largest number, 65 504, an untrained model may exceed."""


def _output_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield notices of outputs that could not be checked, or that are not finite in small batches either."""
    unchecked: dict[str, list[Row]] = {}
    for row in timed:
        if row.output and row.output.result == "unchecked":
            reason = row.output.remark.partition(": ")[0]  # the text of an error has sizes that differ from row to row
            unchecked.setdefault(reason, []).append(row)
    for rows in unchecked.values():
        remark = rows[0].output.remark if rows[0].output else ""
        seen, to_do = f"the outputs of {batches(rows)} were not checked", "compare them with a small batch's"
        yield Notice(
            kind="output_unchecked", seen=seen, cause=brief(remark, seen, to_do), advice=to_do, batch_sizes=sizes(rows)
        )
    no_numbers = [row for row in timed if row.output and row.output.result == "not_finite"]
    if no_numbers and record.spec.phase != "infer":
        otherwise = "the dtype overflows" if record.spec.dtype in _SMALL_RANGE else "so small a batch has no loss"
        yield Notice(
            kind="loss_not_finite",
            seen=f"the loss is NaN or infinite at {batches(no_numbers)}",
            cause=f"training diverged, or {otherwise}",
            advice="do not rely on the times",
            batch_sizes=sizes(no_numbers),
        )
    elif no_numbers:
        cause = "the dtype overflows" if record.spec.dtype in _SMALL_RANGE else "the model makes them of random inputs"
        yield Notice(
            kind="output_not_finite",
            seen=f"outputs hold NaN or infinity at {batches(no_numbers)}",
            cause=f"in small batches too: {cause}",
            advice="the times stand; check with trained weights",
            batch_sizes=sizes(no_numbers),
        )
