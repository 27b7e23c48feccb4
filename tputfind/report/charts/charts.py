"""The plots of records: which numbers they draw, and what they show in words. Pure functions of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final

from msgspec.structs import replace

from tputfind.analysis.answers import Best, answers, format_latency, format_rate, known_interval
from tputfind.record.record import Record, Row
from tputfind.report.charts import bars, device
from tputfind.report.charts.chart import (
    BATCH_SIZE,
    Axis,
    Chart,
    Level,
    Mark,
    Point,
    each_record,
    names_of,
    ok_rows,
    scale_of,
    title_of,
)
from tputfind.stats import percentile
from tputfind.units import format_figure, format_width

_MOST_POINTS: Final = 300
"""Of a plot: a page is to stay under a megabyte."""
_BANDS: Final = "Bands are 95 % confidence intervals."
MOST_BOXES: Final = 32
"""Of more batch sizes than this, quantiles are lines: boxes would lie over each other."""


def charts(records: Sequence[Record]) -> list[Chart]:
    """Return the plots that records give, without those that would be empty."""
    if bars.fit(records):
        return bars.charts(records)
    every = (
        throughput(records),
        tradeoff(records),
        device.memory(records),
        latency(records),
        device.clock(records),
        device.power(records),
    )
    return [_with_cuts(_thinned(chart)) for chart in every if not chart.empty]


def _with_cuts(chart: Chart) -> Chart:
    """Return a chart that says in words which of the intervals that are drawn do not end in it."""
    cut = chart.cut
    if not cut:
        return chart
    batches = _listed([f"{batch:.0f}" for batch in sorted({point.x for point in cut})])
    farthest = format_figure(max(point.high or 0.0 for point in cut))
    return _with_words(chart, f"Bands cut at the top of the plot: batch {batches}, up to {farthest} samples/s.")


def _with_words(chart: Chart, words: str) -> Chart:
    return replace(chart, words=f"{chart.words} {words}", note=chart.note and f"{chart.note} {words}")


def _thinned(chart: Chart) -> Chart:
    """Return a chart with no more points than a page bears, evenly chosen, and say how many are left out."""
    count = sum(len(one.points) for one in chart.series)
    if count <= _MOST_POINTS:
        return chart
    series = tuple(
        replace(one, points=one.points[:: ceil(count / _MOST_POINTS)] or one.points[:1]) for one in chart.series
    )
    drawn = sum(len(one.points) for one in series)
    return _with_words(replace(chart, series=series), f"Of {count} points {drawn} are drawn.")


def throughput(records: Sequence[Record]) -> Chart:
    """Return throughput against batch size, each with its interval; the fastest, the knee and the largest marked.

    Records with one batch size each are bars.
    """
    if bars.fit(records):
        return bars.throughput(records)

    def points(record: Record) -> Iterator[Point]:
        for row in ok_rows(record):
            if row.samples_per_s is not None:
                interval = known_interval(record, row)
                low, high = interval.above_zero if interval else (None, None)
                width = f" ± {format_width(interval.half_width)} %" if interval else ""
                yield Point(
                    x=row.batch_size, y=row.samples_per_s, text=f"{_rate(record, row)}{width}", low=low, high=high
                )

    series = each_record(records, points)
    return Chart(
        kind="throughput",
        title="Throughput against batch size",
        about=title_of(records),
        words=f"{_throughput_words(records)} {_BANDS}",
        note=_BANDS + _failed_words(records),
        x=BATCH_SIZE,
        y=Axis(label="samples/s", scale="from_zero"),
        series=series,
        marks=tuple(_marks(records)),
    )


def _best_rows(record: Record) -> Iterator[tuple[Best, Row]]:
    """Yield the rows that are marked: the safe batch is not, which is a choice and no feature of the curve."""
    for name, row in answers(record):
        if name != "safe":
            yield name, row


def _marks(records: Sequence[Record]) -> Iterator[Mark]:
    for record in records:
        for kind, row in _best_rows(record):
            text = f"batch {row.batch_size}, {_rate(record, row)}" if len(records) == 1 else ""
            yield Mark(kind=kind, x=row.batch_size, y=row.samples_per_s or 0.0, text=text)


def _throughput_words(records: Sequence[Record]) -> str:
    told = [_of_record(records, number, _best_words(record)) for number, record in enumerate(records)]
    return f"{'. '.join(told)}."


def _failed_words(records: Sequence[Record]) -> str:
    count = sum(row.failure is not None for record in records for row in record.rows)
    return f" Batch sizes that failed are not drawn: {count}." if count else ""


def _best_words(record: Record) -> str:
    best = [f"{kind} batch {row.batch_size} with {_rate(record, row)}" for kind, row in _best_rows(record)]
    failed = [str(row.batch_size) for row in record.rows if row.failure is not None]
    left_out = [f"failed and not drawn: {_listed(failed)}"] if failed else []
    return "; ".join([*best, *left_out]) or "nothing was timed"


def _listed(words: Sequence[str], most: int = 12) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _rate(record: Record, row: Row) -> str:
    return f"{format_rate(record, row)} samples/s"


def _of_record(records: Sequence[Record], number: int, told: str) -> str:
    """Return what is told of a record, with its name before it where there are several."""
    return f"{names_of(records)[number]}: {told}" if len(records) > 1 else f"{told[:1].upper()}{told[1:]}"


def tradeoff(records: Sequence[Record]) -> Chart:
    """Return throughput against latency: the percentile that the SLO is about where all who have one agree."""
    targets = {(record.spec.slo_ms, record.spec.percentile) for record in records if record.spec.slo_ms is not None}
    percents = {percent for _, percent in targets}
    percent = percents.pop() if len(percents) == 1 else 50.0
    series = each_record(records, lambda record: _tradeoff_points(record, percent))
    if not series and percent != 50:
        percent, targets = 50.0, set()  # the SLO's percentile is not known of any row
        series = each_record(records, lambda record: _tradeoff_points(record, percent))
    levels = [
        Level(axis="x", value=slo_ms, text=f"SLO: p{at:g} within {slo_ms:g} ms")
        for slo_ms, at in sorted(target for target in targets if target[0] is not None)
        if slo_ms is not None and at == percent
    ]
    shown = {point.x for one in series for point in one.points}
    least, most = (min(shown), max(shown)) if shown else (0.0, 0.0)
    return Chart(
        kind="tradeoff",
        title="Throughput against latency",
        about=title_of(records),
        words=f"The p{percent:g} latency goes from {format_figure(least)} to {format_figure(most)} ms. "
        f"Each point is a batch size, joined in their order; one with too few samples for the percentile has none.",
        x=Axis(label=f"p{percent:g} latency, ms", scale=scale_of(shown, "log10"), reads=f"p{percent:g} {{}} ms"),
        y=Axis(label="samples/s", scale="from_zero"),
        series=series,
        levels=tuple(levels),
    )


def _tradeoff_points(record: Record, percent: float) -> Iterator[Point]:
    for row in ok_rows(record):
        latency_ms = percentile(row.latency_ms, percent)
        if latency_ms is not None and row.samples_per_s is not None:
            yield Point(x=latency_ms, y=row.samples_per_s, text=f"batch {row.batch_size}, {_rate(record, row)}")


def latency(records: Sequence[Record]) -> Chart:
    """Return how latencies spread: boxes of one record's batch sizes, else their 50th and 99th percentiles."""
    boxes = len(records) == 1 and sum(bool(row.latency_ms) for row in ok_rows(records[0])) <= MOST_BOXES
    if boxes:
        series = each_record(records, _boxes, "boxes")
        label, words = "latency, ms", "Boxes hold the middle half, whiskers reach from the fastest to the slowest."
    else:
        halves = each_record(records, lambda record: _percentiles(record, 50))
        series = halves + each_record(records, lambda record: _percentiles(record, 99), "outline", named=False)
        label, words = "latency, ms: p50 filled, p99 hollow", "Lines are the p50 (filled) and the p99 (hollow)."
    values = [value for one in series for point in one.points for value in (point.y, point.low) if value is not None]
    medians = [point.y for one in series for point in one.points if one.look != "outline"]
    ends = f"The median goes from {format_figure(min(medians))} to {format_figure(max(medians))} ms." if medians else ""
    return Chart(
        kind="latency",
        title="Latency against batch size",
        about=title_of(records),
        words=f"{ends} {words} Of single batches sent to the idle device.".strip(),
        x=BATCH_SIZE,
        y=Axis(label=label, scale=scale_of(values, "log10")),
        series=series,
    )


def _boxes(record: Record) -> Iterator[Point]:
    for row in ok_rows(record):
        low, q1, middle, q3, high = _five(row.latency_ms)
        if middle is not None:
            ends = [format_figure(end or 0.0) for end in (middle, q1, q3, low, high)]
            text = "p50 {} ms, middle half {} to {} ms, all {} to {} ms".format(*ends)
            yield Point(x=row.batch_size, y=middle, text=text, low=low, high=high, q1=q1, q3=q3)


def _five(samples: Sequence[float]) -> tuple[float | None, ...]:
    if not samples:
        return (None,) * 5
    return min(samples), percentile(samples, 25), percentile(samples, 50), percentile(samples, 75), max(samples)


def _percentiles(record: Record, percent: float) -> Iterator[Point]:
    for row in ok_rows(record):
        latency_ms = percentile(row.latency_ms, percent)
        if latency_ms is not None:
            text = f"p{percent:g} {format_latency(record, row, latency_ms)} ms"
            yield Point(x=row.batch_size, y=latency_ms, text=text)
