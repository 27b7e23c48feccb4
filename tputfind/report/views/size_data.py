"""Plans as the table of a CSV."""

from __future__ import annotations

from typing import Final

from tputfind.report.document import Table, data_table
from tputfind.report.views.size_answers import OVERHEADS
from tputfind.sizing.engine.replications import Outcome
from tputfind.sizing.planner.plan import Answers, Plan

COLUMNS: Final = (
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
    "computing_share",
    "computing_w",
    "power_w_low",
    "power_w_high",
    "kwh_per_million_low",
    "kwh_per_million_high",
    "best_batch_by_energy",
    "best_batch_by_rate",
    "mix",
    "mix_cost_per_hour",
    "mix_latency_ms_tail",
    "samples_per_request",
    "samples_per_s",
    "cost_per_million_samples",
    "max_ongoing",
    "verdict",
    "one_fewer_verdict",
)


def data(found: Answers) -> Table:
    """Return one line for each record; without a plan, its status is the reason, and the rest is empty."""
    lines = [_line(plan) for plan in found.plans]
    lines += [{"model": record.spec.model, "status": error.message} for record, error in found.without]
    return data_table(COLUMNS, lines)


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
        **_energy(plan),
        **_mix(plan),
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


def _energy(plan: Plan) -> dict[str, object]:
    energy = plan.energy
    if energy is None:
        return {}
    return {
        "computing_share": energy.computing.share,
        "computing_w": energy.computing.power_w,
        "power_w_low": energy.low_w,
        "power_w_high": energy.high_w,
        "kwh_per_million_low": energy.kwh_per_million_low,
        "kwh_per_million_high": energy.kwh_per_million_high,
        "best_batch_by_energy": energy.best_by_energy.batch_size,
        "best_batch_by_rate": energy.best_by_rate.batch_size,
    }


def _mix(plan: Plan) -> dict[str, object]:
    if plan.mix is None:
        return {}
    parts = " + ".join(f"{part.devices} x {part.device_name} cap {part.batch_cap}" for part in plan.mix.parts)
    return {
        "mix": parts,
        "mix_cost_per_hour": plan.mix.cost_per_hour,
        "mix_latency_ms_tail": plan.mix.outcome.tail_ms,
    }
