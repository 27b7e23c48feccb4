"""Records as text: the table and the summary for a terminal, and the same as Markdown."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.analysis import recipes
from tputfind.analysis.answers import KNEE_SHARE, best_under, fastest, format_rate, knee, throughput_interval
from tputfind.record import identity
from tputfind.record.record import Edge, Notice, Record, Row
from tputfind.report import snippet, tables
from tputfind.report.escaping import markdown
from tputfind.stats import percentile
from tputfind.units import format_bytes, format_figure, format_width

_NARROWEST = 78
_WIDEST = 10_000_000
_BARRIER = "\ue000"
"""Between columns, until the barriers in their cells are written as such: for private use, so that no text holds it."""
_MARKDOWN = box.Box(str(box.MARKDOWN).replace("|", _BARRIER), ascii=True)
_STOPPED_BY = {
    "memory": "batch {at} does not fit in memory",
    "index": "batch {at} passes a 32-bit limit of a kernel, not of memory",
    "latency": "batch {at} fits but takes longer than --max-latency",
    "cap": "not tried further: --max-batch",
    "unsupported": "batch {at} has no kernel",
    "died": "the process died at batch {at}",
    "timeout": "batch {at} gave no answer in time",
    "wrong_output": "batch {at} computes wrong outputs",
    "error": "the model fails at batch {at}",
}


def print_report(records: Sequence[Record], console: Console) -> None:
    """Print the table of all records, then the summary and the notices of each.

    Where a model was measured in several recipes, each has its table, and one at the end sets them side by side.
    """
    in_recipes = models_in_recipes(records)
    names = identity.told_apart_by(records)
    apart = names != ["model"]
    if not apart:
        print_table(tables.table(records, box.SIMPLE_HEAD, tables.look(console)), console)
    for record in records:
        if apart:
            table = tables.table([record], box.SIMPLE_HEAD, tables.look(console))
            begun = f", begun {record.started}" if "begun" in names else ""
            table.title = Text(f"{tables.title(record)}{begun}")
            print_table(table, console)
        else:
            console.print(Text(tables.title(record), style="italic"))
        print_answers(summary(record), console)
        print_notices(record.notices, console)
        console.print()
    for of_model in in_recipes:
        table = _recipes_table(of_model, box.SIMPLE_HEAD)
        table.title = Text(recipes_title(of_model))
        print_table(table, console)
        print_answers(recipes.answers(of_model), console)
        for line in code(of_model):
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
    for label, text in answers:
        console.print(f"[bold]{label:<14}[/bold] ", end="")
        console.print(text, highlight=False, markup=False, emoji=False)


def print_notices(notices: Iterable[Notice], console: Console) -> None:
    """Print notices, a line each."""
    for notice in notices:
        console.print("[yellow]notice[/yellow] ", end="")
        console.print(notice_line(notice), highlight=False, markup=False, emoji=False)


def recipes_title(records: Sequence[Record]) -> str:
    """Name the records of one model in several recipes."""
    return f"{records[0].spec.model} in {len(records)} recipes"


def _recipes_table(records: Sequence[Record], style: box.Box) -> Table:
    table = Table(box=style)
    table.add_column("recipe", no_wrap=True)
    for name in ("largest", "fastest", "samples/s", "± %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for record in records:
        best, edge = fastest(record.rows), record.edge
        failure = next((row.failure for row in record.rows if row.failure), None) if best is None else None
        interval = throughput_interval(best) if best else None
        table.add_row(
            identity.name_of(record.spec),
            str(edge.largest_batch) if edge else "",
            str(best.batch_size) if best else "",
            format_rate(best) if best else "",
            "" if interval is None else format_width(interval.half_width),
            failure.kind.replace("_", " ") if failure else "",
        )
    return table


def models_in_recipes(records: Sequence[Record]) -> list[list[Record]]:
    """Return the records of each model that was measured in several recipes, and otherwise alike."""
    works = dict.fromkeys(map(identity.work_of, records))
    together = [[record for record in records if identity.work_of(record) == work] for work in works]
    return [of_model for of_model in together if len({identity.name_of(one.spec) for one in of_model}) > 1]


def code(records: Sequence[Record]) -> list[str]:
    """Return the lines of Python that run the best of a model's recipes."""
    best = recipes.best_of(records)
    return [] if best is None else list(snippet.lines(best[0], best[1].batch_size))


