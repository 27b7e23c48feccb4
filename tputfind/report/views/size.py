"""Plans as a document: the answers and the table of each, and the sum of several models."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from tputfind.report.document import (
    Answers,
    Cell,
    Code,
    Column,
    Document,
    Section,
    Table,
    answers_of,
    count,
    data_table,
    figure,
    notices_of,
    percent,
    sections_of,
    table,
    whole,
)
from tputfind.report.views import size_answers as words
from tputfind.sizing.calibration import Observed
from tputfind.sizing.engine.replications import Outcome
from tputfind.sizing.planner.mixes import Mix
from tputfind.sizing.planner.plan import Answers as Found
from tputfind.sizing.planner.plan import Plan, together


def document(found: Found) -> Document:
    without = [{"model": record.spec.model, "reason": error.message} for record, error in found.without]
    source = {
        "plans": found.plans,
        "without": without,
        "together": together(found),
        "ranked_by": found.ranked_by,
        "plans_of_each_model": [len(plans) for plans in found.models],
        "unplanned": [place for place, one in enumerate(found.without) if one in found.unplanned],
    }
    return whole(lambda: _document(found), source=source, data=partial(data, found))


def _document(found: Found) -> Document:
    parts = [part for plans in found.models for part in _parts_of_model(found, plans)]
    parts += [Document(sections=(sums,)) for sums in answers_of(words.sum_of_models(found))]
    if len(parts) == 1:
        return parts[0]
    streams = {words.stream(plan) for plan in found.plans}
    common = f": {streams.pop()}" if len(streams) == 1 else ""
    return Document(title=f"{len(found.plans)} plans{common}", sections=tuple(parts))


def _parts_of_model(found: Found, plans: Sequence[Plan]) -> list[Document]:
    """Return the parts of one model, grouped in a part of their own if there are other models."""
    parts = [_ranking(found, plans)] if len(plans) > 1 else []
    parts += [Document(title=words.title(plan), sections=tuple(_sections(plan))) for plan in plans]
    parts += _mix(plans[0])
    if len(found.models) == 1:
        return parts
    return [Document(title=f"{plans[0].model}, samples of {plans[0].input_shape}", sections=tuple(parts))]


def _ranking(found: Found, plans: Sequence[Plan]) -> Document:
    columns = (Column("", "text", shrinks=True), *map(Column, ("devices", "max batch", "each/s", "cost/h")))
    rows = (
        (
            f"{plan.model} {plan.recipe}, {plan.device_name}",
            count(plan.outcome.devices),
            count(plan.outcome.batch_cap),
            figure(plan.demand.rate_per_s / plan.outcome.devices),
            Cell()
            if plan.cost_per_hour is None or plan.price is None
            else _cost(plan.cost_per_hour, plan.price.currency),
        )
        for plan in plans
    )
    return Document(title=f"by {found.ranked_by}, the best first", sections=(table(columns, rows),))


def _sections(plan: Plan) -> Iterator[Section]:
    observed = plan.observed
    yield from sections_of("the answers", lambda: [Answers(tuple(words.summary(plan)))])
    yield from sections_of("the table", lambda: [_cases(plan)])
    if observed is not None:
        yield from sections_of("the table of observed latencies", lambda: [_observed_table(observed)])
    yield from sections_of("the details", lambda: [Answers(tuple(words.details(plan)))])
    yield from sections_of(
        "the server's configuration", lambda: [Code(tuple(lines))] if (lines := words.configuration(plan)) else []
    )
    yield from notices_of(plan.notices)


def _cases(plan: Plan) -> Table:
    heads = ("devices", "max batch", "p50 ms", "p95 ms", "p99 ms", "in time %", "util. %", "batch")
    refuses = plan.demand.max_queue is not None
    columns = (Column("", "text"), *map(Column, heads), *([Column("refused %")] if refuses else []))
    cases = (
        ("plan" if plan.holds or plan.demand.devices is None else "given", plan.outcome),
        (f"{plan.demand.spare} gone", plan.without_spare),
        (words.fewer_label(plan), plan.fewer),
        (words.MORE_LABEL, plan.more_traffic),
    )
    rows = (
        (Cell(name), *_figures(outcome), *([percent(outcome.refused, 2)] if refuses else []))
        for name, outcome in cases
        if outcome is not None
    )
    return table(columns, rows)


def _figures(outcome: Outcome) -> tuple[Cell, ...]:
    """Return the figures of an outcome; a saturated one has no percentiles, since its queue grows without end."""
    size = (count(outcome.devices), count(outcome.batch_cap))
    utilization = Cell(words.format_percent(outcome.utilization).removesuffix(" %"), 100 * outcome.utilization)
    if outcome.is_saturated:
        return (*size, *[Cell()] * 4, utilization, Cell())
    latencies = map(figure, (outcome.p50_ms, outcome.p95_ms, outcome.p99_ms))
    return (*size, *latencies, percent(1 - outcome.late, 2), utilization, figure(outcome.mean_batch))


def _observed_table(observed: Observed) -> Table:
    heads = ("requests/s", "utilization %", "", "p50 ms", "p95 ms", "p99 ms")
    rows = []
    for run in observed.runs:
        same = (Cell(run.name), figure(run.rate_per_s), percent(run.load))
        for name, found in (("observed", run.observed), ("predicted", run.predicted)):
            rows.append((*same, Cell(name), *map(figure, (found.p50_ms, found.p95_ms, found.p99_ms))))
        off = (Cell(f"{100 * share:+.1f} %", 100 * share) for share in run.off)
        rows.append((*same, Cell("off, fitted" if run.fitted else "off"), *off))
    columns = (Column("", "text"), *(Column(head, "number" if head else "text") for head in heads))
    return table(columns, rows, title="Predicted with these overheads, and observed")


def _mix(plan: Plan) -> list[Document]:
    answers = tuple(answers_of(words.mix(plan)))
    if plan.mix is not None and plan.price is not None:
        parts = _mix_parts(plan.mix, plan.price.currency)
        return [Document(title=f"{plan.model}: the cheapest mix of kinds that was found", sections=(parts, *answers))]
    return [Document(sections=answers)] if answers else []


def _mix_parts(mix: Mix, currency: str) -> Table:
    columns = (Column("", "text"), *map(Column, ("devices", "max batch", "samples %", "cost/h")))
    rows = (
        (
            f"{part.recipe}, {part.device_name}",
            count(part.devices),
            count(part.batch_cap),
            percent(part.share, 1),
            _cost(part.cost_per_hour, currency),
        )
        for part in mix.parts
    )
    return table(columns, rows)


def _cost(amount: float, currency: str) -> Cell:
    return Cell(words.format_cost(amount, currency), amount)


_ENERGY: Final = (
    *("computing_share", "computing_w", "power_w_low", "power_w_high", "kwh_per_million_low", "kwh_per_million_high"),
    *("best_batch_by_energy", "best_batch_by_rate"),
)


def data(found: Found) -> Table:
    """Return one line for each record; without a plan, its status is the reason, and the rest is empty."""
    lines = [line_of(plan) for plan in found.plans]
    lines += [{"model": record.spec.model, "status": error.message} for record, error in found.without]
    return data_table(tuple(next(iter(lines), ())), lines)


def line_of(plan: Plan) -> dict[str, object]:
    """Return the values of a plan by column name, in order; unknown values are None."""
    demand, rules, outcome, fewer = plan.demand, plan.rules, plan.outcome, plan.fewer
    return {
        **_fields(plan, "model", "recipe", "device_name"),
        "status": "ok" if plan.holds else "undecided" if plan.may_yet_hold else "misses the target",
        "rate_per_s": outcome.rate_per_s,
        **_fields(demand, "slo_ms", "percentile", "batcher"),
        "delay_ms": plan.delay_ms,
        "routing": demand.routing,
        "burstiness": None if plan.arrivals else demand.burstiness,
        **_fields(demand, *words.OVERHEADS, "network_ms"),
        **_fields(outcome, "devices", "batch_cap", "utilization", "busy", "mean_batch"),
        "latency_ms_p50": outcome.p50_ms,
        "latency_ms_p95": outcome.p95_ms,
        "latency_ms_p99": outcome.p99_ms,
        "latency_ms_tail": outcome.tail_ms,
        "latency_ms_tail_low": outcome.tail_low_ms,
        "latency_ms_tail_high": outcome.tail_high_ms,
        "goodput_per_s": outcome.goodput_per_s,
        "one_fewer_ms_tail": fewer.tail_ms if fewer else None,
        "one_fewer_fails": plan.fewer_fails if fewer else None,
        "more_traffic_ms_tail": plan.more_traffic.tail_ms,
        "devices_full_batches": rules.full_batches,
        "devices_naive": rules.naive,
        "devices_nexus": rules.nexus,
        "devices_mean": rules.mean,
        **_fields(plan, "cost_per_hour", "cost_per_million"),
        "currency": plan.price.currency if plan.price else None,
        "notices": ";".join(notice.kind for notice in plan.notices),
        "devices_fewest": plan.fewest,
        "devices_most": plan.most,
        **_fields(demand, "solve", "spare", "max_utilization", "max_queue"),
        "refused": outcome.refused if demand.max_queue is not None else None,
        "input_shape": plan.input_shape,
        **dict.fromkeys(_ENERGY),
        **dict(zip(_ENERGY, _energy(plan), strict=False)),
        "mix": _parts(plan),
        "mix_cost_per_hour": plan.mix.cost_per_hour if plan.mix else None,
        "mix_latency_ms_tail": plan.mix.outcome.tail_ms if plan.mix else None,
        "samples_per_request": demand.mean_samples,
        **_fields(plan, "samples_per_s", "cost_per_million_samples"),
        "max_ongoing": demand.most_ongoing,
        "verdict": outcome.verdict,
        "one_fewer_verdict": fewer.verdict if fewer else None,
    }


def _fields(of: object, *names: str) -> dict[str, object]:
    return {name: getattr(of, name) for name in names}


def _energy(plan: Plan) -> Iterator[object]:
    if (energy := plan.energy) is not None:
        yield from (energy.computing.share, energy.computing.power_w, energy.low_w, energy.high_w)
        yield from (energy.kwh_per_million_low, energy.kwh_per_million_high)
        yield from (energy.best_by_energy.batch_size, energy.best_by_rate.batch_size)


def _parts(plan: Plan) -> str | None:
    if plan.mix is None:
        return None
    return " + ".join(f"{part.devices} x {part.device_name} cap {part.batch_cap}" for part in plan.mix.parts)
