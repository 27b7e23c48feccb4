"""What one `tputfind report` asks: records read, written and shown again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from tputfind.commands.console import Given, finish
from tputfind.commands.outputs import Outputs, Places, check_places, records_read, taken_from
from tputfind.errors import BadRequest
from tputfind.record import files
from tputfind.record.clocks import Methods, Pipeline
from tputfind.record.forecast import Forecasts
from tputfind.record.record import Record
from tputfind.record.spec import Spec, read_spec
from tputfind.report.document import Document


def main(given: Given, *, show_traceback: bool) -> int:
    """Do what was given, and return the exit code.

    Raises:
        TputfindError: why it cannot be done.
    """
    places = taken_from(given)
    return do(read_request(given.pop("records"), places, **given), show_traceback=show_traceback)


class Request(NamedTuple):
    """What to show, and where to write it."""

    records: list[Record]
    """With the latency that the best batch is to be named under."""
    others: list[Methods | Pipeline | Forecasts]
    """What ``tputfind clocks`` and ``tputfind forecast`` saved."""
    asked: list[Spec]
    """What they were measured with."""
    outputs: Outputs
    plot: str
    """The ending of the plot's name, which says what is drawn."""


def read_request(records: Sequence[str], places: Places, *, slo: str | None, percentile: str | None) -> Request:
    """Return the request that a command line describes, with all records read.

    Args:
        records: files that runs of the tool saved.
        places: files to write.
        slo: the latency to name the best batch under, or None for what the record was asked with.
        percentile: of that latency, or None.

    Raises:
        BadRequest: an option is wrong or of no use, or a file to write is one of the records.
        BadRecord: a file is no record.
    """
    if not records:
        raise BadRequest("no record to show", "tputfind report results/resnet50-fp16-nvidia-h200.json")
    every = [files.load(path) for path in records]
    read = [one for one in every if isinstance(one, Record)]
    others = [one for one in every if not isinstance(one, Record)]
    of_runs = {"csv": places.csv, "plot": places.plot, "slo": slo, "percentile": percentile}
    named = [name for name, value in of_runs.items() if value is not None]
    if others and not read and named:
        raise BadRequest(
            f"--{named[0]} is for records of runs, and none was named", "--md and --html write what is shown"
        )
    answered = [_with(record, slo, percentile) for record in read]
    ending = Path(places.plot or "").suffix.lower().removeprefix(".")
    asked = [record.spec for record in read]
    outputs = check_places(
        places, records_read(records), json="record" if read else "clocks"
    )  # only records have plots
    return Request(answered, others, asked, outputs, ending)


def _with(record: Record, slo: str | None, percentile: str | None) -> Record:
    """Return the record as if it had been asked with this latency."""
    try:
        asked = read_spec(record.spec.model, {"slo": slo, "percentile": percentile})
    except BadRequest as problem:
        raise BadRequest(problem.message, "see tputfind report --help") from None
    return msgspec.structs.replace(
        record,
        spec=msgspec.structs.replace(
            record.spec,
            slo_ms=record.spec.slo_ms if slo is None else asked.slo_ms,
            percentile=record.spec.percentile if percentile is None else asked.percentile,
        ),
    )


def do(request: Request, *, show_traceback: bool) -> int:
    """Write, show, and return the exit code."""
    from tputfind.report.charts import charts, draw
    from tputfind.report.renderers.csv import to_csv
    from tputfind.report.renderers.markdown import to_markdown
    from tputfind.report.views import records as view

    records, outputs = request.records, request.outputs
    contents: dict[str, Callable[[], bytes]] = {
        "csv": lambda: to_csv(view.data(records)),
        "md": lambda: to_markdown(_document(request)),
        "html": lambda: _to_html(request),
        "plot": lambda: draw.image(charts.throughput(records), request.plot),
    }
    outputs.write(contents)
    show = partial(_show, request, tracebacks=show_traceback)
    return finish(show, outputs.problems, show_traceback=show_traceback)


def _document(request: Request, *, tracebacks: bool = False) -> Document:
    """Return all that was read as one document: records, then what other commands saved."""
    from tputfind.report.views import records as view

    parts = [view.document(request.records)] if request.records else []
    parts += _others(request)
    parts += [view.tracebacks(request.records)] if tracebacks else []
    return parts[0] if len(parts) == 1 else Document(title=f"{len(parts)} results", sections=tuple(parts))


def _others(request: Request) -> list[Document]:
    from tputfind.report.views import clocks, forecast

    return [forecast.document(one) if isinstance(one, Forecasts) else clocks.document(one) for one in request.others]


def _to_html(request: Request) -> bytes:
    from tputfind.report.renderers.html import to_html
    from tputfind.report.views import page

    if not request.records:
        return to_html(_document(request))
    of_records = page.document(request.records, request.asked)
    sections = (*of_records.sections, *_others(request))
    return to_html(msgspec.structs.replace(of_records, sections=sections))


def _show(request: Request, *, tracebacks: bool) -> None:
    from tputfind.report.renderers.terminal import print_document

    print_document(_document(request, tracebacks=tracebacks), Console())
