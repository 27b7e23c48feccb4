"""What one `tputfind report` asks: records read, written and shown again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from tputfind import files
from tputfind.errors import BadRequest, TputfindError
from tputfind.job import terminal_that_may_be_gone
from tputfind.places import Places, check_apart, check_places
from tputfind.record import Record
from tputfind.spec import read_spec


class Request(NamedTuple):
    """What to show, and where to write it."""

    records: list[Record]
    places: Places


def read_request(records: Sequence[str], places: Places, *, slo: str | None, percentile: str | None) -> Request:
    """Return the request that a command line describes, with all records read.

    Args:
        records: files that runs of the tool saved.
        places: files to write.
        slo: the latency to name the best batch under, or None for what the record was asked with.
        percentile: of that latency, or None.

    Raises:
        BadRequest: an option is wrong, or a file to write is one of the records.
        BadRecord: a file is no record.
    """
    if not records:
        raise BadRequest("no record to show", "tputfind report results/resnet50-fp16-nvidia-h200.json")
    check_places(places, None, 1)
    read = [files.load_record(path) for path in records]
    check_apart(places, records)
    return Request([_with(record, slo, percentile) for record in read], places)


def _with(record: Record, slo: str | None, percentile: str | None) -> Record:
    """Return the record as if it had been asked with this latency."""
    asked = read_spec(record.spec.model, {"slo": slo, "percentile": percentile})
    return msgspec.structs.replace(
        record,
        spec=msgspec.structs.replace(
            record.spec,
            slo_ms=record.spec.slo_ms if slo is None else asked.slo_ms,
            percentile=record.spec.percentile if percentile is None else asked.percentile,
        ),
    )


def do(request: Request, *, show_traceback: bool) -> int:  # noqa: ARG001  # as of every command
    """Write, show, and return the exit code."""
    from tputfind.report import page, plots, series, table, terminal

    places, records = request.places, request.records
    ending = Path(places.plot or "").suffix.lower().removeprefix(".")
    wanted: list[tuple[str | None, Callable[[], bytes]]] = [
        (places.csv, partial(table.to_csv, records)),
        (places.md, partial(terminal.to_markdown, records)),
        (places.html, partial(page.to_html, records)),
        (places.plot, lambda: plots.image(series.throughput(records), ending)),
    ]
    for path, written in wanted:
        if path:
            files.write_whole(Path(path), written())
    problems: list[TputfindError] = []
    with terminal_that_may_be_gone(problems):
        terminal.print_report(records, Console())
    return problems[0].exit_code if problems else 0
