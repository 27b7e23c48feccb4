"""How records were measured: what is the same for all, once, and what differs between them. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.report.document import Column, Table, table, without_blanks
from tputfind.units import format_bytes, format_seconds

Named = Sequence[tuple[str, Record]]
"""Records, each with what sets it apart; the name is empty if there is a single record."""
Facts = dict[str, str]
"""What is known of a record, each as text under its name in words."""


def facts(named: Named, asked: Sequence[Spec] | None) -> tuple[Table | None, tuple[Table, ...]]:
    """Return what differs between records, if they are several, and what is the same for all; ``asked`` are the specs.

    What differs has a line for each record. The other tables have a line for each fact.
    """
    records = [record for _, record in named]
    specs = [record.spec for record in records] if asked is None else asked
    parts: dict[str, list[Facts]] = {
        "What was asked for": [_fields(spec) for spec in specs],
        "The environment": [_fields(record.environment) for record in records],
        "The run": [_run(record) for record in records],
    }
    same = {caption: {label: of[0][label] for label in of[0] if _alike(of, label)} for caption, of in parts.items()}
    tables = tuple(_facts(caption, known) for caption, known in same.items() if known)
    return _differing(named, list(parts.values())), tables


def _alike(of: Sequence[Facts], label: str) -> bool:
    return len({facts.get(label) for facts in of}) == 1


def _differing(named: Named, parts: Sequence[Sequence[Facts]]) -> Table | None:
    """Return a line for each record, a column for each fact that differs; of two of one name, each in its part."""
    columns = [
        (label, [facts.get(label, "") for facts in of])
        for of in parts
        for label in dict.fromkeys(label for facts in of for label in facts)
        if not _alike(of, label)
    ]
    if not columns:
        return None
    heads = (Column(label, "text") for label in ("record", *(label for label, _ in columns)))
    lines = ((name, *(texts[number] for _, texts in columns)) for number, (name, _) in enumerate(named))
    return without_blanks(table(heads, lines, title="What differs between the records"))


def _facts(caption: str, known: Facts) -> Table:
    return table((Column("", "text"), Column("", "text")), known.items(), title=caption)


def _run(record: Record) -> Facts:
    told = {
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
    return {label: text for label, text in told.items() if text}


def _fields(of: msgspec.Struct) -> Facts:
    """Return what is known of the fields of a struct."""
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
