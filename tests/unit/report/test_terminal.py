"""Terminal output of any record: one line per row, short answers and notices, in supported characters."""

import re
from itertools import chain
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from support.folders import record_paths
from support.records import example, row, whole
from support.shown import printed, report_of

from tputfind.analysis import notices
from tputfind.record import files
from tputfind.record.identity import name_of
from tputfind.record.record import Compiled, Edge, Failure, FailureKind, Record, Row, Trial
from tputfind.report import text
from tputfind.report.document import Column, table
from tputfind.report.renderers.terminal import answer_lines, broken, fit_table
from tputfind.report.views.records import tracebacks

RECORDS = {
    folder: [record for path in record_paths(f"**/{folder}/*.json") for record in files.load_records(path)]
    for folder in ("default", "kinds", "recipes", "serving")
}


def lines_of(records, width: int, encoding: str = "utf-8") -> list[str]:
    return report_of(records, width, encoding).splitlines()


def check_rows(records, width: int, encoding: str = "utf-8") -> None:
    """Check that every row is a line, in order, and that no line except code is wider than the terminal."""
    lines = lines_of(records, width, encoding)
    starts = [place for place, line in enumerate(lines) if line.split()[:2] == ["batch", "samples/s"]]
    assert len(starts) == sum(bool(record.rows) for record in records)
    for start, record in zip(starts, (record for record in records if record.rows), strict=True):
        shown = lines[start + 2 : start + 2 + len(record.rows)]
        assert [line.split()[0] for line in shown] == [str(row.batch_size) for row in record.rows]
        for line, one in zip(shown, record.rows, strict=True):
            assert (text.failure_of(one) or "") in line
    code = {line for of_model in text.models_in_recipes(records) for line in text.code(of_model)}
    assert [line for line in lines if cell_len(line) > width and line not in code] == []


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("record", [*chain(*RECORDS.values())], ids=lambda record: name_of(record.spec))
def test_stored_record_has_one_line_per_row_and_short_notices_and_answers(record, width):
    check_rows([record], width)
    if width == 80:
        whole(notice for notice in notices.shown_notices(record) if notice not in record.caveats)
        for label, answer in text.summary(record):
            assert len(broken(answer, 65)) <= 2, label


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("folder", ["recipes", "kinds", "default"])
def test_many_records_together_have_one_line_a_row(folder, width):
    check_rows(RECORDS[folder], width)


def timed(batch_size: int, device_ms: float, apart: float, compiled: bool) -> Row:
    timings = tuple(
        replace(timing, compiled=Compiled(seconds=12.5, graphs=1) if compiled else None)
        for ms in (device_ms, device_ms * (1 + apart), device_ms * (1 - apart / 2))
        for timing in row(batch_size, ms, enqueue_ms=ms * 0.9).timings
    )
    return replace(
        row(batch_size, device_ms), timings=timings, peak_reserved_bytes=min(batch_size * 2**21, 141 * 2**30)
    )


failures = st.sampled_from(get_args(FailureKind))
rows = st.builds(timed, st.integers(1, 2**20), st.floats(0.01, 99_999), st.floats(0, 0.9), st.booleans()) | st.builds(
    lambda size, kind: Row(batch_size=size, failure=Failure(kind=kind, message="it said so")),
    st.integers(1, 2**20),
    failures,
)


@st.composite
def records(draw) -> Record:
    name = draw(st.text("abcdefgh_:.", min_size=1, max_size=70))
    mode = draw(st.sampled_from(["eager", "compile", "cudagraph"]))
    found = draw(st.lists(rows, min_size=1, max_size=8, unique_by=lambda one: one.batch_size))
    spec = replace(example().spec, model=name, mode=mode, processes=3)
    edge = Edge(largest_batch=max(one.batch_size for one in found), limited_by="memory", fails_at=2**21)
    ordered = tuple(sorted(found, key=lambda one: one.batch_size))
    return replace(example(), spec=spec, rows=ordered, edge=edge)


