"""Notices of noise in a row's samples: outliers, trends, scatter, and variation between processes."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, Literal, NamedTuple

from tputfind.analysis.answers import ran_in_all_processes, throughput_interval
from tputfind.analysis.notices.words import batches, few, sizes, span
from tputfind.record.record import Notice, Record, Row
from tputfind.stats import mean_interval, ordinary, outlier_share, spread, trend

LARGE_OUTLIERS: Final = 0.01
LARGE_TREND: Final = 0.02
LARGE_SPREAD: Final = 0.05
WIDE_INTERVAL: Final = 0.03
"""Half-width. Figures of three processes with a wider interval differ by more than 1 % (interquartile range) from one
run to the next."""

GROSS_INTERVAL: Final = 0.10

Kind = Literal["outliers", "trend", "spread", "wide_interval"]

HOSTS_SCATTER: Final = 4.0
"""Factor on these limits if the host is the device: an idle CPU's batch times scatter by 6 to 12 %, a GPU's by 1 %.
The interval of the throughput is shown in any case."""

_CAUSES: Final[dict[Kind, str]] = {
    "outliers": "something else ran for a moment",
    "trend": "clocks, heat or load were still changing",
    "spread": "the host, the clocks or others change",
    "wide_interval": "processes differ in memory, load or clocks",
}
_ADVICE: Final[dict[Kind, str]] = {
    "outliers": "measure on a quiet machine",
    "trend": "--thorough times for longer",
    "spread": "use a quiet machine, or --thorough",
    "wide_interval": "use the interval",
}
_SIGNS: Final = {
    "outliers": "jump",
    "trend": "drift",
    "spread": "scatter",
    "wide_interval": "differ by process",
    "not_settled": "do not settle",
}


class Finding(NamedTuple):
    """One kind of noise in the samples of a row, and its size as a fraction."""

    kind: Kind
    share: float


def findings(row: Row, ordinary_noise: float = 1.0) -> list[Finding]:
    """Return the kinds of noise in a row's samples that reach their limit times ``ordinary_noise``.

    One cause often shows as several kinds, so that only the first of outliers, trend and scatter is returned. Variation
    between processes is added if it remains without the outliers, but next to a trend or scatter only if it is gross.
    """
    windows = [timing.device_ms for timing in row.timings if timing.device_ms]
    if not windows:
        return []
    count = len(row.device_ms)
    kept = [ordinary(window) for window in windows]
    carried = sum(outlier_share(window) * len(window) / count for window in windows)
    steepest = max((trend(window) for window in windows), key=abs)
    told: list[tuple[Kind, float, float]] = [
        ("outliers", carried, LARGE_OUTLIERS),
        ("trend", steepest, LARGE_TREND),
        ("spread", median(spread(window) for window in windows), LARGE_SPREAD),
    ]
    found = [Finding(kind, share) for kind, share, least in told if abs(share) >= least * ordinary_noise][:1]
    interval = mean_interval(kept)
    width = 0.0 if interval is None else interval.half_width
    told_of = throughput_interval(row)  # the one that is printed, outliers included
    explained = bool(found) and found[0].kind != "outliers"
    if width >= (GROSS_INTERVAL if explained else WIDE_INTERVAL) * ordinary_noise:
        found.append(Finding("wide_interval", width if told_of is None else told_of.half_width))
    return found


def noise_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Yield notices of noise, of rows that lack processes, and of noise above ``--max-noise``."""
    on_host = record.environment.can.is_cpu
    resting = [row for row in timed if row.ended_by != "beside"]  # others decide no answer and show no interval
    found = [(row, seen) for row in resting for seen in findings(row, HOSTS_SCATTER if on_host else 1.0)]
    limited = record.spec.max_noise is not None and record.finished is not None
    for kind in _CAUSES:
        those = [(row, seen.share) for row, seen in found if seen.kind == kind]
        if those and not (kind == "wide_interval" and limited):  # _limit_notices describes it better
            rows = [row for row, _ in those]
            alone = kind == "wide_interval" and all(len(row.timings) == 1 for row in rows)
            uneven = record.spec.phase == "step" and kind in ("outliers", "spread")
            cause = f"{_CAUSES[kind]}, or some steps do more than others" if uneven else _CAUSES[kind]
            yield Notice(
                kind=kind,
                seen=_describe_noise(kind, rows, [share for _, share in those]),
                cause="its one process is not steady" if alone else cause,
                advice="measure in more --processes" if alone else _ADVICE[kind],
                batch_sizes=sizes(rows),
            )
    unsettled = [row for row in resting if any(timing.steady is False for timing in row.timings)]
    trending = [row for row, seen in found if seen.kind == "trend"]
    noisy = [row for row, _ in found]  # on a host, times that scatter seldom settle
    yield from _warm_up_notices([row for row in unsettled if row not in trending and (row in noisy or not on_host)])
    yield from _unfinished_notices(record, timed)
    yield from _limit_notices(record, timed)


def merge_noise(found: Sequence[Notice]) -> list[Notice]:
    """Return the notices with those of noise merged into one, in the place of the first, if there are several."""
    noise = [notice for notice in found if notice.kind in _SIGNS]
    if len(noise) < 2:
        return list(found)
    rows = sorted({size for notice in noise for size in notice.batch_sizes})
    advice = {notice.advice for notice in noise}
    signs = [sign for kind, sign in _SIGNS.items() if any(notice.kind == kind for notice in noise)]
    one = Notice(
        kind="noise",
        seen=f"batch times {', '.join(signs[:-1])} and {signs[-1]} at {few(rows)}",
        cause="other load, clocks or heat",
        advice=advice.pop() if len(advice) == 1 else "use the interval",
        batch_sizes=tuple(rows),
    )
    return [one if notice is noise[0] else notice for notice in found if notice is noise[0] or notice not in noise]


def _warm_up_notices(unsettled: Sequence[Row]) -> Iterator[Notice]:
    if unsettled:
        longest_s = max(timing.warmup_s or 0.0 for row in unsettled for timing in row.timings)
        yield Notice(
            kind="not_settled",
            seen=f"batch times had not settled after {longest_s:.1f} s at {batches(unsettled)}",
            cause="they still changed, or scatter too much",
            advice="--thorough waits longer",
            batch_sizes=sizes(unsettled),
        )


def _unfinished_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    short = [row for row in timed if not ran_in_all_processes(record, row) and row.ended_by not in ("budget", "beside")]
    if short:
        fewest, were = min(len(row.timings) for row in short), "was" if len(short) == 1 else "were"
        yield Notice(
            kind="unfinished",
            seen=f"{batches(short)} {were} timed in {fewest} of {record.spec.row_processes} processes so far",
            cause="the run was cut short, or goes on",
            advice="measure anew with --all-busy" if record.spec.load == "all_busy" else "finish it with --resume",
            batch_sizes=sizes(short),
        )


def _describe_noise(kind: Kind, rows: Sequence[Row], shares: Sequence[float]) -> str:
    size = span(min(map(abs, shares)), max(map(abs, shares)), ".1%")
    return {
        "outliers": f"a few batches far off move the mean by {size} at {batches(rows)}",
        "trend": f"batch times drift by {size} at {batches(rows)}",
        "spread": f"batch times scatter by {size} at {batches(rows)}",
        "wide_interval": f"samples/s is known to no better than {size} at {batches(rows)}",
    }[kind]


def _limit_notices(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
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
            cause="time or processes ran out",
            advice="raise --max-seconds",
            batch_sizes=sizes(wide),
        )
