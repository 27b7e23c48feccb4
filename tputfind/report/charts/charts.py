"""The plots of records: their numbers and their words. Pure functions of records."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from tputfind.analysis.answers import (
    Best,
    answers,
    fastest,
    format_latency,
    format_rate,
    health,
    known_interval,
    peak_bytes,
)
from tputfind.analysis.race import Race, pareto_front, speeds
from tputfind.analysis.turns import Speed
from tputfind.record.record import Health, Record, Row, Trial
from tputfind.record.spec import Spec
from tputfind.report.charts.chart import Axis, Chart, Level, Look, Mark, Point, Scale, Series, names_of, title_of
from tputfind.report.text import failure_of
from tputfind.stats import percentile
from tputfind.units import MIB, format_about, format_amount, format_bytes, format_figure, format_width

_BATCH_SIZE: Final = Axis(label="batch size", scale="log2", reads="batch {}")
_MOST_POINTS: Final = 300
"""Maximum points per plot; keeps a page under 1 MB."""
_OF_SINGLE: Final = "Latencies are of single batches, each sent after the one before has ended."
_INTERVALS: Final = "are 95 % confidence intervals."
MOST_BOXES: Final = 32
"""Maximum batch sizes with boxes; above this, quantiles are lines, since boxes would overlap."""
_MOST_BARS: Final = 40
_MOST_LISTED: Final = 12


class _Value(NamedTuple):
    """A figure, the same in words, and the two ends of its interval if it has one."""

    y: float
    text: str
    low: float | None = None
    high: float | None = None


_ValueOf = Callable[[Record, Row], _Value | None]


def charts(records: Sequence[Record]) -> list[Chart]:
    plots = (throughput, tradeoff, memory, latency, clock, power)
    every = [_bars(records, bar) for bar in _BARS] if are_bars(records) else [plot(records) for plot in plots]
    return [_note_cuts(_thin(chart)) for chart in every if not chart.empty]


def are_bars(records: Sequence[Record]) -> bool:
    """Whether these are several records with at most one timed batch size each: curves of one point."""
    counts = [sum(row.samples_per_s is not None for row in record.rows) for record in records]
    return len(records) > 1 and max(counts) == 1


def _note_cuts(chart: Chart) -> Chart:
    """Return a chart whose words name the intervals that are cut at the top."""
    points = [point for series in chart.series for point in series.points]
    cut = [point for point in points if point.high is not None and point.high > chart.top]
    if not cut:
        return chart
    batches = _join_names([f"{batch:.0f}" for batch in sorted({point.x for point in cut})])
    farthest = format_figure(max(point.high or 0.0 for point in cut))
    return _append_words(chart, f"Bands cut at the top of the plot: batch {batches}, up to {farthest} samples/s.")


def _append_words(chart: Chart, words: str) -> Chart:
    return replace(chart, words=f"{chart.words} {words}", note=chart.note and f"{chart.note} {words}")


def _thin(chart: Chart) -> Chart:
    """Return a chart with a limited number of points, evenly chosen, and say how many are drawn."""
    count = sum(len(one.points) for one in chart.series)
    if count <= _MOST_POINTS:
        return chart
    every = ceil(count / _MOST_POINTS)
    series = tuple(replace(one, points=one.points[::every] or one.points[:1]) for one in chart.series)
    drawn = sum(len(one.points) for one in series)
    return _append_words(replace(chart, series=series), f"Of {count} points {drawn} are drawn.")


def throughput(records: Sequence[Record]) -> Chart:
    """Return throughput against batch size, with intervals and marks; bars for records with one batch size each."""
    if are_bars(records):
        return _bars(records, _BARS[0])
    failed = sum(row.failure is not None for record in records for row in record.rows)
    left_out = f" Batch sizes that failed are not drawn: {failed}." if failed else ""
    named = zip(names_of(records), map(_best_words, records), strict=True)
    best = ". ".join(f"{name}: {words}" if len(records) > 1 else words[:1].upper() + words[1:] for name, words in named)
    series = _each_record(records, _points_by_batch_size(_throughput))
    bands = f" Bands {_INTERVALS}" if any(_is_span(point) for one in series for point in one.points) else ""
    return Chart(
        kind="throughput",
        title="Throughput against batch size",
        about=title_of(records),
        words=f"{best}.{bands}",
        note=f"{bands}{left_out}".strip(),
        x=_BATCH_SIZE,
        y=Axis(label="samples/s", scale="from_zero"),
        series=series,
        marks=tuple(_marks(records)),
    )


def _is_span(value: _Value | Point) -> bool:
    return value.low is not None and value.high is not None


def _best_rows(record: Record) -> Iterator[tuple[Best, Row]]:
    """Yield the rows to mark; not the safe batch, which is a choice and not a feature of the curve."""
    for name, row in answers(record):
        if name != "safe":
            yield name, row


def _marks(records: Sequence[Record]) -> Iterator[Mark]:
    for record in records:
        for kind, row in _best_rows(record):
            text = f"batch {row.batch_size}, {_rate(record, row)}" if len(records) == 1 else ""
            yield Mark(kind=kind, x=row.batch_size, y=row.samples_per_s or 0.0, text=text)


def _best_words(record: Record) -> str:
    best = [f"{kind} batch {row.batch_size} with {_rate(record, row)}" for kind, row in _best_rows(record)]
    failed = [str(row.batch_size) for row in record.rows if row.failure is not None]
    left_out = [f"failed and not drawn: {_join_names(failed)}"] if failed else []
    return "; ".join([*best, *left_out]) or "nothing was timed"


def _join_names(words: Sequence[str], apart: str = ", ") -> str:
    more = f" and {len(words) - _MOST_LISTED} more" if len(words) > _MOST_LISTED else ""
    return apart.join(words[:_MOST_LISTED]) + more


def _rate(record: Record, row: Row) -> str:
    return f"{format_rate(record, row)} samples/s"


def tradeoff(records: Sequence[Record]) -> Chart:
    """Return throughput against latency, at the percentile of the SLO if the records agree on one, else at p50."""
    targets = {(record.spec.slo_ms, record.spec.percentile) for record in records if record.spec.slo_ms is not None}
    percents = {percent for _, percent in targets}
    percent = percents.pop() if len(percents) == 1 else 50.0
    series = _each_record(records, lambda record: _tradeoff_points(record, percent))
    if not series and percent != 50:
        percent, targets = 50.0, set()  # no row has enough samples for the SLO's percentile
        series = _each_record(records, lambda record: _tradeoff_points(record, percent))
    levels = [
        Level(axis="x", value=slo_ms, text=f"SLO: p{at:g} within {format_amount(slo_ms)} ms")
        for slo_ms, at in sorted(targets)
        if at == percent
    ]
    words = "Each point is a batch size, joined in their order; one with too few samples for the percentile has none."
    return _tradeoff(title_of(records), series, percent, words, levels)


def _tradeoff(about: str, series: Sequence[Series], percent: float, words: str, levels: Sequence[Level] = ()) -> Chart:
    shown = {point.x for one in series for point in one.points}
    least, most = (min(shown), max(shown)) if shown else (0.0, 0.0)
    return Chart(
        kind="tradeoff",
        title="Throughput against latency",
        about=about,
        words=f"The p{percent:g} latency goes from {format_figure(least)} to {format_figure(most)} ms. {words}",
        x=Axis(label=f"p{percent:g} latency, ms", scale=_scale_of(shown, "log10"), reads=f"p{percent:g} {{}} ms"),
        y=Axis(label="samples/s", scale="from_zero"),
        series=tuple(series),
        levels=tuple(levels),
    )


def pareto(race: Race, about: str) -> Chart:
    """Return throughput against latency of all variants and batch sizes of a race, the Pareto front as a line."""
    known = speeds(race)
    front = pareto_front(known)
    parts: tuple[tuple[str, Look, list[tuple[Spec, Speed]]], ...] = (
        ("no other is better in both", "line", front),
        ("others", "fitted", [one for one in known if one not in front]),
    )
    series = [
        Series(
            name=name,
            number=0,
            look=look,
            points=tuple(_speed_point(race.recipe_of(spec), speed) for spec, speed in part),
        )
        for name, look, part in parts
    ]
    words = "Each point is a batch size of a variant; those that no other exceeds in both are joined."
    return _tradeoff(about, [one for one in series if one.points], 50, words)


def _speed_point(recipe: str, speed: Speed) -> Point:
    text = f"{recipe}, batch {speed.batch_size}, {format_about(speed.samples_per_s)} samples/s"
    return Point(x=speed.latency_ms, y=speed.samples_per_s, text=text)


def _tradeoff_points(record: Record, percent: float) -> Iterator[Point]:
    for row in _ok_rows(record):
        latency_ms = percentile(row.latency_ms, percent)
        if latency_ms is not None and row.samples_per_s is not None:
            yield Point(x=latency_ms, y=row.samples_per_s, text=f"batch {row.batch_size}, {_rate(record, row)}")


def latency(records: Sequence[Record]) -> Chart:
    """Return the distribution of latencies: boxes for one record's batch sizes, else the 50th and 99th percentiles."""
    boxes = len(records) == 1 and sum(bool(row.latency_ms) for row in _ok_rows(records[0])) <= MOST_BOXES
    if boxes:
        series = _each_record(records, _boxes, "boxes")
        label, words = "latency, ms", "Boxes hold the middle half, whiskers reach from the fastest to the slowest."
    else:
        halves = _each_record(records, _points_by_batch_size(_percentile(50)))
        series = halves + _each_record(records, _points_by_batch_size(_percentile(99)), "outline", named=False)
        label, words = "latency, ms: p50 filled, p99 hollow", "Lines are the p50 (filled) and the p99 (hollow)."
    values = [value for one in series for point in one.points for value in (point.y, point.low) if value is not None]
    medians = [point.y for one in series for point in one.points if one.look != "outline"]
    ends = f"The median goes from {format_figure(min(medians))} to {format_figure(max(medians))} ms." if medians else ""
    return Chart(
        kind="latency",
        title="Latency against batch size",
        about=title_of(records),
        words=f"{ends} {words} {_OF_SINGLE}".strip(),
        x=_BATCH_SIZE,
        y=Axis(label=label, scale=_scale_of(values, "log10")),
        series=series,
    )


