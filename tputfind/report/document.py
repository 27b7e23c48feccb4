"""A result before it is rendered: answers, tables, notices, texts and charts, in the order in which they are read.

A view makes a document of a result, and a renderer makes text of a document. Neither knows the other.
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
    """One place of a table: the text that is shown, and the number behind it, by which it is sorted and saved."""

    text: str = ""
    number: float | None = None
    tone: Tone = ""

    @property
    def key(self) -> str:
        """The number to sort by; empty if the text is that number already, or if there is none."""
        return "" if self.number is None or _NUMBER.fullmatch(self.text) else f"{self.number:.6g}"


Row = tuple[Cell, ...]


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column of a table.

    A ``bar`` is drawn by a terminal alone, its cells being shares. A terminal that is too narrow leaves out columns in
    the order of ``drop``, if that is not 0, and shortens the texts of a column that ``shrinks``.
    """

    heading: str
    kind: Literal["number", "text", "bar"] = "number"
    drop: int = 0
    shrinks: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Columns and rows, under a title and above a legend; rows refer to the remarks by number.

    Rows with the numbers in ``strong`` answer something.
    """

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
    """Lines to copy, of a language that Markdown knows or of none; they are never broken."""

    lines: tuple[str, ...]
    language: str = ""


class Tile(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: its label, its figure with its unit, and what is to be known beside it."""

    label: str
    figure: str
    unit: str = ""
    note: str = ""


class Tiles(msgspec.Struct, frozen=True):
    """Answers in large type, which pages alone show: they stand among the other answers too."""

    tiles: tuple[Tile, ...]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a page with a link to the part of this ``name``, and what stands behind the link."""

    name: str
    text: str
    more: str = ""


class Charts(msgspec.Struct, frozen=True):
    """Plots, which pages alone show: what they say in words stands in answers and tables."""

    charts: tuple[Chart, ...]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of some records, and its cause if that differs; a single record is not named."""

    records: tuple[str, ...] = ()
    text: str
    cause: str = ""


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """A notice with what was seen of each record that it is about; its cause is empty if that differs."""

    kind: str
    seen: tuple[Seen, ...]
    cause: str
    advice: str


class Notices(msgspec.Struct, frozen=True):
    """Notices; rows of a table refer to them by number."""

    entries: tuple[Warned, ...]


class Defect(msgspec.Struct, frozen=True):
    """A fault of this tool or of a library, in the place of what it kept from being made."""

    what: str
    error: Any

    @property
    def line(self) -> str:
        """What could not be made, and why, on one line."""
        return printable(f"{self.what} could not be made: {type(self.error).__name__}: {self.error}")

    def to_error(self) -> TputfindError:
        """Return the error to show; its cause is where the fault lies."""
        told = TputfindError(self.line, "a fault of tputfind's, which --traceback shows")
        told.__cause__ = self.error
        return told


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result, or a part of one, under its title.

    A page shows a ``folded`` part on demand, and links to a part by its ``name``. Only the whole has these: ``data``
    makes the table of a CSV, ``source`` is the result itself, for JSON, ``chart`` what an image shows, and ``page``
    makes the document of a page if that is another one.
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
        """Whether it holds nothing but other documents."""
        return all(isinstance(section, Document) for section in self.sections)

    @property
    def defects(self) -> list[Defect]:
        """The defects among all its sections."""
        nested = (section.defects for section in self.sections if isinstance(section, Document))
        own = [section for section in self.sections if isinstance(section, Defect)]
        return [*own, *(defect for defects in nested for defect in defects)]


Section = Answers | Table | Sentences | Code | Notices | Charts | Tiles | Link | Defect | Document
_T = TypeVar("_T")


def attempt(what: str, make: Callable[[], _T]) -> _T | Defect:
    """Return what ``make`` makes, or the defect that keeps it from that: it costs no other part of a result."""
    try:
        return make()
    except (TputfindError, OSError):  # neither is a defect: the latter is of a terminal or a disk
        raise
    except Exception as error:
        return Defect(what, error)


def sections_of(what: str, make: Callable[[], Iterable[Section]]) -> tuple[Section, ...]:
    """Return the sections that ``make`` makes, or the defect that keeps it from that."""
    made = attempt(what, lambda: tuple(make()))
    return (made,) if isinstance(made, Defect) else made


def whole(make: Callable[[], Document], **forms: Any) -> Document:
    """Return the document of a result, made by ``make``; ``forms`` are the fields of what other files hold.

    A defect keeps it from neither of these.
    """
    made = attempt("the report", make)
    return msgspec.structs.replace(Document(sections=(made,)) if isinstance(made, Defect) else made, **forms)


def table(columns: Iterable[Column], rows: Iterable[Sequence[Cell | str]], **more: Any) -> Table:
    """Return a table whose cells may be given as texts; ``more`` are the other fields of ``Table``."""
    cells = tuple(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return Table(columns=tuple(columns), rows=cells, **more)


def without_blanks(full: Table, keep: Iterable[str] = ()) -> Table:
    """Return a table without the columns in which nothing stands, but for those under the headings to keep."""
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


def data_table(names: Sequence[str], lines: Iterable[Mapping[str, object]]) -> Table:
    """Return the table of a CSV: columns by name, and of each line the values that are known."""
    rows = (tuple(_value(line.get(name)) for name in names) for line in lines)
    return Table(columns=tuple(map(Column, names)), rows=tuple(rows))


def _value(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(number=value)
    return Cell("" if value is None else str(value))


def figure(value: float | None) -> Cell:
    """Return a measured figure with four significant digits; an empty cell if it is unknown."""
    return Cell() if value is None else Cell(format_figure(value), value)


def count(value: int | None) -> Cell:
    """Return a whole number; an empty cell if it is unknown."""
    return Cell() if value is None else Cell(str(value), value)


def percent(share: float, digits: int = 0) -> Cell:
    """Return a share in percent, without the sign."""
    return Cell(f"{100 * share:.{digits}f}", 100 * share)


def notices_of(notices: Iterable[Notice]) -> Iterator[Notices]:
    """Yield the section of notices of one result, if there are any."""
    entries = tuple(
        Warned(kind=one.kind.replace("_", " "), seen=(Seen(text=one.seen),), cause=one.cause, advice=one.advice)
        for one in notices
    )
    if entries:
        yield Notices(entries)


def answers_of(lines: Iterable[tuple[str, str]]) -> Iterator[Answers]:
    """Yield the section of answers, if there are any."""
    found = tuple(lines)
    if found:
        yield Answers(found)


def notice_line(notice: Warned) -> str:
    """Return a notice on one line."""
    seen = "; ".join(f"{one.text}: {one.cause}" if one.cause else one.text for one in notice.seen)
    return f"{seen}{f': {notice.cause}' if notice.cause else ''}; {notice.advice}"
