"""Records as text: the table and the summary for a terminal, and the same as Markdown."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.record import Edge, Notice, Record, Row
from tputfind.stats import mean, percentile
from tputfind.summary import KNEE_SHARE, best_under, fastest, knee, throughput_interval
from tputfind.units import MIB, format_bytes, format_figure

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
    """Print the table of all records, then the summary and the notices of each."""
    table = _table(records, box.SIMPLE_HEAD)
    table.title = Text(_title(records[0])) if len(records) == 1 else None
    console.print(table)
    for record in records:
        if len(records) > 1:
            console.print(Text(_title(record), style="italic"))
        for label, text in summary(record):
            console.print(f"[bold]{label:<14}[/bold] ", end="")
            console.print(text, highlight=False, markup=False)
        for notice in record.notices:
            console.print("[yellow]notice[/yellow] ", end="")
            console.print(_notice_line(notice), highlight=False, markup=False)
        console.print()


def to_markdown(records: Sequence[Record]) -> bytes:
    """Return the table, and the summary and notices of each record, as Markdown."""
    paper = io.StringIO()
    console = Console(file=paper, width=10_000, color_system=None)
    console.print(_table(records, box.MARKDOWN, barrier="\\|"))
    lines = [line.strip() for line in paper.getvalue().splitlines()]
    for record in records:
        lines += ["", f"**{_title(record)}**", ""]
        lines += [f"- {label}: {text}" for label, text in summary(record)]
        lines += [f"- notice: {_notice_line(notice)}" for notice in record.notices]
    return ("\n".join(lines).strip() + "\n").encode()


def summary(record: Record) -> list[tuple[str, str]]:
    """Return the answers of a record, each a label and a text."""
    rows, spec = record.rows, record.spec
    best, bend = fastest(rows), knee(rows)
    return [
        ("Largest batch", _largest(record)),
        *([("Safe batch", _safe(record, record.safe))] if record.safe else []),
        ("Fastest batch", _row_text(best)),
        ("Knee", f"{_row_text(bend)}, the smallest with {KNEE_SHARE:.0%} of the best" if bend else "nothing was timed"),
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
    return f"{row.batch_size}, {format_figure(row.samples_per_s)} samples/s"


def _under_slo(record: Record, slo_ms: float) -> str:
    percent = record.spec.percentile
    row = best_under(record.rows, slo_ms, percent)
    if row is None:
        return f"no batch is known to have p{percent:g} within {slo_ms:g} ms"
    latency_ms = percentile(row.latency_ms, percent) or 0.0
    return f"{_row_text(row)}, p{percent:g} {format_figure(latency_ms)} ms of {slo_ms:g} ms"


def _table(records: Sequence[Record], style: box.Box, barrier: str = "|") -> Table:
    table = Table(box=style)
    if len(records) > 1:
        table.add_column("model", overflow="fold")
    for name in ("batch", "samples/s", "± %", "device ms", "p50 ms", "p99 ms", "peak MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for record in records:
        for row in record.rows:
            # What must be there: the card must hold what the allocator reserves, the host what is resident.
            peak = row.peak_allocated_bytes if record.environment.device == "cpu" else row.peak_reserved_bytes
            model = [Text(record.spec.model.replace("|", barrier))] if len(records) > 1 else []
            table.add_row(*model, *_figures(row, peak), _remark(record, row))
        table.add_section()
    return table


def _title(record: Record) -> str:
    spec, environment = record.spec, record.environment
    memory = environment.memory_total_bytes if spec.memory_limit_bytes is None else spec.memory_limit_bytes
    size = "" if memory is None else f", {format_bytes(memory)}"
    copies = {"none": "", "h2d": ", inputs copied in", "both": ", inputs copied in and outputs out"}[spec.transfer]
    return f"{spec.model} {spec.dtype} {spec.layout} {record.input_shape} on {environment.device_name}{size}{copies}"


def _figures(row: Row, peak_bytes: int | None) -> Iterable[str]:
    def figure(value: float | None) -> str:
        return "" if value is None else format_figure(value)

    yield str(row.batch_size)
    if row.failure is not None:
        yield from ("",) * 6
        return
    yield figure(row.samples_per_s)
    interval = throughput_interval(row)
    yield "" if interval is None else f"{100 * interval.half_width:.1f}"
    yield figure(mean(row.device_ms))
    yield figure(percentile(row.latency_ms, 50))
    yield figure(percentile(row.latency_ms, 99))
    yield "" if peak_bytes is None else f"{peak_bytes / MIB:.0f}"


def _remark(record: Record, row: Row) -> str:
    if row.failure is not None:
        return row.failure.kind.replace("_", " ")
    names = [
        ("fastest", fastest(record.rows)),
        ("knee", knee(record.rows)),
        *[
            (name, next((r for r in record.rows if edge and r.batch_size == edge.largest_batch), None))
            for name, edge in (("largest", record.edge), ("safe", record.safe))
        ],
    ]
    kinds = [notice.kind.replace("_", " ") for notice in record.notices if row.batch_size in notice.batch_sizes]
    return ", ".join([name for name, named in names if named is row] + kinds)


def _notice_line(notice: Notice) -> str:
    return f"{notice.seen}: {notice.cause}; {notice.advice}"
