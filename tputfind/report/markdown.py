"""Records, and tables of any kind, as Markdown."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tputfind.analysis import recipes
from tputfind.record.record import Record
from tputfind.report import tables, text
from tputfind.report.escaping import markdown_bytes

_WIDEST = 10_000_000
_BARRIER = "\ue000"
"""Between columns, until the barriers in their cells are written as such: for private use, so that no text holds it."""
_MARKDOWN = box.Box(str(box.MARKDOWN).replace("|", _BARRIER), ascii=True)


def to_markdown(records: Sequence[Record]) -> bytes:
    """Return the table, and the summary and notices of each record, as Markdown."""
    lines = markdown_of(tables.table(records, box.MARKDOWN, tables.EVERYTHING))
    for record in records:
        lines += ["", f"**{text.title(record)}**", ""]
        lines += [f"- {label}: {answer}" for label, answer in text.summary(record)]
        lines += [f"- notice: {text.notice_line(notice)}" for notice in record.notices]
    for of_model in text.models_in_recipes(records):
        in_recipes = markdown_of(tables.recipes_table(of_model, box.MARKDOWN))
        lines += ["", f"**{text.recipes_title(of_model)}**", "", *in_recipes, ""]
        lines += [f"- {label}: {answer}" for label, answer in recipes.answers(of_model)]
        lines += ["", "```python", *text.code(of_model), "```"]
    return markdown_bytes(lines)


def markdown_of(table: Table) -> list[str]:
    """Return the lines of a table in the style of Markdown, however wide; a barrier in a cell parts no columns."""
    paper = io.StringIO()
    table.box = _MARKDOWN
    Console(file=paper, width=_WIDEST, color_system=None).print(table)
    return [
        re.sub(r"(\\*)\|", r"\1\1\\|", line.strip()).replace(_BARRIER, "|")
        for line in paper.getvalue().splitlines()
        if line.strip()
    ]
