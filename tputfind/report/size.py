"""Plans for a terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.report import energy, logs, mixes, servers
from tputfind.report.escaping import markdown_bytes
from tputfind.report.markdown import markdown_of, notices_of
from tputfind.report.tables import named_fitted, new_table
from tputfind.report.terminal import print_answers, print_line, print_notices, print_table
from tputfind.sizing.engine.replications import Outcome
from tputfind.sizing.planner.plan import Answers, Plan, Rules, together
from tputfind.sizing.planner.search import CELL, MORE_TRAFFIC
from tputfind.units import format_figure

OVERHEADS = {
    "overhead_per_batch_ms": "a batch",
    "overhead_per_request_ms": "a request",
    "overhead_per_answer_ms": "an answer",
}
"""Fields of a demand, in words."""
DEVICES_PER_HOST = 8
"""Devices of an ordinary server."""
_LISTED = 4
"""Numbers of samples that are told with their shares."""


def print_plans(found: Answers, console: Console) -> None:
    """Print the plans of each model side by side if they are several, and each with what stands beside it."""
    for plans in found.models:
        if heading := mixes.heading(found, plans[0]):
            console.print(Text(heading, "bold"))
            console.print()
        if len(plans) > 1:
            table = named_fitted(partial(_ranking, plans), _names(plans), console)
            print_table(table, console, f"by {found.ranked_by}, the best first")
            console.print()
        for plan in plans:
            print_line(_title(plan), console, style="bold")
            console.print()
            print_answers(summary(plan), console)
            console.print()
            print_table(_table(plan), console)
            console.print()
            if plan.observed is not None:
                print_table(logs.table(plan.observed), console, logs.TITLE)
                console.print()
            print_answers(told(plan), console)
            if lines := servers.configuration(plan):
                console.print()
                console.print(Text("\n".join(lines)), soft_wrap=True)
            print_notices(plan.notices, console)
            console.print()
        best = plans[0]
        if best.mix is not None and best.price is not None:
            print_table(mixes.table(best.mix, best.price.currency), console, mixes.title(best))
            console.print()
        if mixed := list(mixes.told(best)):
            print_answers(mixed, console)
            console.print()
    print_answers(mixes.of_all(found), console)


def to_markdown(found: Answers) -> bytes:
    """Return the same as Markdown."""
    lines: list[str] = []
    for plans in found.models:
        heading = mixes.heading(found, plans[0])
        lines += ["", f"## {heading}"] if heading else []
        lines += ["", *markdown_of(_ranking(plans, _names(plans)))] if len(plans) > 1 else []
        for plan in plans:
            lines += ["", f"**{_title(plan)}**", "", *(f"- {label}: {text}" for label, text in summary(plan))]
            lines += ["", *markdown_of(_table(plan)), ""]
            if plan.observed is not None:
                lines += [f"**{logs.TITLE}**", "", *markdown_of(logs.table(plan.observed)), ""]
            lines += [f"- {label}: {text}" for label, text in told(plan)]
            if configured := servers.configuration(plan):
                lines += ["", "```", *configured, "```", ""]
            lines += notices_of(plan.notices)
        best = plans[0]
        if best.mix is not None and best.price is not None:
            lines += ["", f"**{mixes.title(best)}**", "", *markdown_of(mixes.table(best.mix, best.price.currency))]
        lines += ["", *(f"- {label}: {text}" for label, text in mixes.told(best))]
    lines += ["", *(f"- {label}: {text}" for label, text in mixes.of_all(found))]
    return markdown_bytes(lines)


def to_json(found: Answers) -> bytes:
    """Return the plans in full, and of each record without one the reason."""
    without = [{"model": record.spec.model, "reason": error.message} for record, error in found.without]
    answers = {"plans": found.plans, "without": without, "together": together(found)}
    return msgspec.json.format(msgspec.json.encode(answers)) + b"\n"


def summary(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what a manager reads: devices and hosts, utilization, and cost, or else power, if known."""
    outcome = plan.outcome
    hosts = -(-outcome.devices // DEVICES_PER_HOST)
    on = f"{hosts} host{'s' * (hosts > 1)} of {DEVICES_PER_HOST}"
    yield "Devices", f"{outcome.devices}{_range(plan)}, on {on}: batches of up to {outcome.batch_cap}"
    yield "Utilization", f"{_percent(outcome.utilization)} of the rate of full batches"
    costs, powers = list(_costs(plan)), list(energy.told(plan))
    yield from costs or powers[:1]


def _costs(plan: Plan) -> Iterator[tuple[str, str]]:
    demand = plan.demand
    if plan.price is not None and plan.cost_per_hour is not None and plan.cost_per_million is not None:
        source = ": ".join(filter(None, (plan.price.device, f"{plan.price.source} {plan.price.date}".strip())))
        hour, million = (_cost(one, plan.price.currency) for one in (plan.cost_per_hour, plan.cost_per_million))
        if demand.traffic.has_several_samples and plan.cost_per_million_samples is not None:
            million += f" a million requests, {_cost(plan.cost_per_million_samples, plan.price.currency)}"
        counted = "samples" if demand.traffic.has_several_samples else "requests"
        yield "Cost", f"{hour} an hour, {million} a million {counted} ({source})"


def told(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the answers of a plan behind its summary, each a label and a text."""
    outcome, demand = plan.outcome, plan.demand
    waits = plan.delay_ms > 0 and outcome.batch_cap > 1
    batcher = f"waits up to {plan.delay_ms:g} ms for more" if waits else "takes what waits when a device is free"
    yield from _solved(plan)
    if demand.traffic.has_several_samples:
        yield "Requests", _samples(plan)
    yield "Batcher", f"{demand.batcher}: {batcher}"
    if plan.without_spare is not None:
        yield f"{demand.spare} gone", f"{plan.without_spare.devices}: {_verdict(plan, plan.without_spare)}"
    yield from servers.told(plan)
    yield _fewer_label(plan).capitalize(), _of_fewer(plan)
    more = _verdict(plan, plan.more_traffic)
    rate = format_figure(plan.more_traffic.rate_per_s)
    yield f"{MORE_TRAFFIC - 1:.0%} more", f"{rate} requests/s on all {outcome.devices}: {more}"
    yield "Rules of thumb", _thumb(plan.rules)
    added = [f"{getattr(demand, name):g} ms {words}" for name, words in OVERHEADS.items() if getattr(demand, name)]
    if plan.observed is not None:
        yield "Overheads", logs.told(plan.observed)
    elif added:
        yield "Overheads", ", ".join(added)
    powers = list(energy.told(plan))
    yield from powers if any(_costs(plan)) else powers[1:]
    if outcome.devices > CELL and demand.routing != "random":
        yield "Simulated", f"{CELL} of the devices with their share of the requests, as cells behind a random split"
    if plan.arrivals:
        yield "Arrivals", f"{plan.arrivals} recorded requests, replayed whole; chance is in the times of batches alone"


def _solved(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the answer to a question about a given number of devices."""
    demand = plan.demand
    rate = f"{format_figure(demand.rate_per_s)} requests/s"
    if demand.solve == "rate":
        yield "Highest rate", f"{rate} within the target; 2 % more may pass too"
    if demand.solve == "slo":
        yield "Target", f"{demand.slo_ms:g} ms is the tightest at {rate}"
    if demand.solve == "nothing":
        yield "Target", f"{plan.serving.devices}: {_verdict(plan, plan.serving)}"


def _samples(plan: Plan) -> str:
    """Say how many samples requests have, how many samples that are, and what the batcher does with a request."""
    demand, sizes = plan.demand, plan.demand.samples_per_request
    if len(sizes) == 1:
        each = f"{sizes[0][0]} samples each"
    else:
        listed = ", ".join(f"{samples} ({100 * share:.3g} %)" for samples, share in sizes)
        each = listed if len(sizes) <= _LISTED else f"{sizes[0][0]} to {sizes[-1][0]}"
        each += f" samples, {demand.mean_samples:.4g} on average"
    way = "each stays in one batch" if demand.is_whole else "each sample is batched by itself"
    return f"{each}: {format_figure(plan.samples_per_s)} samples/s; {way}"


def _fewer_label(plan: Plan) -> str:
    gone = plan.outcome.devices - plan.fewer.devices if plan.fewer else 1
    if plan.demand.spare:
        return f"{gone} gone"
    return "one fewer" if gone == 1 else f"{gone} fewer"


def _thumb(rules: Rules) -> str:
    """Say between which numbers of devices the usual reckonings lie."""
    found = [count for count in (rules.full_batches, rules.naive, rules.nexus, rules.mean) if count is not None]
    low, high = min(found), max(found)
    return f"{low if low == high else f'{low} to {high}'} devices, by formulas instead of simulation"


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
    network = f", {demand.network_ms:.4g} ms of them for the network" if demand.network_ms else ""
    return f"{plan.model} {plan.recipe} on {plan.device_name}: {stream}{network}"


def _names(plans: Sequence[Plan]) -> list[str]:
    return [f"{plan.model} {plan.recipe}, {plan.device_name}" for plan in plans]


def _ranking(plans: Sequence[Plan], names: Sequence[str]) -> Table:
    table = new_table()
    table.add_column("", no_wrap=True)
    for name in ("devices", "max batch", "each/s", "cost/h"):
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
    for name in ("devices", "max batch", "p50 ms", "p95 ms", "p99 ms", "in time %", "util. %", "batch"):
        table.add_column(name, justify="right", no_wrap=True)
    if plan.demand.max_queue is not None:
        table.add_column("refused %", justify="right", no_wrap=True)
    cases = [
        ("plan", plan.outcome),
        (f"{plan.demand.spare} gone", plan.without_spare),
        (_fewer_label(plan), plan.fewer),
        (f"{MORE_TRAFFIC - 1:.0%} more", plan.more_traffic),
    ]
    for name, outcome in cases:
        if outcome is not None:
            refused = [f"{100 * outcome.refused:.2f}"] if plan.demand.max_queue is not None else []
            table.add_row(name, *_cells(outcome), *refused)
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0.95 <= share < 1 else f"{100 * share:.0f} %"  # 99.6 % is not 100 %


def _cells(outcome: Outcome) -> Iterator[str]:
    utilization = _percent(outcome.utilization).removesuffix(" %")
    yield from (str(outcome.devices), str(outcome.batch_cap))
    if outcome.is_saturated:
        yield from ("", "", "", "", utilization, "")
        return
    yield from (format_figure(value) for value in (outcome.p50_ms, outcome.p95_ms, outcome.p99_ms))
    yield from (f"{100 * (1 - outcome.late):.2f}", utilization, format_figure(outcome.mean_batch))


def _of_fewer(plan: Plan) -> str:
    if plan.fewer is None:
        return "there is none"
    return f"{plan.fewer.devices}, with batches of up to {plan.fewer.batch_cap}: {_verdict(plan, plan.fewer)}"


def _verdict(plan: Plan, outcome: Outcome) -> str:
    demand = plan.demand
    utilization = _percent(outcome.utilization)
    if outcome.is_saturated:
        return f"cannot keep up: {utilization} utilization, the queue grows"
    if outcome.tail_ms == inf:
        return f"target missed, {outcome.refused:.2%} of the requests refused"
    tail = f"p{demand.percentile:g} {format_figure(outcome.tail_ms)} ms"
    if outcome.utilization > demand.utilization_allowed:
        return f"utilization of {utilization} is above --max-utilization"
    if outcome.verdict == "meets":
        return f"target met, {tail}"
    if outcome.verdict == "misses":
        return f"target missed, {tail}"
    if outcome.tail_high_ms <= demand.target_ms:
        return f"undecided: {utilization} utilization is too near the limit to tell, {tail} as far as simulated"
    return f"undecided: too near the target to tell, {tail}"
