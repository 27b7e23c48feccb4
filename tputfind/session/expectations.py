"""What the trials of a record let expect of other batch sizes: its forecasts lead the search."""

from __future__ import annotations

from tputfind.record.record import LimitedBy, Record
from tputfind.record.types import LARGEST_BATCH
from tputfind.search.forecast import FIRST_BATCH, Known, expected_batch
from tputfind.session.outcome import max_latency_ms, obstacle
from tputfind.session.trials import others_unchanged


def known(record: Record, memory_limit_bytes: int | None, others_bytes: int | None) -> Known:
    """Return what is known under a memory limit, from the trials during which others held as much memory as now."""
    trials = [trial for trial in record.trials if others_unchanged(trial.memory_of_others_bytes, others_bytes)]
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
    """Return what stood in the way of each batch size that was tried under a memory limit, while others held as much
    memory as now.
    """
    return {
        trial.batch_size: obstacle(record, trial)
        for trial in record.trials
        if trial.memory_limit_bytes == memory_limit_bytes
        and others_unchanged(trial.memory_of_others_bytes, others_bytes)
    }


def edge_in_sight(record: Record, trials: Known, passes: int, fails: int | None) -> int | None:
    """Return the expected edge between two batch sizes; None where nothing can be said, or no end is in sight."""
    found = expected_batch(trials, passes, fails)
    endless = found is not None and record.spec.max_batch is None and 2 * found > LARGEST_BATCH
    return None if endless else found


def edge_if_expandable(record: Record, trials: Known) -> int | None:
    """Return the expected edge with expandable segments; None where the trials had those already."""
    traces = [trial.trace for trial in record.trials if trial.trace is not None]
    if not traces or traces[-1].expandable:
        return None
    return edge_in_sight(record, trials._replace(passes={}, expandable=True), 0, None)


def first_batch(record: Record) -> int | None:
    """Return the batch size to try first, where the first trial's trace lets forecast the others."""
    return FIRST_BATCH if record.environment.can.allocator_trace and record.spec.search == "forecast" else None