@settings(max_examples=60)
@given(st.lists(records(), min_size=1, max_size=3), st.integers(60, 130), st.sampled_from(["utf-8", "ascii"]))
def test_any_records_have_one_line_a_row_from_60_columns_on(of_any, width, encoding):
    lines = lines_of(of_any, width, encoding)
    starts = [place for place, line in enumerate(lines) if line.split()[:2] == ["batch", "samples/s"]]

    for start, record in zip(starts, of_any, strict=True):
        shown = lines[start + 1 : start + 2 + len(record.rows)]
        assert [line.split()[0] for line in shown[1:]] == [str(row.batch_size) for row in record.rows]
        assert max(map(cell_len, shown)) <= width


def test_legend_explains_only_marks_and_numbers_in_use():
    lines = lines_of([example()], 80)
    alone = lines_of([replace(example(), safe=None)], 80)

    assert "F fastest, K knee, L largest, S safe" in lines
    assert "F fastest, K knee, L largest" in alone
    numbers = {number for line in lines[4:8] for number in re.findall(r"\d", line.partition("MiB")[2])}
    assert numbers <= {line.split()[0] for line in lines if re.match(r" \d ", line)}


def test_slo_is_named_in_batch_to_deploy_and_if_unmet():
    unmet = replace(example(), spec=replace(example().spec, slo_ms=1.0))

    assert dict(text.summary(example()))["Deploy"].endswith("p99 5.98 ms within --slo 10 ms, 8 MiB")
    assert dict(text.summary(unmet))["Deploy"] == "no batch is known to have p99 within --slo 1 ms"


def test_memory_is_in_gib_from_one_on():
    large = replace(row(4, 5.0), peak_reserved_bytes=int(7.61 * 2**30))
    shown = "\n".join(lines_of([replace(example(), rows=(row(1, 4.0), large))], 80))

    assert " 2 MiB" in shown
    assert " 7.6 GiB" in shown


@pytest.mark.parametrize(("label", "column"), [("Took", 15), ("Largest batches", 16), ("cuda:0 GPU-0a1b2c3d", 20)])
def test_answers_begin_in_one_column_after_the_longest_label(label, column):
    lines = answer_lines([(label, "two words"), ("Knee", "another")], 60)

    assert [line.plain for line in lines] == [f"{label:<{column}}two words", f"{'Knee':<{column}}another"]


def test_a_line_is_broken_between_words_and_not_before_a_unit():
    assert broken("it took 12 s and 3.5 GiB in all", 20) == ["it took 12 s and", "3.5 GiB in all"]
    assert broken("x" * 50, 20) == ["x" * 50]


def test_heading_of_a_narrow_table_is_broken_between_words_only():
    columns = Column("variant", "text"), Column("of winner"), Column("samples/s")
    narrow = fit_table(table(columns, [("eager", "1.000", "100")]), Console(width=22))

    assert [column.header for column in narrow.columns] == ["variant", "of\nwinner", "samples/s"]


def test_tracebacks_of_records_are_printed_once_each_with_their_batches():
    same = Failure(kind="error", message="ValueError: no", traceback="Traceback\n  of the model\nValueError: no\n")
    other = Failure(kind="error", message="KeyError: 'a'", traceback="Traceback\nKeyError: 'a'\n")
    trials = tuple(Trial(batch_size=size, failure=same) for size in (4, 8))
    rows = (Row(batch_size=4, failure=same), Row(batch_size=2, failure=other), row(1, 2.0))
    record = replace(example(), trials=trials, rows=rows)

    assert printed(tracebacks([record, record]), 80) == (
        "resnet50 fp16 nchw eager at batch 4, 8: ValueError: no\n\n"
        "Traceback\n  of the model\nValueError: no\n\n"
        "resnet50 fp16 nchw eager at batch 2: KeyError: 'a'\n\n"
        "Traceback\nKeyError: 'a'\n"
    )
    assert printed(tracebacks([example()])) == "No traceback is kept: no model raised an error of its own.\n"
