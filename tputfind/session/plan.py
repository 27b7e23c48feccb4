"""When a row is known well enough, and what its next process is to time. Pure functions of what was asked and timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from tputfind.analysis.answers import fastest, host_bound, knee, throughput_interval
from tputfind.processes.messages import Plan
from tputfind.record.record import Edge, Row, RowEnd
from tputfind.record.spec import MOST_PROCESSES, PROCESSES, Spec
from tputfind.stats import samples_for_percentile

DEVICE_BOUND_NOISE: Final = 0.005
OTHER_NOISE: Final = 0.03
"""What a row's throughput is to be known to, to either side: where the device sets the pace, and elsewhere.

A row ends at the first process after which its interval is as narrow. Such intervals hold the true rate a little less
often than 95 % of the time, since some are narrow by luck: ``benchmarks/plan.py coverage`` says how often.
"""
BATCHES: Final = 100
LEAST_BATCHES: Final = 6
"""Of a row in all its processes; one in each where they take longer than its seconds."""
_PROCESSES_OF_SLOW: Final = 2
"""Of a slow row, where they agree and no number of processes was asked for but the usual."""
WINDOW_S: Final = 1.0
"""Of the throughput windows of a row in its least number of processes."""
THOROUGH_S: Final = 3.0
_ROW_S: Final = 4.0
_THOROUGH_ROW_S: Final = 60.0


def of_process(spec: Spec, number: int) -> Plan:
    """Return what the process with this number (from 0) times of a row: its share of what the least number does."""
    processes = spec.processes
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
    """Return how many seconds the processes of a row may take."""
    fixed = spec.thorough or spec.batches is not None
    return spec.max_seconds or (_THOROUGH_ROW_S if fixed else _ROW_S)


def aim(spec: Spec, row: Row) -> float | None:
    """Return the share to which the throughput of a row is to be known; None where it takes a fixed number of batches.

    On a device without events nothing says what sets the pace.
    """
    if spec.max_noise is not None:
        return spec.max_noise
    if spec.thorough or spec.batches is not None:
        return None
    return DEVICE_BOUND_NOISE if host_bound(row) is False else OTHER_NOISE


def ended_by(spec: Spec, row: Row) -> RowEnd | None:
    """Return why a row takes no further process; None where it takes one.

    ``full`` is what ``--thorough`` takes: a row that is not known by then goes on where a noise was asked for.
    """
    if row.failure is not None or len(row.timings) < (_PROCESSES_OF_SLOW if _slow(spec, row) else spec.processes):
        return None
    noise, interval = aim(spec, row), throughput_interval(row)
    cut = any(timing.ended_by == "time" for timing in row.timings)
    if noise is None or interval is None:
        return "time" if cut else "full"
    if interval.half_width <= noise:
        return "known"
    if len(row.timings) < spec.processes:
        return None
    if _seconds(row) >= row_seconds(spec) or len(row.timings) >= MOST_PROCESSES:
        return "time"
    full = len(row.device_ms) >= BATCHES and sum(row.device_ms) >= 1000 * THOROUGH_S
    return "full" if spec.processes == 1 or (full and spec.max_noise is None) else None


def _slow(spec: Spec, row: Row) -> bool:
    """Whether two processes of a row may do: the device sets its pace, and two windows take the seconds of a row.

    Of a row that the host holds up two may lie close together by chance, and the next far off. A percentile that a
    target is set for takes the latencies of all three.
    """
    usual = spec.processes == PROCESSES and spec.slo_ms is None and aim(spec, row) is not None
    share_s = row_seconds(spec) * _PROCESSES_OF_SLOW / spec.processes
    return usual and host_bound(row) is False and sum(row.device_ms) / 1000 >= share_s


def _seconds(row: Row) -> float:
    """Return what the processes of a row took, without what compiling took the first of them: that buys no figure."""
    compiled = [timing.compiled.seconds for timing in row.timings if timing.compiled is not None]
    return row.seconds - max(compiled, default=0.0)


def deciding(rows: Sequence[Row], edge: Edge | None) -> set[int]:
    """Return the batch sizes that the answers rest on: the fastest, the knee, their neighbours and the largest."""
    sizes = [row.batch_size for row in rows]
    found = {row.batch_size for row in (fastest(rows), knee(rows)) if row is not None}
    places = [sizes.index(size) for size in found]
    beside = {sizes[place] for at in places for place in (at - 1, at, at + 1) if 0 <= place < len(sizes)}
    return beside | ({edge.largest_batch} if edge is not None and edge.largest_batch in sizes else set())


def next_round(spec: Spec, rows: Sequence[Row], batch_sizes: Sequence[int], edge: Edge | None) -> tuple[int, list[int]]:
    """Return which process of the rows is next, from 0, and the batch sizes that it times; none where all have ended.

    All take their turn before any is timed again, so that what changes with time falls on all alike. Under a budget
    those that the answers rest on come first from then on.
    """
    by_size = {row.batch_size: row for row in rows}
    wanted = [size for size in batch_sizes if size not in by_size or wants_more(spec, by_size[size])]
    if spec.budget_s is not None and not set(wanted) - set(by_size):
        first = deciding(rows, edge)
        wanted = [size for size in wanted if size in first] or wanted
    done = {size: len(by_size[size].timings) if size in by_size else 0 for size in wanted}
    number = min(done.values(), default=0)
    return number, [size for size in wanted if done[size] == number]


def cut_by_budget(spec: Spec, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows when a budget is over: it ended those that would take a further process."""
    return tuple(replace(row, ended_by="budget") if wants_more(spec, row) else row for row in rows)


def wants_more(spec: Spec, row: Row) -> bool:
    """Say whether a row takes a further process."""
    return row.failure is None and ended_by(spec, row) is None
