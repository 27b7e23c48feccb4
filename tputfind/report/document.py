"""A result before it is rendered: answers, tables, notices, texts and charts, in reading order.

A view converts a result to a document, a renderer converts a document to text. Neither knows the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from tputfind.errors import TputfindError
from tputfind.record.record import Notice
from tputfind.report.charts.chart import Chart
from tputfind.units import format_figure, printable

_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
Tone = Literal["", "good", "bad", "unsure"]


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cell of a table: its text, and the number that it is sorted and saved by."""

    text: str = ""
    number: float | None = None
    tone: Tone = ""

    @property
    def key(self) -> str:
        """Return the number to sort by; empty if the text is that number already, or if there is none."""
        return "" if self.number is None or _NUMBER.fullmatch(self.text) else f"{self.number:.6g}"


Row = tuple[Cell, ...]


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column of a table.

    Only a terminal draws a ``bar``; its cells are fractions. A terminal that is too narrow drops columns in the order
    of ``drop``, if that is not 0, and shortens texts of a column that ``shrinks``. ``dtype`` is the column's type in
    pandas; empty if it follows from the cells.
    """

    heading: str
    kind: Literal["number", "text", "bar"] = "number"
    drop: int = 0
    shrinks: bool = False
    dtype: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Columns and rows, which refer to the remarks by number; those numbered in ``strong`` answer a question."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    legend: str = ""
    remarks: tuple[str, ...] = ()
    strong: tuple[int, ...] = ()


class Answers(msgspec.Struct, frozen=True):
    """Answers, each a label and a text."""

    lines: tuple[tuple[str, str], ...]


class Sentences(msgspec.Struct, frozen=True):
    """A list of sentences."""

    lines: tuple[str, ...]


class Code(msgspec.Struct, frozen=True):
    """Lines to copy, never broken; ``language`` is a name that Markdown knows, or empty."""

    lines: tuple[str, ...]
    language: str = ""


class Tile(msgspec.Struct, frozen=True, kw_only=True):
    """An answer in large type: its label, its figure with a unit, and a note."""

    label: str
    figure: str
    unit: str = ""
    note: str = ""


class Tiles(msgspec.Struct, frozen=True):
    """Answers in large type, shown on pages alone; the other answers repeat them."""

    tiles: tuple[Tile, ...]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a page with a link to the part of this ``name``; ``more`` follows the link."""

    name: str
    text: str
    more: str = ""


class Charts(msgspec.Struct, frozen=True):
    """Plots, shown on pages alone; answers and tables say the same in words."""

    charts: tuple[Chart, ...]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The observation behind a notice in some records, and its cause if causes differ. A single record has no name."""

    records: tuple[str, ...] = ()
    text: str
    cause: str = ""


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """A notice with the observations of each record; its ``cause`` is empty if causes differ."""

    kind: str
    seen: tuple[Seen, ...]
    cause: str
    advice: str


class Notices(msgspec.Struct, frozen=True):
    """Notices; rows of a table refer to them by number."""

    entries: tuple[Warned, ...]


class Defect(msgspec.Struct, frozen=True):
    """An error in this tool or a library, in place of the part that it prevented."""

    what: str
    error: Any

    @property
    def line(self) -> str:
        return printable(f"{self.what} could not be made: {type(self.error).__name__}: {self.error}")

    def make_error(self) -> TputfindError:
        """Return the error to show; its cause is the original error, for the traceback."""
        told = TputfindError(self.line, "a fault of tputfind's, which --traceback shows")
        told.__cause__ = self.error
        return told


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result, or a part of one, under its title.

    A page shows a ``folded`` part on demand, and links to a part by its ``name``. Only the whole result has the
    following fields: ``data`` returns the table of the CSV, ``source`` is the result for JSON, ``chart`` is the plot of
    an image, and ``page`` returns the document of the page if that differs.
    """

    title: str = ""
    sections: tuple[Section, ...]
    lead: str = ""
    name: str = ""
    folded: bool = False
    data: Callable[[], Table] | None = None
    source: Any = None
    chart: Chart | Defect | None = None
    page: Callable[[], Document] | None = None

    @property
    def is_collection(self) -> bool:
        return all(isinstance(section, Document) for section in self.sections)

    @property
    def defects(self) -> list[Defect]:
        nested = (section.defects for section in self.sections if isinstance(section, Document))
        own = [section for section in self.sections if isinstance(section, Defect)]
        return [*own, *(defect for defects in nested for defect in defects)]


