"""Plans as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from tputfind.report import energy, mixes
from tputfind.report.escaping import spreadsheet_text
from tputfind.report.size import OVERHEADS
from tputfind.sizing.demand import Demand
from tputfind.sizing.plan import Plan
from tputfind.sizing.simulate import Outcome
from tputfind.sizing.size import Answers

_COLUMNS: Final = [
    "model",
    "recipe",
    "device_name",
    "status",
    "rate_per_s",
    "slo_ms",
    "percentile",
    "batcher",
    "delay_ms",
    "routing",
    "burstiness",
    *OVERHEADS,
    "network_ms",
    "devices",
    "batch_cap",
    "load",
    "utilisation",
    "mean_batch",
    "latency_ms_p50",
    "latency_ms_p95",
    "latency_ms_p99",
    "latency_ms_tail",
    "latency_ms_tail_low",
    "latency_ms_tail_high",
    "goodput_per_s",
    "one_fewer_ms_tail",
    "one_fewer_fails",
    "more_traffic_ms_tail",
    "devices_full_batches",
    "devices_naive",
    "devices_nexus",
    "devices_mean",
    "cost_per_hour",
    "cost_per_million",
    "currency",
    "notices",
    "devices_fewest",
    "devices_most",
    "solve",
    "spare",
    "most_load",
    "max_queue",
    "refused",
    "preferred_batches",
    "input_shape",
    *energy.COLUMNS,
    *mixes.COLUMNS,
    "samples_per_request",
    "samples_per_s",
    "requests",
    "cost_per_million_samples",
    "handler",
    "max_ongoing",
    "max_latency_ms",
]


def to_csv(found: Answers) -> bytes:
    """Return one line for each record; of one without a plan the status is the reason, and the rest is empty."""
    lines = [_line(plan) for plan in found.plans]
    lines += [{"model": record.spec.model, "status": error.message} for record, error in found.without]
    return _written(_COLUMNS, lines)


def curve_csv(outcomes: Iterable[Outcome], demand: Demand) -> bytes:
    """Return what ever more requests take, one line for each rate."""
    samples = demand.mean_samples
    lines = [{**_figures(outcome), "samples_per_s": samples * outcome.rate_per_s} for outcome in outcomes]
    return _written(list(lines[0]), lines)


def _line(plan: Plan) -> dict[str, object]:
    demand, rules, fewer = plan.demand, plan.rules, plan.fewer
    return {
        "model": plan.model,
        "recipe": plan.recipe,
        "device_name": plan.device_name,
        "status": "ok" if plan.holds else "misses the target",
        "slo_ms": demand.slo_ms,
        "percentile": demand.percentile,
        "batcher": demand.batcher,
        "delay_ms": plan.delay_ms,
        "routing": demand.routing,
        "burstiness": "" if plan.arrivals else demand.burstiness,
        **{name: getattr(demand, name) for name in OVERHEADS},
        "network_ms": demand.network_ms,
        **_figures(plan.outcome),
        "mean_batch": plan.outcome.mean_batch,
        "latency_ms_tail_low": plan.outcome.tail_low_ms,
        "latency_ms_tail_high": plan.outcome.tail_high_ms,
        "goodput_per_s": plan.outcome.goodput_per_s,
        "one_fewer_ms_tail": fewer.tail_ms if fewer else None,
        "one_fewer_fails": plan.fewer_fails if fewer else None,
        "more_traffic_ms_tail": plan.more_traffic.tail_ms,
        "devices_full_batches": rules.full_batches,
        "devices_naive": rules.naive,
        "devices_nexus": rules.nexus,
        "devices_mean": rules.mean,
        "cost_per_hour": plan.cost_per_hour,
        "cost_per_million": plan.cost_per_million,
        "currency": plan.price.currency if plan.price else None,
        "notices": ";".join(notice.kind for notice in plan.notices),
        "devices_fewest": plan.fewest,
        "devices_most": plan.most,
        "solve": demand.solve,
        "spare": demand.spare,
        "most_load": demand.most_load,
        "max_queue": demand.max_queue,
        "refused": plan.outcome.refused if demand.refuses else None,
        "preferred_batches": ",".join(map(str, demand.preferred_batches)),
        "input_shape": plan.input_shape,
        **energy.cells(plan),
        **mixes.cells(plan),
        "samples_per_request": demand.mean_samples,
        "samples_per_s": plan.samples_per_s,
        "requests": demand.handling if demand.several else "",
        "cost_per_million_samples": plan.cost_per_million_samples,
        "handler": demand.handled,
        "max_ongoing": demand.most_ongoing,
        "max_latency_ms": demand.most_latency_ms,
    }


def _figures(outcome: Outcome) -> dict[str, object]:
    return {
        "rate_per_s": outcome.rate_per_s,
        "devices": outcome.devices,
        "batch_cap": outcome.batch_cap,
        "load": outcome.load,
        "utilisation": outcome.utilisation,
        "latency_ms_p50": outcome.p50_ms,
        "latency_ms_p95": outcome.p95_ms,
        "latency_ms_p99": outcome.p99_ms,
        "latency_ms_tail": outcome.tail_ms,
    }


def _written(columns: Sequence[str], lines: Iterable[dict[str, object]]) -> bytes:
    paper = io.StringIO()
    writer = csv.DictWriter(paper, columns, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: _written_cell(value) for name, value in line.items()})
    return paper.getvalue().encode()


def _written_cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}" if value < inf else ""
    return spreadsheet_text(value) if isinstance(value, str) else value
