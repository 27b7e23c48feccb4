"""Everything that a page holds, as plain data: answers, plots, tables and notices. Pure functions of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from tputfind.analysis import recipes
from tputfind.analysis.notices import to_read
from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.report import document as table_of
from tputfind.report import text
from tputfind.report.charts import charts as series
from tputfind.report.charts.chart import Chart, names_of, title_of
from tputfind.report.page import tables
from tputfind.report.page.facts import facts
from tputfind.report.page.tables import Named, Table
from tputfind.report.page.tiles import Group, groups
from tputfind.report.views import fleet

_LONGEST_TRACEBACK: Final = 4000
_MOST_TRACEBACKS: Final = 10
_IN_A_TILE: Final = "Deploy"
"""The label of the answer that the page opens with."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Answers, each a label and a text; under a heading, which may be empty, and with lines of code below them."""

    heading: str
    answers: tuple[tuple[str, str], ...]
    code: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of some records, and its cause where that differs; there are no names where there is one record."""

    records: tuple[str, ...]
    text: str
    cause: str = ""


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """A notice, with what was seen of each record that it is about; the cause is empty where it differs."""

    kind: str
    seen: tuple[Seen, ...]
    cause: str
    advice: str


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """A page, but for how it looks.

    It opens with ``groups``, then ``beside``: a line for each record, where they are several. ``answers`` are of one
    record or of recipes together, ``each`` of the single ones of several records.
    """

    title: str
    groups: tuple[Group, ...]
    beside: Table | None
    answers: tuple[Block, ...]
    each: tuple[Block, ...]
    charts: tuple[Chart, ...]
    rows: Table
    notices: tuple[Warned, ...]
    trials: Table
    tracebacks: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]
    differing: Table | None
    same: tuple[Table, ...]


def contents(records: Sequence[Record], asked: Sequence[Spec] | None = None) -> Contents:
    """Return what a page of one or several records holds; ``asked`` are their specs, where answers are to others."""
    several = len(records) > 1
    named = list(zip(names_of(records) if several else [""], records, strict=True))
    opening = groups(records)
    differing, same = facts(named, asked)
    of_each = tuple(_answers(record, several=several, in_tiles=bool(opening)) for record in records)
    return Contents(
        title=title_of(records),
        groups=opening,
        beside=tables.side_by_side(named) if several else None,
        answers=(*_of_recipes(records), *_of_devices(records)) if several else of_each,
        each=of_each if several else (),
        charts=tuple(series.charts(records)),
        rows=tables.rows(named),
        notices=tuple(_notices(named)),
        trials=tables.trials(named),
        tracebacks=tuple(_tracebacks(records)),
        commands=tuple(_commands(named)),
        differing=differing,
        same=same,
    )


def _of_recipes(records: Sequence[Record]) -> Iterator[Block]:
    """Yield the answers of each model's recipes together."""
    for of_model in text.models_in_recipes(records):
        told = tuple(recipes.answers(of_model))
        if told:
            yield Block(heading=text.recipes_title(of_model), answers=told, code=tuple(text.code(of_model)))


def _of_devices(records: Sequence[Record]) -> Iterator[Block]:
    """Yield what several devices tell together, a line for each."""
    for part in fleet.documents(records):
        lines: list[tuple[str, str]] = []
        for section in part.sections:
            if isinstance(section, table_of.Table):
                heads = [column.heading for column in section.columns[1:]]
                for label, *cells in section.rows:
                    shown = zip(heads, (cell.text for cell in cells), strict=True)
                    lines.append((label.text, ", ".join(f"{head} {cell}" for head, cell in shown if cell)))
            elif isinstance(section, table_of.Answers):
                lines += section.lines
        yield Block(heading=part.title, answers=tuple(lines))


def _answers(record: Record, *, several: bool, in_tiles: bool) -> Block:
    """Return the answers of a record; the one to deploy is left out where the page opens with it."""
    state = [] if record.finished else [("Unfinished", "the run was cut short, or still goes on")]
    told = [one for one in text.summary(record) if several or not in_tiles or one[0] != _IN_A_TILE]
    return Block(heading=text.title(record) if several else "", answers=(*state, *told))


def _notices(named: Named) -> Iterator[Warned]:
    """Yield each notice once; what was seen is of each record, or of several where it is the same."""
    found: dict[tuple[str, str], dict[tuple[str, str], list[str]]] = {}
    for name, record in named:
        for notice in to_read(record):
            seen = found.setdefault((notice.kind, notice.advice), {})
            seen.setdefault((notice.seen, notice.cause), []).append(name)
    for (kind, advice), seen in found.items():
        causes = {cause for _, cause in seen}
        alike = causes.pop() if len(causes) == 1 else ""
        of = tuple(
            Seen(records=tuple(filter(None, names)), text=what, cause="" if alike else cause)
            for (what, cause), names in seen.items()
        )
        yield Warned(kind=kind.replace("_", " "), seen=of, cause=alike, advice=advice)


def _tracebacks(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Yield the tracebacks of the model, each once and no more than ten, with the failure's message."""
    failures = [trial.failure for record in records for trial in record.trials]
    failures += [row.failure for record in records for row in record.rows]
    each = {failure.traceback: failure for failure in failures if failure is not None and failure.traceback}
    for failure in list(each.values())[:_MOST_TRACEBACKS]:
        yield tables.failed(failure), failure.traceback[-_LONGEST_TRACEBACK:]


def _commands(named: Named) -> Iterator[tuple[str, str]]:
    """Yield each command once, after the names of the records that it made, where there are others too."""
    commands = list(dict.fromkeys(record.command for _, record in named))
    for command in commands:
        names = [name for name, record in named if record.command == command]
        yield ("; ".join(names) if len(commands) > 1 else ""), command
