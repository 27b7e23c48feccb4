"""Records for a terminal: the table, the answers and the notices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.analysis import recipes
from tputfind.record import identity
from tputfind.record.record import Notice, Record
from tputfind.report import tables, text

_NARROWEST = 78


def print_report(records: Sequence[Record], console: Console) -> None:
    """Print the table of all records, then the summary and the notices of each.

    Where a model was measured in several recipes, each has its table, and one at the end sets them side by side.
    """
    names = identity.distinguishing_fields(records)
    apart = names != ["model"]
    if not apart:
        print_table(tables.table(records, box.SIMPLE_HEAD, tables.look(console)), console)
    for record in records:
        if apart:
            table = tables.table([record], box.SIMPLE_HEAD, tables.look(console))
            begun = f", begun {record.started}" if "begun" in names else ""
            table.title = Text(f"{text.title(record)}{begun}")
            print_table(table, console)
        else:
            console.print(Text(text.title(record), style="italic"))
        print_answers(text.summary(record), console)
        print_notices(record.notices, console)
        console.print()
    for of_model in text.models_in_recipes(records):
        table = tables.recipes_table(of_model, box.SIMPLE_HEAD)
        table.title = Text(text.recipes_title(of_model))
        print_table(table, console)
        print_answers(recipes.answers(of_model), console)
        for line in text.code(of_model):
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()


def print_table(table: Table, console: Console) -> None:
    """Print a table in full: on a narrower console its lines are broken, and no figure is cut."""
    width = console.width
    console.width = max(width, _NARROWEST)
    console.print(table)
    console.width = width


def print_answers(answers: Iterable[tuple[str, str]], console: Console) -> None:
    """Print answers, each a label and a text."""
    for label, answer in answers:
        console.print(f"[bold]{label:<14}[/bold] ", end="")
        console.print(answer, highlight=False, markup=False, emoji=False)


def print_notices(notices: Iterable[Notice], console: Console) -> None:
    """Print notices, a line each."""
    for notice in notices:
        console.print("[yellow]notice[/yellow] ", end="")
        console.print(text.notice_line(notice), highlight=False, markup=False, emoji=False)
