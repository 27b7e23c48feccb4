"""`tputfind report`: read saved results, write and show them again."""

from collections.abc import Mapping, Sequence

import msgspec

from tputfind.commands.console import Given, finish
from tputfind.commands.outputs import read_places, record_sources
from tputfind.errors import BadRequest
from tputfind.readers.results import load
from tputfind.record.identity import question_of
from tputfind.record.record import Record, Records
from tputfind.record.result import Result
from tputfind.record.spec import Spec, read_spec
from tputfind.report.document import Document
from tputfind.report.outputs import MEASURED, Kind, check_places, forms
from tputfind.report.results import document_of
from tputfind.report.views import page
from tputfind.report.views import records as view


def main(given: Given, *, show_traceback: bool) -> int:
    places, records = read_places(given), given["records"]
    asked = {name: given[name] for name in ("slo", "percentile", "effective_batch") if given.get(name) is not None}
    if not records:
        raise BadRequest("no record to show", "tputfind report results/resnet50-fp16-nvidia-h200.json")
    every = [load(path) for path in records]
    read = Records(record for one in every for record in _records_in(one))
    others = [one for one in every if not isinstance(one, Record | Records)]
    if asked and not read:
        raise BadRequest(f"--{next(iter(asked)).replace('_', '-')} is for records of runs; none was named")
    answered = [_apply_request(record, asked) for record in read]
    document = _document(answered, [record.spec for record in read], others)
    first = read or every[0]  # the only result if JSON is among the forms
    made = forms(document)
    question = question_of(first) if first.KIND in MEASURED and "json" in made else None
    kind: Kind = first.KIND  # type: ignore[assignment]  # the KIND of each result is one of Kind
    outputs = check_places(places, record_sources(records), json=kind, question=question, forms=made)
    outputs.write(made)
    if show_traceback:
        kept = view.tracebacks(answered)
        document = msgspec.structs.replace(document, sections=(*document.sections, kept))
    return finish(document, outputs, show_traceback=show_traceback)


def _records_in(result: Result) -> Sequence[Record]:
    return [result] if isinstance(result, Record) else result if isinstance(result, Records) else ()


def _apply_request(record: Record, asked: Mapping[str, str]) -> Record:
    trains = "effective_batch" in asked
    if trains and record.spec.phase != "train":
        raise BadRequest(f"--effective-batch is for records of --phase train, which that of {record.spec.model} is not")
    try:
        spec = read_spec(record.spec.model, {**asked, **({"phase": "train"} if trains else {})})
    except BadRequest as problem:
        raise BadRequest(problem.message, "see tputfind report --help") from None
    fields = {"slo_ms" if name == "slo" else name for name in asked}
    changed = {name: getattr(spec, name) for name in fields}
    return msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, **changed))


def _document(records: Sequence[Record], asked: Sequence[Spec], others: Sequence[Result]) -> Document:
    """Return all results as one document, records first; its table, its plot and its page are those of the records."""
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
