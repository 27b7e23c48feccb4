"""Print a document on a terminal: tables as wide as there is room, one line a row, and texts wrapped between words."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from tputfind.report.document import (
    Answers,
    Cell,
    Code,
    Column,
    Defect,
    Document,
    Notices,
    Section,
    Sentences,
    Table,
    Tone,
    notice_line,
)
from tputfind.units import shorten_text

_LABELS: Final = 15
_LEAST_WIDTH: Final = 20
_PLAIN: Final = box.Box(str(box.SIMPLE_HEAD).replace("─", "-"), ascii=True)
_UNBOUNDED: Final = 10_000
_STYLES: Final = ((3, _UNBOUNDED), (2, _UNBOUNDED), (3, 12), (2, 12), (1, 12), (2, 8), (1, 8))
"""Blanks between columns and characters per line of a heading, from a wide terminal to a narrow one."""
_LOOKS: Final = ((10, 0), (10, 1), (6, 1), (0, 1), (0, 2), (0, 3))
"""Characters of a bar, and the highest ``drop`` of the dropped columns, from a wide terminal to a narrow one."""
_SHORTEST_NAME: Final = 8
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_COLOURS: Final[dict[Tone, str]] = {"": "", "good": "green", "bad": "red", "unsure": "yellow"}
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|KiB|MiB|GiB|MHz|samples/s)\b|%)")


def print_document(document: Document, console: Console) -> None:
    """Print a document, without the title of a collection, since its parts have titles."""
    shown = msgspec.structs.replace(document, title="") if document.is_collection else document
    for number, block in enumerate(_blocks(shown)):
        if number:
            console.print()
        if isinstance(block, Document):
            print_line(block.title, console, style="bold")
            if block.lead:
                print_line(block.lead, console)
        else:
            _print_section(block, console)


def _blocks(document: Document) -> list[Section]:
    """Return the headings and sections of a document in one flat list; blank lines separate them."""
    heading = msgspec.structs.replace(document, sections=())
    found: list[Section] = [heading] if document.title or document.lead else []
    for section in document.sections:
        if isinstance(section, Document):
            found += _blocks(section)
        elif isinstance(section, Table) and section.title:
            found += [Document(title=section.title, sections=()), section]
        elif isinstance(section, Answers | Table | Sentences | Code | Notices | Defect):
            found.append(section)
    return found


def _print_section(section: Section, console: Console) -> None:
    match section:
        case Table():
            print_table(section, console)
        case Answers():
            for line in answer_lines(section.lines, console.width):
                console.print(line, soft_wrap=True)
        case Sentences():
            for sentence in section.lines:
                print_line(sentence, console, mark="- ")
        case Code():
            console.print(Text("\n".join(section.lines)), soft_wrap=True)
        case Defect():
            print_line(section.line, console, style="red")
        case Notices():
            console.print(Text("Notices", style="bold"))
            _print_list(map(notice_line, section.entries), console)


def _print_list(lines: Iterable[str], console: Console) -> None:
    for number, line in enumerate(lines, 1):
        print_line(line, console, mark=f"{number:>2} ")


def print_table(table: Table, console: Console) -> None:
    """Print a table with its remarks and its legend; on a console that is too narrow, no figure is cut."""
    grid = fit_table(table, console)
    width = console.width
    console.width = max(width, _width_of(grid, console))
    console.print(grid)
    console.width = width
    _print_list(table.remarks, console)
    if table.legend:
        print_line(table.legend, console)


def print_line(line: str, console: Console, style: str = "", mark: str = "") -> None:
    for place, part in enumerate(broken(line, console.width - len(mark))):
        console.print(Text.assemble((" " * len(mark) if place else mark, "yellow"), (part, style)), soft_wrap=True)


def answer_lines(answers: Iterable[tuple[str, str]], width: int) -> list[Text]:
    listed = list(answers)
    room = max([_LABELS, *(len(label) + 1 for label, _ in listed)])
    return [
        Text.assemble((f"{label if not number else '':<{room}}", "bold"), part)
        for label, answer in listed
        for number, part in enumerate(broken(answer, width - room))
    ]


def broken(line: str, width: int) -> list[str]:
    """Wrap a text to a width between words, but not before a unit, and return its lines."""
    kept = _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", line)
    lines = textwrap.wrap(kept, max(width, _LEAST_WIDTH), break_long_words=False, break_on_hyphens=False)
    return [part.replace("\N{NO-BREAK SPACE}", " ") for part in lines]


def has_blocks(console: Console) -> bool:
    return console.encoding.startswith("utf")


def fit_table(table: Table, console: Console, most_rows: int | None = None) -> Grid:
    """Return a table, or its last rows, in the widest form that fits the console; the narrowest may be wider."""
    for bar, dropped in _LOOKS:
        kept = [place for place, column in enumerate(table.columns) if _is_shown(column, bar, dropped)]
        grid = _grid(table, kept, bar, console, most_rows)
        if len(kept) == sum(not column.drop and column.kind != "bar" for column in table.columns):
            break
        grid.padding = (0, 1, 0, 0)
        if _width_of(grid, console) <= console.width:
            break
    names = [place for place, column in enumerate(table.columns) if column.shrinks]
    if not _fit(grid, console) and names:
        too_wide = _width_of(grid, console) - console.width
        grid = _grid(_shorten_names(table, names[0], too_wide), kept, bar, console, most_rows)
        _fit(grid, console)
    return grid


def _is_shown(column: Column, bar: int, dropped: int) -> bool:
    return bar > 0 if column.kind == "bar" else column.drop == 0 or column.drop > dropped


def _grid(table: Table, kept: Sequence[int], bar: int, console: Console, most_rows: int | None) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for place in kept:
        column = table.columns[place]
        grid.add_column(column.heading, justify="right" if column.kind == "number" else "left", no_wrap=True)
    first = len(table.rows) - (most_rows or len(table.rows))
    for number, row in enumerate(table.rows):
        if number >= first:
            cells = (_cell_text(table.columns[place], row[place], bar, console) for place in kept)
            grid.add_row(*cells, style="bold" if number in table.strong else None)
    return grid


def _cell_text(column: Column, cell: Cell, bar: int, console: Console) -> Text:
    text = _bar(cell.number or 0.0, bar, blocks=has_blocks(console)) if column.kind == "bar" else cell.text
    return Text(text, style=_COLOURS[cell.tone])


def _bar(share: float, signs: int, *, blocks: bool) -> str:
    """Draw a fraction as a bar, in eighths of a character if the console can show them."""
    if not blocks:
        return "#" * round(share * signs)
    whole, rest = divmod(round(share * signs * 8), 8)
    return ("█" * whole + _EIGHTHS[rest]).rstrip()


def _shorten_names(table: Table, place: int, too_wide: int) -> Table:
    """Return a table with the names in one column cut so far that the whole may fit."""
    room = max(_SHORTEST_NAME, max(len(row[place].text) for row in table.rows) - too_wide) - len("...")
    rows = (
        (*row[:place], msgspec.structs.replace(row[place], text=shorten_text(row[place].text, room)), *row[place + 1 :])
        for row in table.rows
    )
    return msgspec.structs.replace(table, rows=tuple(rows))


def _fit(grid: Grid, console: Console) -> bool:
    """Make a table as wide as a console allows, in characters that it can show; return whether it fits."""
    if not has_blocks(console):
        grid.box = _PLAIN
        for column in grid.columns:
            column.header = str(column.header).replace("±", "+-")
    for gap, heading in _STYLES:
        grid.padding = (0, gap - 1, 0, 0)
        for column in grid.columns:
            column.header = textwrap.fill(str(column.header), heading, break_long_words=False)
        if _width_of(grid, console) <= console.width:
            return True
    return False


def _width_of(grid: Grid, console: Console) -> int:
    """Return the width at which each row of a table is on one line."""
    return console.measure(grid, options=console.options.update(width=_UNBOUNDED)).maximum
