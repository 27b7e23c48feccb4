"""The page of records: the batch to deploy, the plots, every row, the notices, and the conditions of measurement."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from tputfind.analysis import answers, recipes
from tputfind.analysis.fleet import group_by
from tputfind.analysis.notices import shown_notices
from tputfind.analysis.notices.words import cut_in_the_middle
from tputfind.record import identity
from tputfind.record.record import Failure, Record, Row
from tputfind.record.spec import Spec
from tputfind.record.types import Phase
from tputfind.report import columns, text
from tputfind.report.charts import charts as series
from tputfind.report.charts.chart import names_of, title_of
from tputfind.report.document import (
    Answers,
    Cell,
    Charts,
    Code,
    Column,
    Defect,
    Document,
    Link,
    Notices,
    Section,
    Seen,
    Table,
    Tile,
    Tiles,
    Warned,
    attempt,
    count,
    figure,
    sections_of,
    table,
    without_blanks,
)
from tputfind.report.views import fleet
from tputfind.stats import percentile
from tputfind.units import format_amount, format_bytes, format_seconds, format_width

_LONGEST_TRACEBACK: Final = 4000
_MOST_TRACEBACKS: Final = 10
_MOST_LINES: Final = 400
"""Maximum lines of a table; keeps a page under 1 MB."""
_LONGEST_MESSAGE: Final = 200
_BESIDE: Final = ("samples/s", "± %", "p50 ms")
Named = Sequence[tuple[str, Record]]
"""Records, each with its distinguishing name; the name is empty if there is a single record."""
Facts = dict[str, str]


def document(records: Sequence[Record], asked: Sequence[Spec] | None = None) -> Document:
    """Return the page of one or several records; ``asked`` are their specs if answers are to other ones."""
    named = list(zip(names_of(records) if len(records) > 1 else [""], records, strict=True))
    noticed = attempt("the notices", lambda: tuple(_notices(named)))
    warned = () if isinstance(noticed, Defect) else noticed
    notices: tuple[Section, ...] = (noticed,) if isinstance(noticed, Defect) else (Notices(noticed),) if noticed else ()
    return Document(
        title=title_of(records),
        sections=(
            _part("Answers", "answers", lambda: _opening(named, warned)),
            _part("Plots", "plots", lambda: _plots(records), "Nothing was measured that could be drawn."),
            _part("Batch sizes", "rows", lambda: _if_nonempty(rows_table(named)), "No batch size was timed."),
            _part("Notices", "notices", lambda: notices, "There are none."),
            _part("How it was measured", "measured", lambda: _measured_sections(named, asked)),
        ),
    )


def _part(title: str, name: str, make: Callable[[], Iterable[Section]], if_none: str = "") -> Document:
    """Return a part of a page, or the defect that prevented it; ``if_none`` is its text if there are no sections."""
    sections = sections_of(title.lower(), make)
    return Document(title=title, name=name, sections=sections, lead="" if sections else if_none)


def _plots(records: Sequence[Record]) -> Iterator[Charts]:
    if drawn := tuple(series.charts(records)):
        yield Charts(drawn)


def _if_nonempty(made: Table) -> tuple[Table, ...]:
    return (made,) if made.rows else ()


def _opening(named: Named, warned: Sequence[Warned]) -> Iterator[Section]:
    """Yield the answers: in tiles, in a table if there are several records, and in words."""
    records = [record for _, record in named]
    tiles, several = groups(records), len(records) > 1
    yield from tiles
    if warned:
        how_many = "One notice" if len(warned) == 1 else f"{len(warned)} notices"
        kinds = ", ".join(dict.fromkeys(notice.kind for notice in warned))
        yield Link(name="notices", text=f"{how_many} about these figures", more=f": {kinds}")
    if several:
        yield side_by_side(named)
        yield from _recipe_parts(records)
        yield from fleet.documents(records)
    of_each = tuple(_answers(record, several=several, in_tiles=bool(tiles)) for record in records)
    yield from [Document(title="Answers of each record", folded=True, sections=of_each)] if several else of_each


def _recipe_parts(records: Sequence[Record]) -> Iterator[Document]:
    for of_model in text.models_in_recipes(records):
        if found := tuple(recipes.answers(of_model)):
            code = Code(tuple(text.code(of_model)), "python")
            folded = Document(title="Python that runs the best recipe", folded=True, sections=(code,))
            sections: tuple[Section, ...] = (Answers(found), folded) if code.lines else (Answers(found),)
            yield Document(title=text.recipes_title(of_model), sections=sections)


def _answers(record: Record, *, several: bool, in_tiles: bool) -> Document:
    """Return the answers of a record, without the batch to deploy if the page opens with that."""
    state = [] if record.finished else [("Unfinished", "the run was cut short, or still goes on")]
    found = [one for one in text.summary(record) if several or not in_tiles or one[0] not in text.TO_USE.values()]
    return Document(title=text.title(record) if several else "", sections=(Answers((*state, *found)),))


def _measured_sections(named: Named, asked: Sequence[Spec] | None) -> Iterator[Section]:
    """Yield the differences between records, then, on demand, trials, commands, and the facts in common."""
    differing, same = facts(named, asked)
    if differing is not None:
        yield differing
    trials = trials_table(named)
    tried: tuple[Section, ...] = (*_if_nonempty(trials), *_tracebacks([record for _, record in named]))
    if tried:
        yield Document(title=f"Trials: {len(trials.rows)}", folded=True, sections=tried)
    else:
        yield Document(lead="No batch size was searched.", sections=())
    yield Document(title="Commands to run it again", folded=True, sections=tuple(_commands(named)))
    for known in same:
        where = ", where it is the same for all records" if len(named) > 1 else ""
        yield Document(title=f"{known.title}{where}", folded=True, sections=(known,))


def _notices(named: Named) -> Iterator[Warned]:
    """Yield each notice once, with its observation in each record; equal observations are merged."""
    found: dict[tuple[str, str], dict[tuple[str, str], list[str]]] = {}
    for name, record in named:
        for notice in shown_notices(record):
            seen = found.setdefault((notice.kind, notice.advice), {})
            seen.setdefault((notice.seen, notice.cause), []).append(name)
    for (kind, advice), seen in found.items():
        causes = {cause for _, cause in seen}
        alike = causes.pop() if len(causes) == 1 else ""
        of = tuple(
            Seen(records=tuple(filter(None, names)), text=what, cause="" if alike else cause)
            for (what, cause), names in seen.items()
        )
        yield Warned(kind=kind.replace("_", " "), seen=of, cause=alike, advice=advice)


def _tracebacks(records: Sequence[Record]) -> Iterator[Document]:
    for failed, traceback in text.tracebacks(records)[:_MOST_TRACEBACKS]:
        title = cut_in_the_middle(failed, _LONGEST_MESSAGE)
        yield Document(title=title, sections=(Code((traceback[-_LONGEST_TRACEBACK:],)),))


def _commands(named: Named) -> Iterator[Document]:
    """Yield each command once, with the names of the records that it made if there are other commands."""
    commands = list(dict.fromkeys(record.command for _, record in named))
    for command in commands:
        names = [name for name, record in named if record.command == command]
        yield Document(title="; ".join(names) if len(commands) > 1 else "", sections=(Code((command,)),))


def _table(
    title: str, heads: Sequence[str], words: Iterable[str], rows: Sequence[Sequence[Cell]], strong: Iterable[int] = ()
) -> Table:
    """Return a table without blank columns, cut if it is long; ``words`` are the headings of text columns."""
    more = f" (the first {_MOST_LINES} of {len(rows)}; all are in the record)" if len(rows) > _MOST_LINES else ""
    kept = tuple(tuple(row) for row in rows[:_MOST_LINES])
    full = Table(
        columns=tuple(Column(head, "text" if head in words else "number") for head in heads),
        rows=kept,
        title=f"{title}{more}",
        strong=tuple(number for number in strong if number < len(kept)),
    )
    return without_blanks(full)


def rows_table(named: Named) -> Table:
    """Return a line for every batch size that was timed or failed; those that answer a question are strong."""
    figures = columns.shown_in("any", "compiled", "wide", "page")
    heads = ("record", "batch size", *(shown.heading for shown, _ in figures), "remarks")
    lines: list[tuple[Cell, ...]] = []
    strong: list[int] = []
    for name, record in named:
        for row, best, remark in _rows_and_remarks(record):
            if best and len(record.rows) > 1:
                strong.append(len(lines))
            cells = (Cell(*column.cell(record, row)) for _, column in figures)
            lines.append((Cell(name), count(row.batch_size), *cells, Cell(remark)))
    return _table("Every batch size that was timed", heads, ("record", "remarks"), lines, strong)


def _rows_and_remarks(record: Record) -> Iterator[tuple[Row, bool, str]]:
    """Yield each row, whether it answers a question, and its remark: its answers and notices, or its failure."""
    best, found = answers.answers(record), shown_notices(record)
    for row in record.rows:
        if row.failure is not None:
            yield row, False, failure_line(row.failure)
            continue
        names = [name for name, answer in best if answer is row]
        notices = [notice.kind.replace("_", " ") for notice in found if row.batch_size in notice.batch_sizes]
        yield row, bool(names), ", ".join([*names, *notices])


def trials_table(named: Named) -> Table:
    lines = [
        (
            Cell(name),
            count(trial.batch_size),
            Cell("passed" if trial.failure is None else failure_line(trial.failure)),
            Cell(f"{trial.seconds:.1f}", trial.seconds),
            figure(trial.step_ms),
            Cell() if (peak := answers.peak_bytes(record, trial)) is None else Cell(format_bytes(peak), peak),
        )
        for name, record in named
        for trial in record.trials
    ]
    heads = ("record", "batch size", "outcome", "seconds", "step ms", "memory")
    return _table("Every trial of the search, in order", heads, ("record", "outcome"), lines)


def side_by_side(named: Named) -> Table:
    """Return a line for each record, the batch to deploy first; the best of one model's recipes is strong."""
    heads = ("record", "batch to deploy", *_BESIDE, "memory", "fastest", "largest")
    lines = [_beside(*one) for one in named]
    records = [record for _, record in named]
    best = recipes.best_of(records) if text.are_recipes(records) else None
    strong = [number for number, (_, record) in enumerate(named) if best is not None and record is best[0]]
    return _table("The batch to deploy of each record", heads, ("record",), lines, strong)


