"""A race of variants as a document: the winner, the outcomes of the others, and the winner's own record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from tputfind.analysis.answers import fastest_within_slo
from tputfind.analysis.race import (
    OUTCOMES,
    Contender,
    Outcome,
    Race,
    batch_of,
    compile_times_s,
    pareto_front,
    recipe_of,
    speeds,
)
from tputfind.record.record import Record, Row
from tputfind.record.types import QUANTIZED, is_compile_mode
from tputfind.report import snippet, text
from tputfind.report.charts.chart import Chart
from tputfind.report.charts.charts import pareto
from tputfind.report.document import (
    Answers,
    Cell,
    Charts,
    Code,
    Column,
    Defect,
    Document,
    Table,
    Tone,
    attempt,
    count,
    data_table,
    sections_of,
    table,
    whole,
    without_blanks,
)
from tputfind.report.views.records import record_document
from tputfind.stats import percentile
from tputfind.units import format_about

_TONES: Final[dict[Outcome, Tone]] = {"faster": "good", "undecided": "unsure", "failed": "bad", "untried": "unsure"}


def document(race: Race) -> Document:
    ran = sum(one.outcome not in ("failed", "untried") for one in race.contenders)
    others = f" ({len(race.contenders) - ran} more did not run)" if ran < len(race.contenders) else ""
    variants = f"{ran} variants" if ran > 1 else "1 variant"
    title = f"{race.winner.model} on {race.device_name}: the best of {variants} for {race.goal}{others}"
    chart = attempt("the plot", lambda: pareto(race, title))
    return whole(lambda: _document(race, title, chart), source=race, data=partial(_data, race), chart=chart)


def _document(race: Race, title: str, chart: Chart | Defect) -> Document:
    at, record = f"batch {race.batch_size}", race.record
    drawn = [chart] if isinstance(chart, Defect) else [] if chart.empty else [Charts((chart,))]
    return Document(
        title=title,
        sections=(
            *sections_of("the variants", lambda: [_table(race)]),
            *sections_of("the Pareto front", lambda: _pareto(race)),
            *drawn,
            *sections_of("the answers", lambda: [Answers(tuple(_answers(race, at)))]),
            *([] if record is None else sections_of("the code", lambda: _code(race, record))),
            *([] if record is None else [record_document(record, "")]),
        ),
    )


def _pareto(race: Race) -> list[Table]:
    columns = Column("variant", "text", shrinks=True), Column("batch"), Column("samples/s"), Column("p50 ms")
    rows = [
        (race.recipe_of(spec), count(one.batch_size), _about(one.samples_per_s), _about(one.latency_ms))
        for spec, one in pareto_front(speeds(race))
    ]
    title = "No other variant or batch size is better in both throughput and latency"
    return [table(columns, rows, title=title)] if len(rows) > 1 else []


def _about(value: float) -> Cell:
    return Cell(format_about(value), value)


def _code(race: Race, record: Record) -> list[Code]:
    raced = None if race.goal == "throughput" else _row_of_race(race)
    lines = text.code([record]) if raced is None else list(snippet.lines(record, raced.batch_size))
    return [Code(tuple(lines), "python")] if lines else []


def _row_of_race(race: Race) -> Row | None:
    """Return the winner's row at the batch size of the race; None if that was not timed in full, or failed."""
    row = None if race.record is None else race.record.row(batch_of(race.winner, race.batch_size))
    return None if row is None or row.samples_per_s is None else row


def _answers(race: Race, at: str) -> Iterator[tuple[str, str]]:
    best = None if race.record is None else fastest_within_slo(race.record)
    if race.goal != "throughput":
        best = _row_of_race(race) or best
    rate = ""
    if best is not None and best.samples_per_s is not None:
        count, p50_ms = race.winner.instances, percentile(best.latency_ms, 50)
        each = f": {count} instances with {best.batch_size} samples each" if count > 1 else ""
        figure = f"{format_about(best.samples_per_s)} samples/s"
        if race.goal == "latency" and p50_ms is not None:
            figure = f"p50 {format_about(p50_ms)} ms"
        rate = f", {figure} at batch {count * best.batch_size}{each}"
    late = "; not measured in full" if race.record is None else ""
    late = "; the race was interrupted before it was measured in full" if race.interrupted else late
    is_unraced = race.untried and not any(one.judgement for one in race.contenders)
    is_open = is_unraced or race.winner in [one.spec for one in race.undecided]
    guess = "none yet; best guess " if is_open else ""
    yield "Winner", f"{guess}{race.recipe_of(race.winner)}{rate}{late}"

    def describe(variants: Iterable[Contender]) -> str:
        return "; ".join(f"{race.recipe_of(one.spec)} {_ratio(one)} times {_against(race, one)}" for one in variants)

    if brought := describe(one for one in race.contenders if one.outcome == "faster"):
        first = race.contenders[0]
        gain = f"; the winner {1 / first.of_winner:.2f} times {race.recipe_of(first.spec)}" if first.of_winner else ""
        yield "Brought", f"{brought}{gain}; in samples/{race.cost.unit} at {at}"
    if race.ties:
        yield "Not told apart", describe(race.ties)
    if race.undecided:
        yield "Undecided", f"{describe(race.undecided)}: give it a longer --budget"
    if quantized := [race.recipe_of(one.spec) for one in race.contenders if one.spec.dtype in QUANTIZED]:
        yield "Quantised", f"{', '.join(quantized)}: check the accuracy on your data, which is not judged here"
    if compiling := _compiling(race):
        yield "Compiling", compiling
    for one in race.contenders:
        if one.outcome == "failed":
            yield "Failed", f"{race.recipe_of(one.spec)}: {one.reason}"
    if race.untried:
        names = ", ".join(f"{race.recipe_of(one.spec)} ({one.reason})" for one in race.untried)
        yield "Untried", f"{names}: give it a longer --budget"
    parallel = f", on {race.devices} devices" if race.devices > 1 else ""
    yield "Took", f"{race.seconds:.0f} s with a budget of {race.budget_s:g} s, raced at {at}{parallel}"


