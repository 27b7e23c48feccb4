"""When a row has all its processes, and the plan of its next process. Pure functions of the request and the timings."""

import math
from collections.abc import Sequence
from math import inf
from statistics import fmean
from typing import Final

from msgspec.structs import replace

from tputfind.analysis.answers import KNEE_SHARE, fastest, knee, rows_that_reach, throughput_interval, too_late
from tputfind.processes.messages import Plan
from tputfind.record.record import Edge, Row, RowEnd, doubt_of_one_process, host_bound
from tputfind.record.spec import MOST_PROCESSES, Spec
from tputfind.stats import percentile, samples_for_percentile

ALIKE: Final = 0.005
"""Maximum relative difference between two processes that count as alike."""
BATCHES: Final = 100
LEAST_BATCHES: Final = 6
"""Minimum number of batches of a row, over all its processes; one per process if they exceed the row's seconds."""
_PROCESSES_ALIKE: Final = 2
"""Number of processes after which a row ends if they are alike."""
WINDOW_S: Final = 1.0
"""Seconds of the throughput windows of a row, over all its processes."""
THOROUGH_S: Final = 3.0
_ROW_S: Final = 4.0
_THOROUGH_ROW_S: Final = 60.0


def process_plan(spec: Spec, number: int) -> Plan:
    """Return the plan of a row's process with this number (from 0): its part of the row's total."""
    processes = spec.row_processes
    fixed = spec.batches or (BATCHES if spec.thorough else None)
    for_percentile = 0 if spec.slo_ms is None else samples_for_percentile(spec.percentile)
    least = math.ceil(LEAST_BATCHES / processes)
    return Plan(
        batches=least if fixed is None else _share(fixed, processes, number),
        least_batches=1,
        window_s=(THOROUGH_S if spec.thorough else WINDOW_S if fixed is None else 0.0) / processes,
        latency_batches=_share(max(fixed or BATCHES, for_percentile if fixed is None else 0), processes, number),
        every_latency=fixed is not None or for_percentile > 0,
        warmup=spec.warmup or 0,
        max_seconds=row_seconds(spec) / processes,
    )


