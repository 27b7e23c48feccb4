"""What a reader must know to use the numbers of a record: seen, likely cause, what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tputfind.record import Failure, Notice, Record, Row
from tputfind.stats import mean, percentile, samples_for_percentile
from tputfind.summary import host_bound


def of(record: Record) -> tuple[Notice, ...]:
    """Return the notices of a record: of the search, of failures, of the rows; each kind once for all its rows."""
    timed = [row for row in record.rows if row.failure is None]
    found = [*_of_search(record), *_of_failures(record), *_of_windows(record, timed)]
    found += [*_of_allocator(timed), *_of_hosts(timed)]
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


def _of_failures(record: Record) -> Iterator[Notice]:
    for trial in record.trials:
        if trial.failure is not None and trial.failure.kind != "out_of_memory":
            yield _failed("trial", trial.batch_size, trial.failure)
    tried = {trial.batch_size for trial in record.trials}
    passed = {trial.batch_size for trial in record.trials if trial.failure is None}
    for row in record.rows:
        if row.failure is None:
            continue
        if row.batch_size in passed:
            yield Notice(
                kind="failed_when_timed",
                seen=f"batch {row.batch_size} passed its trial and failed when timed in full: {row.failure.message}",
                cause="a trial takes a few steps, and the failure came in a later one",
                advice="do not deploy this batch; every row with figures ran in full",
                batch_sizes=(row.batch_size,),
            )
        elif row.failure.kind != "out_of_memory" and row.batch_size not in tried:
            yield _failed("row", row.batch_size, row.failure)


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


def _failed(what: str, batch_size: int, failure: Failure) -> Notice:
    if failure.kind == "died":
        cause = "the model's code or a kernel ended its process, or the system did for want of host memory"
    else:
        cause = "the model's code or a kernel fails there, not the device's memory"
    return Notice(
        kind=f"{what}_{failure.kind}",
        seen=f"the {what} of batch {batch_size} ended with: {failure.message}",
        cause=cause,
        advice="the record holds the whole text",
        batch_sizes=(batch_size,),
    )


def _windows(row: Row) -> tuple[Sequence[float], Sequence[float]]:
    return row.device_ms, row.latency_ms


def _sizes(rows: Sequence[Row]) -> tuple[int, ...]:
    return tuple(row.batch_size for row in rows)


def _batches(rows: Sequence[Row]) -> str:
    return f"batch {', '.join(map(str, _sizes(rows)))}"
