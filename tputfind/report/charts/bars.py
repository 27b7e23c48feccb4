"""The plots of records with one batch size each: bars, since a curve of one point shows nothing. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from tputfind.analysis.answers import format_latency, format_rate, health, known_interval, peak_bytes
from tputfind.record.record import Record, Row
from tputfind.report.charts.chart import Axis, Chart, Point, Series, names_of, title_of
from tputfind.stats import percentile
from tputfind.units import MIB, format_bytes, format_width

Value = tuple[float, str, float | None, float | None]
"""A figure, the same in words, and the two ends of its interval where it has one."""
_MOST: Final = 40
_MOST_LISTED: Final = 12


class _Timed(NamedTuple):
    """A record's only row that was timed, and what its bar is called."""

    name: str
    record: Record
    row: Row


def fit(records: Sequence[Record]) -> bool:
    """Whether these are several records of which none has a second batch size that was timed."""
    counts = [len(_timed(record)) for record in records]
    return len(records) > 1 and max(counts) == 1


def charts(records: Sequence[Record]) -> list[Chart]:
    """Return one plot for each figure that readers compare; the bars of all stand in the order of the first."""
    every = (
        throughput(records),
        _chart(
            records,
            "latency",
            "Latency, p50",
            "Of single batches sent to the idle device; whiskers end at the p99.",
            _latency,
        ),
        _chart(records, "memory", "Peak memory", "What the device must hold.", _memory),
        _chart(records, "clock", "SM clock", "The mean while the throughput was timed.", _clock),
        _chart(records, "power", "Power", "The mean while the throughput was timed.", _power),
    )
    return [chart for chart in every if not chart.empty]


def throughput(records: Sequence[Record]) -> Chart:
    """Return the samples/s of every record with its interval, the highest first."""
    return _chart(records, "throughput", "Throughput", "Whiskers are 95 % confidence intervals.", _throughput)


def _timed(record: Record) -> list[Row]:
    return [row for row in record.rows if row.samples_per_s is not None]


def _sorted(records: Sequence[Record]) -> tuple[list[_Timed], int | None]:
    """Return the rows, the fastest first, and the batch size where all have the same."""
    found = [
        _Timed(name, record, row)
        for name, record in zip(names_of(records), records, strict=True)
        for row in _timed(record)
    ]
    sizes = {one.row.batch_size for one in found}
    if len(sizes) > 1:
        found = [one._replace(name=f"{one.name}, batch {one.row.batch_size}") for one in found]
    found.sort(key=lambda one: -(one.row.samples_per_s or 0.0))
    return found, sizes.pop() if len(sizes) == 1 else None


def _chart(
    records: Sequence[Record],
    kind: Literal["throughput", "latency", "memory", "clock", "power"],
    title: str,
    explained: str,
    value_of: Callable[[Record, Row], Value | None],
) -> Chart:
    timed, batch_size = _sorted(records)
    known = [(one.name, value) for one in timed if (value := value_of(one.record, one.row)) is not None]
    shown = known[:_MOST]
    left_out = f" Of {len(known)} records {_MOST} are drawn." if len(known) > _MOST else ""
    note = f"{explained} The highest throughput comes first.{left_out}"
    return Chart(
        kind=kind,
        title=title if batch_size is None else f"{title} at batch {batch_size}",
        about=title_of(records),
        words=f"{_listed(known)} {note}",
        x=Axis(label="", scale="from_zero"),
        y=Axis(label="", scale="from_zero"),
        series=(Series(name="", number=0, look="bars", points=tuple(_points(shown))),) if shown else (),
        names=tuple(name for name, _ in shown),
        note=note,
    )


def _points(shown: Sequence[tuple[str, Value]]) -> Iterator[Point]:
    for place, (_, (value, text, low, high)) in enumerate(shown):
        yield Point(x=place, y=value, text=text, low=low, high=high)


def _listed(known: Sequence[tuple[str, Value]]) -> str:
    listed = "; ".join(f"{name}: {value[1]}" for name, value in known[:_MOST_LISTED])
    more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    return f"{listed}{more}."


def _throughput(record: Record, row: Row) -> Value | None:
    interval = known_interval(record, row)
    width = "" if interval is None else f" ± {format_width(interval.half_width)} %"
    low, high = interval.above_zero if interval else (None, None)
    return row.samples_per_s or 0.0, f"{format_rate(record, row)} samples/s{width}", low, high


def _latency(record: Record, row: Row) -> Value | None:
    middle, slowest = (percentile(row.latency_ms, percent) for percent in (50, 99))
    if middle is None:
        return None
    return middle, f"{format_latency(record, row, middle)} ms", None if slowest is None else middle, slowest


def _memory(record: Record, row: Row) -> Value | None:
    peak = peak_bytes(record, row)
    return None if peak is None else (peak / MIB, format_bytes(peak), None, None)


def _clock(_record: Record, row: Row) -> Value | None:
    seen = health(row)
    mhz = None if seen is None else seen.sm_clock_mhz
    return None if mhz is None else (mhz, f"{mhz:.0f} MHz", None, None)


def _power(_record: Record, row: Row) -> Value | None:
    seen = health(row)
    watt = None if seen is None else seen.power_w
    return None if watt is None else (watt, f"{watt:.0f} W", None, None)
