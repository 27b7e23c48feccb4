"""What a plot shows at each place, in words: what a reader gets at the pointer, or from the keyboard."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tputfind.report.charts.chart import Chart, Point, Series
from tputfind.units import format_figure


class Stop(msgspec.Struct, frozen=True):
    """A place on the plot's axis: what is read there, a line for each value, and the points where they are drawn."""

    text: str
    points: tuple[Point, ...]


def stops(chart: Chart) -> list[Stop]:
    """Return every place of a plot, from left to right; of bars from the top."""
    named = {series.number: series.name for series in chart.series if series.name}
    several = len(named) > 1
    there: dict[float, list[tuple[Series, Point]]] = {}
    for series in chart.series:
        for point in series.points:
            there.setdefault(point.x, []).append((series, point))
    return [
        Stop(
            "\n".join([_heading(chart, x), *_lines(there[x], named if several else {})]),
            tuple(point for _, point in there[x]),
        )
        for x in sorted(there)
    ]


def _heading(chart: Chart, x: float) -> str:
    if chart.names:
        return chart.names[int(x)]
    return chart.x.reads.format(int(x) if x == int(x) else format_figure(x))


def _lines(there: list[tuple[Series, Point]], named: dict[int, str]) -> Iterator[str]:
    """Yield the values at one place, those of one record on one line."""
    of_record: dict[int, list[str]] = {}
    for series, point in there:
        of_record.setdefault(series.number, []).append(point.text)
    for number, texts in of_record.items():
        name = named.get(number)
        yield f"{name}: {', '.join(texts)}" if name else ", ".join(texts)
