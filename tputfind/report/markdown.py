"""Records, and tables of any kind, as Markdown."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tputfind.analysis import notices as found_notices
from tputfind.analysis import recipes
from tputfind.record.record import Notice, Record
from tputfind.report import fleet, tables, text
from tputfind.report.escaping import markdown_bytes

_WIDEST = 10_000_000
_BARRIER = "\ue000"
"""Between columns, until the barriers in their cells are written as such: for private use, so that no text holds it."""
_MARKDOWN = box.Box(str(box.MARKDOWN).replace("|", _BARRIER), ascii=True)


def to_markdown(records: Sequence[Record]) -> bytes:
    """Return of each record the table, the summary and the notices, and records side by side, as Markdown."""
    lines: list[str] = []
    for record in records:
        notices = found_notices.to_read(record)
        rows = markdown_of(tables.rows_table(record, notices, tables.EVERYTHING))
        lines += [f"**{text.title(record)}**", "", *rows, "", text.legend(record), ""]
        lines += [*(f"- {label}: {answer}" for label, answer in text.summary(record)), *notices_of(notices), ""]
    for of_model in text.models_in_recipes(records):
        in_recipes = markdown_of(tables.side_by_side(of_model, recipes.names_of(of_model)))
        lines += [f"**{text.recipes_title(of_model)}**", "", *in_recipes, "", text.recipes_legend(of_model), ""]
        lines += [f"- {label}: {answer}" for label, answer in recipes.answers(of_model)]
        code = text.code(of_model)
        lines += ["", *(["```python", *code, "```", ""] if code else [])]
    for section in fleet.sections(records):
        lines += [f"**{section.title}**", "", *markdown_of(section.table()), ""]
        lines += [*(f"- {label}: {answer}" for label, answer in section.lines), ""]
    if text.stand_alone(records):
        lines += markdown_of(tables.side_by_side(records, text.record_names(records)))
    return markdown_bytes(lines)


def notices_of(notices: Sequence[Notice]) -> list[str]:
    """Return notices by the numbers that rows carry."""
    if not notices:
        return []
    return ["", "Notices:", "", *(f"{number}. {text.notice_line(one)}" for number, one in enumerate(notices, 1))]


def markdown_of(table: Table) -> list[str]:
    """Return the lines of a table in the style of Markdown, however wide; a barrier in a cell parts no columns."""
    paper = io.StringIO()
    table.box, table.show_edge, table.pad_edge, table.padding = _MARKDOWN, True, True, (0, 1)
    Console(file=paper, width=_WIDEST, color_system=None).print(table)
    return [
        re.sub(r"(\\*)\|", r"\1\1\\|", line.strip()).replace(_BARRIER, "|")
        for line in paper.getvalue().splitlines()
        if line.strip()
    ]
