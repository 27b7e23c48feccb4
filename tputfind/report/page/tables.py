"""The tables of a page, as plain data. Pure functions of records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from tputfind.analysis import recipes
from tputfind.analysis.answers import (
    answers,
    fastest,
    format_latency,
    format_rate,
    known_interval,
    largest_of,
    peak_bytes,
    to_deploy,
)
from tputfind.analysis.notices import to_read
from tputfind.analysis.notices.words import cut_in_the_middle
from tputfind.record import identity
from tputfind.record.record import Failure, Record, Row
from tputfind.report import columns
from tputfind.stats import percentile
from tputfind.units import format_bytes, format_figure, format_width

Named = Sequence[tuple[str, Record]]
"""Records, each with what sets it apart; a name is empty where there is one record."""
_MOST_LINES: Final = 400
"""Of a table: a page is to stay under a megabyte."""
_LONGEST_MESSAGE: Final = 200
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a table shows in one place, and the number that it is sorted by; None where the text is."""

    text: str = ""
    number: float | None = None

    @property
    def key(self) -> str:
        """The number to sort by, where the text is not that number already."""
        return "" if self.number is None or _NUMBER.fullmatch(self.text) else f"{self.number:.6g}"


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table: its caption, the heads of its columns, and its rows.

    Columns under ``numeric`` heads hold numbers. Rows with these numbers are ``strong``: they answer something.
    """

    caption: str
    heads: tuple[str, ...]
    numeric: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...]
    strong: tuple[int, ...] = ()


def table(
    caption: str,
    heads: Sequence[str],
    words: Iterable[str],
    rows: Iterable[Sequence[Cell]],
    strong: Iterable[int] = (),
) -> Table:
    """Return a table without the columns in which nothing stands; ``words`` are the heads of those without numbers."""
    every = [tuple(row) for row in rows]
    if len(every) > _MOST_LINES:
        caption += f" (the first {_MOST_LINES} of {len(every)}; all are in the record)"
        every = every[:_MOST_LINES]
    kept = [place for place, _ in enumerate(heads) if not every or any(row[place].text for row in every)]
    shown = tuple(heads[place] for place in kept)
    words = set(words)
    return Table(
        caption=caption,
        heads=shown,
        numeric=tuple(head for head in shown if head not in words),
        rows=tuple(tuple(row[place] for place in kept) for row in every),
        strong=tuple(number for number in strong if number < len(every)),
    )


def rows(named: Named) -> Table:
    """Return a line for every batch size that was timed or failed; those that answer something are strong."""
    figures = columns.shown_in("any", "compiled", "wide", "page")
    heads = ("record", "batch size", *(shown.heading for shown, _ in figures), "remarks")
    lines: list[tuple[Cell, ...]] = []
    strong: list[int] = []
    for name, record in named:
        for row, best, remark in _remarked(record):
            if best and len(record.rows) > 1:
                strong.append(len(lines))
            cells = (_cell(*column.cell(record, row)) for _, column in figures)
            lines.append((Cell(text=name), _number(row.batch_size), *cells, Cell(text=remark)))
    return table("Every batch size that was timed", heads, ("record", "remarks"), lines, strong)


def _remarked(record: Record) -> Iterator[tuple[Row, bool, str]]:
    """Yield each row, whether it answers something, and what it is called: its answers and notices, or its failure.

    The answers are found once for all rows: each is found among all.
    """
    best, found = answers(record), to_read(record)
    for row in record.rows:
        if row.failure is not None:
            yield row, False, failed(row.failure)
            continue
        names = [name for name, answer in best if answer is row]
        notices = [notice.kind.replace("_", " ") for notice in found if row.batch_size in notice.batch_sizes]
        yield row, bool(names), ", ".join([*names, *notices])


def trials(named: Named) -> Table:
    """Return a line for every trial."""
    lines = [
        (
            Cell(text=name),
            _number(trial.batch_size),
            Cell(text="passed" if trial.failure is None else failed(trial.failure)),
            _number(trial.seconds, "{:.1f}"),
            Cell() if trial.step_ms is None else _cell(format_figure(trial.step_ms), trial.step_ms),
            Cell() if (peak := peak_bytes(record, trial)) is None else _cell(format_bytes(peak), peak),
        )
        for name, record in named
        for trial in record.trials
    ]
    heads = ("record", "batch size", "outcome", "seconds", "step ms", "memory")
    return table("Every trial of the search, in order", heads, ("record", "outcome"), lines)


def side_by_side(named: Named) -> Table:
    """Return a line for each record: the batch to deploy with its figures, then the fastest and the largest batch.

    Of records of the same work, the best recipe is strong.
    """
    heads = ("record", "batch to deploy", "samples/s", "± %", "p50 ms", "memory", "fastest", "largest")
    lines = [_answers(*one) for one in named]
    alike = len({identity.work_key(record) for _, record in named}) == 1
    best = recipes.best_of([record for _, record in named]) if alike else None
    strong = [number for number, (_, record) in enumerate(named) if best is not None and record is best[0]]
    return table("The batch to deploy of each record", heads, ("record",), lines, strong)


def _answers(name: str, record: Record) -> tuple[Cell, ...]:
    row, best, edge = to_deploy(record), fastest(record.rows), record.edge
    figures: tuple[Cell, ...] = (Cell(),) * 5
    if row is not None:
        interval, latency_ms, peak = (
            known_interval(record, row),
            percentile(row.latency_ms, 50),
            peak_bytes(record, row),
        )
        figures = (
            _number(row.batch_size),
            _cell(format_rate(record, row), row.samples_per_s),
            Cell() if interval is None else _cell(format_width(interval.half_width), 100 * interval.half_width),
            Cell() if latency_ms is None else _cell(format_latency(record, row, latency_ms), latency_ms),
            Cell() if peak is None else _cell(format_bytes(peak), peak),
        )
    fastest_cell = _number(None if best is None else best.batch_size)
    return (Cell(text=name), *figures, fastest_cell, _number(edge.largest_batch if edge else None, largest_of(edge)))


def failed(failure: Failure) -> str:
    """Return a failure on one line, its middle left out if it is long."""
    return f"{failure.kind.replace('_', ' ')}: {cut_in_the_middle(failure.message, _LONGEST_MESSAGE)}"


def _number(value: float | None, text: str = "{}") -> Cell:
    return Cell() if value is None else Cell(text=text.format(value), number=value)


def _cell(text: str, number: float | None) -> Cell:
    return Cell(text=text, number=number)
