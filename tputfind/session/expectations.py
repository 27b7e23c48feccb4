"""Expectations from the trials and rows of a record so far: the largest batch, and the time that is left."""

from collections.abc import Iterable, Sequence

from tputfind.record.record import LimitedBy, Record, Trial
from tputfind.record.types import LARGEST_BATCH
from tputfind.search.forecast import FIRST_BATCH, Known, expected_batch
from tputfind.session import stopping
from tputfind.session.outcome import max_latency_ms, obstacle
from tputfind.session.trials import is_other_memory_equal


def known(record: Record, memory_limit_bytes: int | None, others_bytes: int | None) -> Known:
    """Return the input of a forecast under a memory limit, from the trials that had as much memory as there is now."""
    trials = [trial for trial in record.trials if is_other_memory_equal(trial.memory_of_others_bytes, others_bytes)]
    obstacles = answers(record, memory_limit_bytes, others_bytes)
    environment = record.environment
    total_bytes = environment.memory_total_bytes if environment.can.own_memory else None
    return Known(
        trials,
        {size: what is None for size, what in obstacles.items() if what in (None, "memory", "latency")},
        record.spec.granularity,
        record.spec.max_batch or LARGEST_BATCH,
        memory_limit_bytes,
        max_latency_ms(record),
        memory_bytes=None if total_bytes is None else total_bytes - (others_bytes or 0),
    )


def answers(record: Record, memory_limit_bytes: int | None, others_bytes: int | None) -> dict[int, LimitedBy | None]:
    """Return the outcome of each batch size that was tried under a memory limit: None if it fits, else the reason.

    Only trials with the same memory use of other processes as now count.
    """
    return {
        trial.batch_size: obstacle(record, trial)
        for trial in record.trials
        if trial.memory_limit_bytes == memory_limit_bytes
        and is_other_memory_equal(trial.memory_of_others_bytes, others_bytes)
    }


def edge_if_expandable(record: Record, trials: Known) -> int | None:
    """Return the largest batch expected with expandable segments; None if unknown, or if they were in use."""
    traces = [trial.trace for trial in record.trials if trial.trace is not None]
    if not traces or traces[-1].expandable:
        return None
    found = expected_batch(trials._replace(answers={}, expandable=True), 0, None)
    endless = found is not None and record.spec.max_batch is None and 2 * found > LARGEST_BATCH
    return None if endless else found


def first_batch(record: Record) -> int | None:
    """Return the batch size to try first: the largest that was timed, or one whose trace allows a forecast; or None."""
    if record.spec.search == "linear":
        return None
    traced = FIRST_BATCH if record.environment.can.allocator_trace and record.spec.search == "forecast" else 0
    return max([traced, *(row.batch_size for row in record.rows if row.failure is None)]) or None


_SECONDS_TO_LOAD = 1.0
_TRIALS_BY_FORECAST = 2
"""Median number of trials left in a search by forecasts, once one trial has failed."""
_STEPS_BEFORE = 3
"""The first step, the second step, and one lead-in step."""


def seconds_of_search(record: Record, fits: int, fails: int) -> float | None:
    """Return the expected seconds of the trials between two batch sizes; None for a linear search or without a failure.

    ``fits`` is the largest batch size known to fit, ``fails`` the smallest known not to fit, or 0 if there is none yet.
    The longer of the latest two trials stands for the next ones: one that fails may end early.
    """
    steps = (fails - fits) // record.spec.granularity
    if fails <= fits or record.spec.search == "linear":
        return None
    left = max(1, steps - 1).bit_length()
    if record.trials[-1].trace is not None and record.spec.search == "forecast":
        left = min(left, _TRIALS_BY_FORECAST)
    return left * max(trial.seconds for trial in record.trials[-2:])


def seconds_of_rows(
    record: Record, batch_sizes: Iterable[int], number: int = 0, *, compiled: bool = False
) -> float | None:
    """Return the expected seconds that timing these batch sizes still takes; None before the first trial.

    Counts the process with this number (from 0) of each batch size, and the minimum of further processes for the rows
    that decide the answers. A process is expected to take the mean of the earlier processes of its row. ``compiled``
    says that the process of a first row has compiled its step already, for a trial.
    """
    known = [trial for trial in record.trials if trial.step_ms is not None]
    if not known:
        return None
    spec, ahead, total_s = record.spec, set(batch_sizes), 0.0
    deciding = stopping.deciding(spec, record.rows, record.edge)
    timed = {row.batch_size: row for row in record.rows if row.timings}
    for size, row in timed.items():
        goes_on = size in deciding and stopping.wants_more(spec, row)
        further = max(0, spec.row_processes - max(len(row.timings), number + 1)) if goes_on else 0
        total_s += (further + (size in ahead)) * row.seconds / len(row.timings)
    return total_s + sum(_seconds_of_first(record, known, size, compiled=compiled) for size in ahead - timed.keys())


def _seconds_of_first(record: Record, known: Sequence[Trial], batch_size: int, *, compiled: bool) -> float:
    """Return the expected seconds of the first process of a row, from the nearest of the trials that passed."""
    planned = stopping.process_plan(record.spec, 0)
    near = min(known, key=lambda trial: abs(trial.batch_size - batch_size))
    step_s = (near.step_ms or 0.0) / 1000 * max(1.0, batch_size / near.batch_size)
    compiling_s = near.compiled.seconds if near.compiled and not compiled else 0.0
    windows_s = max(step_s * planned.batches, planned.window_s)
    if record.environment.can.events:  # else one window gives both
        latency_s = step_s * planned.latency_batches
        windows_s += latency_s if planned.every_latency else min(latency_s, planned.window_s)
    warmup_s = step_s * (_STEPS_BEFORE + planned.warmup)
    return (
        _SECONDS_TO_LOAD
        + compiling_s
        + max(min(windows_s + warmup_s, planned.max_seconds), step_s * (_STEPS_BEFORE + planned.least_batches))
    )
