"""Forecasts as a document, which says of every figure that it is a forecast."""

from __future__ import annotations

from functools import partial
from typing import Final

from tputfind.record.forecast import CardForecast, Forecasts
from tputfind.record.types import LARGEST_BATCH
from tputfind.report.document import Cell, Column, Document, Sentences, Table, count, data_table, sections_of, table
from tputfind.units import GIB, format_bytes, format_share

_FROM_TRIALS: Final = (
    "90 % of forecasts were this close on a device of this kind; on another, libraries may use other kernels"
)
_ON_FAKE: Final = (
    "39 of 39 forecasts were this close to an H200's result; what libraries take for themselves is not in it"
)


def document(found: Forecasts) -> Document:
    """Return the largest batch for each size of memory, and what it rests on."""
    spec = found.spec
    tried = ", ".join(map(str, found.tried))
    columns = map(Column, ("memory", "largest batch, forecast", "give or take"))
    lines = (f"from {_source(found)}, batch {tried}", _ON_FAKE if found.device_name is None else _FROM_TRIALS)
    return Document(
        title=f"{spec.model} {spec.dtype} {spec.layout}: forecast, not measured",
        sections=(
            *sections_of("the table", lambda: [table(columns, map(_row, found.cards))]),
            Sentences(lines),
        ),
        data=partial(_data, found),
        source=found,
    )


def _row(card: CardForecast) -> tuple[Cell, Cell, Cell]:
    words = {0: "none fits", LARGEST_BATCH: "no end in sight"}
    is_known = card.largest_batch not in words
    return (
        Cell(format_bytes(card.memory_bytes), card.memory_bytes),
        count(card.largest_batch) if is_known else Cell(words[card.largest_batch]),
        Cell(format_share(card.error), card.error) if is_known else Cell(),
    )


def _data(found: Forecasts) -> Table:
    """Return one line for each size of memory."""
    lines = [_line(found, card, card.largest_batch < LARGEST_BATCH) for card in found.cards]
    return data_table(tuple(next(iter(lines), ())), lines)


def _line(found: Forecasts, card: CardForecast, is_bounded: bool) -> dict[str, object]:
    return {
        "model": found.spec.model,
        "dtype": found.spec.dtype,
        "layout": found.spec.layout,
        "memory_gib": card.memory_bytes / GIB,
        "largest_batch_forecast": card.largest_batch if is_bounded else None,
        "error_percent": 100 * card.error if is_bounded else None,
        "forecast_from": _source(found),
        "batches_tried": " ".join(map(str, found.tried)),
    }


def _source(found: Forecasts) -> str:
    return "fake tensors" if found.device_name is None else f"trials on {found.device_name}"