def _boxes(record: Record) -> Iterator[Point]:
    for row in _ok_rows(record):
        low, high = min(row.latency_ms, default=None), max(row.latency_ms, default=None)
        q1, middle, q3 = (percentile(row.latency_ms, percent) for percent in (25, 50, 75))
        if middle is not None:
            first, half, third, *ends = (format_figure(end or 0.0) for end in (q1, middle, q3, low, high))
            middle_half = "" if q1 is None or q3 is None else f"middle half {first} to {third} ms, "
            text = f"p50 {half} ms, {middle_half}all {ends[0]} to {ends[1]} ms"
            yield Point(x=row.batch_size, y=middle, text=text, low=low, high=high, q1=q1, q3=q3)


def _percentile(percent: float) -> _ValueOf:
    def value(record: Record, row: Row) -> _Value | None:
        latency_ms = percentile(row.latency_ms, percent)
        if latency_ms is None:
            return None
        return _Value(latency_ms, f"p{percent:g} {format_latency(record, row, latency_ms)} ms")

    return value


def memory(records: Sequence[Record]) -> Chart:
    """Return peak memory against batch size with the limits, and for a single record the search's trials."""
    series = _each_record(records, _points_by_batch_size(_memory))
    series += tuple(_trials(records[0])) if len(records) == 1 else ()
    known = {limit for record in records if series and (limit := _limit_bytes(record)) is not None}
    levels = tuple(Level(axis="y", value=limit / MIB, text=f"limit: {format_bytes(limit)}") for limit in sorted(known))
    values = [point.y for one in series for point in one.points]
    peaks = [point.y for one in series if one.look != "failed" for point in one.points]
    limits = " or ".join(level.text for level in levels)
    limit_words = f"A line across is the {limits}." if levels else "No limit is known."
    ends = f"Peaks of batches that fit go from {_mib(min(peaks))} to {_mib(max(peaks))}. " if peaks else ""
    fell = any(one.look == "failed" for one in series)
    at_limit = " A trial that ran out of memory stands at the limit where its peak is not known." if fell else ""
    scale = _scale_of([*values, *(level.value for level in levels)], "log2")
    return Chart(
        kind="memory",
        title="Memory against batch size",
        about=title_of(records),
        words=f"{ends}{limit_words}{at_limit}",
        x=_BATCH_SIZE,
        y=Axis(label="peak memory", scale=scale, unit="mib"),
        series=series,
        levels=levels,
    )


