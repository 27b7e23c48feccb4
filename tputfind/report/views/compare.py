"""Comparisons as a document: a table of verdicts and the answers of each."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from tputfind.analysis.compare import Comparison, Judgement, Verdict
from tputfind.analysis.turns import VERDICT_CONFIDENCE
from tputfind.record.identity import name_of
from tputfind.report.document import (
    Answers,
    Cell,
    Column,
    Document,
    Table,
    Tone,
    count,
    data_table,
    sections_of,
    table,
    whole,
)
from tputfind.stats import CONFIDENCE
from tputfind.units import format_about, format_estimate

_WORDS: Final[dict[Verdict, str]] = {
    "same": "same",
    "faster": "faster",
    "slower": "SLOWER",
    "ambiguous": "ambiguous",
    "not_comparable": "not comparable",
}
_TONES: Final[dict[Verdict, Tone]] = {"same": "", "faster": "good", "slower": "bad"}


def document(comparisons: Sequence[Comparison]) -> Document:
    return whole(lambda: _document(comparisons), source=list(comparisons), data=partial(_data, comparisons))


def _document(comparisons: Sequence[Comparison]) -> Document:
    parts = tuple(map(_part, comparisons))
    return parts[0] if len(parts) == 1 else Document(title=f"{len(parts)} comparisons: NEW over OLD", sections=parts)


def _part(comparison: Comparison) -> Document:
    sections = (
        *sections_of("the table of batch sizes", lambda: [_table(comparison)]),
        *sections_of("the answers", lambda: [Answers(tuple(answers(comparison)))]),
    )
    title = f"{comparison.model} {comparison.recipe} on {comparison.device_name}: NEW over OLD"
    return Document(title=title, sections=sections)


def _data(comparisons: Sequence[Comparison]) -> Table:
    names = ("model", "recipe", "device_name")
    lines = (
        {name: getattr(one, name) for name in names} | msgspec.structs.asdict(row)
        for one in comparisons
        for row in one.rows
    )
    return data_table((*names, *Judgement.__struct_fields__), lines)


def answers(comparison: Comparison) -> Iterator[tuple[str, str]]:
    best = comparison.best
    yield "Fastest", "one of them has no row that was timed" if best is None else _verdict(best, comparison.tolerance)
    counts = {verdict: sum(row.verdict == verdict for row in comparison.rows) for verdict in _WORDS}
    counted = ", ".join(f"{number} {_WORDS[verdict].lower()}" for verdict, number in counts.items() if number)
    yield "Batch sizes", counted or "none in common"
    if comparison.old_largest and comparison.new_largest:
        yield "Largest batch", f"{comparison.old_largest} and {comparison.new_largest}"
    if comparison.variants:
        images = "nchw" in comparison.recipe.split()
        old, new = (f"{spec.model} {name_of(spec, images=images)}" for spec in comparison.variants)
        rounds = sum(len(one.rounds) for one in comparison.turns)
        taken = f"{rounds} round{'s' * (rounds > 1)} of fresh processes, {comparison.seconds:.0f} s"
        yield "OLD and NEW", f"{old} and {new}, in turn: {taken}"
    else:
        yield "OLD and NEW", f"begun {comparison.old_started} and {comparison.new_started}"
    if comparison.unlike:
        yield "UNLIKE", f"compared because of --force: {'; '.join(comparison.unlike)}"
    if comparison.differs:
        yield "Also differs", "; ".join(comparison.differs)


def _verdict(best: Judgement, tolerance: float) -> str:
    old, new = _rate(best.old_per_s, best.old_share), _rate(best.new_per_s, best.new_share)
    rates = f"OLD {old.text} samples/s (batch {best.old_batch}), NEW {new.text} samples/s (batch {best.new_batch})"
    because = f"; {best.reason}" if best.reason else ""
    if best.ratio is None or best.low is None or best.high is None:
        return f"{_WORDS[best.verdict]}: {rates}{because}"
    within = f" within {100 * tolerance:g} %" if best.verdict == "same" else ""
    ratio = f"NEW/OLD {best.ratio:.3f} ({best.low:.3f} to {best.high:.3f})"
    return f"{_WORDS[best.verdict]}{within}: {rates}; {ratio}{because}"


def _remarks_of(row: Judgement) -> list[str]:
    bound = ["host bound: Python sets the pace, which differs from process to process"] if row.host_bound else []
    return [*([row.reason] if row.reason else []), *bound]


def _table(comparison: Comparison) -> Table:
    remarks = list(dict.fromkeys(remark for row in comparison.rows for remark in _remarks_of(row)))
    confidence = VERDICT_CONFIDENCE if comparison.turns else CONFIDENCE
    names = ("batch", "OLD /s", "NEW /s", "ratio", f"{100 * confidence:.0f} %")
    columns = [*map(Column, names), Column("verdict", "text")]
    columns += [Column("notes", "text")] if remarks else []
    rows = []
    for row in comparison.rows:
        numbers = ",".join(str(1 + remarks.index(remark)) for remark in _remarks_of(row))
        cells = (
            count(row.new_batch),
            _rate(row.old_per_s, row.old_share),
            _rate(row.new_per_s, row.new_share),
            Cell() if row.ratio is None else Cell(f"{row.ratio:.3f}", row.ratio),
            Cell() if row.low is None or row.high is None else Cell(f"{row.low:.3f}-{row.high:.3f}", row.low),
            Cell(_WORDS[row.verdict], tone=_TONES.get(row.verdict, "unsure")),
        )
        rows.append((*cells, numbers) if remarks else cells)
    return table(columns, rows, remarks=tuple(remarks))


def _rate(samples_per_s: float | None, share: float | None) -> Cell:
    if samples_per_s is None:
        return Cell()
    text = format_about(samples_per_s) if share is None else format_estimate(samples_per_s, share)
    return Cell(text, samples_per_s)
