"""Pages and plots, made through the command."""

import shutil

import pytest
from support import command
from support.command import TINY, run
from support.folders import RESULTS, record_path
from support.pages import Page

from tputfind.analysis.answers import format_rate

RECORD = record_path("nvidia-h200/kinds/deeplabv3_resnet50-fp16.json")


@pytest.fixture
def folder(tmp_path):
    shutil.copy(RECORD, tmp_path / "old.json")
    return tmp_path


def test_a_run_writes_its_page(tmp_path, ask):
    ran = ask(tmp_path, "resnet18", "--device", "cpu", "--save", "pages/run.html", *TINY)

    assert ran.status == 0, ran.err
    assert "pages/run.html" in ran.err
    read = Page((tmp_path / "pages" / "run.html").read_bytes())
    assert f"{format_rate(ran.record(), ran.record().rows[0])} samples/s" in read.text()
    assert "tputfind resnet18 --device cpu --save pages/run.html" in read.text()
    assert read.all("figure")


def test_saved_records_are_a_page_and_a_plot(tmp_path, ask):
    recipes = RESULTS / "nvidia-h200/recipes/resnet50-fp16.json"

    for ending, start in (("PNG", b"\x89PNG"), ("svg", b"<?xml")):
        ran = ask(tmp_path, "report", recipes, "--save", "page.html", "--save", f"plot.{ending}")
        assert ran.status == 0, ran.err
        assert ran.err == f"saved page.html, plot.{ending}\n"
        assert (tmp_path / f"plot.{ending}").read_bytes().startswith(start)
    text = Page((tmp_path / "page.html").read_bytes()).text()
    assert "resnet50 in 6 recipes" in text
    assert "Best recipe" in text


def test_the_page_of_one_record_is_the_same_every_time(folder, ask):
    for name in ("one.html", "two.html"):
        assert ask(folder, "report", "old.json", "--save", name, "--slo", "60ms").status == 0

    assert (folder / "one.html").read_bytes() == (folder / "two.html").read_bytes()
    text = Page((folder / "one.html").read_bytes()).text()
    assert "SLO: p99 within 60 ms" in text
    assert "slo, ms" not in text.partition("What was asked for")[2]  # the record was measured without one


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("report", "missing.json", "--save", "page.html"), "cannot read missing.json"),
        (("resnet18", "--device", "cpu", "--save", "old.json/page.html"), "cannot write"),
    ],
)
def test_unwritable_page_is_refused_before_measuring(folder, ask, arguments, line):
    before = (folder / "old.json").read_bytes()
    ask(folder, *arguments).check_refused(2, line)
    assert (folder / "old.json").read_bytes() == before
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["old.json"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("resnet18", "--device", "cpu", "--save", "a.html"),
        ("report", "old.json", "--save", "a.png"),
    ],
)
def test_missing_matplotlib_is_reported_with_installation_advice(folder, monkeypatch, arguments):
    shadow = folder / "shadow"
    shadow.mkdir()
    (shadow / "matplotlib.py").write_text("raise ImportError")
    path = f"{shadow}:{command.ENVIRONMENT['PYTHONPATH']}"
    monkeypatch.setattr(command, "ENVIRONMENT", command.ENVIRONMENT | {"PYTHONPATH": path})

    ran = run(folder, *arguments)

    assert ran.status == 2, ran.out
    assert ran.err == f"tputfind: --save {arguments[-1]} needs matplotlib (pip install 'tputfind[plot]')\n"
    assert not (folder / "results").exists()
    assert run(folder, "report", "old.json", "--save", "a.md").status == 0


def test_report_shows_saved_clocks_and_forecast_with_records(tmp_path, ask):
    shutil.copy(record_path("nvidia-h200/clocks/mobilenet_v3_large-fp32.json"), tmp_path / "clocks.json")
    shutil.copy(RECORD, tmp_path / "run.json")
    asked = ("forecast", "resnet18", "--memory", "16GiB", "--on-fake", "--save", "forecast.json", "--save", "one.md")
    forecast = ask(tmp_path, *asked)
    assert forecast.status == 0, forecast.err

    files = ("--save", "all.md", "--save", "all.csv", "--save", "all.html")
    ran = ask(tmp_path, "report", "clocks.json", "forecast.json", "run.json", *files)
    alone = ask(tmp_path, "report", "clocks.json", "forecast.json", "--save", "none.csv")

    assert ran.status == 0, ran.err
    assert ran.out.endswith(forecast.out)
    written, page = (tmp_path / "all.md").read_text(), Page((tmp_path / "all.html").read_bytes()).text()
    assert (tmp_path / "one.md").read_text() in written
    for shown in ("deeplabv3_resnet50", "host clock, synchronised", "forecast, not measured"):
        assert shown in ran.out
        assert shown in written
        assert shown in page
    assert alone.status == 2
    assert (
        alone.err
        == "tputfind: --save none.csv: a .csv holds one result, and several are asked for (it can be .md or .html)\n"
    )
    assert not (tmp_path / "none.csv").exists()
