"""The timing methods side by side, as a document: tables, and one sentence for every mistake."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from tputfind.record import clocks
from tputfind.record.clocks import Cell as Timed
from tputfind.record.spec import Spec
from tputfind.report.document import (
    Cell,
    Column,
    Document,
    Sentences,
    Table,
    data_table,
    figure,
    sections_of,
    table,
    whole,
)
from tputfind.report.text import layout_shown
from tputfind.units import format_figure, shorten_text

_LONGEST_STAGE: Final = 17
"""Maximum characters of a model's name in a table; the title has the whole name."""


def document(found: clocks.Methods | clocks.Pipeline) -> Document:
    sentences = (Sentences(found.sentences),) if found.sentences else ()

    def tables() -> list[Table]:
        return (
            [_methods(found.cells), _boundaries(found.cells)] if isinstance(found, clocks.Methods) else [_stages(found)]
        )

    return whole(
        lambda: Document(
            title=_title(found), lead=_lead(found), sections=(*sections_of("the table", tables), *sentences)
        ),
        source=found,
        data=partial(_data, found),
    )


def _data(found: clocks.Methods | clocks.Pipeline) -> Table:
    specs, keys = (
        ((found.spec,), ("way", "condition")) if isinstance(found, clocks.Methods) else (found.specs, ("stage", "way"))
    )
    of_all: dict[str, object] = {
        "model": " + ".join(spec.model for spec in specs),
        "device_name": found.environment.device_name,
        "batch_size": found.batch_size,
    }
    figures = ("mean_ms", "median_ms", "std_ms")
    lines = (
        of_all
        | {key: getattr(cell, key) for key in keys}
        | {name: getattr(cell.figures, name, None) for name in figures}
        | {"timings": None if cell.figures is None else len(cell.figures.samples_ms)}
        for cell in found.cells
    )
    return data_table((*of_all, *keys, *figures, "timings"), lines)


def _title(found: clocks.Methods | clocks.Pipeline) -> str:
    device = found.environment.device_name
    if isinstance(found, clocks.Methods):
        return f"{_model(found.spec, found.input_shape)}, batch {found.batch_size}, on {device}"
    first, second = (_model(spec, shape) for spec, shape in zip(found.specs, found.input_shapes, strict=True))
    return f"{first}, then CPU work, then {second}, batch {found.batch_size}, on {device}"


def _model(spec: Spec, input_shape: str) -> str:
    return " ".join((spec.model, spec.dtype, *layout_shown(spec, input_shape), input_shape))


def _lead(found: clocks.Methods | clocks.Pipeline) -> str:
    kept = found.repeats - found.drop
    counted = f"mean of {kept} in {len(clocks.turn_counts(kept))} turns, after {found.drop} dropped"
    if isinstance(found, clocks.Methods):
        alone = " (the host clock alone: at a stretch)" if found.environment.can.events else ""
        return (
            f"ms a batch: {counted}{alone}; without warm-up of all {found.repeats} in a "
            "fresh process, the first call included. Empty: does not apply."
        )
    return f"ms an iteration: {counted}. Empty: not timed, or does not apply."


def _columns(first: str, others: Iterable[str]) -> list[Column]:
    return [Column(first, "text"), *map(Column, others)]


def _methods(cells: Sequence[Timed]) -> Table:
    rows = (
        (Cell(name), *(_timed_cell(clocks.cell_of(cells, way, one)) for one in clocks.CONDITIONS))
        for way, name in clocks.METHODS.items()
    )
    return table(_columns("method", clocks.CONDITIONS.values()), rows)


def _boundaries(cells: Sequence[Timed]) -> Table:
    rows = (
        (
            name,
            _mean(clocks.figures_of(cells, way, "warm")),
            _mean(clocks.figures_of(cells, way, "cold")),
            figure(_first_ms(cells, way)),
        )
        for way, name in clocks.BOUNDARIES.items()
    )
    columns = _columns("boundary", (clocks.CONDITIONS["warm"], clocks.CONDITIONS["cold"], "first call alone"))
    way: clocks.TimingMethod = "host_clock_synchronised"  # the method of the sentence about the first call
    first_ms = _first_ms(cells, way)
    known = "" if first_ms is None else f"first call alone by {clocks.METHODS[way]}: {format_figure(first_ms)}"
    return table(columns, rows, legend=known)


def _stages(found: clocks.Pipeline) -> Table:
    first, second = (shorten_text(spec.model, _LONGEST_STAGE) for spec in found.specs)
    stages: dict[clocks.Stage, str] = {"first": first, "work": "CPU work", "second": second, "whole": "the whole"}
    rows = (
        (Cell(name), *(_mean(clocks.stage_figures(found.cells, stage, way)) for way in clocks.STAGE_METHODS))
        for stage, name in stages.items()
    )
    return table(_columns("stage", clocks.STAGE_METHODS.values()), rows)


def _first_ms(cells: Sequence[Timed], way: clocks.TimingMethod) -> float | None:
    cold = clocks.figures_of(cells, way, "cold")
    return None if cold is None else cold.samples_ms[0]


def _timed_cell(cell: Timed | None) -> Cell:
    if cell is None or cell.failure is None:
        return _mean(None if cell is None else cell.figures)
    return Cell("not captured" if cell.way == "graph" else "failed")


def _mean(figures: clocks.Figures | None) -> Cell:
    return figure(None if figures is None else figures.mean_ms)
