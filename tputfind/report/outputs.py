"""The files of a result: their kind follows from the ending; all are checked before anything is measured."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tputfind.analysis.compare import decode_comparisons
from tputfind.analysis.race import decode_race
from tputfind.errors import BadRequest, TputfindError
from tputfind.record import files, identity
from tputfind.record.identity import Question
from tputfind.record.untrusted import indent_json
from tputfind.report.charts import draw
from tputfind.report.charts.chart import Chart
from tputfind.report.charts.draw import PLOT_MAKER
from tputfind.report.document import Defect, Document
from tputfind.report.renderers.csv import render_csv
from tputfind.report.renderers.html import render_html
from tputfind.report.renderers.markdown import render_markdown

Kind = Literal["csv", "record", "clocks", "forecast", "comparison", "race", "plans", "md", "html", "png", "svg"]

NAMES: Final[dict[Kind, str]] = {
    "csv": "CSV",
    "record": "record",
    "clocks": "JSON of clocks",
    "forecast": "JSON of forecasts",
    "comparison": "JSON of comparisons",
    "race": "JSON of a race",
    "plans": "JSON of plans",
    "md": "Markdown",
    "html": "page",
    "png": "PNG plot",
    "svg": "SVG plot",
}
_LOOKED_AT_BYTES: Final = 2**16
_TEXT: Final = r'"(?:[^"\\]|\\.)*"'
_TITLE: Final = r"(?:## [^\n]*\n\n(?:\*\*[^\n]*\*\*\n\n)?|\*\*[^\n]*\*\*\n\n)"
"""A heading, a title, or both; the table of the first of several races follows its heading."""
_ANSWER: Final = "(?:Devices|Verdict|Highest rate|Target)"
"""The label of the first answer of a plan."""
_BEGINNINGS: Final[dict[Kind, tuple[str, ...]]] = {
    "csv": (
        r"model,phase,device,device_name,dtype,layout,mode,input_shape,batch_size,status,",
        r"model,recipe,device_name,status,rate_per_s,slo_ms,percentile,batcher,",
        r"model,dtype,layout,memory_gib,largest_batch_forecast,",
        r"model,device_name,batch_size,(?:way,condition|stage,way),mean_ms,",
        r"model,recipe,device_name,old_batch,new_batch,",
        r"model,recipe,batch_size,outcome,against,",
    ),
    "record": (r'(?:\[\s*)?\{\s*"schema":\s*\d+,\s*"method":\s*\d+,\s*"tputfind":\s*"',),
    "clocks": (r'\{\s*"kind":\s*"(?:methods|pipeline)",\s*"schema":\s*\d+,\s*"method":',),
    "forecast": (r'\{\s*"kind":\s*"forecast",\s*"schema":\s*\d+,\s*"method":',),
    "comparison": (
        rf'\[\s*\{{\s*"model":\s*{_TEXT},\s*"recipe":\s*{_TEXT},\s*"device_name":\s*{_TEXT},\s*"old_started":',
    ),
    "race": (r'\{\s*"kind":\s*"race",\s*"schema":\s*\d+,\s*"method":',),
    "plans": (
        rf'\{{\s*"plans":\s*\[\s*\{{\s*"model":\s*{_TEXT},\s*"recipe":\s*{_TEXT},\s*"device_name":\s*{_TEXT},\s*"demand":',
    ),
    "md": (
        rf"{_TITLE}\| *batch *\| *samples/s *\|",
        rf"{_TITLE}\| *batch *\| *OLD /s *\| *NEW /s *\|",
        rf"{_TITLE}(?:\| *\| *devices *\| *max batch *\| *each/s *\| *cost/h *\||- {_ANSWER}: [0-9])",
        rf"{_TITLE}ms an? (?:batch|iteration): mean of \d",
        rf"{_TITLE}\| *variant *\| *(?:of winner|ratio|against|samples/s|seconds|outcome) *\|",
        rf"{_TITLE}\| *device memory *\| *largest batch, forecast *\|",
    ),
    "html": (r"<!DOCTYPE html>(?s:.{0,300})default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-",),
    "png": (rf"\x89PNG\r\n\x1a\n(?s:.{{0,200}})\0\0\0\x{len('Software ' + PLOT_MAKER):02x}tEXtSoftware\0{PLOT_MAKER}",),
    "svg": (rf"<\?xml (?s:.{{0,2000}})<metadata>(?s:.{{0,2000}})<dc:title>{PLOT_MAKER}</dc:title>",),
}
_OF_KIND: Final = {kind: re.compile("|".join(beginnings).encode()) for kind, beginnings in _BEGINNINGS.items()}

ENDINGS: Final = ("json", "csv", "md", "html", *draw.ENDINGS)
_DRAWN: Final = ("record", "race")
MEASURED: Final = ("record", "clocks", "forecast", "comparison", "race")
"""Kinds of JSON that hold measurements, which cannot be made again from other files; comparisons of records do not."""
_STDOUT: Final = Path("/dev/stdout")
_ABSENT: Final = {form: f"a .{form} holds one result, and several are asked for" for form in ("json", "csv")}
_NO_PLOT: Final = "this result has no plot"


def forms(document: Document) -> dict[str, Callable[[], bytes]]:
    """Return the functions that make each available form of a document, by file ending."""
    found: dict[str, Callable[[], bytes]] = {}
    if document.source is not None:
        found["json"] = partial(indent_json, document.source)
    if document.data is not None:
        data = document.data
        found["csv"] = lambda: render_csv(data())
    found["md"] = partial(render_markdown, document)
    found["html"] = lambda: render_html(document.page() if document.page else document)
    if document.chart is not None:
        found |= {ending: partial(_image, document.chart, ending) for ending in draw.ENDINGS}
    return found


def _image(chart: Chart | Defect, ending: str) -> bytes:
    if isinstance(chart, Defect):
        raise chart.make_error()
    return draw.image(chart, ending)


class Places(NamedTuple):
    """The files that a job writes, and a folder for records and their CSV; ``called`` names the option in errors."""

    folder: Path | None = None
    files: tuple[str | os.PathLike[str], ...] = ()
    overwrite: bool = False
    called: str = "--save"


class Source(NamedTuple):
    """A file that a run reads, and its role."""

    what: str
    path: Path


class Output(NamedTuple):
    """A file to write, the option that requests it (in most cases), its form, and its kind."""

    wanted_by: str
    path: Path
    form: str
    kind: Kind


class Outputs:
    """The output files of a command: those ``saved``, and the ``problems`` of others; none may overwrite a source."""

    def __init__(
        self, named: Sequence[Output], sources: Sequence[Source], question: Question, *, overwrite: bool
    ) -> None:
        self._named = named
        self._sources = list(sources)
        self._question = question
        self._overwrite = overwrite
        self.saved: list[str] = []
        self.problems: list[TputfindError] = []

    def check(self, output: Output) -> None:
        """Raise BadRequest, which says why, if an output cannot be written, or would replace a protected file."""
        path = output.path
        files.check_writable(path)
        if files.descriptor_of(path) is not None or not path.is_file():
            return
        told = f"{output.wanted_by} {path}"
        for source in self._sources:
            if _is_same_file(path, source.path):
                raise BadRequest(f"{told} is {source.what}, and would be written over", "name another file")
        if self._overwrite:
            return
        hint = f"name another file, or give {'overwrite=True' if output.wanted_by == 'save' else '--overwrite'}"
        if not _is_replaceable(path, output.kind):
            raise BadRequest(f"{told} exists, and is not a {NAMES[output.kind]} of tputfind's", hint)
        if output.kind in MEASURED and (differing := _unlike(path, output.kind, self._question)):
            raise BadRequest(f"{told} holds another measurement: {differing}", hint)

    def check_all(self, table: Output | None = None) -> None:
        """Raise BadRequest for outputs that ``check`` refuses or that share a file, except that of the ``table``."""
        outputs = [*self._named, *([table] if table is not None else [])]
        for _ in range(2):  # twice, since a folder made for one output may be at the path of another
            for output in outputs:
                self.check(output)
        for one, other in combinations(outputs, 2):
            if _is_same_file(one.path, other.path) and (other is not table or one.kind != table.kind):
                raise BadRequest(f"{one.wanted_by} {one.path} and {other.wanted_by} {other.path} are the same file")

    def protect(self, sources: Iterable[Source]) -> None:
        self._sources += sources

    @property
    def uses_stdout(self) -> bool:
        return any(output.path == _STDOUT for output in self._named)

    def write(
        self, forms: Mapping[str, Callable[[], bytes]], more: Iterable[tuple[Output, Callable[[], bytes]]] = ()
    ) -> None:
        """Make the requested forms of the result, and write them after ``more``; failures are added to ``problems``."""
        for output, make in [*more, *((output, forms.get(output.form)) for output in self._named)]:
            if make is None:
                self.problems.append(BadRequest(f"{output.wanted_by} {output.path}: {_NO_PLOT}"))
                continue
            try:
                self._write(output, make())
            except TputfindError as problem:
                if output.path != _STDOUT or not isinstance(problem.__context__, BrokenPipeError):  # closed pipe
                    self.problems.append(problem)
            except Exception as defect:  # of ours, or of a library: the other files are still written
                self.problems.append(Defect(str(output.path), defect).make_error())

    def _write(self, output: Output, data: bytes) -> None:
        if files.descriptor_of(output.path) is not None or not _has_content(output.path, data):
            try:
                self._note_device(output, data)
                self.check(output)
            except BadRequest as refused:
                if output.kind not in MEASURED:
                    raise
                beside = files.write_new(output.path.parent, output.path.stem, data)
                self.saved.append(str(beside))
                raise BadRequest(f"{refused.message}; this one is in {beside}", refused.hint) from None
            files.write_whole(output.path, data)
        if output.path != _STDOUT:
            self.saved.append(str(output.path))

    def _note_device(self, output: Output, data: bytes) -> None:
        """Note the device of a measurement that is to replace another, which was not known before."""
        if output.kind in MEASURED and output.path.is_file() and not self._question.any_device:
            with suppress(TputfindError):
                made = _question_in(data, str(output.path), output.kind)
                self._question = self._question._replace(device_name=made.device_name)


def check_places(
    places: Places,
    sources: Sequence[Source] = (),
    *,
    json: Kind = "record",
    question: Question | None = None,
    forms: Iterable[str] | None = None,
    table: Output | None = None,
) -> Outputs:
    """Return the outputs of a command that reads the ``sources``, after checking that each can and may be written.

    A measurement replaces only measurements of the same ``question``. The result has by default all ``forms`` that its
    kind of JSON allows. ``table`` is the CSV of a resumed record.
    """
    drawn = draw.ENDINGS if json in _DRAWN else ()
    can_be = [form for form in forms or ENDINGS if form in drawn or form not in draw.ENDINGS]
    named = [_output(places.called, place, can_be, json) for place in places.files]
    for output in named:
        if drawn and output.form in ("html", *drawn):  # pages of other results have no plots
            draw.require_matplotlib(f"{output.wanted_by} {output.path}")
    outputs = Outputs(named, sources, question or Question(), overwrite=places.overwrite)
    if places.folder is not None:
        files.check_folder(places.folder)
    outputs.check_all(table)
    return outputs


def _output(called: str, place: str | os.PathLike[str], can_be: Sequence[str], json: Kind) -> Output:
    """Return the output at a path; ``-.csv`` is the CSV on standard output."""
    path = files.path_of(called, place)
    if str(place).endswith("/"):
        raise BadRequest(f"cannot write {place}: it is a folder")
    form = path.suffix.lower().removeprefix(".")
    if form not in can_be:
        endings = f"{', '.join(f'.{each}' for each in can_be[:-1])} or .{can_be[-1]}"
        if form in ENDINGS:
            raise BadRequest(f"{called} {path}: {_ABSENT.get(form, _NO_PLOT)}", f"it can be {endings}")
        on_stdout = (
            "-.csv is a CSV on the standard output" if str(path) == "-" or path.parts[:2] == ("/", "dev") else ""
        )
        raise BadRequest(f"{called} {path}: the ending says what is written: {endings}", on_stdout)
    kind: Kind = json if form == "json" else form  # type: ignore[assignment]  # the other forms are kinds
    return Output(called, _STDOUT if os.fspath(place) == f"-{path.suffix}" else path, form, kind)


def _is_same_file(one: Path, other: Path) -> bool:
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return one.samefile(other)
    except OSError:  # one of them is missing
        return False


def is_report(path: Path, kind: Kind) -> bool:
    """Return whether a file is a report of this kind that this tool wrote; raise OSError if it cannot be read."""
    with path.open("rb") as file:
        return _OF_KIND[kind].match(file.read(_LOOKED_AT_BYTES)) is not None


def _is_replaceable(path: Path, kind: Kind) -> bool:
    try:
        return path.stat().st_size == 0 or is_report(path, kind)
    except OSError:  # an unreadable file may be anybody's
        return False


def _unlike(path: Path, kind: Kind, question: Question) -> str:
    if path.stat().st_size == 0:
        return ""
    try:
        found = _question_in(files.content(path), str(path), kind)
    except TputfindError as unreadable:
        return unreadable.message
    return "; ".join(identity.unlike_questions(found, question)) if found.specs else ""


def _question_in(data: bytes, name: str, kind: Kind) -> Question:
    """Return the question of a measurement from its JSON; raise BadRecord, with this name, if there is none."""
    return identity.question_of(_DECODED.get(kind, files.decode)(data, name))


_DECODED: Final[dict[Kind, Callable[[bytes, str], object]]] = {"comparison": decode_comparisons, "race": decode_race}


def _has_content(path: Path, data: bytes) -> bool:
    try:
        return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def table_of(record: Path) -> Output:
    return Output("the record's CSV", record.with_suffix(".csv"), "csv", "csv")
