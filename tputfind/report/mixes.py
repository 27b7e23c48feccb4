"""The cheapest mix of kinds of devices, and what different models take together: tables, words, and cells of a CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.table import Table
from rich.text import Text

from tputfind.report.tables import new_table
from tputfind.sizing.planner.mixes import Mix
from tputfind.sizing.planner.plan import Answers, Plan, together
from tputfind.units import format_figure

COLUMNS: Final = ("mix", "mix_cost_per_hour", "mix_latency_ms_tail")


def title(plan: Plan) -> str:
    """Return what the table of a mix is about."""
    return f"{plan.model}: the cheapest mix of kinds that was found"


def table(mix: Mix, currency: str) -> Table:
    """Return the parts of a mix, one a line."""
    made = new_table()
    made.add_column("", no_wrap=True)
    for name in ("devices", "max batch", "samples %", "cost/h"):
        made.add_column(name, justify="right", no_wrap=True)
    for part in mix.parts:
        cost = f"{format_figure(part.cost_per_hour)} {currency}"
        cells = (str(part.devices), str(part.batch_cap), f"{100 * part.share:.1f}", cost)
        made.add_row(Text(f"{part.recipe}, {part.device_name}"), *map(Text, cells))
    return made


def told(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is to be known of a mix, or why there is none, each a label and a text."""
    if plan.no_mix:
        yield "Mix", plan.no_mix
    if plan.mix is None or plan.price is None or plan.cost_per_hour is None:
        return
    mix, outcome, currency = plan.mix, plan.mix.outcome, plan.price.currency
    million = f"{format_figure(mix.cost_per_million)} {currency} a million requests"
    saved = 1 - mix.cost_per_hour / plan.cost_per_hour
    hour = f"{format_figure(mix.cost_per_hour)} {currency} an hour"
    yield "Mix", f"{hour}, {million}: {saved:.1%} below {plan.outcome.devices} x {plan.device_name}"
    tail = f"p{plan.demand.percentile:g} {format_figure(outcome.tail_ms)} ms"
    yield "Meets", f"the target, {tail}, utilization {100 * outcome.utilization:.0f} %"
    if plan.demand.routing == "random":
        yield "Requests", "go to a device by chance, in proportion to what it can do with full batches"
    else:
        yield "Batches", "are taken by the device that has been idle for the longest, of whichever kind"


def of_all(found: Answers) -> Iterator[tuple[str, str]]:
    """Yield what different models take together, a label and a text."""
    sums = together(found)
    if sums is None:
        return
    cost = "" if sums.cost_per_hour is None else f", {format_figure(sums.cost_per_hour)} {sums.currency} an hour"
    yield (
        "Together",
        f"{sums.devices} devices{cost}: each of {len(found.models)} models with its own, at the whole rate",
    )


def heading(found: Answers, plan: Plan) -> str:
    """Return what tells the plans of a model from those of the others; empty where there are no others."""
    return f"{plan.model}, samples of {plan.input_shape}" if len(found.models) > 1 else ""


def cells(plan: Plan) -> dict[str, object]:
    """Return a mix as cells, by column; empty where there is none."""
    if plan.mix is None:
        return {}
    parts = " + ".join(f"{part.devices} x {part.device_name} cap {part.batch_cap}" for part in plan.mix.parts)
    return dict(zip(COLUMNS, (parts, plan.mix.cost_per_hour, plan.mix.outcome.tail_ms), strict=True))
