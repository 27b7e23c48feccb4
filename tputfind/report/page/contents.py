"""Everything that a page holds, as plain data: answers, notices, plots and tables. Pure functions of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from tputfind.analysis import recipes
from tputfind.analysis.answers import peak_bytes
from tputfind.record.record import Failure, Record
from tputfind.record.spec import Spec
from tputfind.report import columns, text
from tputfind.report.charts import charts as series
from tputfind.report.charts.chart import Chart, names_of
from tputfind.units import MIB, format_bytes, format_figure, format_seconds

_MOST_LINES: Final = 400
"""Of a table: a page is to stay under a megabyte."""
_LONGEST_MESSAGE: Final = 200
_LONGEST_TRACEBACK: Final = 4000
_MOST_TRACEBACKS: Final = 10


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a table shows in one place, and the number that it is sorted by; None where the text is."""

    text: str = ""
    number: float | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table: its caption, the heads of its columns, and its rows; columns under ``numeric`` heads hold numbers."""

    caption: str
    heads: tuple[str, ...]
    numeric: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...]


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Answers, each a label and a text; under a heading, which may be empty, and with lines of code below them."""

    heading: str
    answers: tuple[tuple[str, str], ...]
    code: tuple[str, ...] = ()


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """A notice and the name of the record that it is about, empty where there is only one."""

    record: str
    kind: str
    seen: str
    cause: str
    advice: str
    batch_sizes: tuple[int, ...]


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """A page, but for how it looks."""

    title: str
    answers: tuple[Block, ...]
    notices: tuple[Warned, ...]
    charts: tuple[Chart, ...]
    rows: Table
    trials: Table
    tracebacks: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]
    facts: tuple[Table, ...]


def contents(records: Sequence[Record], asked: Sequence[Spec] | None = None) -> Contents:
    """Return what a page of one or several records holds; ``asked`` are their specs, where answers are to others."""
    names = names_of(records) if len(records) > 1 else [""]
    named = list(zip(names, records, strict=True))
    return Contents(
        title=_title(records),
        answers=tuple(_answers(records)),
        notices=tuple(
            Warned(
                record=name,
                kind=notice.kind.replace("_", " "),
                seen=notice.seen,
                cause=notice.cause,
                advice=notice.advice,
                batch_sizes=notice.batch_sizes,
            )
            for name, record in named
            for notice in record.notices
        ),
        charts=tuple(series.charts(records)),
        rows=_rows(named),
        trials=_trials(named),
        tracebacks=tuple(_tracebacks(records)),
        commands=tuple(_commands(named)),
        facts=(_runs(named), _environments(named), _options(named, asked)),
    )


def _title(records: Sequence[Record]) -> str:
    if len(records) == 1:
        return text.title(records[0])
    models = list(dict.fromkeys(record.spec.model for record in records))
    devices = list(dict.fromkeys(record.environment.device_name for record in records))
    return f"{_few(models, 'models')} on {_few(devices, 'devices')}: {len(records)} records"


def _few(names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} {what}"


def _answers(records: Sequence[Record]) -> Iterator[Block]:
    """Yield the answers of each model's recipes together, then of each record."""
    for of_model in text.models_in_recipes(records):
        told = tuple(recipes.answers(of_model))
        if told:
            yield Block(heading=text.recipes_title(of_model), answers=told, code=tuple(text.code(of_model)))
    for record in records:
        state = [] if record.finished else [("Unfinished", "the run was cut short, or still goes on")]
        heading = text.title(record) if len(records) > 1 else ""
        yield Block(heading=heading, answers=(*state, *text.summary(record)))


def _number(value: float | None, text: str = "{}") -> Cell:
    return Cell() if value is None else Cell(text=text.format(value), number=value)


def _table(caption: str, heads: Sequence[str], words: Iterable[str], rows: Iterable[Sequence[Cell]]) -> Table:
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
    )


def _rows(named: Sequence[tuple[str, Record]]) -> Table:
    figures = columns.shown_in("any", "compiled", "wide", "page")
    heads = ("record", "batch size", *(shown.heading for shown, _ in figures), "remarks")
    rows = [
        (
            Cell(text=name),
            _number(row.batch_size),
            *(_cell(*column.cell(record, row)) for _, column in figures),
            Cell(text=text.remark(record, row) if row.failure is None else _failed(row.failure)),
        )
        for name, record in named
        for row in record.rows
    ]
    return _table("Every batch size that was timed", heads, ("record", "remarks"), rows)


