"""How long a run will still take: guesses for the progress line, from what is recorded so far."""

from __future__ import annotations

from collections.abc import Iterable

from tputfind.record.record import Record
from tputfind.session import plan

_SECONDS_TO_LOAD = 1.0
_TRIALS_BY_FORECAST = 2
"""Median of the trials left in a search that forecasts lead, once one has failed."""
_STEPS_BEFORE = 3
"""The first step, the second, and one that leads in."""


def seconds_of_search(record: Record, fits: int, fails: int) -> float | None:
    """Return about how long the trials between two batch sizes take; None where that cannot be told.

    Args:
        record: its latest trial is taken for the next ones.
        fits: the largest batch known to pass, or 0.
        fails: the smallest known not to, or 0 while there is none.
    """
    steps = (fails - fits) // record.spec.granularity
    if fails <= fits or record.spec.search == "linear":
        return None
    left = max(1, steps - 1).bit_length()
    if record.trials[-1].trace is not None and record.spec.search == "forecast":
        left = min(left, _TRIALS_BY_FORECAST)
    return left * record.trials[-1].seconds


def seconds_of_rows(record: Record, batch_sizes: Iterable[int]) -> float | None:
    """Return about how long it takes to time these batch sizes in a process each; None before any trial."""
    known = [(trial.batch_size, trial.step_ms) for trial in record.trials if trial.step_ms is not None]
    if not known:
        return None
    planned, total_s = plan.of_process(record.spec, 0), 0.0
    for batch_size in batch_sizes:
        near, step_ms = min(known, key=lambda pair: abs(pair[0] - batch_size))
        step_s = step_ms / 1000 * max(1.0, batch_size / near)
        windows_s = max(step_s * planned.batches, planned.window_s)
        if record.environment.can.events:  # else one window gives both
            latency_s = step_s * planned.latency_batches
            windows_s += latency_s if planned.every_latency else min(latency_s, planned.window_s)
        warmup_s = step_s * (_STEPS_BEFORE + planned.warmup)
        total_s += _SECONDS_TO_LOAD + max(
            min(windows_s + warmup_s, planned.max_seconds), step_s * (_STEPS_BEFORE + planned.least_batches)
        )
    return total_s
