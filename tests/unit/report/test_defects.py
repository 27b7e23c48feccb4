"""A defect in one section or form of a result gives one line and leaves the rest intact."""

import json

import pytest
from msgspec.structs import replace
from support.folders import RESULTS
from support.records import FORECASTS, example
from support.shown import csv_of, markdown_of, page_of

import tputfind
from tputfind.analysis import notices
from tputfind.commands import report, run
from tputfind.errors import TputfindError
from tputfind.record import files
from tputfind.report import results, text
from tputfind.report.charts import charts, draw
from tputfind.report.outputs import Places, check_places, forms
from tputfind.report.progress import show_progress
from tputfind.report.views import clocks, compare, fleet, forecast, page, records, size
from tputfind.runners.sweep import Job
from tputfind.session.run import Measured

pytestmark = pytest.mark.usefixtures("plots_drawn_once")
LINE = "could not be made: ZeroDivisionError: broken"
HINT = "(a fault of tputfind's, which --traceback shows)"


def fails(*_, **__):
    raise ZeroDivisionError("broken")


@pytest.fixture
def break_(monkeypatch):
    return lambda home, name: monkeypatch.setattr(home, name, fails)


@pytest.mark.parametrize(
    ("home", "name", "gone"),
    [
        (records, "rows_table", "| batch |"),
        (text, "summary", "- Fastest batch:"),
        (notices, "shown_notices", "Notices:"),
        (fleet, "documents", ""),
    ],
)
def test_defect_in_record_section_leaves_other_sections_and_forms(break_, home, name, gone):
    record, sound = example(), markdown_of([example()])
    break_(home, name)

    made = {form: make() for form, make in forms(records.document([record])).items()}

    assert made.keys() == {"json", "csv", "md", "html", *draw.ENDINGS}
    assert (made["json"], made["csv"]) == (record.to_json(), csv_of([record]))
    assert made["md"].decode().count(LINE) == 1
    marks = ("| batch |", "- Fastest batch:", "Notices:", "**resnet50")
    left = [mark for mark in marks if mark.encode() in made["md"]]
    assert left == [mark for mark in marks if mark.encode() in sound and mark != gone]


@pytest.mark.parametrize(
    ("home", "name"), [(page, "rows_table"), (page, "facts"), (notices, "shown_notices"), (page, "groups")]
)
def test_defect_in_a_part_of_the_page_leaves_the_others(break_, home, name):
    parts = page_of([example()]).count(b"<h2")
    break_(home, name)
    if home is notices:
        break_(page, "shown_notices")

    made = page_of([example()])

    assert LINE.encode() in made
    assert made.count(b"<h2") == parts
    assert b"<svg" in made


def test_defect_in_a_plot_leaves_the_page_and_the_other_plots(monkeypatch):
    sound, drawn = page_of([example()]), draw.inline
    title = charts.throughput([example()]).title
    monkeypatch.setattr(draw, "inline", lambda chart: fails() if chart.title == title else drawn(chart))

    made = page_of([example()])

    assert made.count(f"this plot {LINE}".encode()) == 1
    assert made.count(b"<figure>") == sound.count(b"<figure>")
    assert made.count(b"<svg") == sound.count(b"<svg") - 1


def test_defect_in_the_image_costs_images_alone(break_, tmp_path):
    break_(charts, "throughput")
    names = [tmp_path / name for name in ("a.png", "a.json", "a.csv", "a.md", "a.html")]

    with pytest.raises(TputfindError, match=f"the plot {LINE}") as told:
        example().save(*names)

    assert isinstance(told.value.__cause__, ZeroDivisionError)
    assert [path.exists() for path in names] == [False, True, True, True, True]
    with pytest.raises(TputfindError, match=LINE):
        example().plot()


