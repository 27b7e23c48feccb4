"""Tables of text for a terminal, one line a row, as wide as there is room for; Markdown takes the same."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.analysis import recipes
from tputfind.analysis.answers import answers, fastest, fastest_within_slo, largest_of
from tputfind.record.record import Notice, Record, Row
from tputfind.report import columns, text
from tputfind.units import format_sizes, shortened

_PLAIN: Final = box.Box(str(box.SIMPLE_HEAD).replace("─", "-"), ascii=True)
_UNBOUNDED: Final = 10_000
_STYLES: Final = ((3, _UNBOUNDED), (2, _UNBOUNDED), (3, 12), (2, 12), (1, 12), (2, 8), (1, 8))
"""Blanks between columns and characters to a line of a heading, from a wide terminal to a narrow one."""
_SHORTEST_NAME: Final = 8
_RATE: Final = "samples/s"
_OF_WORDS: Final = ("", "notices", "recipe", "record")
_BAR_AFTER: Final = "± %"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class Look(NamedTuple):
    """How wide the table of a record is: the characters of its bar of the throughput, and the columns it leaves out."""

    bar: int
    without: tuple[str, ...] = ()


EVERYTHING: Final = Look(bar=0)
_LOOKS: Final = (
    Look(10),
    Look(10, ("device ms",)),
    Look(6, ("device ms",)),
    Look(0, ("device ms",)),
    Look(0, ("device ms", "p99 ms")),
    Look(0, ("device ms", "p99 ms", "compile s")),
)
"""From the widest: what goes first is what can be reckoned from the rest."""


def new_table() -> Table:
    """Return an empty table, which ``fit`` and ``markdown.markdown_of`` give its style."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))


def fit(table: Table, console: Console) -> bool:
    """Make a table as wide as a console allows, in signs that it can show; return whether it fits."""
    if not has_blocks(console):
        table.box = _PLAIN
        for column in table.columns:
            column.header = str(column.header).replace("±", "+-")
    for gap, heading in _STYLES:
        table.padding = (0, gap - 1, 0, 0)
        for column in table.columns:
            column.header = textwrap.fill(str(column.header), heading)
        if width_of(table, console) <= console.width:
            return True
    return False


def width_of(table: Table, console: Console) -> int:
    """Return the width that a table needs to have each row on one line."""
    return console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum


def has_blocks(console: Console) -> bool:
    """Return whether a console can show more than ASCII."""
    return console.encoding.startswith("utf")


def rows_fitted(record: Record, notices: Sequence[Notice], console: Console, most_rows: int | None = None) -> Table:
    """Return the table of a record's rows, or of the last of them, with the columns that a console has room for."""
    for look in _LOOKS:
        table = rows_table(record, notices, look, blocks=has_blocks(console), most_rows=most_rows)
        table.padding = (0, 1, 0, 0)
        if width_of(table, console) <= console.width:
            break
    fit(table, console)
    return table


def rows_table(
    record: Record, notices: Sequence[Notice], look: Look, *, blocks: bool = True, most_rows: int | None = None
) -> Table:
    """Return a line for each row, with the marks of its answers and the numbers of its notices.

    A failure stands in the place of a row's figures. Columns in which nothing stands are left out.
    """
    most = max((row.samples_per_s or 0.0 for row in record.rows), default=0.0)
    best = {id(row) for _, row in answers(record)}
    named: dict[str, list[str]] = {"batch": [str(row.batch_size) for row in record.rows]}
    for shown, column in columns.shown_in("any", "compiled", "wide"):
        if shown.heading not in look.without:
            named[shown.heading] = [column.cell(record, row)[0] for row in record.rows]
        if look.bar and shown.heading == _BAR_AFTER:
            named[" "] = [_bar((row.samples_per_s or 0.0) / (most or 1.0), look.bar, blocks) for row in record.rows]
    named[_RATE] = [text.failure_of(row) or cell for row, cell in zip(record.rows, named[_RATE], strict=True)]
    named[""] = [text.marks(record, row) for row in record.rows]
    named["notices"] = [_numbers(notices, row) for row in record.rows]
    return _table_of(named, [id(row) in best for row in record.rows], most_rows)


def _table_of(named: dict[str, list[str]], bold: Sequence[bool], most_rows: int | None = None) -> Table:
    """Return a table of columns by their headings, those of words to the left; a column of blanks is left out."""
    kept = {heading: cells for heading, cells in named.items() if heading == _RATE or any(cells)}
    table = new_table()
    for heading in kept:
        table.add_column(heading.strip(), justify="left" if heading.strip() in _OF_WORDS else "right", no_wrap=True)
    lines = list(zip(bold, *kept.values(), strict=True))
    for is_bold, *cells in lines[-(most_rows or len(lines)) :]:
        table.add_row(*map(Text, cells), style="bold" if is_bold else None)
    return table


def _numbers(notices: Sequence[Notice], row: Row) -> str:
    """Return the numbers of the notices about a row: ``1-3,5``."""
    about = [number for number, notice in enumerate(notices, 1) if row.batch_size in notice.batch_sizes]
    return format_sizes(about).replace(" ", "")


def _bar(share: float, signs: int, blocks: bool) -> str:
    """Draw a share of the highest throughput, in eighths of a character where they can be shown."""
    if not blocks:
        return "#" * round(share * signs)
    whole, rest = divmod(round(share * signs * 8), 8)
    return ("█" * whole + _EIGHTHS[rest]).rstrip()


def named_fitted(of_names: Callable[[Sequence[str]], Table], names: Sequence[str], console: Console) -> Table:
    """Return a table whose rows have names, these cut where a console has no room for them."""
    table = of_names(names)
    if not fit(table, console):
        room = max(map(len, names)) - (width_of(table, console) - console.width)
        table = of_names([shortened(name, max(_SHORTEST_NAME, room) - len("...")) for name in names])
        fit(table, console)
    return table


def side_by_side(records: Sequence[Record], names: Sequence[str]) -> Table:
    """Return a line for each record: its largest batch, and its fastest within the SLO; the best recipe is marked."""
    best = recipes.best_of(records) if text.are_recipes(records) else None
    rows = [fastest_within_slo(record) for record in records]
    known = list(zip(records, rows, strict=True))
    named = {
        "recipe" if text.are_recipes(records) else "record": list(names),
        "largest": [largest_of(record.edge) for record in records],
        text.best_batch_heading(records): [text.best_batch(record) for record in records],
        _RATE: [
            "" if fastest(record.rows) else next(filter(None, map(text.failure_of, record.rows)), "")
            for record in records
        ],
    }
    for shown, column in columns.shown_in("any"):
        if shown.heading in _BESIDE:
            cells = [column.cell(record, row)[0] if row else "" for record, row in known]
            failed = named.get(shown.heading, cells)
            named[shown.heading] = [
                cell if row else other for (_, row), cell, other in zip(known, cells, failed, strict=True)
            ]
    is_best = [best is not None and record is best[0] for record in records]
    named[""] = [text.BEST_RECIPE[0] if one else "" for one in is_best]
    return _table_of(named, is_best)


_BESIDE: Final = (_RATE, _BAR_AFTER, "p50 ms")