def _compiling(race: Race) -> str:
    """Return the time of compiling the winner and the batches that repay it; empty if unknown or not compiled."""
    row = _row_of_race(race) if race.cost.unit == "s" else None
    plain = [one for one in race.contenders if one.of_winner and not is_compile_mode(one.spec.mode)]
    best = max(plain, key=lambda one: one.of_winner or 0.0, default=None)
    if row is None or best is None or not best.of_winner or best.of_winner >= 1 or not row.samples_per_s:
        return ""
    timed = [one.compiled.seconds for one in row.timings if one.compiled is not None]
    compiled_s = max([*timed, *compile_times_s(race, race.winner)], default=None)  # later processes reuse results
    if compiled_s is None:
        return ""
    p50_ms = percentile(row.latency_ms, 50) if race.goal == "latency" else None
    batch_s = row.batch_size * race.winner.instances / row.samples_per_s if p50_ms is None else p50_ms / 1000
    gained_s = batch_s * (1 / best.of_winner - 1)
    repaid = f"{compiled_s / gained_s:.0f} batches of {row.batch_size} make up for"
    return f"takes {compiled_s:.0f} s, which {repaid}, compared with {race.recipe_of(best.spec)}"


def _ratio(one: Contender) -> str:
    judgement = one.judgement
    if judgement is None or judgement.ratio is None:
        return ""
    known = "" if judgement.low is None else f" ({judgement.low:.3f} to {judgement.high:.3f})"
    return f"{judgement.ratio:.3f}{known}"


def _against(race: Race, one: Contender) -> str:
    return "" if one.against is None else race.recipe_of(one.against)


def _table(race: Race) -> Table:
    columns = (
        *(Column("variant", "text", shrinks=True), Column("of winner"), Column("ratio"), Column("95 %")),
        *(Column("against", "text", drop=1), Column(f"samples/{race.cost.unit}"), Column("seconds", drop=2)),
        Column("outcome", "text"),
    )
    return without_blanks(table(columns, [_row(race, one) for one in race.contenders]))


def _row(race: Race, one: Contender) -> tuple[str | Cell, ...]:
    judged = one.judgement
    met = [other.judgement.old_per_s for other in race.contenders if other.judgement and other.against == one.spec]
    rate = judged.new_per_s if judged else next(iter(met), None)  # the first leader was only met
    ratio, low, high = (None, None, None) if judged is None else (judged.ratio, judged.low, judged.high)
    return (
        race.recipe_of(one.spec),
        Cell() if one.of_winner is None else Cell(f"{one.of_winner:.3f}", one.of_winner),
        Cell() if ratio is None else Cell(f"{ratio:.3f}", ratio),
        Cell() if low is None else Cell(f"{low:.3f}-{high:.3f}", low),
        _against(race, one),
        Cell() if rate is None else _about(rate),
        Cell(f"{one.seconds:.0f}", one.seconds) if one.seconds else Cell(),
        Cell(OUTCOMES[one.outcome], tone=_TONES.get(one.outcome, "")),
    )


def _data(race: Race) -> Table:
    lines: list[dict[str, object]] = [
        {
            "model": one.spec.model,
            "recipe": recipe_of(one.spec),
            "batch_size": batch_of(one.spec, race.batch_size),
            "outcome": one.outcome,
            "against": None if one.against is None else recipe_of(one.against),
            "ratio": one.judgement and one.judgement.ratio,
            "low": one.judgement and one.judgement.low,
            "high": one.judgement and one.judgement.high,
            "seconds": one.seconds,
            "reason": one.reason or None,
            "of_winner": one.of_winner,
        }
        for one in race.contenders
    ]
    return data_table(tuple(next(iter(lines), ())), lines)
