"""What one `tputfind report` asks: records read, written and shown again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tputfind.commands.console import Given, finish
from tputfind.commands.outputs import read_places, record_sources
from tputfind.errors import BadRequest
from tputfind.readers.results import load
from tputfind.record.clocks import Methods, Pipeline
from tputfind.record.forecast import Forecasts
from tputfind.record.identity import question_of
from tputfind.record.record import Record
from tputfind.record.result import Result
from tputfind.record.spec import Spec, read_spec
from tputfind.report.document import Document
from tputfind.report.kinds import Kind
from tputfind.report.outputs import check_places
from tputfind.report.renderers.files import forms
from tputfind.report.results import document_of
from tputfind.report.views import page
from tputfind.report.views import records as view


def main(given: Given, *, show_traceback: bool) -> int:
    """Show what was given again, write, and return the exit code.

    Raises:
        BadRequest: an option is wrong or of no use, or a file to write is one of the records.
        BadRecord: a file is no record.
    """
    places, records, slo, percentile = read_places(given), given["records"], given["slo"], given["percentile"]
    if not records:
        raise BadRequest("no record to show", "tputfind report results/resnet50-fp16-nvidia-h200.json")
    every = [load(path) for path in records]
    read = [one for one in every if isinstance(one, Record)]
    others = [one for one in every if not isinstance(one, Record)]
    named = [name for name, value in (("slo", slo), ("percentile", percentile)) if value is not None]
    if named and not read:
        raise BadRequest(f"--{named[0]} is for records of runs, and none was named")
    answered = [_with(record, slo, percentile) for record in read]
    document = _document(answered, [record.spec for record in read], others)
    first = every[0]  # the only one if JSON is among the forms
    question = question_of(first) if isinstance(first, Record | Methods | Pipeline | Forecasts) else None
    kind: Kind = "record" if read else first.KIND  # type: ignore[assignment]  # each result's is one
    outputs = check_places(places, record_sources(records), json=kind, question=question, forms=forms(document))
    outputs.write(forms(document))
    if show_traceback:
        kept = view.tracebacks(answered)
        document = msgspec.structs.replace(document, sections=(*document.sections, kept))
    return finish(document, outputs, show_traceback=show_traceback)


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


def _document(records: Sequence[Record], asked: Sequence[Spec], others: Sequence[Result]) -> Document:
    """Return all that was read as one document: records, measured with what was asked, then what other commands saved.

    Its table, its plot and its page are those of the records.
    """
    of_others = [document_of(one) for one in others]
    parts = [view.document(records, asked), *of_others] if records else of_others
    if len(parts) == 1:
        return parts[0]
    together = Document(title=f"{len(parts)} results", sections=tuple(parts))
    if not records:
        return together

    def whole_page() -> Document:
        of_records = page.document(records, asked)
        return msgspec.structs.replace(of_records, sections=(*of_records.sections, *of_others))

    return msgspec.structs.replace(together, data=parts[0].data, chart=parts[0].chart, page=whole_page)
