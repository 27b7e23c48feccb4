"""The files that a result is saved in: their kind by the ending, checked before anything is measured for them."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tputfind.errors import BadRequest, TputfindError
from tputfind.record import files, identity
from tputfind.record.identity import Question
from tputfind.record.untrusted import indented
from tputfind.report.charts import draw
from tputfind.report.charts.chart import Chart
from tputfind.report.charts.draw import PLOT_MAKER
from tputfind.report.document import Defect, Document
from tputfind.report.renderers.csv import to_csv
from tputfind.report.renderers.html import to_html
from tputfind.report.renderers.markdown import to_markdown

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
"""Bytes at the beginning of a file in which it says what it is."""
_TEXT: Final = r'"(?:[^"\\]|\\.)*"'
"""A string of JSON."""
_TITLE: Final = r"\*\*[^\n]*\*\*\n\n"
_BEGINNINGS: Final[dict[Kind, tuple[str, ...]]] = {
    "csv": (
        r"model,phase,device,device_name,dtype,layout,mode,input_shape,batch_size,status,",
        r"model,recipe,device_name,status,rate_per_s,slo_ms,percentile,batcher,",
        r"model,dtype,layout,memory_gib,largest_batch_forecast,",
        r"model,device_name,batch_size,(?:way,condition|stage,way),mean_ms,",
        r"model,recipe,device_name,old_batch,new_batch,",
        r"model,recipe,batch_size,outcome,against,",
    ),
    "record": (r'\{\s*"schema":\s*\d+,\s*"method":\s*\d+,\s*"tputfind":\s*"',),
    "clocks": (r'\{\s*"kind":\s*"(?:methods|pipeline)",\s*"(?:schema":\s*\d+,\s*"method|tputfind)":',),
    "forecast": (r'\{\s*"kind":\s*"forecast",\s*"schema":\s*\d+,\s*"method":',),
    "comparison": (
        rf'\[\s*\{{\s*"model":\s*{_TEXT},\s*"recipe":\s*{_TEXT},\s*"device_name":\s*{_TEXT},\s*"old_started":',
    ),
    "race": (r'\{\s*"kind":\s*"race",\s*"goal":',),
    "plans": (
        rf'\{{\s*"plans":\s*\[\s*\{{\s*"model":\s*{_TEXT},\s*"recipe":\s*{_TEXT},\s*"device_name":\s*{_TEXT},\s*"demand":',
    ),
    "md": (
        rf"{_TITLE}\| *batch *\| *samples/s *\|",
        rf"{_TITLE}\| *batch *\| *OLD /s *\| *NEW /s *\|",
        rf"(?:## [^\n]*\n\n)?{_TITLE}(?:\| *\| *devices *\| *max batch *\| *each/s *\| *cost/h *\||- Devices: [0-9])",
        rf"{_TITLE}ms an? (?:batch|iteration): mean of \d",
        rf"{_TITLE}\| *variant *\| *ratio *\|",
        rf"{_TITLE}\| *memory *\| *largest batch, forecast *\|",
    ),
    "html": (r"<!DOCTYPE html>(?s:.{0,300})default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-",),
    "png": (rf"\x89PNG\r\n\x1a\n(?s:.{{0,200}})\0\0\0\x{len('Software ' + PLOT_MAKER):02x}tEXtSoftware\0{PLOT_MAKER}",),
    "svg": (rf"<\?xml (?s:.{{0,2000}})<metadata>(?s:.{{0,2000}})<dc:title>{PLOT_MAKER}</dc:title>",),
}
_OF_KIND: Final = {kind: re.compile("|".join(beginnings).encode()) for kind, beginnings in _BEGINNINGS.items()}

ENDINGS: Final = ("json", "csv", "md", "html", *draw.ENDINGS)
"""Every form that a file can have; of a result that is no record of a run, none is drawn."""
MEASURED: Final = ("record", "clocks", "forecast")
"""Kinds of JSON that hold measurements: what is lost with such a file cannot be made again from other files."""
_STDOUT: Final = Path("/dev/stdout")
_ABSENT: Final = {form: f"a .{form} holds one result, and several are asked for" for form in ("json", "csv")}
_NO_PLOT: Final = "this result has no plot"


def forms(document: Document) -> dict[str, Callable[[], bytes]]:
    """Return what makes each form that a document has, by the ending of its file."""
    found: dict[str, Callable[[], bytes]] = {}
    if document.source is not None:
        found["json"] = partial(indented, document.source)
    if document.data is not None:
        data = document.data
        found["csv"] = lambda: to_csv(data())
    found["md"] = partial(to_markdown, document)
    found["html"] = lambda: to_html(document.page() if document.page else document)
    if document.chart is not None:
        found |= {ending: partial(_image, document.chart, ending) for ending in draw.ENDINGS}
    return found


def _image(chart: Chart | Defect, ending: str) -> bytes:
    if isinstance(chart, Defect):
        raise chart.to_error()
    return draw.image(chart, ending)


class Places(NamedTuple):
    """Where a job writes: a folder for records and their CSV, which may be none, and single files.

    ``overwrite`` lets the single files replace what is no report of this tool's. ``called`` says in errors what named
    the files.
    """

    folder: Path | None = None
    files: tuple[str | os.PathLike[str], ...] = ()
    overwrite: bool = False
    called: str = "--save"


class Source(NamedTuple):
    """A file that a run reads, and what it is to the run."""

    what: str
    path: Path


class Output(NamedTuple):
    """A file that is to be written, what it is written for (an option, in most cases), its form, and its kind."""

    wanted_by: str
    path: Path
    form: str
    kind: Kind


class Outputs:
    """The files that a command writes, checked before anything is measured for them; one that fails costs no other.

    ``saved`` are those that were written, ``problems`` says which could not be.
    """

    def __init__(
        self, named: Sequence[Output], sources: Sequence[Source], question: Question, *, overwrite: bool
    ) -> None:
        """Take the outputs, what must not be written over, and what the JSON of measurements will answer."""
        self._named = named
        self._sources = list(sources)
        self._question = question
        self._overwrite = overwrite
        self.saved: list[str] = []
        self.problems: list[TputfindError] = []

    def check(self, output: Output) -> None:
        """Refuse an output that cannot be written, or would replace what it must not.

        Raises:
            BadRequest: what is in its way.
        """
        path = output.path
        files.check_writable(path)
        if files.descriptor_of(path) is not None or not path.is_file():
            return
        told = f"{output.wanted_by} {path}"
        for source in self._sources:
            if _same(path, source.path):
                raise BadRequest(f"{told} is {source.what}, and would be written over", "name another file")
        if self._overwrite:
            return
        hint = f"name another file, or give {'overwrite=True' if output.wanted_by == 'save' else '--overwrite'}"
        if not _may_be_replaced(path, output.kind):
            raise BadRequest(f"{told} is there already, and is no {NAMES[output.kind]} of tputfind's", hint)
        if output.kind in MEASURED and (differing := _unlike(path, self._question)):
            raise BadRequest(f"{told} holds another measurement: {differing}", hint)

    def check_all(self, table: Output | None = None) -> None:
        """Refuse what ``check`` does, and two that are the same file.

        Args:
            table: the CSV of a record that is gone on with. ``--save`` may name it too: it holds the same.

        Raises:
            BadRequest: which output, and what is in its way.
        """
        outputs = [*self._named, *([table] if table is not None else [])]
        for _ in range(2):  # once more, since a folder that was made for one may be where another is to lie
            for output in outputs:
                self.check(output)
        for one, other in combinations(outputs, 2):
            if _same(one.path, other.path) and (other is not table or one.kind != table.kind):
                raise BadRequest(f"{one.wanted_by} {one.path} and {other.wanted_by} {other.path} are the same file")

    def protect(self, sources: Iterable[Source]) -> None:
        """Keep more files from being written over."""
        self._sources += sources

    @property
    def uses_stdout(self) -> bool:
        """Whether a file takes the place of what is printed."""
        return any(output.path == _STDOUT for output in self._named)

    def write(
        self, forms: Mapping[str, Callable[[], bytes]], more: Iterable[tuple[Output, Callable[[], bytes]]] = ()
    ) -> None:
        """Make and write the files that were named, and more; what cannot be is among the problems afterwards.

        Args:
            forms: makes each form of the result; what was not asked for is not made.
            more: other outputs, which are written first.
        """
        for output, make in [*more, *((output, forms.get(output.form)) for output in self._named)]:
            if make is None:
                self.problems.append(BadRequest(f"{output.wanted_by} {output.path}: {_NO_PLOT}"))
                continue
            try:
                self._write(output, make())
            except TputfindError as problem:
                if output.path != _STDOUT or not isinstance(problem.__context__, BrokenPipeError):  # nobody reads on
                    self.problems.append(problem)
            except Exception as defect:  # of ours, or of a library: the other files are written
                self.problems.append(Defect(str(output.path), defect).to_error())

    def _write(self, output: Output, data: bytes) -> None:
        """Write a file, unless it became one that must not be written over since it was checked."""
        if files.descriptor_of(output.path) is not None or not _holds(output.path, data):
            self.check(output)
            files.write_whole(output.path, data)
        if output.path != _STDOUT:
            self.saved.append(str(output.path))


def check_places(
    places: Places,
    sources: Sequence[Source] = (),
    *,
    json: Kind = "record",
    question: Question | None = None,
    forms: Iterable[str] | None = None,
    table: Output | None = None,
) -> Outputs:
    """Return the outputs of a command, after checking that each can and may be written.

    Args:
        places: what is to be written.
        sources: what is read.
        json: what JSON holds.
        question: what that answers if it is a measurement, which replaces none that answers another question.
        forms: the forms that the result will have, if that is not every one that such a result can have.
        table: the CSV of a record that is gone on with, or None.

    Raises:
        BadRequest: an output cannot be written, or would be written over what must be kept.
    """
    drawn = draw.ENDINGS if json == "record" else ()
    can_be = [form for form in forms or ENDINGS if form in drawn or form not in draw.ENDINGS]
    named = [_output(places.called, place, can_be, json) for place in places.files]
    for output in named:
        if drawn and output.form in ("html", *drawn):  # pages of other results have no plots
            draw.check_installed(f"{output.wanted_by} {output.path}")
    outputs = Outputs(named, sources, question or Question(), overwrite=places.overwrite)
    if places.folder is not None:
        files.check_folder(places.folder)
    outputs.check_all(table)
    return outputs


def _output(called: str, place: str | os.PathLike[str], can_be: Sequence[str], json: Kind) -> Output:
    """Return what is to be written at a place, ``-.csv`` being the CSV on the standard output.

    Raises:
        BadRequest: it is no place, or its ending is none of a form that the result can have.
    """
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


def _same(one: Path, other: Path) -> bool:
    """Whether two names are of the same file, or will be."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return one.samefile(other)
    except OSError:  # one of them is missing
        return False


def is_report(path: Path, kind: Kind) -> bool:
    """Return whether a file is a report of this kind that this tool wrote.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return _OF_KIND[kind].match(file.read(_LOOKED_AT_BYTES)) is not None


def _may_be_replaced(path: Path, kind: Kind) -> bool:
    """Whether a file that is there is empty, or a report of the kind that is to be written."""
    try:
        return path.stat().st_size == 0 or is_report(path, kind)
    except OSError:  # what cannot be read is not known to be ours
        return False


def _unlike(path: Path, question: Question) -> str:
    """Return in what the measurement in a file differs from one that answers a question; empty if in nothing."""
    if path.stat().st_size == 0:
        return ""
    try:
        found = files.load(path)
    except TputfindError as unreadable:
        return unreadable.message
    return "; ".join(identity.unlike_questions(identity.question_of(found), question))


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def table_of(record: Path) -> Output:
    """Return the CSV that lies beside a record."""
    return Output("the record's CSV", record.with_suffix(".csv"), "csv", "csv")