def _share(whole: int, processes: int, number: int) -> int:
    return max(1, whole // processes + (number % processes < whole % processes))


def row_seconds(spec: Spec) -> float:
    """Return the maximum seconds of the processes of a row."""
    fixed = spec.thorough or spec.batches is not None
    return spec.max_seconds or (_THOROUGH_ROW_S if fixed else _ROW_S)


def is_exact(spec: Spec) -> bool:
    """Whether an option names the rows or sets how they are timed; all rows are then timed alike."""
    asked = (spec.batch_sizes, spec.batches, spec.max_noise, spec.processes)
    return spec.thorough or any(option is not None for option in asked)


def ended_by(spec: Spec, row: Row) -> RowEnd | None:
    """Return why a row that decides an answer takes no further process; None if it takes one.

    A row takes three processes, or as many as ``--processes`` says. Two suffice if they are alike. With ``--max-noise``
    a row goes on until its interval is narrow enough, or its seconds are over.
    """
    if row.failure is not None or not row.timings:
        return None
    if len(row.timings) < spec.row_processes:
        return "alike" if _are_alike(spec, row) else None
    interval = throughput_interval(row)
    if spec.max_noise is None or interval is None:
        return "time" if any(timing.ended_by == "time" for timing in row.timings) else "full"
    # Intervals that end a row cover the true throughput less often than 95 % of the time, since some are narrow by
    # luck: ``benchmarks/plan.py coverage`` measures how often.
    if interval.half_width <= spec.max_noise:
        return "known"
    return None if _seconds(row) < row_seconds(spec) and len(row.timings) < MOST_PROCESSES else "time"


def _are_alike(spec: Spec, row: Row) -> bool:
    """Whether two processes are enough for a row: it is device-bound, and they differ by at most ``ALIKE``.

    On a host-bound row, two processes may agree by chance and a third differ. With exact options or an SLO, two are
    never enough: the percentile needs the latencies of all processes.
    """
    if is_exact(spec) or spec.slo_ms is not None or host_bound(row) is not False:
        return False
    if len(row.timings) != _PROCESSES_ALIKE:
        return False
    one, other = (fmean(timing.device_ms) for timing in row.timings)
    return abs(one / other - 1) <= ALIKE


def _seconds(row: Row) -> float:
    """Return the seconds of a row's processes, without the compilation in the first, which yields no figure."""
    compiled = [timing.compiled.seconds for timing in row.timings if timing.compiled is not None]
    return row.seconds - max(compiled, default=0.0)


def deciding(spec: Spec, rows: Sequence[Row], edge: Edge | None) -> set[int]:
    """Return the batch sizes that take further processes: those that decide the answers.

    With exact options these are all batch sizes.
    """
    return {row.batch_size for row in rows} if is_exact(spec) else contenders(spec, rows, edge)


def contenders(spec: Spec, rows: Sequence[Row], edge: Edge | None) -> set[int]:
    """Return the batch sizes that are an answer, or may be one within the uncertainty of their first process.

    These are the fastest and the knee; neighbours of the fastest that may be faster, and smaller batches that may be
    the knee; with ``--slo`` also the batches that may be the one to deploy, and with ``--effective-batch`` those that
    may reach it the fastest. The largest batch is not added for its size, nor as a neighbour of the fastest: that it
    fits does not depend on its throughput, and it takes the longest.
    """
    timed = [row for row in rows if row.samples_per_s is not None]
    best, bend = fastest(timed), knee(timed)
    if best is None:
        return set()
    place, most = timed.index(best), best.samples_per_s or 0.0
    beside = [row for row in timed[max(0, place - 1) : place + 2] if not edge or row.batch_size != edge.largest_batch]
    found = [best, *(row for row in beside if _may_reach(row, most)), *_deployable_rows(spec, timed)]
    found += [] if spec.effective_batch is None else _accumulation_rows(spec, timed, spec.effective_batch)
    if bend is not None:
        smaller = [row for row in timed if row.batch_size < bend.batch_size]
        found += [bend, *(row for row in smaller if _may_reach(row, KNEE_SHARE * most))]
    return {row.batch_size for row in found}


def _accumulation_rows(spec: Spec, timed: Sequence[Row], size: int) -> list[Row]:
    divide = rows_that_reach(spec, timed, size)
    most = max((row.samples_per_s or 0.0 for row in divide), default=0.0)
    return [row for row in divide if _may_reach(row, most)]


def _may_reach(row: Row, samples_per_s: float) -> bool:
    return (row.samples_per_s or 0.0) * (1 + doubt_of_one_process(row)) >= samples_per_s


def _deployable_rows(spec: Spec, timed: Sequence[Row]) -> list[Row]:
    """Return the rows that may be the fastest within ``--slo``: none slower than a row that seems to meet it."""
    if spec.slo_ms is None:
        return []
    seem = [row for row in timed if (_latency_ms(spec, row) or inf) <= spec.slo_ms]
    least = max((row.samples_per_s or 0.0 for row in seem), default=0.0)
    return [row for row in timed if (row.samples_per_s or 0.0) >= least and not too_late(spec, row)]


def _latency_ms(spec: Spec, row: Row) -> float | None:
    """Return the percentile latency in milliseconds; the maximum if there are too few latencies for the percentile."""
    known_ms = percentile(row.latency_ms, spec.percentile)
    return max(row.latency_ms, default=None) if known_ms is None else known_ms


def next_round(spec: Spec, rows: Sequence[Row], batch_sizes: Sequence[int], edge: Edge | None) -> tuple[int, list[int]]:
    """Return the number of the rows' next process, from 0, and the batch sizes that it times; empty if all have ended.

    Every row takes its turn before any is timed again, so that drifts affect all rows alike. After that only the rows
    that decide an answer are timed again.
    """
    by_size = {row.batch_size: row for row in rows}
    done = {size: len(by_size[size].timings) if size in by_size else 0 for size in batch_sizes}
    first = deciding(spec, rows, edge)
    wanted = [
        size
        for size in batch_sizes
        if size not in by_size or ((size in first or not done[size]) and wants_more(spec, by_size[size]))
    ]
    number = min((done[size] for size in wanted), default=0)
    return number, [size for size in wanted if done[size] == number]


def end_rows(spec: Spec, rows: Sequence[Row], edge: Edge | None, *, over: bool = False) -> tuple[Row, ...]:
    """Return the rows with the reasons of their ends, once each row was timed.

    A row that wants more processes ends here if no answer depends on it. A row that decides an answer goes on, unless
    the run is ``over``: the budget, if there is one, then ended it.
    """
    first = deciding(spec, rows, edge)
    late: RowEnd | None = "budget" if over and spec.budget_s is not None else None
    return tuple(
        replace(row, ended_by=late if row.batch_size in first else "beside") if wants_more(spec, row) else row
        for row in rows
    )


def wants_more(spec: Spec, row: Row) -> bool:
    """Whether a row would take a further process if an answer depends on it."""
    return row.failure is None and ended_by(spec, row) is None
