"""Comparisons as text: tables for a terminal and for a pull request, and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.analysis.compare import Comparison, Judgement, Verdict
from tputfind.report.escaping import markdown_bytes
from tputfind.report.markdown import markdown_of
from tputfind.report.tables import new_table
from tputfind.report.terminal import print_answers, print_line, print_table
from tputfind.units import format_about, format_known

_WORDS: Final[dict[Verdict, str]] = {
    "same": "same",
    "faster": "faster",
    "slower": "SLOWER",
    "ambiguous": "ambiguous",
    "not_comparable": "not comparable",
}
_COLOURS: Final[dict[Verdict, str]] = {
    "same": "",
    "faster": "green",
    "slower": "red",
    "ambiguous": "yellow",
    "not_comparable": "yellow",
}


def print_comparisons(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print a table and the answers of each comparison."""
    for one in comparisons:
        print_table(_table(one), console, _title(one))
        for number, remark in enumerate(_remarks(one), 1):
            print_line(remark, console, mark=f"{number:>2} ")
        console.print()
        print_answers(answers(one), console)
        console.print()


def to_markdown(comparisons: Sequence[Comparison]) -> bytes:
    """Return the tables and the answers as Markdown, fit for a pull request."""
    lines: list[str] = []
    for one in comparisons:
        lines += [f"**{_title(one)}**", "", *markdown_of(_table(one)), ""]
        lines += [*(f"{number}. {remark}" for number, remark in enumerate(_remarks(one), 1)), ""]
        lines += [*(f"- {label}: {text}" for label, text in answers(one)), ""]
    return markdown_bytes(lines)


def to_json(comparisons: Sequence[Comparison]) -> bytes:
    """Return the comparisons in full."""
    return msgspec.json.format(msgspec.json.encode(list(comparisons)), indent=1) + b"\n"


def answers(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield what a comparison comes to, each a label and a text."""
    best = comparison.best
    yield "Fastest", "one of them has no row that was timed" if best is None else _told(best, comparison.tolerance)
    counts = {verdict: sum(row.verdict == verdict for row in comparison.rows) for verdict in _WORDS}
    told = ", ".join(f"{count} {_WORDS[verdict].lower()}" for verdict, count in counts.items() if count)
    yield "Batch sizes", told or "none in common"
    if comparison.old_largest and comparison.new_largest:
        yield "Largest batch", f"{comparison.old_largest} and {comparison.new_largest}"
    yield "OLD and NEW", f"begun {comparison.old_started} and {comparison.new_started}"
    if comparison.unlike:
        yield "UNLIKE", f"compared because of --force: {'; '.join(comparison.unlike)}"
    if comparison.differs:
        yield "Also differs", "; ".join(comparison.differs)


def _told(best: Judgement, tolerance: float) -> str:
    old, new = _rates(best)
    rates = f"{old} at batch {best.old_batch} and {new} at {best.new_batch}"
    because = f"; {best.reason}" if best.reason else ""
    if best.ratio is None or best.low is None or best.high is None:
        return f"{_WORDS[best.verdict]}: {rates} samples/s{because}"
    within = f" within {100 * tolerance:g} %" if best.verdict == "same" else ""
    ratio = f"{best.ratio:.3f} times ({best.low:.3f} to {best.high:.3f})"
    return f"{_WORDS[best.verdict]}{within}: {rates} samples/s, {ratio}{because}"


def _title(comparison: Comparison) -> str:
    return f"{comparison.model} {comparison.recipe} on {comparison.device_name}: NEW over OLD"


def _remarks(comparison: Comparison) -> list[str]:
    """Return what is to be said of rows, each once; rows carry the numbers."""
    return list(dict.fromkeys(remark for row in comparison.rows for remark in _remarks_of(row)))


def _remarks_of(row: Judgement) -> list[str]:
    bound = ["host bound: Python sets the pace, which differs from process to process"] if row.host_bound else []
    return [*([row.reason] if row.reason else []), *bound]


def _table(comparison: Comparison) -> Table:
    table, remarks = new_table(), _remarks(comparison)
    for name in ("batch", "OLD /s", "NEW /s", "ratio", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    if remarks:
        table.add_column("notes", no_wrap=True)
    for row in comparison.rows:
        numbers = ",".join(str(1 + remarks.index(remark)) for remark in _remarks_of(row))
        table.add_row(
            str(row.new_batch),
            *_rates(row),
            "" if row.ratio is None else f"{row.ratio:.3f}",
            "" if row.low is None or row.high is None else f"{row.low:.3f}-{row.high:.3f}",
            Text(_WORDS[row.verdict], style=_COLOURS[row.verdict]),
            *([numbers] if remarks else []),
        )
    return table


def _rates(row: Judgement) -> tuple[str, str]:
    """Return both rates with the digits that are known."""
    return _rate(row.old_per_s, row.old_share), _rate(row.new_per_s, row.new_share)


def _rate(samples_per_s: float | None, share: float | None) -> str:
    if samples_per_s is None:
        return ""
    return format_about(samples_per_s) if share is None else format_known(samples_per_s, share)
