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
from tputfind.sizing.engine.replications import Outcome
from tputfind.sizing.planner.plan import Answers, Plan

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
    "utilization",
    "busy",
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
    "max_utilization",
    "max_queue",
    "refused",
    "input_shape",
    *energy.COLUMNS,
    *mixes.COLUMNS,
    "samples_per_request",
    "samples_per_s",
    "cost_per_million_samples",
    "max_ongoing",
    "verdict",
    "one_fewer_verdict",
]


def to_csv(found: Answers) -> bytes:
    """Return one line for each record; of one without a plan the status is the reason, and the rest is empty."""
    lines = [_line(plan) for plan in found.plans]
    lines += [{"model": record.spec.model, "status": error.message} for record, error in found.without]
    return _written(_COLUMNS, lines)


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
        "max_utilization": demand.max_utilization,
        "max_queue": demand.max_queue,
        "refused": plan.outcome.refused if demand.max_queue is not None else None,
        "input_shape": plan.input_shape,
        **energy.cells(plan),
        **mixes.cells(plan),
        "samples_per_request": demand.mean_samples,
        "samples_per_s": plan.samples_per_s,
        "cost_per_million_samples": plan.cost_per_million_samples,
        "max_ongoing": demand.most_ongoing,
        "verdict": plan.outcome.verdict,
        "one_fewer_verdict": fewer.verdict if fewer else None,
    }


def _figures(outcome: Outcome) -> dict[str, object]:
    return {
        "rate_per_s": outcome.rate_per_s,
        "devices": outcome.devices,
        "batch_cap": outcome.batch_cap,
        "utilization": outcome.utilization,
        "busy": outcome.busy,
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