def _mib(mib: float) -> str:
    return format_bytes(round(mib * MIB))


def _limit_bytes(record: Record) -> int | None:
    found = record.edge.memory_limit_bytes if record.edge is not None else None
    total_bytes = record.environment.memory_total_bytes
    each_bytes = None if total_bytes is None else total_bytes // record.spec.instances
    return found or record.spec.memory_of_each_bytes or each_bytes


def _trials(record: Record) -> Iterator[Series]:
    fitted = [_trial_point(record, trial) for trial in record.trials if trial.failure is None]
    failed = [_trial_point(record, trial) for trial in record.trials if trial.failure is not None]
    sides: tuple[tuple[Look, list[Point | None]], ...] = (("fitted", fitted), ("failed", failed))
    for look, points in sides:
        if known := tuple(point for point in points if point is not None):
            yield Series(name=f"trials that {look}", number=0, look=look, points=known)


def _trial_point(record: Record, trial: Trial) -> Point | None:
    """Return a trial's peak memory; a trial that ran out of memory at an unknown peak is drawn at the limit."""
    peak = peak_bytes(record, trial)
    if trial.failure is None:
        text = f"in its trial {format_bytes(peak or 0)}"
    else:
        peak = _limit_bytes(record) if peak is None and trial.failure.kind == "out_of_memory" else peak
        text = f"its trial failed: {trial.failure.kind.replace('_', ' ')}"
    return None if peak is None else Point(x=trial.batch_size, y=peak / MIB, text=text)


