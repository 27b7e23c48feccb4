"""The rows of records as a table of text, as wide as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.analysis.answers import answers, compile_s, fastest, format_rate, throughput_interval
from tputfind.record import identity
from tputfind.record.record import Record
from tputfind.report import columns, text
from tputfind.units import format_width

_WIDE: Final = 100
"""Least width in characters for columns that repeat others: the time of a batch is its size over the rate."""
_REMARKS: Final = 9
_BAR_AFTER: Final = "± %"
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
    names = identity.distinguishing_fields(records)
    compiled = any(compile_s(record, row) is not None for record in records for row in record.rows)
    if not drawn.wide and (names or compiled):
        drawn = drawn._replace(bar=0)
    for name in names:
        lines.add_column(name, overflow="fold")
    figures = columns.shown_in("any", "compiled" if compiled else "any", "wide" if drawn.wide else "any")
    for heading in ("batch", *(shown.heading for shown, _ in figures)):
        lines.add_column(heading, justify="right", no_wrap=True)
        if drawn.bar and heading == _BAR_AFTER:
            lines.add_column("", no_wrap=True, min_width=drawn.bar)
    lines.add_column("", overflow="fold", min_width=_REMARKS)
    most = max((row.samples_per_s or 0.0 for record in records for row in record.rows), default=0.0)
    for record in records:
        named = [Text(identity.NAMES[name](record)) for name in names]
        best = [row for _, row in answers(record)]
        for row in record.rows:
            cells = [str(row.batch_size)]
            for shown, column in figures:
                cells.append(column.cell(record, row)[0])
                if drawn.bar and shown.heading == _BAR_AFTER:
                    cells.append(_bar((row.samples_per_s or 0.0) / most if most > 0 else 0.0, drawn))
            remark, is_best = Text(text.remark(record, row)), any(row is one for one in best)
            lines.add_row(*named, *cells, remark, style="bold" if is_best else None)
        lines.add_section()
    return lines


def _bar(share: float, drawn: Look) -> str:
    """Draw a share of the highest throughput, in eighths of a character where they can be shown."""
    if not drawn.blocks:
        return "#" * round(share * drawn.bar)
    whole, rest = divmod(round(share * drawn.bar * 8), 8)
    return ("█" * whole + _EIGHTHS[rest]).rstrip()


def recipes_table(records: Sequence[Record], style: box.Box) -> Table:
    """Return a line for each recipe of a model: its edge and its fastest batch."""
    table = Table(box=style)
    table.add_column("recipe", no_wrap=True)
    for name in ("largest", "fastest", "samples/s", "± %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for record in records:
        best, edge = fastest(record.rows), record.edge
        failure = next((row.failure for row in record.rows if row.failure), None) if best is None else None
        interval = throughput_interval(best) if best else None
        table.add_row(
            identity.name_of(record.spec),
            str(edge.largest_batch) if edge else "",
            str(best.batch_size) if best else "",
            format_rate(best) if best else "",
            "" if interval is None else format_width(interval.half_width),
            failure.kind.replace("_", " ") if failure else "",
        )
    return table
