"""The rows of records as a table of text, as wide as there is room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.analysis.answers import answers, compile_s, format_rate, peak_bytes, throughput_interval
from tputfind.record import identity
from tputfind.record.record import Record, Row
from tputfind.stats import mean, percentile
from tputfind.units import MIB, format_bytes, format_figure, format_width

_WIDE: Final = 100
"""From so many characters on there is room for what others say too: the time of a batch is its size over the rate."""
_REMARKS: Final = 9
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class Look(NamedTuple):
    """How a table is drawn: the characters that the bar of the throughput has, whether there is room for more columns,
    and whether blocks can be shown.
    """

    bar: int
    wide: bool
    blocks: bool = True


EVERYTHING: Final = Look(bar=0, wide=True)


def look(console: Console) -> Look:
    """Return how to draw a table on a console."""
    wide = console.width >= _WIDE
    return Look(bar=10 if wide else 6, wide=wide, blocks=console.encoding.startswith("utf"))


def table(records: Sequence[Record], style: box.Box, drawn: Look) -> Table:
    """Return a line for each row of the records, which are named where they are several."""
    lines = Table(box=style)
    names = identity.told_apart_by(records)
    compiled = any(record.spec.mode == "compile" for record in records)
    if not drawn.wide and (names or compiled):
        drawn = drawn._replace(bar=0)
    for name in names:
        lines.add_column(name, overflow="fold")
    for name in ("batch", "samples/s", "± %"):
        lines.add_column(name, justify="right", no_wrap=True)
    if drawn.bar:
        lines.add_column("", no_wrap=True, min_width=drawn.bar)
    for name in (*(["device ms"] if drawn.wide else []), "p50 ms", "p99 ms", "peak MiB"):
        lines.add_column(name, justify="right", no_wrap=True)
    if compiled:
        lines.add_column("compile s", justify="right", no_wrap=True)
    lines.add_column("", overflow="fold", min_width=_REMARKS)
    most = max((row.samples_per_s or 0.0 for record in records for row in record.rows), default=0.0)
    for record in records:
        named = [Text(identity.NAMES[name](record)) for name in names]
        best = [row for _, row in answers(record)]
        for row in record.rows:
            seconds = [_figure(compile_s(record, row))] if compiled else []
            figures = [*_cells(record, row, most, drawn), *seconds]
            lines.add_row(
                *named, *figures, Text(remark(record, row)), style="bold" if any(row is one for one in best) else None
            )
        lines.add_section()
    return lines


def title(record: Record) -> str:
    """Return what a table of one record is about."""
    spec, environment = record.spec, record.environment
    memory = environment.memory_total_bytes if spec.memory_limit_bytes is None else spec.memory_limit_bytes
    size = "" if memory is None else f", {format_bytes(memory)}"
    copies = {"none": "", "h2d": ", inputs copied in", "both": ", inputs copied in and outputs out"}[spec.transfer]
    recipe = " ".join((spec.dtype, spec.layout, *spec.way))
    return f"{spec.model} {recipe} {record.input_shape} on {environment.device_name}{size}{copies}"


def _cells(record: Record, row: Row, most_per_s: float, drawn: Look) -> Iterator[str]:
    """Yield the figures of a row, which a failed one has none of."""
    failed = row.failure is not None
    interval = None if failed else throughput_interval(row)
    taken_bytes = peak_bytes(record, row)
    yield str(row.batch_size)
    yield format_rate(row)
    yield "" if interval is None else format_width(interval.half_width)
    if drawn.bar:
        share = (row.samples_per_s or 0.0) / most_per_s if most_per_s > 0 else 0.0
        yield _bar(share, drawn)
    if drawn.wide:
        yield "" if failed else _figure(mean(row.device_ms))
    yield "" if failed else _figure(percentile(row.latency_ms, 50))
    yield "" if failed else _figure(percentile(row.latency_ms, 99))
    yield "" if failed or taken_bytes is None else f"{taken_bytes / MIB:.0f}"


def _bar(share: float, drawn: Look) -> str:
    """Draw a share of the highest throughput, in eighths of a character where they can be shown."""
    if not drawn.blocks:
        return "#" * round(share * drawn.bar)
    whole, rest = divmod(round(share * drawn.bar * 8), 8)
    return ("█" * whole + _EIGHTHS[rest]).rstrip()


def _figure(value: float | None) -> str:
    return "" if value is None else format_figure(value)


def remark(record: Record, row: Row) -> str:
    """Return what a row is called: its failure, or what it is the best of and the notices about it."""
    if row.failure is not None:
        return row.failure.kind.replace("_", " ")
    kinds = [notice.kind.replace("_", " ") for notice in record.notices if row.batch_size in notice.batch_sizes]
    return ", ".join([*(name for name, answer in answers(record) if answer is row), *kinds])
