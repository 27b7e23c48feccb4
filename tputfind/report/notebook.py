"""A record in a notebook: its table and its answers as a small piece of HTML, without script or style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from rich.table import Table

from tputfind.analysis.notices import to_read
from tputfind.record.record import Record
from tputfind.report import tables, text


def to_html(record: Record) -> str:
    """Return a title, the table of rows with the answers marked, the summary and the notices, which rows number."""
    notices = to_read(record)
    return "\n".join(
        [
            f"<div><p><b>{escape(text.title(record))}</b></p>",
            *_table(tables.rows_table(record, notices, tables.EVERYTHING)),
            f"<p>{escape(text.legend(record))}</p>",
            *_list("ul", (f"<b>{escape(label)}</b>: {escape(answer)}" for label, answer in text.summary(record))),
            *_list("ol", (escape(text.notice_line(notice)) for notice in notices)),
            "</div>",
        ]
    )


def _table(table: Table) -> Iterator[str]:
    """Yield the lines of a table; a row that holds an answer is bold."""
    yield "<table><thead><tr>"
    yield "".join(f"<th>{escape(str(column.header))}</th>" for column in table.columns)
    yield "</tr></thead><tbody>"
    cells = zip(*(column.cells for column in table.columns), strict=True)
    for row, texts in zip(table.rows, cells, strict=True):
        written = (escape(str(cell)) for cell in texts)
        yield f"<tr>{''.join(f'<td><b>{cell}</b></td>' if row.style else f'<td>{cell}</td>' for cell in written)}</tr>"
    yield "</tbody></table>"


def _list(tag: str, items: Iterable[str]) -> Iterator[str]:
    lines = [f"<li>{item}</li>" for item in items]
    yield from [f"<{tag}>", *lines, f"</{tag}>"] if lines else ()
