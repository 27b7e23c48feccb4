"""Records as a document to read: the table, the answers and the notices of each, then all side by side."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from tputfind.analysis import notices as found_notices
from tputfind.analysis import recipes
from tputfind.analysis.answers import answers, fastest, fastest_within_slo, largest_of, slo_of
from tputfind.record import identity
from tputfind.record.record import Notice, Record, Row
from tputfind.record.spec import Spec
from tputfind.report import columns, text
from tputfind.report.charts import charts
from tputfind.report.charts.chart import Chart
from tputfind.report.document import (
    Answers,
    Cell,
    Code,
    Column,
    Defect,
    Document,
    Section,
    Table,
    answers_of,
    attempt,
    count,
    data_table,
    notices_of,
    sections_of,
    table,
    whole,
    without_blanks,
)
from tputfind.report.views import fleet, page
from tputfind.units import format_sizes

_BEST_RECIPE: Final = "B", "the best recipe"
_RATE: Final = "samples/s"
_BAR_AFTER: Final = "± %"
_BESIDE: Final = (_RATE, _BAR_AFTER, "p50 ms")


def document(records: Sequence[Record], asked: Sequence[Spec] | None = None) -> Document:
    """Return a part for each record, and for several together; ``asked`` are their specs if answers are to others."""
    sources = list(records)
    if asked is not None:
        sources = [msgspec.structs.replace(one, spec=spec) for one, spec in zip(records, asked, strict=True)]
    drawn = attempt("the plot", lambda: charts.throughput(records))
    return whole(
        lambda: Document(sections=tuple(_parts(records))),
        source=sources if len(sources) > 1 else sources[0],
        data=partial(data, records),
        chart=None if isinstance(drawn, Chart) and drawn.empty else drawn,
        page=partial(page.document, records, asked),
    )


def _parts(records: Sequence[Record]) -> Iterator[Section]:
    begun = "begun" in identity.distinguishing_fields(records)
    for record in records:
        yield record_document(record, f", begun {record.started}" if begun else "")
    yield from sections_of("the table of recipes", lambda: map(_recipes_part, text.models_in_recipes(records)))
    yield from sections_of("the table of devices", lambda: fleet.documents(records))
    yield from sections_of("the table of all records", lambda: _beside(records))


def _beside(records: Sequence[Record]) -> Iterator[Document]:
    if len(records) > 1 and not text.are_recipes(records):  # recipes have a table of their own
        beside = side_by_side(records, text.record_names(records))
        heading = _best_batch_heading(records)
        within = {"fastest": "", "within SLO": " within the SLO"}.get(heading, " within its own SLO, if it has one")
        yield Document(title=f"{len(records)} records, each at its fastest batch{within}", sections=(beside,))


def _best_batch_heading(records: Sequence[Record]) -> str:
    slos = {slo_of(record.spec) for record in records}
    return "best" if len(slos) > 1 else "within SLO" if any(slos) else "fastest"


def record_document(record: Record, begun: str = "") -> Document:
    """Return the part of one record; its title ends with ``begun``, which may be empty."""
    found = attempt("the notices", lambda: found_notices.shown_notices(record))
    notices = () if isinstance(found, Defect) else found
    return Document(
        title=f"{text.title(record)}{begun}",
        sections=(
            *sections_of("the table of batch sizes", lambda: [rows_table(record, notices)]),
            *sections_of("the answers", lambda: [Answers(tuple(text.summary(record)))]),
            *((found,) if isinstance(found, Defect) else notices_of(found)),
        ),
    )


def _recipes_part(of_model: Sequence[Record]) -> Document:
    beside, code = side_by_side(of_model, recipes.names_of(of_model)), text.code(of_model)
    best = recipes.best_of(of_model)
    within = "" if best is None else slo_of(best[0].spec).partition(" ")[2]
    legend = "" if best is None else " ".join(filter(None, (*_BEST_RECIPE, within)))
    return Document(
        title=text.recipes_title(of_model),
        sections=(
            msgspec.structs.replace(beside, legend=legend),
            *answers_of(recipes.answers(of_model)),
            *((Code(tuple(code), "python"),) if code else ()),
        ),
    )


def tracebacks(records: Sequence[Record]) -> Document:
    found = text.tracebacks(records)
    if not found:
        return Document(lead="No traceback is kept: no model raised an error of its own.", sections=())
    parts = (Document(title=failed, sections=(Code(tuple(lines.splitlines())),)) for failed, lines in found)
    return Document(sections=tuple(parts))


def data(records: Sequence[Record]) -> Table:
    in_csv = [column for column in columns.COLUMNS if column.in_csv]
    lines = ({column.name: column.value(record, row) for column in in_csv} for record in records for row in record.rows)
    return data_table([column.name for column in in_csv], lines, {column.name: column.kind for column in in_csv})


def rows_table(record: Record, notices: Sequence[Notice]) -> Table:
    """Return a line for each row, with the marks of its answers and the numbers of its notices, or with its failure."""
    best = {id(row) for _, row in answers(record)}
    most = max((row.samples_per_s or 0.0 for row in record.rows), default=0.0) or 1.0
    heads = [Column("batch")]
    cells = [[count(row.batch_size) for row in record.rows]]
    for shown, column in columns.shown_in("any", "compiled", "wide"):
        heads.append(Column(shown.heading, drop=shown.drop))
        cells.append([_figure(column, record, row) for row in record.rows])
        if shown.heading == _BAR_AFTER:
            heads.append(Column("", "bar"))
            cells.append([Cell(number=row.samples_per_s and row.samples_per_s / most) for row in record.rows])
    heads += [Column("", "text"), Column("notices", "text")]
    cells.append([Cell(text.marks(record, row)) for row in record.rows])
    cells.append([Cell(_numbers(notices, row)) for row in record.rows])
    strong = tuple(number for number, row in enumerate(record.rows) if id(row) in best)
    full = table(heads, zip(*cells, strict=True), legend=text.legend(record), strong=strong)
    return without_blanks(full, keep=("batch", _RATE))


def _figure(column: columns.Column, record: Record, row: Row) -> Cell:
    if column.shown is not None and column.shown.heading == _RATE and row.failure is not None:
        return Cell(text.failure_of(row))
    return Cell(*column.cell(record, row))


def _numbers(notices: Sequence[Notice], row: Row) -> str:
    """Return the numbers of the notices about a row: ``1-3,5``."""
    about = [number for number, notice in enumerate(notices, 1) if row.batch_size in notice.batch_sizes]
    return format_sizes(about).replace(" ", "")


def side_by_side(records: Sequence[Record], names: Sequence[str]) -> Table:
    """Return a line for each record: its largest batch, and its fastest within the SLO; the best recipe is marked."""
    are_recipes = text.are_recipes(records)
    best = recipes.best_of(records) if are_recipes else None
    figures = [column for shown, column in columns.shown_in("any") if shown.heading in _BESIDE]
    heads = (
        Column("recipe" if are_recipes else "record", "text", shrinks=True),
        Column("largest"),
        Column(_best_batch_heading(records)),
        *(Column(column.shown.heading) for column in figures if column.shown is not None),
        Column("", "text"),
    )
    is_best = [best is not None and record is best[0] for record in records]
    rows = (
        (
            Cell(name),
            Cell(largest_of(record.edge), record.edge.largest_batch if record.edge else None),
            *_figures_beside(record, figures),
            Cell(_BEST_RECIPE[0] if marked else ""),
        )
        for name, record, marked in zip(names, records, is_best, strict=True)
    )
    strong = tuple(number for number, marked in enumerate(is_best) if marked)
    return without_blanks(table(heads, rows, strong=strong), keep=(_RATE,))


def _figures_beside(record: Record, figures: Sequence[columns.Column]) -> Iterator[Cell]:
    """Yield the batch size and figures of a record's best row, or the first failure if no row was timed."""
    row, timed = fastest_within_slo(record), fastest(record.rows) is not None
    failed = "" if timed else next(filter(None, map(text.failure_of, record.rows)), "")
    yield Cell(str(row.batch_size) if row else "none" if timed else "")
    for column in figures:
        if row is not None:
            yield Cell(*column.cell(record, row))
        else:
            is_rate = column.shown is not None and column.shown.heading == _RATE
            yield Cell(failed if is_rate else "")
