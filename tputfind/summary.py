"""The answers of a record: which batch to deploy. Pure functions of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tputfind.record import Row
from tputfind.stats import mean, percentile

KNEE_SHARE: Final = 0.95
HOST_BOUND_SHARE: Final = 0.80
"""trtexec warns from the same share of enqueue time on."""


def fastest(rows: Sequence[Row]) -> Row | None:
    """Return the row of the highest throughput, the smallest batch among equals; None where no row was timed."""
    timed = [row for row in rows if row.samples_per_s is not None]
    return max(timed, key=lambda row: (row.samples_per_s or 0.0, -row.batch_size), default=None)


def knee(rows: Sequence[Row]) -> Row | None:
    """Return the smallest batch with at least 95 % of the best row's throughput."""
    best = fastest(rows)
    if best is None or best.samples_per_s is None:
        return None
    enough = KNEE_SHARE * best.samples_per_s
    return min((row for row in rows if (row.samples_per_s or 0.0) >= enough), key=lambda row: row.batch_size)


def best_under(rows: Sequence[Row], slo_ms: float, percent: float) -> Row | None:
    """Return the row of the highest throughput among those whose latency percentile meets the SLO.

    A row with too few latency samples for the percentile is not among them.
    """
    return fastest([row for row in rows if _meets(row, slo_ms, percent)])


def _meets(row: Row, slo_ms: float, percent: float) -> bool:
    latency_ms = percentile(row.latency_ms, percent)
    return latency_ms is not None and latency_ms <= slo_ms


def host_bound(row: Row) -> bool | None:
    """Return whether the device waits for Python: submitting a batch takes 80 % of its span; None if unknown."""
    enqueue_ms, device_ms = mean(row.enqueue_ms), mean(row.device_ms)
    if enqueue_ms is None or device_ms is None:
        return None
    return enqueue_ms >= HOST_BOUND_SHARE * device_ms
