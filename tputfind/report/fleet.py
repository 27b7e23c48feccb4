"""Devices side by side: a table of one job on each, and of what becomes of it when all are busy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from tputfind.analysis import fleet
from tputfind.analysis.answers import all_busy_share, format_rate, health, known_interval, largest_of
from tputfind.analysis.fleet import AllBusy, ByDevice, Judged
from tputfind.record import identity
from tputfind.record.record import Record
from tputfind.report import tables
from tputfind.stats import Interval
from tputfind.units import format_known, format_width


class Section(NamedTuple):
    """A table of devices under its title, and what is to be said of them, each a label and a text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[tuple[str, str], ...]

    def table(self) -> Table:
        """Return the table."""
        table = tables.new_table()
        for number, head in enumerate(self.heads):
            table.add_column(head, justify="left" if number == 0 or head == "verdict" else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def sections(records: Sequence[Record]) -> list[Section]:
    """Return what several devices of one run, or of several, tell together; nothing where there is one device."""
    alone = [_by_device(one) for one in fleet.by_device(records)]
    return [*alone, *(_all_busy(one) for one in fleet.all_busy(records))]


def _by_device(found: ByDevice) -> Section:
    records = [one.record for one in found.devices]
    names = _names(records)
    heads = ("device", "samples/s", "± %", "SM MHz", "W", "°C", "largest", "of the others", "95 % interval", "verdict")
    rows = [
        (names[fleet.device_key(one.record)], *_rate(one), *_health(one), _largest(one.record), *_ratio(one))
        for one in found.devices
    ]
    at_best = [one for one in found.devices if one.causes or one.verdict == "slower"]
    lines = [(names[fleet.device_key(one.record)], _told(one)) for one in (*at_best, *found.elsewhere)]
    title = f"{_job(records[0])}, batch {found.batch_size}: each device against the median of the others"
    return _section(title, heads, rows, lines)


def _all_busy(found: Sequence[AllBusy]) -> Section:
    records = [one.record for one in found[0].devices]
    names = _names(records)
    heads = (
        "batch",
        "device",
        "alone/s",
        "all busy/s",
        "± %",
        "SM MHz",
        "W",
        "°C",
        "busy %",
        "of alone",
        "95 % interval",
        "verdict",
    )
    rows: list[tuple[str, ...]] = []
    lines: list[tuple[str, str]] = []
    for at_size in found:
        size = str(at_size.batch_size)
        for one in at_size.devices:
            share, alone = all_busy_share(one.row), (one.row.samples_per_s or 0.0) / (one.ratio or 1.0)
            busy = "" if share is None else f"{100 * share:.0f}"
            device = names[fleet.device_key(one.record)]
            alone_text = format_known(alone, None) if one.ratio else ""
            rows.append((size, device, alone_text, *_rate(one), *_health(one), busy, *_ratio(one)))
            if one.causes or one.verdict == "slower":
                lines.append((device, _told(one)))
        whole = _ratio_cells(at_size.ratio, at_size.interval)
        sums = (format_known(at_size.alone_per_s, None), format_known(at_size.busy_per_s, None))
        rows.append((size, "all", *sums, "", "", "", "", "", *whole, ""))
    count = records[0].spec.busy_devices
    return _section(f"{_job(records[0])}: {count} devices busy at once, each against itself alone", heads, rows, lines)


def _section(
    title: str, heads: Sequence[str], rows: Sequence[tuple[str, ...]], lines: Sequence[tuple[str, str]]
) -> Section:
    """Return a section without the columns in which nothing stands."""
    kept = [place for place, _ in enumerate(heads) if any(row[place] for row in rows)]
    shown = tuple(tuple(row[place] for place in kept) for row in rows)
    return Section(title, tuple(heads[place] for place in kept), shown, tuple(lines))


def _job(record: Record) -> str:
    return f"{record.spec.model} {identity.name_of(record.spec)} {record.input_shape}"


def _names(records: Sequence[Record]) -> dict[str, str]:
    """Name each device by its number, and by its UUID too where another host has one of that number."""
    places = [record.environment.device for record in records]
    return {
        fleet.device_key(record): place
        if places.count(place) == 1
        else f"{place} {(record.environment.device_uuid or '')[:12]}".strip()
        for record, place in zip(records, places, strict=True)
    }


def _rate(one: Judged) -> tuple[str, str]:
    interval = known_interval(one.record, one.row)
    return format_rate(one.record, one.row), "" if interval is None else format_width(interval.half_width).rstrip("%")


def _health(one: Judged) -> Iterator[str]:
    seen = health(one.row)
    for value in (None,) * 3 if seen is None else (seen.sm_clock_mhz, seen.power_w, seen.temperature_c):
        yield "" if value is None else f"{value:.0f}"


def _largest(record: Record) -> str:
    return largest_of(record.edge)


def _ratio(one: Judged) -> tuple[str, str, str]:
    return *_ratio_cells(one.ratio, one.interval), _verdict(one)


def _ratio_cells(ratio: float | None, interval: Interval | None) -> tuple[str, str]:
    digits = 3 if interval is not None and interval.half_width < 0.05 else 2
    told = "" if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"
    return "" if ratio is None else f"{ratio:.{digits}f}", told


def _verdict(one: Judged) -> str:
    """Say what a ratio comes to: ``slower by 6 %``."""
    if one.verdict in ("same", "not known") or one.ratio is None:
        return one.verdict
    percent = 100 * abs(one.ratio - 1)
    return f"{one.verdict} by {percent:.2g} %" if percent < 10 else f"{one.verdict} by {percent:.0f} %"


def _told(one: Judged) -> str:
    causes = ", ".join(one.causes) or "no cause was seen"
    return f"batch {one.row.batch_size}: {_verdict(one)}: {causes}"