def _beside(name: str, record: Record) -> tuple[Cell, ...]:
    row, best, edge = answers.to_deploy(record), answers.fastest(record.rows), record.edge
    peak = answers.peak_bytes(record, row) if row else None
    figures = [column for shown, column in columns.shown_in("any") if shown.heading in _BESIDE]
    return (
        Cell(name),
        count(row.batch_size if row else None),
        *(Cell(*column.cell(record, row)) if row else Cell() for column in figures),
        Cell() if peak is None else Cell(format_bytes(peak), peak),
        count(best.batch_size if best else None),
        Cell(answers.largest_of(edge), edge.largest_batch if edge else None),
    )


def failure_line(failure: Failure) -> str:
    return f"{failure.kind.replace('_', ' ')}: {cut_in_the_middle(failure.message, _LONGEST_MESSAGE)}"


_BATCH_TO_USE: Final[dict[Phase, str]] = {
    "infer": "Batch to deploy",
    "train": "Batch to train with",
    "step": "Batch to run with",
}
_MOST_GROUPS: Final = 3
"""Maximum models or devices with tiles; if there are more, the table answers."""


def groups(records: Sequence[Record]) -> tuple[Document, ...]:
    """Return the answers of each model on each device, from its best recipe if it has one; empty if there are many."""
    works = group_by(records, identity.work_key)
    if len(works) > _MOST_GROUPS:
        return ()
    found = []
    for together in works:
        best = recipes.best_of(together) if len(together) == 1 or text.are_recipes(together) else None
        row = answers.to_deploy(best[0]) if best else None
        if best and row:
            spec, device = best[0].spec, best[0].environment.device_name
            heading = f"{spec.model} {spec.dtype} on {device}" if len(works) > 1 else ""
            tiles = Tiles(tuple(_tiles(best[0], row, len(together))))
            found.append(Document(title=heading, sections=(tiles,)))
    return tuple(found)


