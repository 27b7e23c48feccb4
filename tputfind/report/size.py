"""Plans for a terminal, as Markdown, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.report.escaping import markdown_bytes, spreadsheet_text
from tputfind.report.markdown import markdown_of, notices_of
from tputfind.report.tables import named_fitted, new_table
from tputfind.report.terminal import print_answers, print_notices, print_table
from tputfind.sizing.fleets import MORE_TRAFFIC
from tputfind.sizing.plan import Plan
from tputfind.sizing.simulate import Outcome, cell_of
from tputfind.sizing.size import Answers
from tputfind.units import format_figure

_OVERHEADS = {
    "overhead_per_batch_ms": "a batch",
    "overhead_per_request_ms": "a request",
    "overhead_per_get_ms": "to get it",
    "overhead_per_answer_ms": "an answer",
}
"""Fields of a demand, in words."""
_HANDLERS = {
    "blocking": "blocks its event loop, as a plain model(x) does in an async function",
    "threaded": "calls the model in a thread, beside its event loop",
}
_COLUMNS = [
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
    *_OVERHEADS,
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
    "handler",
    "max_ongoing",
    "max_latency_ms",
    "max_queue",
    "refused",
]


def print_plans(found: Answers, console: Console) -> None:
    """Print the plans side by side if there are several, and each with what stands beside it."""
    if len(found.plans) > 1:
        table = named_fitted(partial(_ranking, found.plans), _names(found.plans), console)
        print_table(table, console, f"by {found.ranked_by}, the best first")
        console.print()
    for plan in found.plans:
        print_table(_table(plan), console, _title(plan))
        console.print()
        print_answers(told(plan), console)
        print_notices(plan.notices, console)
        console.print()


def to_markdown(found: Answers) -> bytes:
    """Return the same as Markdown."""
    lines = markdown_of(_ranking(found.plans, _names(found.plans))) if len(found.plans) > 1 else []
    for plan in found.plans:
        lines += ["", f"**{_title(plan)}**", "", *markdown_of(_table(plan)), ""]
        lines += [f"- {label}: {text}" for label, text in told(plan)]
        lines += notices_of(plan.notices)
    return markdown_bytes(lines)


def to_json(found: Answers) -> bytes:
    """Return the plans in full, and of each record without one the reason."""
    without = [{"model": record.spec.model, "reason": error.message} for record, error in found.without]
    return msgspec.json.format(msgspec.json.encode({"plans": found.plans, "without": without})) + b"\n"


def to_csv(found: Answers) -> bytes:
    """Return one line for each record; of one without a plan the status is the reason, and the rest is empty."""
    lines = [_line(plan) for plan in found.plans]
    lines += [{"model": record.spec.model, "status": error.message} for record, error in found.without]
    return _written(_COLUMNS, lines)


def curve_csv(outcomes: Iterable[Outcome]) -> bytes:
    """Return what ever more requests take, one line for each rate."""
    lines = [_figures(outcome) for outcome in outcomes]
    return _written(list(lines[0]), lines)


def told(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the answers of a plan, each a label and a text."""
    outcome, demand = plan.outcome, plan.demand
    waits = plan.delay_ms > 0 and outcome.batch_cap > 1
    batcher = f"waits up to {plan.delay_ms:g} ms for more" if waits else "waits for nothing"
    batcher = "waits as long as it has learned to" if demand.server.rule is None else batcher
    each = f"each with batches of up to {outcome.batch_cap}; {demand.batcher} {batcher}"
    yield from _solved(plan)
    yield "Devices", f"{outcome.devices}{_range(plan)}, {each}"
    if plan.without_spare is not None:
        yield f"{demand.spare} gone", f"{plan.without_spare.devices}: {_verdict(plan, plan.without_spare)}"
    yield from _of_server(plan)
    yield _fewer_label(plan).capitalize(), _of_fewer(plan)
    more = _verdict(plan, plan.more_traffic)
    rate = format_figure(plan.more_traffic.rate_per_s)
    yield f"{MORE_TRAFFIC - 1:.0%} more", f"{rate} requests/s on the same devices: {more}"
    rules = plan.rules
    by_time = f"one batch in the target {rules.naive or 'none'}; two (Nexus) {rules.nexus or 'none'}"
    yield "Rules of thumb", f"full batches {rules.full_batches}; {by_time}; mean latency {rules.mean or 'none'}"
    yield "A batch takes", f"about {plan.intercept_ms:.3g} ms and {plan.slope_ms:.3g} ms a sample"
    added = [f"{getattr(demand, name):g} ms {words}" for name, words in _OVERHEADS.items() if getattr(demand, name)]
    if added:
        yield "Overheads", ", ".join(added)
    if plan.price is not None and plan.cost_per_hour is not None and plan.cost_per_million is not None:
        source = ": ".join(filter(None, (plan.price.device, f"{plan.price.source} {plan.price.date}".strip())))
        hour, million = (_cost(one, plan.price.currency) for one in (plan.cost_per_hour, plan.cost_per_million))
        yield "Cost", f"{hour} an hour, {million} a million requests ({source})"
    cell = cell_of(demand)
    if outcome.devices > cell:
        yield "Simulated", f"{cell} of the devices with their share of the requests, as cells behind a random split"
    if plan.arrivals:
        yield "Arrivals", f"{plan.arrivals} recorded requests, replayed whole; chance is in the times of batches alone"


