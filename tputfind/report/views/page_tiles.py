"""What a page opens with: the batch to deploy and its figures, each large. Pure functions of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tputfind.analysis import recipes
from tputfind.analysis.answers import (
    KNEE_SHARE,
    fastest,
    format_latency,
    format_rate,
    knee,
    known_interval,
    peak_bytes,
    to_deploy,
)
from tputfind.record import identity
from tputfind.record.record import Record, Row
from tputfind.report import text
from tputfind.report.document import Document, Tile, Tiles
from tputfind.stats import percentile
from tputfind.units import format_bytes, format_width

_MOST_GROUPS: Final = 3
"""Up to so many models or devices have tiles; the table answers for more."""


def groups(records: Sequence[Record]) -> tuple[Document, ...]:
    """Return the answers of each model on each device, of its best recipe where it has several."""
    works = list(dict.fromkeys(map(identity.work_key, records)))
    if len(works) > _MOST_GROUPS:
        return ()
    found = []
    for work in works:
        together = [record for record in records if identity.work_key(record) == work]
        best = recipes.best_of(together)
        row = to_deploy(best[0]) if best else None
        if best and row:
            spec, device = best[0].spec, best[0].environment.device_name
            heading = f"{spec.model} {spec.dtype} on {device}" if len(works) > 1 else ""
            tiles = Tiles(tuple(_tiles(best[0], row, len(together))))
            found.append(Document(title=heading, sections=(tiles,)))
    return tuple(found)


def _tiles(record: Record, row: Row, among: int) -> Iterator[Tile]:
    recipe = identity.name_of(record.spec)
    if among > 1:
        yield Tile(label="Best recipe", figure=recipe, note=f"of {among} records")
    yield Tile(
        label="Batch to deploy" if record.spec.phase == "infer" else "Batch to train with",
        figure=str(row.batch_size),
        note=_why(record, row, fastest(record.rows) or row),
    )
    yield Tile(label="Throughput", figure=format_rate(record, row), unit="samples/s", note=_beside(record, row))
    latency_ms, slowest_ms = (percentile(row.latency_ms, percent) for percent in (50, 99))
    if latency_ms is not None:
        slowest = "" if slowest_ms is None else f"p99 {format_latency(record, row, slowest_ms)} ms"
        yield Tile(label="Latency, p50", figure=format_latency(record, row, latency_ms), unit="ms", note=slowest)
    peak, total = peak_bytes(record, row), record.environment.memory_total_bytes
    if peak is not None:
        figure, unit = format_bytes(peak).split(" ")
        of = "" if total is None else f"of {format_bytes(total)}"
        yield Tile(label="Peak memory", figure=figure, unit=unit, note=of)
    yield Tile(label="Device", figure=text.device_of(record), note=recipe if among == 1 else "")


def _why(record: Record, row: Row, best: Row) -> str:
    """Say why this batch is the one to deploy, or that this is not known for sure."""
    if doubt := text.doubt_of(record, (row, best)):
        return doubt.partition(";")[0]
    if record.spec.slo_ms is not None:
        return f"the fastest with p{record.spec.percentile:g} within {record.spec.slo_ms:g} ms"
    if row is knee(record.rows):
        return f"the smallest with {KNEE_SHARE:.0%} of the best throughput"
    return "the only batch size that was timed"


def _beside(record: Record, row: Row) -> str:
    interval, best = known_interval(record, row), fastest(record.rows)
    parts = [] if interval is None else [f"± {format_width(interval.half_width)} %"]
    if best is not None and best is not row:
        share = (row.samples_per_s or 0.0) / (best.samples_per_s or 1.0)
        parts.append(f"{share:.0%} of batch {best.batch_size}, the fastest")
    return "; ".join(parts)
