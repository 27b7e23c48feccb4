"""Devices side by side: a table of one job on each device, and of the same job with all devices busy."""

from collections.abc import Iterator, Sequence
from typing import Final

from tputfind.analysis import fleet
from tputfind.analysis.answers import all_busy_share, format_rate, health, known_interval, largest_of
from tputfind.analysis.fleet import AllBusy, ByDevice, Judged
from tputfind.record import identity
from tputfind.record.record import Record
from tputfind.report.document import Cell, Column, Document, answers_of, count, percent, table, without_blanks
from tputfind.stats import Interval
from tputfind.units import format_estimate, format_width

_OF_HEALTH: Final = ("SM MHz", "W", "°C")
_JUDGED: Final = ("95 % interval", "verdict")


def documents(records: Sequence[Record]) -> list[Document]:
    """Return a part for each job that several devices did, alone or all at once; empty for a single device."""
    alone = [_device_document(one) for one in fleet.compare_devices(records)]
    return [*alone, *(_all_busy(one) for one in fleet.all_busy(records))]


def _device_document(found: ByDevice) -> Document:
    records = [one.record for one in found.devices]
    names = _names(records)
    heads = ("device", "samples/s", "± %", *_OF_HEALTH, "largest", "of the others", *_JUDGED)
    rows = [
        (
            Cell(names[fleet.device_key(one.record)]),
            *_rate(one),
            *_health(one),
            Cell(largest_of(one.record.edge), one.record.edge.largest_batch if one.record.edge else None),
            *_ratio(one.ratio, one.interval),
            Cell(_verdict(one)),
        )
        for one in found.devices
    ]
    at_best = [one for one in found.devices if one.causes or one.verdict == "slower"]
    lines = [(names[fleet.device_key(one.record)], _causes(one)) for one in (*at_best, *found.elsewhere)]
    title = f"{_job(records[0])}, batch {found.batch_size}: each device against the median of the others"
    return _part(title, heads, rows, lines)


def _all_busy(found: Sequence[AllBusy]) -> Document:
    records = [one.record for one in found[0].devices]
    names = _names(records)
    heads = ("batch", "device", "alone/s", "all busy/s", "± %", *_OF_HEALTH, "busy %", "of alone", *_JUDGED)
    rows: list[tuple[Cell, ...]] = []
    lines: list[tuple[str, str]] = []
    for at_size in found:
        size = count(at_size.batch_size)
        for one in at_size.devices:
            share, alone = all_busy_share(one.row), (one.row.samples_per_s or 0.0) / (one.ratio or 1.0)
            device = names[fleet.device_key(one.record)]
            alone_cell = _per_s(alone) if one.ratio else Cell()
            busy = Cell() if share is None else percent(share)
            judged = (*_ratio(one.ratio, one.interval), Cell(_verdict(one)))
            rows.append((size, Cell(device), alone_cell, *_rate(one), *_health(one), busy, *judged))
            if one.causes or one.verdict == "slower":
                lines.append((device, _causes(one)))
        sums = (_per_s(at_size.alone_per_s), _per_s(at_size.busy_per_s))
        blanks = [Cell()] * (2 + len(_OF_HEALTH))
        rows.append((size, Cell("all"), *sums, *blanks, *_ratio(at_size.ratio, at_size.interval), Cell()))
    number = records[0].spec.busy_devices
    return _part(f"{_job(records[0])}: {number} devices busy at once, each against itself alone", heads, rows, lines)


def _part(
    title: str, heads: Sequence[str], rows: Sequence[tuple[Cell, ...]], lines: Sequence[tuple[str, str]]
) -> Document:
    columns = (Column(head, "text" if head in ("device", "verdict") else "number") for head in heads)
    return Document(title=title, sections=(without_blanks(table(columns, rows)), *answers_of(lines)))


def _job(record: Record) -> str:
    return f"{record.spec.model} {identity.name_of(record.spec)} {record.input_shape}"


def _names(records: Sequence[Record]) -> dict[str, str]:
    """Name each device by its number, and by its node or UUID too if another host has a device of that number."""
    places = [record.environment.device for record in records]
    names = {}
    for record, place in zip(records, places, strict=True):
        key = fleet.device_key(record)
        host = identity.place_of(record)[1] or (record.environment.device_uuid or "")[:12]
        names[key] = place if places.count(place) == 1 else f"{place} {host}" if host else key
    return names


def _per_s(rate: float) -> Cell:
    return Cell(format_estimate(rate, None), rate)


def _rate(one: Judged) -> tuple[Cell, Cell]:
    interval = known_interval(one.record, one.row)
    width = Cell() if interval is None else Cell(format_width(interval.half_width), 100 * interval.half_width)
    return Cell(format_rate(one.record, one.row), one.row.samples_per_s), width


def _health(one: Judged) -> Iterator[Cell]:
    seen = health(one.row)
    for value in (None,) * 3 if seen is None else (seen.sm_clock_mhz, seen.power_w, seen.temperature_c):
        yield Cell() if value is None else Cell(f"{value:.0f}", value)


def _ratio(ratio: float | None, interval: Interval | None) -> tuple[Cell, Cell]:
    digits = 3 if interval is not None and interval.half_width < 0.05 else 2
    ends = (
        Cell() if interval is None else Cell(f"{interval.low:.{digits}f} to {interval.high:.{digits}f}", interval.low)
    )
    return Cell() if ratio is None else Cell(f"{ratio:.{digits}f}", ratio), ends


def _verdict(one: Judged) -> str:
    if one.verdict in ("same", "not known") or one.ratio is None:
        return one.verdict
    share = 100 * abs(one.ratio - 1)
    return f"{one.verdict} by {share:.2g} %" if share < 10 else f"{one.verdict} by {share:.0f} %"


def _causes(one: Judged) -> str:
    causes = ", ".join(one.causes) or "no cause was seen"
    return f"batch {one.row.batch_size}: {_verdict(one)}: {causes}"