def _of_server(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what a server with replicas does with requests, and how many it refuses."""
    demand, refused = plan.demand, plan.outcome.refused
    if demand.handled is not None:
        yield "Handler", _HANDLERS[demand.handled]
    if demand.most_ongoing is not None:
        yield "Limit", f"{demand.most_ongoing} requests at a time for each replica (max_ongoing_requests)"
    if demand.max_queue is not None:
        yield "Refused", f"{refused:.2%}: requests that find {demand.max_queue} in the queue (max_queued_requests)"
    if demand.most_latency_ms is not None:
        yield "Refused", f"{refused:.2%}: requests that would take {demand.most_latency_ms:g} ms (max_latency_ms)"


def _solved(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the answer to a question about a given number of devices."""
    demand = plan.demand
    rate = f"{format_figure(demand.rate_per_s)} requests/s"
    if demand.solve == "rate":
        yield "Highest rate", f"{rate} within the target, to 2 %"
    if demand.solve == "slo":
        yield "Target", f"{demand.slo_ms:g} ms is the tightest at {rate}"
    if demand.solve == "nothing":
        yield "Target", f"{plan.holding.devices}: {_verdict(plan, plan.holding)}"


def _fewer_label(plan: Plan) -> str:
    return f"{plan.demand.spare + 1} gone" if plan.demand.spare else "one fewer"


def _range(plan: Plan) -> str:
    """Say between which numbers of devices the true one lies with 90 %; empty where that is the plan's alone."""
    if plan.fewest is None:
        return ""
    if plan.most is None:
        return f" ({plan.fewest} or more)"
    return "" if plan.fewest == plan.most else f" ({plan.fewest} to {plan.most})"


def _title(plan: Plan) -> str:
    demand = plan.demand
    rate = format_figure(demand.rate_per_s) if demand.rate_per_s >= 0.01 else f"{demand.rate_per_s:.4g}"
    stream = f"{rate} requests/s, {demand.percentile:g} % within {demand.slo_ms:g} ms"
    network = f", {demand.network_ms:g} ms of them for the network" if demand.network_ms else ""
    return f"{plan.model} {plan.recipe} on {plan.device_name}: {stream}{network}"


def _names(plans: Sequence[Plan]) -> list[str]:
    return [f"{plan.model} {plan.recipe}, {plan.device_name}" for plan in plans]


def _ranking(plans: Sequence[Plan], names: Sequence[str]) -> Table:
    table = new_table()
    table.add_column("", no_wrap=True)
    for name in ("devices", "cap", "each/s", "cost/h"):
        table.add_column(name, justify="right", no_wrap=True)
    for plan, name in zip(plans, names, strict=True):
        cost = (
            "" if plan.cost_per_hour is None or plan.price is None else _cost(plan.cost_per_hour, plan.price.currency)
        )
        each = format_figure(plan.demand.rate_per_s / plan.outcome.devices)
        table.add_row(Text(name), str(plan.outcome.devices), str(plan.outcome.batch_cap), Text(each), Text(cost))
    return table


def _cost(amount: float, currency: str) -> str:
    return f"{format_figure(amount)} {currency}"


def _table(plan: Plan) -> Table:
    table = new_table()
    table.add_column("", no_wrap=True)
    for name in ("devices", "cap", "p50 ms", "p95 ms", "p99 ms", "in time %", "load %", "mean batch"):
        table.add_column(name, justify="right", no_wrap=True)
    cases = [
        ("plan", plan.outcome),
        (f"{plan.demand.spare} gone", plan.without_spare),
        (_fewer_label(plan), plan.fewer),
        (f"{MORE_TRAFFIC - 1:.0%} more", plan.more_traffic),
    ]
    for name, outcome in cases:
        if outcome is not None:
            table.add_row(name, *_cells(outcome))
    return table


def _cells(outcome: Outcome) -> Iterator[str]:
    load = f"{100 * outcome.load:.0f}"
    yield from (str(outcome.devices), str(outcome.batch_cap))
    if not outcome.steady:  # what a queue that grows comes to is for how long one looks
        yield from ("", "", "", "", load, "")
        return
    yield from (format_figure(value) for value in (outcome.p50_ms, outcome.p95_ms, outcome.p99_ms))
    yield from (f"{100 * outcome.goodput_per_s / outcome.rate_per_s:.2f}", load, format_figure(outcome.mean_batch))


def _of_fewer(plan: Plan) -> str:
    if plan.fewer is None:
        return "there is none"
    return f"{plan.fewer.devices}: {_verdict(plan, plan.fewer)}"


def _verdict(plan: Plan, outcome: Outcome) -> str:
    demand = plan.demand
    if outcome.tail_ms == inf:
        return f"target missed, {outcome.refused:.2%} of the requests refused"
    tail = f"p{demand.percentile:g} {format_figure(outcome.tail_ms)} ms"
    if outcome.load >= 1:
        return f"cannot keep up: {100 * outcome.load:.0f} % load, the queue grows"
    if not outcome.steady:
        return f"target taken as missed: {100 * outcome.load:.1f} % load is too near the limit to tell"
    if outcome.load > demand.most_load:
        return f"more load than --most-load: {100 * outcome.load:.1f} %"
    if outcome.meets(demand.target_ms):
        return f"target met, {tail}"
    if outcome.misses(demand.target_ms):
        return f"target missed, {tail}"
    return f"too near the target to tell: {tail}"


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
        **{name: getattr(demand, name) for name in _OVERHEADS},
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
        "handler": demand.handled,
        "max_ongoing": demand.most_ongoing,
        "max_latency_ms": demand.most_latency_ms,
        "max_queue": demand.max_queue,
        "refused": plan.outcome.refused if demand.max_queue or demand.most_latency_ms else None,
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
