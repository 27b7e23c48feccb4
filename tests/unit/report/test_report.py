import subprocess
import sys

import pandas
import pytest
from msgspec.structs import replace
from support.folders import GOLDEN
from support.records import CPU_CAN, example, row
from support.shown import KINDS, csv_of, frame, markdown_of, report_of

from tputfind.analysis import notices
from tputfind.analysis.answers import answers, best_under, fastest, knee, largest_of
from tputfind.record.record import Edge, Failure, Trial
from tputfind.report import columns, text
from tputfind.report.charts import charts
from tputfind.report.views import page


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("table.csv", lambda record, _: csv_of([record])),
        *(
            (f"report-{width}.txt", lambda record, _, width=width: report_of([record], width).encode())
            for width in (60, 80, 120)
        ),
        ("report-ascii.txt", lambda record, _: report_of([record], 80, "ascii").encode()),
        ("report.md", lambda record, _: markdown_of([record])),
        ("two-models.txt", lambda record, other: report_of([record, other]).encode()),
    ],
)
def test_form_of_a_report_is_its_golden_file(golden, name, make):
    golden(name, make(example(), replace(example(), spec=replace(example().spec, model="vit_b_16"))))


def test_the_csv_loads_with_the_types_it_was_written_with(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(csv_of([example()]))

    loaded = pandas.read_csv(path, dtype=KINDS)

    for column in columns.COLUMNS:
        found = [column.value(example(), row) for row in example().rows]
        if column.in_csv:
            expected = pandas.Series(found, dtype=column.kind, name=column.name)
            pandas.testing.assert_series_equal(loaded[column.name], expected, check_exact=False, rtol=1e-5)


def test_fastest_knee_and_best_under_slo_are_separate_answers():
    rows = [row(1, 4.0), row(64, 64.8), row(128, 128.0), row(256, 300.0)]

    assert fastest(rows).batch_size == 128
    assert knee(rows).batch_size == 64
    assert best_under(rows, 70.0, 99).batch_size == 64
    assert best_under(rows, 1.0, 99) is None
    assert best_under([row(1, 4.0, batches=20)], 70.0, 99) is None


def test_no_timed_rows_have_no_answers():
    assert fastest([]) is None
    assert knee([]) is None
    assert answers(replace(example(), rows=())) == []


def test_one_batch_size_has_no_knee():
    alone = replace(example(), rows=(example().rows[1], row(4, 5.0)))

    assert [name for name, _ in answers(alone)] == ["fastest", "safe"]
    assert "Knee" not in dict(text.summary(alone))
    assert dict(text.summary(replace(alone, rows=())))["Fastest batch"] == "nothing was timed"
    assert "knee" not in report_of([alone])


def test_failed_row_is_never_an_answer():
    failed = replace(row(5, 10.0), failure=example().rows[1].failure)
    record = replace(example(), rows=(row(1, 4.0), row(4, 5.0), failed))

    assert [(name, one.batch_size) for name, one in answers(record)] == [("fastest", 4), ("knee", 4), ("safe", 4)]


CUBLAS = "cuBLAS: execution failed"


def test_summary_names_library_of_limiting_kernel():
    failure = Failure(
        kind="kernel_limit", message=f"{CUBLAS} (RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED)"
    )
    edge = Edge(largest_batch=4096, limited_by="kernel", fails_at=4097)
    record = replace(example(), edge=edge, trials=(*example().trials, Trial(batch_size=4097, failure=failure)))

    assert (
        dict(text.summary(record))["Largest batch"]
        == f"4096, kernel limit at batch 4097: {CUBLAS}; not yet timed in full"
    )


@pytest.mark.parametrize(
    ("edge", "expected"),
    [
        ({"limited_by": "memory", "fails_at": 9}, "between 4 and 8, batch 9 does not fit in memory"),
        ({"limited_by": "timeout", "fails_at": 9}, "at least 4, batch 9: no answer within 10 s"),
        ({"limited_by": "timeout"}, "at least 4: a larger one would exceed the time limit of the search"),
        ({"limited_by": "cut_short"}, "at least 4, the search was cut short"),
    ],
)
def test_summary_shows_open_bracket_of_search(edge, expected):
    slow = Trial(batch_size=9, failure=Failure(kind="timeout", message="no answer within 10 s"))
    found = Edge(largest_batch=4, closed=False, **edge)
    record = replace(example(), edge=found, trials=(slow,))

    assert dict(text.summary(record))["Largest batch"] == expected
    timed_not = replace(record, rows=record.rows[:1])
    assert dict(text.summary(timed_not))["Largest batch"] == f"{expected}; not yet timed in full"
    assert largest_of(found) == "≥4"
    assert largest_of(Edge(largest_batch=64, limited_by="cap")) == "≥64"
    assert largest_of(Edge(largest_batch=64, limited_by="memory", fails_at=65)) == "64"
    assert "largest" not in {name for name, _ in answers(record)}


@pytest.mark.parametrize(
    ("edge", "expected"),
    [
        ({"limited_by": "timeout", "fails_at": 1}, "none known to fit, batch 1: the reason is not in the record"),
        ({"limited_by": "timeout"}, "none known to fit: a larger one would exceed the time limit of the search"),
        ({"limited_by": "cut_short"}, "none known to fit, the search was cut short"),
    ],
)
def test_search_that_ended_before_a_batch_fit_names_no_least_one(edge, expected):
    record = replace(example(), edge=Edge(largest_batch=0, closed=False, **edge), trials=(), rows=())

    assert dict(text.summary(record))["Largest batch"] == expected


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        (
            (
                "import tputfind.commands\ntry: tputfind.commands.main(['--help'])\n"
                "except SystemExit as end: assert end.code == 0"
            ),
            {"torch", "torchvision", "pandas", "numpy", "rich"},
        ),
        ("import tputfind.session.run, tputfind.report.views.records, tputfind.report.progress", {"torch", "pandas"}),
        (
            (
                "import tputfind.commands.run, tputfind.commands.report, tputfind.report.views.page\n"
                "import tputfind.report.renderers.html, tputfind.report.charts.draw"
            ),
            {"torch", "matplotlib", "jinja2"},
        ),
        (
            f"import tputfind\ntputfind.load_record({str(GOLDEN / 'schema-1.json')!r})",
            {"torch", "pandas", "rich", "tputfind.report"},
        ),
    ],
    ids=["help", "a measurement", "a report", "a record"],
)
def test_heavy_packages_are_imported_only_when_needed(program, heavy):
    program = f"import sys\n{program}\nfound = {heavy!r} & set(sys.modules)\nassert not found, found"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("width", [30, 60, 80, 100, 160])
