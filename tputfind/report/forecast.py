"""Forecasts for a terminal, as Markdown and as CSV; each says of every figure that it is a forecast."""

from __future__ import annotations

import csv
import io

from rich.console import Console
from rich.table import Table

from tputfind.record.forecast import Forecasts
from tputfind.record.types import LARGEST_BATCH
from tputfind.report.escaping import markdown_bytes, spreadsheet_text
from tputfind.report.markdown import markdown_of
from tputfind.report.tables import new_table
from tputfind.report.terminal import print_line, print_table
from tputfind.units import GIB, format_bytes, format_share

_COLUMNS = (
    "model",
    "dtype",
    "layout",
    "memory_gib",
    "largest_batch_forecast",
    "error_percent",
    "forecast_from",
    "batches_tried",
)
_FROM_TRIALS = "90 % of forecasts were this close on a device of this kind; on another, libraries may use other kernels"
_ON_FAKE = "39 of 39 forecasts were this close to an H200's result; what libraries take for themselves is not in it"


def print_forecasts(found: Forecasts, console: Console) -> None:
    """Print the table, and what it rests on."""
    print_table(_table(found), console, _title(found))
    console.print()
    for line in _rests_on(found):
        print_line(line, console)


def to_markdown(found: Forecasts) -> bytes:
    """Return the table, and what it rests on, as Markdown."""
    table = markdown_of(_table(found))
    return markdown_bytes([f"**{_title(found)}**", "", *table, "", *(f"- {line}" for line in _rests_on(found))])


def _title(found: Forecasts) -> str:
    spec = found.spec
    return f"{spec.model} {spec.dtype} {spec.layout}: forecast, not measured"


def _table(found: Forecasts) -> Table:
    table = new_table()
    for name in ("memory", "largest batch, forecast", "give or take"):
        table.add_column(name, justify="right", no_wrap=True)
    for card in found.cards:
        error = format_share(card.error) if 0 < card.largest_batch < LARGEST_BATCH else ""
        words = {0: "none fits", LARGEST_BATCH: "no end in sight"}
        table.add_row(format_bytes(card.memory_bytes), words.get(card.largest_batch, str(card.largest_batch)), error)
    return table


def _rests_on(found: Forecasts) -> tuple[str, str]:
    tried = ", ".join(map(str, found.tried))
    return f"from {_source(found)}, batch {tried}", _ON_FAKE if found.device_name is None else _FROM_TRIALS


def to_csv(found: Forecasts) -> bytes:
    """Return one line for each size of memory."""
    paper = io.StringIO()
    writer = csv.writer(paper, lineterminator="\n")
    writer.writerow(_COLUMNS)
    spec, tried = found.spec, " ".join(map(str, found.tried))
    for card in found.cards:
        size, batch, error = f"{card.memory_bytes / GIB:g}", str(card.largest_batch), f"{100 * card.error:g}"
        if card.largest_batch == LARGEST_BATCH:
            batch = error = ""
        model, source = spreadsheet_text(spec.model), spreadsheet_text(_source(found))
        writer.writerow((model, spec.dtype, spec.layout, size, batch, error, source, tried))
    return paper.getvalue().encode()


def _source(found: Forecasts) -> str:
    return "fake tensors" if found.device_name is None else f"trials on {found.device_name}"