def _tiles(record: Record, row: Row, among: int) -> Iterator[Tile]:
    recipe = identity.name_of(record.spec)
    if among > 1:
        yield Tile(label="Best recipe", figure=recipe, note=f"of {among} records")
    yield Tile(
        label=_BATCH_TO_USE[record.spec.phase],
        figure=str(row.batch_size),
        note=_deploy_reason(record, row, answers.fastest(record.rows) or row),
    )
    yield Tile(
        label="Throughput", figure=answers.format_rate(record, row), unit="samples/s", note=_rate_note(record, row)
    )
    latency_ms, slowest_ms = (percentile(row.latency_ms, percent) for percent in (50, 99))
    if latency_ms is not None:
        slowest = "" if slowest_ms is None else f"p99 {answers.format_latency(record, row, slowest_ms)} ms"
        yield Tile(
            label="Latency, p50", figure=answers.format_latency(record, row, latency_ms), unit="ms", note=slowest
        )
    peak = answers.peak_bytes(record, row)
    if peak is not None:
        figure, unit = format_bytes(peak).split(" ")
        yield Tile(label="Peak memory", figure=figure, unit=unit, note=_memory_of_each(record))
    yield Tile(label="Device", figure=text.device_of(record), note=recipe if among == 1 else "")


def _memory_of_each(record: Record) -> str:
    """Return the memory that limits one device or one of its instances: ``of 24.0 GiB``; empty if it is unknown."""
    spec, total_bytes = record.spec, record.environment.memory_total_bytes
    limit_bytes = total_bytes if spec.memory_limit_bytes is None else spec.memory_limit_bytes
    each = " each" if spec.has_instances or spec.device_count > 1 else ""
    return "" if limit_bytes is None else f"of {format_bytes(limit_bytes // spec.instances)}{each}"