def test_no_terminal_is_so_narrow_that_a_figure_is_cut(width):
    several = replace(example(), spec=replace(example().spec, mode="compile"))
    shown = report_of([example(), several], width)

    assert "…" not in shown
    assert "800.0" in shown
    assert "fastest" in shown


def one_that_is_hardly_known():
    """Return a record of one row, whose two processes differ so much that its interval reaches below 0."""
    timings = tuple(timing for ms in (4.0, 12.0) for timing in row(4, ms).timings)
    wild = replace(row(4, 5.0), timings=timings)
    record = replace(example(), rows=(wild,), edge=None, safe=None)
    return replace(record, notices=notices.of(record))


def test_wide_interval_is_same_in_every_output():
    record = one_that_is_hardly_known()
    (cells,) = frame([record]).to_dict("records")
    rate, low, high = (cells[f"samples_per_s{end}"] for end in ("", "_ci_low", "_ci_high"))
    width = f"{100 * (high / rate - 1):.1f}"
    (seen,) = [notice.seen for notice in record.notices if notice.kind == "wide_interval"]
    (line,) = [line for line in report_of([record]).splitlines() if line.split()[:1] == ["4"]]
    lines_of_markdown = [line.split() for line in markdown_of([record]).decode().splitlines()]
    (row_of_markdown,) = [words for words in lines_of_markdown if words[:2] == ["|", "4"]]
    timed = page.rows_table([("", record)])

    assert low == 0
    assert float(width) > 300
    assert line.split()[2] == width
    assert width in row_of_markdown
    assert timed.rows[0][[column.heading for column in timed.columns].index("± %")].text == width
    assert f"no better than {width}% at batch 4" in seen


def test_printed_interval_is_possible_for_rates_and_times():
    (cells,) = frame([one_that_is_hardly_known()]).to_dict("records")
    (point,) = charts.throughput([one_that_is_hardly_known()]).series[0].points

    assert cells["latency_ms_p50_ci_low"] == point.low == 0
    assert cells["latency_ms_p50_ci_high"] > 2 * cells["latency_ms_p50"]
    assert point.high == pytest.approx(cells["samples_per_s_ci_high"], rel=1e-5)


def test_devices_of_a_job_are_all_named():
    job = replace(example().spec, device="cuda:2,cuda:3", phase="train", dtype="fp32", parallel="ddp")

    assert text.device_of(replace(example(), spec=job)).endswith(" (cuda:2, cuda:3)")


@pytest.mark.parametrize(("count", "named"), [(2, "AMD EPYC, 2 threads, 23.5 GiB"), (1, "AMD EPYC, 1 thread, ")])
def test_a_processor_is_named_with_its_threads_and_a_gpu_without(count, named):
    environment = replace(
        example().environment,
        device="cpu",
        device_name="AMD EPYC",
        can=CPU_CAN,
        torch_threads=count,
        memory_total_bytes=int(23.5 * 2**30),
    )
    on_cpu = replace(example(), environment=environment)

    assert named in text.title(on_cpu)
    assert set(frame([on_cpu])["threads"]) == {count}
    assert "thread" not in text.title(example())
    assert frame([example()])["threads"].isna().all()