def _cell(text: str, number: float | None) -> Cell:
    return Cell(text=text, number=number)


def _failed(failure: Failure) -> str:
    """Return a failure on one line, its end left out where it is long."""
    message = failure.message
    cut = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
    return f"{failure.kind.replace('_', ' ')}: {cut}"


def _trials(named: Sequence[tuple[str, Record]]) -> Table:
    rows = [
        (
            Cell(text=name),
            _number(trial.batch_size),
            Cell(text="passed" if trial.failure is None else _failed(trial.failure)),
            _number(trial.seconds, "{:.1f}"),
            Cell() if trial.step_ms is None else _cell(format_figure(trial.step_ms), trial.step_ms),
            _number(None if (peak := peak_bytes(record, trial)) is None else peak / MIB, "{:.0f}"),
        )
        for name, record in named
        for trial in record.trials
    ]
    heads = ("record", "batch size", "outcome", "seconds", "step ms", "peak MiB")
    return _table("Every trial of the search, in order", heads, ("record", "outcome"), rows)


def _tracebacks(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Yield the tracebacks of the model, each once and no more than ten, with the failure's message."""
    failures = [trial.failure for record in records for trial in record.trials]
    failures += [row.failure for record in records for row in record.rows]
    each = {failure.traceback: failure for failure in failures if failure is not None and failure.traceback}
    for failure in list(each.values())[:_MOST_TRACEBACKS]:
        yield _failed(failure), failure.traceback[-_LONGEST_TRACEBACK:]


def _commands(named: Sequence[tuple[str, Record]]) -> Iterator[tuple[str, str]]:
    """Yield each command once, after the names of the records that it made, where there are others too."""
    commands = list(dict.fromkeys(record.command for _, record in named))
    for command in commands:
        names = [name for name, record in named if record.command == command]
        yield ("; ".join(names) if len(commands) > 1 else ""), command


def _facts(caption: str, named: Sequence[tuple[str, Record]], told: Sequence[dict[str, str]]) -> Table:
    """Return a table with a line for each fact that is known of any record, and a column for each record."""
    labels = list(dict.fromkeys(label for facts in told for label in facts))
    rows = [(Cell(text=label), *(Cell(text=facts.get(label, "")) for facts in told)) for label in labels]
    heads = ("", *(name or "value" for name, _ in named))
    return Table(caption=caption, heads=heads, rows=tuple(rows))


def _runs(named: Sequence[tuple[str, Record]]) -> Table:
    told = [
        {
            "started": record.started,
            "resumed": ", ".join(record.resumed),
            "finished": record.finished or "no",
            "took": format_seconds(record.wall_s),
            "tputfind": record.tputfind,
            "schema of the record": str(record.schema),
            "method of measuring": str(record.method),
            "shape of a sample": record.input_shape,
            "parameters": "" if record.parameters is None else str(record.parameters),
            "SHA-256 of the model's file": record.source_sha256 or "",
        }
        for _, record in named
    ]
    known = [{label: text for label, text in facts.items() if text} for facts in told]
    return _facts("The run", named, known)


def _environments(named: Sequence[tuple[str, Record]]) -> Table:
    return _facts("The environment", named, [_fields(record.environment) for _, record in named])


def _options(named: Sequence[tuple[str, Record]], asked: Sequence[Spec] | None) -> Table:
    specs = [record.spec for _, record in named] if asked is None else asked
    return _facts("What was asked for", named, [_fields(spec) for spec in specs])


def _fields(of: msgspec.Struct) -> dict[str, str]:
    """Return what is known of the fields of a struct, each as text under its name in words."""
    fields = {field.name: getattr(of, field.name) for field in msgspec.structs.fields(of)}
    return {_label(name): _text(name, value) for name, value in fields.items() if value is not None}


def _label(name: str) -> str:
    words = name.removesuffix("_bytes")
    unit = next((unit for unit in ("ms", "s") if words.endswith(f"_{unit}")), "")
    return f"{words.removesuffix(f'_{unit}')}, {unit}".replace("_", " ") if unit else words.replace("_", " ")


def _text(name: str, value: Any) -> str:
    if name.endswith("_bytes") or (name == "headroom" and isinstance(value, int)):
        return format_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(_text("", one) for one in value)
    if isinstance(value, msgspec.Struct):
        return " ".join(f"{label} {text}" for label, text in _fields(value).items())
    return f"{value:.10g}" if isinstance(value, float) else str(value)