def clock(records: Sequence[Record]) -> Chart:
    chart = _over_windows(records, "clock", "SM clock over the run", "MHz", lambda seen: seen.sm_clock_mhz)
    highest = {t.health.sm_clock_max_mhz for one in records for row in one.rows for t in row.timings if t.health}
    levels = [Level(axis="y", value=mhz, text=f"highest clock: {mhz:g} MHz") for mhz in highest if mhz is not None]
    return replace(chart, levels=tuple(levels) if len(levels) == 1 else ())


def power(records: Sequence[Record]) -> Chart:
    return _over_windows(records, "power", "Power over the run", "W", lambda seen: seen.power_w)


def _over_windows(
    records: Sequence[Record],
    kind: Literal["clock", "power"],
    title: str,
    unit: str,
    value_of: Callable[[Health], float | None],
) -> Chart:
    def points(record: Record) -> Iterator[Point]:
        for number, seen in enumerate(_windows(record), 1):
            value = None if seen is None else value_of(seen)
            if value is not None:
                yield Point(x=number, y=value, text=f"{format_figure(value)} {unit}")

    series = _each_record(records, points)
    values = [point.y for one in series for point in one.points]
    ends = f"From {format_figure(min(values))} to {format_figure(max(values))} {unit}. " if values else ""
    return Chart(
        kind=kind,
        title=title,
        about=title_of(records),
        words=f"{ends}A point is one process of a row: the first of every batch size, then the second, and so on.",
        x=Axis(label="throughput window, in order", scale="from_zero", reads="window {}"),
        y=Axis(label=unit, scale="from_zero"),
        series=series,
    )


def _windows(record: Record) -> Iterator[Health | None]:
    """Yield the device's health in every window: the first of each row, then the second, as rows took turns."""
    rounds = max((len(row.timings) for row in record.rows), default=0)
    for number in range(rounds):
        yield from (row.timings[number].health for row in record.rows if number < len(row.timings))


def _throughput(record: Record, row: Row) -> _Value | None:
    if row.samples_per_s is None:
        return None
    interval = known_interval(record, row)
    if interval is None:
        return _Value(row.samples_per_s, _rate(record, row))
    width = format_width(interval.half_width)
    return _Value(row.samples_per_s, f"{_rate(record, row)} ± {width} %", *interval.above_zero)


def _latency(record: Record, row: Row) -> _Value | None:
    middle, slowest = (percentile(row.latency_ms, percent) for percent in (50, 99))
    if middle is None:
        return None
    return _Value(middle, f"{format_latency(record, row, middle)} ms", None if slowest is None else middle, slowest)


