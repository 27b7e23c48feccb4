"""The ways of timing side by side, as tables for a terminal and as Markdown, each with its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tputfind.record.clocks import (
    BOUNDARIES,
    CONDITIONS,
    METHODS,
    STAGE_METHODS,
    Cell,
    Figures,
    Methods,
    Pipeline,
    Stage,
    TimingMethod,
    cell_of,
    figures_of,
    stage_figures,
    turn_counts,
)
from tputfind.record.spec import Spec
from tputfind.report.escaping import markdown_bytes
from tputfind.report.markdown import markdown_of
from tputfind.report.tables import new_table
from tputfind.report.terminal import print_line, print_table
from tputfind.units import format_figure, shortened

_LONGEST_STAGE: Final = 17
"""Characters of a model's name in a table; the whole stands in the title."""


def print_clocks(found: Methods | Pipeline, console: Console) -> None:
    """Print the tables, then one sentence for every mistake."""
    print_line(_title(found), console, style="bold")
    print_line(_explained(found), console)
    console.print()
    for table in _tables(found):
        print_table(table, console)
        console.print()
    for sentence in found.sentences:
        print_line(sentence, console, mark="- ")


def to_markdown(found: Methods | Pipeline) -> bytes:
    """Return title, tables and sentences as Markdown."""
    lines = [f"**{_title(found)}**", "", _explained(found), ""]
    for table in _tables(found):
        lines += [*markdown_of(table), ""]
    lines += [f"- {sentence}" for sentence in found.sentences]
    return markdown_bytes(lines)


def _title(found: Methods | Pipeline) -> str:
    device = found.environment.device_name
    if isinstance(found, Methods):
        return f"{_model(found.spec, found.input_shape)}, batch {found.batch_size}, on {device}"
    first, second = (_model(spec, shape) for spec, shape in zip(found.specs, found.input_shapes, strict=True))
    return f"{first}, then CPU work, then {second}, batch {found.batch_size}, on {device}"


def _model(spec: Spec, input_shape: str) -> str:
    return f"{spec.model} {spec.dtype} {spec.layout} {input_shape}"


def _explained(found: Methods | Pipeline) -> str:
    kept = found.repeats - found.drop
    counted = f"mean of {kept} in {len(turn_counts(kept))} turns, after {found.drop} dropped"
    if isinstance(found, Methods):
        alone = " (the host clock alone: at a stretch)" if found.environment.can.events else ""
        return (
            f"ms a batch: {counted}{alone}; without warm-up of all {found.repeats} in a "
            "fresh process, the first call included. Empty: does not apply."
        )
    return f"ms an iteration: {counted}. Empty: not timed, or does not apply."


def _tables(found: Methods | Pipeline) -> list[Table]:
    if isinstance(found, Methods):
        return [_methods(found.cells), _boundaries(found.cells)]
    return [_stages(found)]


def _table(names: Sequence[str]) -> Table:
    table = new_table()
    table.add_column(names[0], no_wrap=True)
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _methods(cells: Sequence[Cell]) -> Table:
    table = _table(["method", *CONDITIONS.values()])
    for way, name in METHODS.items():
        table.add_row(name, *(_shown(cell_of(cells, way, condition)) for condition in CONDITIONS))
    return table


def _boundaries(cells: Sequence[Cell]) -> Table:
    table = _table(["boundary", CONDITIONS["warm"], CONDITIONS["cold"], "first call alone"])
    for way, name in BOUNDARIES.items():
        first_ms = _first_ms(cells, way)
        warm, cold = (_figure(figures_of(cells, way, condition)) for condition in ("warm", "cold"))
        table.add_row(name, warm, cold, "" if first_ms is None else format_figure(first_ms))
    return table


def _stages(found: Pipeline) -> Table:
    first, second = (spec.model for spec in found.specs)
    table = _table(["stage", *STAGE_METHODS.values()])
    stages: dict[Stage, str] = {"first": first, "work": "CPU work", "second": second, "whole": "the whole"}
    for stage, name in stages.items():
        table.add_row(
            Text(shortened(name, _LONGEST_STAGE)),
            *(_figure(stage_figures(found.cells, stage, way)) for way in STAGE_METHODS),
        )
    return table


def _first_ms(cells: Sequence[Cell], way: TimingMethod) -> float | None:
    cold = figures_of(cells, way, "cold")
    return None if cold is None else cold.samples_ms[0]


def _shown(cell: Cell | None) -> str:
    if cell is None or cell.failure is None:
        return _figure(None if cell is None else cell.figures)
    return "not captured" if cell.way == "graph" else "failed"


def _figure(figures: Figures | None) -> str:
    return "" if figures is None else format_figure(figures.mean_ms)
