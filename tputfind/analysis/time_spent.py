"""Where the time of a run went."""

from __future__ import annotations

from typing import Final

from tputfind.record.record import Record

_ONE_WINDOW_UNSAID: Final = 4
"""The method by which one window gave throughput and latency where there are no events, and no record said so."""


def seconds_spent(record: Record) -> dict[str, float]:
    """Return the seconds of each part of a run, in order; of a row that failed all that it took is other work.

    The search holds whole trials. Warm-up, timing and compiling are those of the rows; the rest of their processes is
    spent on building the model, first steps, checks and copies by themselves, and on warm-up in records that do not
    tell it. What is left of the run is starting processes and saving.
    """
    timings = [timing for row in record.rows for timing in row.timings]
    search_s = sum(trial.seconds for trial in record.trials)
    rows_s = sum(row.seconds for row in record.rows)
    warmup_s = sum(timing.warmup_s or 0.0 for timing in timings)
    shared = not record.environment.can.events and record.method == _ONE_WINDOW_UNSAID
    two = [timing for timing in timings if not (shared or timing.one_window)]
    windows_ms = sum(sum(timing.device_ms) for timing in timings) + sum(sum(timing.latency_ms) for timing in two)
    compiling_s = sum(timing.compiled.seconds for timing in timings if timing.compiled is not None)
    known_s = warmup_s + windows_ms / 1000 + compiling_s
    told = all(timing.warmup_s is not None for timing in timings)
    parts = {
        "search": search_s,
        "warm-up": warmup_s,
        "timing": windows_ms / 1000,
        "compiling": compiling_s,
        "building and checks" if told else "warm-up, building and checks": max(0.0, rows_s - known_s),
        "starting and saving": max(0.0, record.wall_s - search_s - max(rows_s, known_s)),
    }
    return {what: seconds for what, seconds in parts.items() if seconds > 0}
