"""What a record comes to, in words: its title, its answers, the remarks of its rows and its notices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tputfind.analysis import recipes
from tputfind.analysis.answers import (
    KNEE_SHARE,
    answers,
    best_under,
    fastest,
    format_rate,
    knee,
    peak_bytes,
    to_deploy,
)
from tputfind.analysis.time_spent import seconds_spent
from tputfind.record import identity
from tputfind.record.record import Edge, Notice, Record, Row
from tputfind.report import snippet
from tputfind.stats import percentile
from tputfind.units import format_bytes, format_figure, format_seconds

_STOPPED_BY: Final = {
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


def title(record: Record) -> str:
    """Return what a table of one record is about."""
    spec, environment = record.spec, record.environment
    memory = environment.memory_total_bytes if spec.memory_limit_bytes is None else spec.memory_limit_bytes
    size = "" if memory is None else f", {format_bytes(memory)}"
    copies = {"none": "", "h2d": ", inputs copied in", "both": ", inputs copied in and outputs out"}[spec.transfer]
    recipe = " ".join((spec.dtype, spec.layout, *spec.mode_and_phase))
    return f"{spec.model} {recipe} {record.input_shape} on {environment.device_name}{size}{copies}"


def remark(record: Record, row: Row) -> str:
    """Return what a row is called: its failure, or what it is the best of and the notices about it."""
    if row.failure is not None:
        return row.failure.kind.replace("_", " ")
    kinds = [notice.kind.replace("_", " ") for notice in record.notices if row.batch_size in notice.batch_sizes]
    return ", ".join([*(name for name, answer in answers(record) if answer is row), *kinds])


def notice_line(notice: Notice) -> str:
    """Return a notice on one line."""
    return f"{notice.seen}: {notice.cause}; {notice.advice}"


def models_in_recipes(records: Sequence[Record]) -> list[list[Record]]:
    """Return the records of each model that was measured in several recipes, and otherwise alike."""
    works = dict.fromkeys(map(identity.work_key, records))
    together = [[record for record in records if identity.work_key(record) == work] for work in works]
    return [of_model for of_model in together if len({identity.name_of(one.spec) for one in of_model}) > 1]


def recipes_title(records: Sequence[Record]) -> str:
    """Name the records of one model in several recipes."""
    return f"{records[0].spec.model} in {len(records)} recipes"


def code(records: Sequence[Record]) -> list[str]:
    """Return the lines of Python that run the best of a model's recipes."""
    best = recipes.best_of(records)
    return [] if best is None else list(snippet.lines(best[0], best[1].batch_size))


def summary(record: Record) -> list[tuple[str, str]]:
    """Return the answers of a record, each a label and a text."""
    spec = record.spec
    best, bend = fastest(record.rows), knee(record.rows)
    return [
        *([("Deploy", deploy)] if (deploy := _deploy(record)) else []),
        ("Largest batch", _largest(record)),
        *([("Safe batch", _safe(record, record.safe))] if record.safe else []),
        ("Fastest batch", _row_text(best)),
        ("Knee", _knee(best, bend)),
        ("Best under SLO", "no --slo was given" if spec.slo_ms is None else _under_slo(record, spec.slo_ms)),
        *([("Took", _took(record))] if record.wall_s else []),
    ]


def _deploy(record: Record) -> str:
    """Say which batch to deploy, and what it costs beside the fastest; empty where no batch is to be."""
    row, best = to_deploy(record), fastest(record.rows)
    if row is None or best is None:
        return ""
    peak = peak_bytes(record, row)
    memory = "" if peak is None else f", {format_bytes(peak)}"
    latency_ms, slowest_ms = (percentile(one.latency_ms, 50) for one in (row, best))
    if row is best:
        latency = "" if latency_ms is None else f", p50 {format_figure(latency_ms)} ms"
        return f"batch {row.batch_size}: {format_rate(row)} samples/s, the fastest{latency}{memory}"
    share = (row.samples_per_s or 0.0) / (best.samples_per_s or 1.0)
    latency = ""
    if latency_ms is not None and slowest_ms is not None:
        latency = f", p50 {format_figure(latency_ms)} ms instead of {format_figure(slowest_ms)} ms"
    beside = f"{share:.0%} of batch {best.batch_size}"
    return f"batch {row.batch_size}: {format_rate(row)} samples/s, {beside}{latency}{memory}"


def _took(record: Record) -> str:
    """Say how long a run took, and what for; parts below a second are left out, but for the longest."""
    spent = seconds_spent(record)
    longest = max(spent.values(), default=0.0)
    parts = [f"{what} {format_seconds(seconds)}" for what, seconds in spent.items() if seconds >= min(1.0, longest)]
    return f"{format_seconds(record.wall_s)}: {', '.join(parts)}"


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
