"""The plots of the device's health: its clock and its power over the windows of a run. Pure functions of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from tputfind.record.record import Health, Record
from tputfind.report.charts.chart import Axis, Chart, Level, Point, each_record, title_of
from tputfind.units import format_figure


def clock(records: Sequence[Record]) -> Chart:
    """Return the SM clock of every throughput window."""
    chart = _over_windows(records, "clock", "SM clock over the run", "MHz", lambda seen: seen.sm_clock_mhz)
    highest = {t.health.sm_clock_max_mhz for one in records for row in one.rows for t in row.timings if t.health}
    levels = [Level(axis="y", value=mhz, text=f"highest clock: {mhz:g} MHz") for mhz in highest if mhz is not None]
    return msgspec.structs.replace(chart, levels=tuple(levels) if len(levels) == 1 else ())


def power(records: Sequence[Record]) -> Chart:
    """Return the power of every throughput window."""
    return _over_windows(records, "power", "Power over the run", "W", lambda seen: seen.power_w)


def _over_windows(
    records: Sequence[Record],
    kind: Literal["clock", "power"],
    title: str,
    unit: str,
    value_of: Callable[[Health], float | None],
) -> Chart:
    def points(record: Record) -> Iterator[Point]:
        for number, health in enumerate(_windows(record), 1):
            value = None if health is None else value_of(health)
            if value is not None:
                yield Point(x=number, y=value, text=f"{format_figure(value)} {unit}")

    series = each_record(records, points)
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
    """Yield the device's health in every window, the first of each row, then the second, and so on.

    Rows take turns in this order, but for one that the search timed by itself, before the others: when a window was is
    not in the record.
    """
    rounds = max((len(row.timings) for row in record.rows), default=0)
    for number in range(rounds):
        yield from (row.timings[number].health for row in record.rows if number < len(row.timings))