@pytest.mark.parametrize(
    ("make", "home", "name"),
    [
        (lambda: files.load(RESULTS / "nvidia-h200/clocks/resnet50-fp16-batch-1.json"), clocks, "_methods"),
        (lambda: FORECASTS, forecast, "_row"),
        (lambda: tputfind.compare(example(), example(), force=True), compare, "_table"),
        (lambda: tputfind.size(example(), rate=50, slo="1s"), size, "_cases"),
        (lambda: tputfind.size(example(), rate=50, slo="1s"), size.words, "summary"),
    ],
    ids=["clocks", "forecast", "compare", "size", "size_answers"],
)
def test_defect_in_result_table_leaves_other_sections_and_forms(break_, make, home, name):
    result = make()
    sound = {form: made() for form, made in forms(results.document_of(result)).items()}
    break_(home, name)

    made = {form: made() for form, made in forms(results.document_of(result)).items()}

    assert {form for form in sound if sound[form] == made[form]} == {"json", "csv"}
    lines = made["md"].decode().splitlines()
    assert sum(LINE in line for line in lines) == 1
    kept = [line for line in lines if LINE not in line and line]
    assert len(kept) >= 2
    assert set(kept) < set(sound["md"].decode().splitlines())
    assert LINE in repr(result)


def test_defect_in_view_ends_run_with_one_line_after_saving(break_, tmp_path, monkeypatch, capsys):
    record = example()
    place = files.RecordFile(tmp_path, "record")
    place.save(record)
    monkeypatch.setattr(run, "_measure", lambda _: iter([Measured(record, place)]))
    break_(text, "title")
    places = tuple(tmp_path / name for name in ("a.json", "a.csv"))
    request = run.Request(Job([record.spec], tmp_path, "tputfind"), check_places(Places(tmp_path, places)))

    code = run.do(request, show_traceback=False)

    said = capsys.readouterr()
    assert code == 1
    assert said.err.splitlines()[-1] == f"tputfind: the report {LINE} {HINT}"
    assert "Traceback" not in said.err
    assert all(path.stat().st_size for path in (tmp_path / "record.json", tmp_path / "record.csv", *places))


def test_defect_traceback_is_shown_on_demand_and_rest_is_printed(break_, tmp_path, capsys):
    example().save(tmp_path / "a.json")
    given = {"records": [tmp_path / "a.json"], "slo": None, "percentile": None, "save": (), "overwrite": False}
    break_(text, "summary")

    code = report.main(given, show_traceback=True)

    said = capsys.readouterr()
    assert code == 1
    assert "samples/s" in said.out
    assert f"the answers {LINE}" in said.out
    assert "ZeroDivisionError: broken" in said.err
    assert "in fails" in said.err


def test_failing_renderer_is_reported_in_one_line(break_, tmp_path, capsys):
    example().save(tmp_path / "a.json")
    given = {"records": [tmp_path / "a.json"], "slo": None, "percentile": None, "overwrite": False}
    from tputfind.report.renderers import terminal

    break_(terminal, "fit_table")
    code = report.main({**given, "save": (tmp_path / "a.md",)}, show_traceback=False)

    said = capsys.readouterr()
    assert (code, said.err.splitlines()[-1]) == (1, f"tputfind: what is printed {LINE} {HINT}")
    assert (tmp_path / "a.md").stat().st_size


def test_defect_in_the_table_so_far_ends_no_run(break_, monkeypatch):
    from rich.console import Console

    from tputfind.report import progress

    break_(progress, "rows_table")
    with show_progress(Console(force_terminal=True, stderr=True)) as shown:
        shown.measured(example())
        shown.doing("timing", None)


def test_error_of_ours_is_no_defect(monkeypatch):
    def refuses(_):
        raise TputfindError("not this")

    monkeypatch.setattr(text, "summary", refuses)
    with pytest.raises(TputfindError, match="not this"):
        records.document([replace(example())])


def test_json_of_a_defective_document_is_the_result(break_):
    break_(records, "_parts")

    made = forms(results.document_of(example()))

    assert json.loads(made["json"]()) == json.loads(example().to_json())