def to_markdown(records: Sequence[Record]) -> bytes:
    """Return the table, and the summary and notices of each record, as Markdown."""
    lines = markdown_of(tables.table(records, box.MARKDOWN, tables.EVERYTHING))
    for record in records:
        lines += ["", f"**{tables.title(record)}**", ""]
        lines += [f"- {label}: {text}" for label, text in summary(record)]
        lines += [f"- notice: {notice_line(notice)}" for notice in record.notices]
    for of_model in models_in_recipes(records):
        lines += ["", f"**{recipes_title(of_model)}**", "", *markdown_of(_recipes_table(of_model, box.MARKDOWN)), ""]
        lines += [f"- {label}: {text}" for label, text in recipes.answers(of_model)]
        lines += ["", "```python", *code(of_model), "```"]
    return markdown(lines)


def markdown_of(table: Table) -> list[str]:
    """Return the lines of a table in the style of Markdown, however wide; a barrier in a cell parts no columns."""
    paper = io.StringIO()
    table.box = _MARKDOWN
    Console(file=paper, width=_WIDEST, color_system=None).print(table)
    return [
        re.sub(r"(\\*)\|", r"\1\1\\|", line.strip()).replace(_BARRIER, "|")
        for line in paper.getvalue().splitlines()
        if line.strip()
    ]


def summary(record: Record) -> list[tuple[str, str]]:
    """Return the answers of a record, each a label and a text."""
    spec = record.spec
    best, bend = fastest(record.rows), knee(record.rows)
    return [
        ("Largest batch", _largest(record)),
        *([("Safe batch", _safe(record, record.safe))] if record.safe else []),
        ("Fastest batch", _row_text(best)),
        ("Knee", _knee(best, bend)),
        ("Best under SLO", "no --slo was given" if spec.slo_ms is None else _under_slo(record, spec.slo_ms)),
    ]


def _largest(record: Record) -> str:
    edge = record.edge
    if record.spec.batch_sizes is not None:
        return f"not searched: {len(record.spec.batch_sizes)} batch sizes were named"
    if edge is None:
        fits = max((trial.batch_size for trial in record.trials if trial.failure is None), default=0)
        return f"not known: the search was cut short; in trials, {fits or 'no batch'} was the largest that fitted"
    if edge.limited_by == "cap" and record.spec.max_batch is None:
        return f"{edge.largest_batch}, no larger one is ever tried: memory and time hardly grow with this model's batch"
    return f"{_batch(edge)}, {_STOPPED_BY[edge.limited_by].format(at=edge.fails_at)}"


def _batch(edge: Edge) -> str:
    soaked = f", soaked for {edge.soaked_batches} batches" if edge.soaked_batches else ""
    return f"{edge.largest_batch or 'none'}{soaked}"


def _safe(record: Record, safe: Edge) -> str:
    headroom = record.spec.headroom
    kept = format_bytes(headroom) if isinstance(headroom, int) else f"{100 * (headroom or 0):g}%"
    return f"{_batch(safe)}, with {kept} of the memory kept free"


def _row_text(row: Row | None) -> str:
    if row is None or row.samples_per_s is None:
        return "nothing was timed"
    return f"{row.batch_size}, {format_rate(row)} samples/s"


def _knee(best: Row | None, bend: Row | None) -> str:
    if bend is None:
        return "nothing was timed" if best is None else "not known: one batch size was timed"
    return f"{_row_text(bend)}, the smallest with {KNEE_SHARE:.0%} of the best"


def _under_slo(record: Record, slo_ms: float) -> str:
    percent = record.spec.percentile
    row = best_under(record.rows, slo_ms, percent)
    if row is None:
        return f"no batch is known to have p{percent:g} within {slo_ms:g} ms"
    latency_ms = percentile(row.latency_ms, percent) or 0.0
    return f"{_row_text(row)}, p{percent:g} {format_figure(latency_ms)} ms of {slo_ms:g} ms"


def notice_line(notice: Notice) -> str:
    """Return a notice on one line."""
    return f"{notice.seen}: {notice.cause}; {notice.advice}"