Section = Answers | Table | Sentences | Code | Notices | Charts | Tiles | Link | Defect | Document
_T = TypeVar("_T")


def attempt(what: str, make: Callable[[], _T]) -> _T | Defect:
    """Return the result of ``make``, or the defect that prevented it, so that other parts of a result survive."""
    try:
        return make()
    except (TputfindError, OSError):  # not defects: OSError comes from a terminal or a disk
        raise
    except Exception as error:
        return Defect(what, error)


def sections_of(what: str, make: Callable[[], Iterable[Section]]) -> tuple[Section, ...]:
    made = attempt(what, lambda: tuple(make()))
    return (made,) if isinstance(made, Defect) else made


def whole(make: Callable[[], Document], **forms: Any) -> Document:
    """Return a result's document, or one of the defect that prevented it; ``forms`` are the fields for other files."""
    made = attempt("the report", make)
    return msgspec.structs.replace(Document(sections=(made,)) if isinstance(made, Defect) else made, **forms)


def table(columns: Iterable[Column], rows: Iterable[Sequence[Cell | str]], **more: Any) -> Table:
    """Return a table whose cells may be given as texts; ``more`` are the other fields of ``Table``."""
    cells = tuple(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return Table(columns=tuple(columns), rows=cells, **more)


def without_blanks(full: Table, keep: Iterable[str] = ()) -> Table:
    """Return a table without its empty columns, except those under the headings to keep."""
    kept = [
        place
        for place, column in enumerate(full.columns)
        if column.heading in keep or any(row[place].text or row[place].number is not None for row in full.rows)
    ]
    return msgspec.structs.replace(
        full,
        columns=tuple(full.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in full.rows),
    )


def data_table(
    names: Sequence[str], lines: Iterable[Mapping[str, object]], dtypes: Mapping[str, str] | None = None
) -> Table:
    """Return the table of a CSV: columns by name, with known types in pandas, and the known values of each line."""
    rows = (tuple(_value(line.get(name)) for name in names) for line in lines)
    columns = (Column(name, dtype=(dtypes or {}).get(name, "")) for name in names)
    return Table(columns=tuple(columns), rows=tuple(rows))


def _value(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(number=value)
    return Cell("" if value is None else str(value))


def figure(value: float | None) -> Cell:
    """Return a cell with four significant digits; an empty cell if the value is unknown."""
    return Cell() if value is None else Cell(format_figure(value), value)


def count(value: int | None) -> Cell:
    return Cell() if value is None else Cell(str(value), value)


def percent(share: float, digits: int = 0) -> Cell:
    """Return a cell with a fraction in percent, without the sign."""
    return Cell(f"{100 * share:.{digits}f}", 100 * share)


def notices_of(notices: Iterable[Notice]) -> Iterator[Notices]:
    entries = tuple(
        Warned(kind=one.kind.replace("_", " "), seen=(Seen(text=one.seen),), cause=one.cause, advice=one.advice)
        for one in notices
    )
    if entries:
        yield Notices(entries)


def answers_of(lines: Iterable[tuple[str, str]]) -> Iterator[Answers]:
    found = tuple(lines)
    if found:
        yield Answers(found)


def notice_line(notice: Warned) -> str:
    seen = "; ".join(f"{one.text}: {one.cause}" if one.cause else one.text for one in notice.seen)
    return f"{seen}{f': {notice.cause}' if notice.cause else ''}; {notice.advice}"