def _deploy_reason(record: Record, row: Row, best: Row) -> str:
    if doubt := text.doubt_of(record, (row, best)):
        return doubt.partition(";")[0]
    if record.spec.slo_ms is not None:
        return f"the fastest with p{record.spec.percentile:g} within {format_amount(record.spec.slo_ms)} ms"
    if row is answers.knee(answers.deployable(record)):
        return f"the smallest with {answers.KNEE_SHARE:.0%} of the best throughput"
    return "the only batch size that was timed"


def _rate_note(record: Record, row: Row) -> str:
    interval, best = answers.known_interval(record, row), answers.fastest(record.rows)
    parts = [] if interval is None else [f"± {format_width(interval.half_width)} %"]
    if best is not None and best is not row:
        share = (row.samples_per_s or 0.0) / (best.samples_per_s or 1.0)
        parts.append(f"{share:.0%} of batch {best.batch_size}, the fastest")
    return "; ".join(parts)


def facts(named: Named, asked: Sequence[Spec] | None) -> tuple[Table | None, tuple[Table, ...]]:
    """Return a table of differences between records, if any, and tables of common facts, with the specs ``asked``."""
    records = [record for _, record in named]
    specs = [record.spec for record in records] if asked is None else asked
    parts: dict[str, list[Facts]] = {
        "What was asked for": [_fields(spec) for spec in specs],
        "The environment": [_fields(record.environment) for record in records],
        "The run": [_run(record) for record in records],
    }
    same = {caption: {label: of[0][label] for label in of[0] if _alike(of, label)} for caption, of in parts.items()}
    heads = (Column("", "text"), Column("", "text"))
    tables = tuple(table(heads, known.items(), title=caption) for caption, known in same.items() if known)
    return _differing(named, list(parts.values())), tables


def _alike(of: Sequence[Facts], label: str) -> bool:
    return len({facts.get(label) for facts in of}) == 1


def _differing(named: Named, parts: Sequence[Sequence[Facts]]) -> Table | None:
    """Return a line for each record and a column for each fact that differs; parts may repeat a fact's name."""
    columns = [
        (label, [facts.get(label, "") for facts in of])
        for of in parts
        for label in dict.fromkeys(label for facts in of for label in facts)
        if not _alike(of, label)
    ]
    if not columns:
        return None
    heads = (Column(label, "text") for label in ("record", *(label for label, _ in columns)))
    lines = ((name, *(texts[number] for _, texts in columns)) for number, (name, _) in enumerate(named))
    return without_blanks(table(heads, lines, title="What differs between the records"))


def _run(record: Record) -> Facts:
    told = {
        "started": record.started,
        "resumed": ", ".join(record.resumed),
        "finished": record.finished or "no",
        "took": format_seconds(record.wall_s),
        "tputfind": record.tputfind,
        "schema of the record": str(record.schema),
        "method of measuring": str(record.method),
        "shape of a sample": record.input_shape,
        "parameters": "" if record.parameters is None else str(record.parameters),
        "SHA-256 of the model's file": record.source_sha256 or "",
    }
    return {label: text for label, text in told.items() if text}


def _fields(of: msgspec.Struct) -> Facts:
    fields = {field.name: getattr(of, field.name) for field in msgspec.structs.fields(of)}
    return {_label(name): _text(name, value) for name, value in fields.items() if value not in (None, ())}


def _label(name: str) -> str:
    words = "capabilities" if name == "can" else name.removesuffix("_bytes")
    unit = next((unit for unit in ("ms", "s") if words.endswith(f"_{unit}")), "")
    return f"{words.removesuffix(f'_{unit}')}, {unit}".replace("_", " ") if unit else words.replace("_", " ")


def _text(name: str, value: Any) -> str:
    if name.endswith("_bytes") or (name == "headroom" and isinstance(value, int)):
        return format_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        apart = "; " if isinstance(next(iter(value), None), msgspec.Struct) else ", "
        return apart.join(_text("", one) for one in value)
    if isinstance(value, msgspec.Struct):
        known = {label: text for label, text in _fields(value).items() if text != "no"}
        return ", ".join(label if text == "yes" else f"{label} {text}" for label, text in known.items())
    return f"{value:.10g}" if isinstance(value, float) else str(value)
