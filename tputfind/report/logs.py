"""What logs of a real server tell: its overheads, and each log beside what was predicted of it."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from tputfind.report.tables import new_table
from tputfind.sizing.calibration.logs import Observed
from tputfind.units import format_figure

TITLE: Final = "Predicted with these overheads, and observed"


def told(observed: Observed) -> str:
    """Say what a server adds, with intervals, and what that is known from."""
    each = {
        "a batch": observed.per_batch,
        "a request": observed.per_request,
        "an answer": observed.per_answer,
        "on the way": observed.beside,
    }
    added = [
        f"{one.value_ms:.3g} ms {words} ({one.low_ms:.3g} to {one.high_ms:.3g})"
        for words, one in each.items()
        if one.high_ms > 0
    ]
    return f"{', '.join(added)}; by {observed.found_by}"


def table(observed: Observed) -> Table:
    """Return percentiles of every log beside those predicted."""
    made = new_table()
    made.add_column("", no_wrap=True)
    for name in ("requests/s", "utilization %", "", "p50 ms", "p95 ms", "p99 ms"):
        made.add_column(name, justify="right", no_wrap=True)
    for run in observed.runs:
        rate, load = format_figure(run.rate_per_s), f"{100 * run.load:.0f}"
        for word, figures in (("observed", run.observed), ("predicted", run.predicted)):
            cells = (format_figure(value) for value in (figures.p50_ms, figures.p95_ms, figures.p99_ms))
            made.add_row(Text(run.name), rate, load, word, *cells)
        off = (f"{100 * share:+.1f} %" for share in run.off)
        made.add_row(Text(run.name), rate, load, "off, fitted" if run.fitted else "off", *off)
    return made