def _memory(record: Record, row: Row) -> _Value | None:
    peak = peak_bytes(record, row)
    return None if peak is None else _Value(peak / MIB, format_bytes(peak))


def _health(name: Literal["sm_clock_mhz", "power_w"], unit: str) -> _ValueOf:
    def value(_record: Record, row: Row) -> _Value | None:
        seen = health(row)
        found = None if seen is None else getattr(seen, name)
        return None if found is None else _Value(found, f"{found:.0f} {unit}")

    return value


class _Bar(NamedTuple):
    """A plot of records with one batch size each: kind, title, explanation, that of whiskers, and value."""

    kind: Literal["throughput", "latency", "memory", "clock", "power"]
    title: str
    explained: str
    whiskers: str
    value_of: _ValueOf


_BARS: Final = (
    _Bar("throughput", "Throughput", "", f" Whiskers {_INTERVALS}", _throughput),
    _Bar("latency", "Latency, p50", _OF_SINGLE, " Whiskers end at the p99.", _latency),
    _Bar("memory", "Peak memory", "What the device must hold.", "", _memory),
    _Bar("clock", "SM clock", "The mean while the throughput was timed.", "", _health("sm_clock_mhz", "MHz")),
    _Bar("power", "Power", "The mean while the throughput was timed.", "", _health("power_w", "W")),
)


def _bars(records: Sequence[Record], bar: _Bar) -> Chart:
    """Return a bar for each record, the highest throughput first in every plot."""
    named = list(zip(names_of(records), records, strict=True))
    timed = [(name, record, row) for name, record in named for row in record.rows if row.samples_per_s is not None]
    timed.sort(key=lambda one: -(one[2].samples_per_s or 0.0))
    sizes = {row.batch_size for _, _, row in timed}
    at_batch = f" at batch {next(iter(sizes))}" if len(sizes) == 1 else ""
    known = [
        (name if at_batch else f"{name}, batch {row.batch_size}", value)
        for name, record, row in timed
        if (value := bar.value_of(record, row)) is not None
    ]
    shown = known[:_MOST_BARS]
    left_out = f" Of {len(known)} records {_MOST_BARS} are drawn." if len(known) > _MOST_BARS else ""
    spans = bar.whiskers if any(_is_span(value) for _, value in shown) else ""
    untimed = _join_names(
        [f"{name} ({_why_without_rate(record)})" for name, record in named if fastest(record.rows) is None]
    )
    left_out += f" Not drawn: {untimed}." if untimed else ""
    note = f"{bar.explained}{spans} The highest throughput comes first.{left_out}".strip()
    listed = _join_names([f"{name}: {value.text}" for name, value in known], "; ")
    points = tuple(Point(x=place, **value._asdict()) for place, (_, value) in enumerate(shown))
    return Chart(
        kind=bar.kind,
        title=f"{bar.title}{at_batch}",
        about=title_of(records),
        words=f"{listed}. {note}",
        x=Axis(label="", scale="from_zero"),
        y=Axis(label="", scale="from_zero"),
        series=(Series(name="", number=0, look="bars", points=points),) if points else (),
        names=tuple(name for name, _ in shown),
        note=note,
    )


def _why_without_rate(record: Record) -> str:
    return next(filter(None, map(failure_of, record.rows)), "nothing was timed")


def _points_by_batch_size(value_of: _ValueOf) -> Callable[[Record], Iterator[Point]]:
    def points(record: Record) -> Iterator[Point]:
        for row in _ok_rows(record):
            if (value := value_of(record, row)) is not None:
                yield Point(x=row.batch_size, **value._asdict())

    return points


def _ok_rows(record: Record) -> list[Row]:
    return [row for row in record.rows if row.failure is None]


def _scale_of(values: Iterable[float], wanted: Scale) -> Scale:
    return wanted if all(value > 0 for value in values) else "from_zero"


def _each_record(
    records: Sequence[Record],
    points_of: Callable[[Record], Iterable[Point]],
    look: Look = "line",
    *,
    named: bool = True,
) -> tuple[Series, ...]:
    drawn = [
        Series(name=name if named else "", number=number, look=look, points=tuple(points_of(record)))
        for number, (record, name) in enumerate(zip(records, names_of(records), strict=True))
    ]
    return tuple(series for series in drawn if series.points)
