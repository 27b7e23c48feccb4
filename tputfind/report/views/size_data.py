"""Plans as the table of a CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tputfind.report.document import Table, data_table
from tputfind.report.views.size_answers import OVERHEADS
from tputfind.sizing.planner.plan import Answers, Plan

_ENERGY: Final = (
    *("computing_share", "computing_w", "power_w_low", "power_w_high", "kwh_per_million_low", "kwh_per_million_high"),
    *("best_batch_by_energy", "best_batch_by_rate"),
)


def data(found: Answers) -> Table:
    """Return one line for each record; without a plan, its status is the reason, and the rest is empty."""
    lines = [line_of(plan) for plan in found.plans]
    lines += [{"model": record.spec.model, "status": error.message} for record, error in found.without]
    return data_table(tuple(next(iter(lines), ())), lines)


def line_of(plan: Plan) -> dict[str, object]:
    """Return the values of a plan by the names of their columns, in order; those that are unknown are None."""
    demand, rules, outcome, fewer = plan.demand, plan.rules, plan.outcome, plan.fewer
    return {
        "model": plan.model,
        "recipe": plan.recipe,
        "device_name": plan.device_name,
        "status": "ok" if plan.holds else "misses the target",
        "rate_per_s": outcome.rate_per_s,
        "slo_ms": demand.slo_ms,
        "percentile": demand.percentile,
        "batcher": demand.batcher,
        "delay_ms": plan.delay_ms,
        "routing": demand.routing,
        "burstiness": None if plan.arrivals else demand.burstiness,
        **{name: getattr(demand, name) for name in OVERHEADS},
        "network_ms": demand.network_ms,
        "devices": outcome.devices,
        "batch_cap": outcome.batch_cap,
        "utilization": outcome.utilization,
        "busy": outcome.busy,
        "mean_batch": outcome.mean_batch,
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
        "refused": outcome.refused if demand.max_queue is not None else None,
        "input_shape": plan.input_shape,
        **dict.fromkeys(_ENERGY),
        **dict(zip(_ENERGY, _energy(plan), strict=False)),
        "mix": _parts(plan),
        "mix_cost_per_hour": plan.mix.cost_per_hour if plan.mix else None,
        "mix_latency_ms_tail": plan.mix.outcome.tail_ms if plan.mix else None,
        "samples_per_request": demand.mean_samples,
        "samples_per_s": plan.samples_per_s,
        "cost_per_million_samples": plan.cost_per_million_samples,
        "max_ongoing": demand.most_ongoing,
        "verdict": outcome.verdict,
        "one_fewer_verdict": fewer.verdict if fewer else None,
    }


def _energy(plan: Plan) -> Iterator[object]:
    """Yield the values of the columns of energy; nothing if power is not known."""
    if (energy := plan.energy) is not None:
        yield from (energy.computing.share, energy.computing.power_w, energy.low_w, energy.high_w)
        yield from (energy.kwh_per_million_low, energy.kwh_per_million_high)
        yield from (energy.best_by_energy.batch_size, energy.best_by_rate.batch_size)


def _parts(plan: Plan) -> str | None:
    if plan.mix is None:
        return None
    return " + ".join(f"{part.devices} x {part.device_name} cap {part.batch_cap}" for part in plan.mix.parts)
