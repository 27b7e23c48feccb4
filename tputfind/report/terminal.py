"""Records for a terminal: the table, the answers and the notices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.analysis import notices as found_notices
from tputfind.analysis import recipes
from tputfind.record import identity
from tputfind.record.record import Notice, Record
from tputfind.report import fleet, tables, text

_LABELS: Final = 15


def print_report(records: Sequence[Record], console: Console) -> None:
    """Print of each record the table, the summary and the notices, then records side by side where they are several."""
    begun = "begun" in identity.distinguishing_fields(records)
    for record in records:
        notices = found_notices.to_read(record)
        title = f"{text.title(record)}{f', begun {record.started}' if begun else ''}"
        print_table(tables.rows_fitted(record, notices, console), console, title)
        print_line(text.legend(record), console)
        console.print()
        print_answers(text.summary(record), console)
        print_notices(notices, console)
        console.print()
    for of_model in text.models_in_recipes(records):
        table = tables.named_fitted(partial(tables.side_by_side, of_model), recipes.names_of(of_model), console)
        print_table(table, console, text.recipes_title(of_model))
        print_line(text.recipes_legend(of_model), console)
        console.print()
        print_answers(recipes.answers(of_model), console)
        for line in text.code(of_model):
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()
    for section in fleet.sections(records):
        print_table(section.table(), console, section.title)
        print_answers(section.lines, console)
        console.print()
    if text.stand_alone(records):
        table = tables.named_fitted(partial(tables.side_by_side, records), text.record_names(records), console)
        print_table(table, console, text.beside_title(records))
        console.print()


def print_tracebacks(records: Sequence[Record], console: Console) -> None:
    """Print the tracebacks that records keep of their models, or that they keep none."""
    found = text.tracebacks(records)
    for failed, traceback in found:
        print_line(failed, console, style="bold")
        console.print()
        console.print(Text(traceback), soft_wrap=True)
        console.print()
    if not found:
        print_line("No traceback is kept: no model raised an error of its own.", console)


def print_table(table: Table, console: Console, title: str = "") -> None:
    """Print a table under its title: on a narrower console its lines are broken, and no figure is cut."""
    if title:
        print_line(title, console, style="bold")
        console.print()
    tables.fit(table, console)
    width = console.width
    console.width = max(width, tables.width_of(table, console))
    console.print(table)
    console.width = width


def print_line(line: str, console: Console, style: str = "", mark: str = "") -> None:
    """Print a line of words after a mark, broken between words where a console is narrower."""
    for place, part in enumerate(text.broken(line, console.width - len(mark))):
        console.print(Text.assemble((" " * len(mark) if place else mark, "yellow"), (part, style)), soft_wrap=True)


def print_answers(answers: Iterable[tuple[str, str]], console: Console) -> None:
    """Print answers, each a label and a text."""
    for line in answer_lines(answers, console.width):
        console.print(line, soft_wrap=True)


def answer_lines(answers: Iterable[tuple[str, str]], width: int) -> list[Text]:
    """Return the lines of answers, each text in the column beside the labels."""
    return [
        Text.assemble((f"{label if not number else '':<{_LABELS}}", "bold"), part)
        for label, answer in answers
        for number, part in enumerate(text.broken(answer, width - _LABELS))
    ]


def print_notices(notices: Sequence[Notice], console: Console) -> None:
    """Print notices under a heading, each after the number that rows carry."""
    if not notices:
        return
    console.print()
    console.print(Text("Notices", style="bold"))
    for number, notice in enumerate(notices, 1):
        print_line(text.notice_line(notice), console, mark=f"{number:>2} ")
