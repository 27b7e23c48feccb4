"""Notices of what the samples of a row show: outliers, trends, scatter, processes that disagree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, Literal, NamedTuple

from tputfind.notices.words import batches, sizes, span
from tputfind.record import Notice, Record, Row
from tputfind.stats import outlier_share, spread, trend
from tputfind.summary import throughput_interval

LARGE_OUTLIERS: Final = 0.01
LARGE_TREND: Final = 0.02
LARGE_SPREAD: Final = 0.05
WIDE_INTERVAL: Final = 0.03
"""To either side. Figures of three processes that are known to no better than this differ by more than 1 % (the
interquartile range) from one run to the next."""

Kind = Literal["outliers", "trend", "spread", "wide_interval"]

_CAUSES: Final[dict[Kind, str]] = {
    "outliers": "something else took the device or the host for a moment",
    "trend": "clocks, heat or the host's load were still changing",
    "spread": "the host, the clocks or something else on the device changes from one batch to the next",
    "wide_interval": "processes differ, each steady in itself: by where their memory lies, by the host's mood, or by "
    "clocks at a limit",
}
_ADVICE: Final[dict[Kind, str]] = {
    "outliers": "measure on a quiet machine; the median of device_ms in the record is free of them",
    "trend": "raise --warmup or --min-seconds, or let the device cool down",
    "spread": "measure on a quiet machine, and longer (--min-seconds); see the clocks in the CSV",
    "wide_interval": "use the interval, not the figure; --max-noise 1% goes on until it is narrow",
}


class Finding(NamedTuple):
    """What stands out most in the samples of a row, and its size as a share."""

    kind: Kind
    share: float


def finding(row: Row) -> Finding | None:
    """Return what a reader must know of a row's samples, the most particular cause first; None where it is nothing.

    One cause often looks like another too: an outlier widens the interval, a trend scatters the samples.
    """
    windows = [timing.device_ms for timing in row.timings if timing.device_ms]
    if not windows:
        return None
    batches = len(row.device_ms)
    carried = sum(outlier_share(window) * len(window) / batches for window in windows)
    steepest = max((trend(window) for window in windows), key=abs)
    scatter = median(spread(window) for window in windows)
    interval = throughput_interval(row)
    findings: list[tuple[Kind, float, float]] = [
        ("outliers", carried, LARGE_OUTLIERS),
        ("trend", steepest, LARGE_TREND),
        ("spread", scatter, LARGE_SPREAD),
        ("wide_interval", interval.half_width if interval else 0.0, WIDE_INTERVAL),
    ]
    return next((Finding(kind, share) for kind, share, least in findings if abs(share) >= least), None)


def of_noise(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Notices of what the samples show, and of noise that time did not suffice to bring down."""
    found = [(row, seen) for row in timed if (seen := finding(row)) is not None]
    for kind in _CAUSES:
        those = [(row, seen.share) for row, seen in found if seen.kind == kind]
        if those:
            rows = [row for row, _ in those]
            yield Notice(
                kind=kind,
                seen=_seen(kind, rows, [share for _, share in those]),
                cause=_CAUSES[kind],
                advice=_ADVICE[kind],
                batch_sizes=sizes(rows),
            )
    yield from _of_limit(record, timed)


def _seen(kind: Kind, rows: Sequence[Row], shares: Sequence[float]) -> str:
    size = span(min(map(abs, shares)), max(map(abs, shares)), ".1%")
    return {
        "outliers": f"a few batches far from the others move the mean by {size} at {batches(rows)}",
        "trend": f"batch times change steadily in the course of a window, by {size} at {batches(rows)}",
        "spread": f"batch times scatter by {size} at {batches(rows)}",
        "wide_interval": f"the throughput is known to no better than {size} at {batches(rows)}",
    }[kind]


def _of_limit(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    spec = record.spec
    if spec.max_noise is None or record.finished is None:
        return
    widths = [(row, interval.half_width) for row in timed if (interval := throughput_interval(row)) is not None]
    wide = [row for row, half_width in widths if half_width > spec.max_noise]
    if wide:
        widest = max(half_width for _, half_width in widths)
        yield Notice(
            kind="max_noise_not_reached",
            seen=f"--max-noise {spec.max_noise:.2%} was not reached at {batches(wide)}: up to {widest:.2%} are left",
            cause=f"--max-seconds {spec.max_seconds:g} ended it",
            advice="raise --max-seconds, or take the interval as it is",
            batch_sizes=sizes(wide),
        )
