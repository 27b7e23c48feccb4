"""Commands that measure, with a result in place of the measurement: signals, files, exit codes."""

import contextlib
import importlib
import os
import signal
import sys
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from support.folders import ROOT
from support.records import example

from tputfind import load
from tputfind.analysis.compare import compare
from tputfind.commands import main
from tputfind.errors import BrokenInstall
from tputfind.record.files import RecordFile
from tputfind.report.views import tune as view
from tputfind.runners import compare as in_turn
from tputfind.runners.tune import Raced

RACE = load(ROOT / "results/nvidia-h200/tune/resnet50-fp16.json")
COMPARED = in_turn.Compared(compare(example(), example()))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a function that runs a command, whose measurement is replaced by a result, and returns its exit code."""

    def call(words, place, result=None):
        name = words.split()[0]
        command = importlib.import_module(f"tputfind.commands.{name}")
        if hasattr(command, "Children"):
            monkeypatch.setattr(command, "Children", lambda **_: contextlib.nullcontext(Mock()))
        monkeypatch.setattr(f"tputfind.{place}", lambda *_, **__: result)
        monkeypatch.setattr(sys, "argv", ["tputfind", *words.split()])
        monkeypatch.chdir(tmp_path)
        with pytest.raises((SystemExit, KeyboardInterrupt)) as end:
            main(prog_name="tputfind")
        return getattr(end.value, "code", None)

    return call


@pytest.mark.parametrize(
    "asked",
    [
        ("tune resnet50 --no-save", "runners.tune.measure", Raced(RACE)),
        ("compare --run resnet18 resnet50", "runners.compare.measure", COMPARED),
        ("forecast resnet50 --memory 8GiB", "session.forecast.forecast_with"),
    ],
)
def test_second_signal_does_not_lose_the_result(asked, run, monkeypatch, tmp_path):
    def interrupt_and_draw(_):
        while signals:
            os.kill(os.getpid(), signals.pop())
        return document

    words, *others = asked
    document, signals = view.document(RACE), [signal.SIGINT]
    monkeypatch.setattr(f"tputfind.report.views.{words.split()[0]}.document", interrupt_and_draw)

    assert run(f"{words} --save result.md", *others) == 0
    assert (tmp_path / "result.md").exists()


def test_interrupted_race_is_not_saved_by_the_table_of_its_record(run, tmp_path, capsys):
    raced = Raced(replace(RACE, interrupted=True), RecordFile.at(tmp_path / "record.json"))

    assert run("tune resnet50", "runners.tune.measure", raced) == 130
    assert "interrupted; the race was not saved: --save names a file" in capsys.readouterr().err
    assert (tmp_path / "record.csv").exists()
    assert run("tune resnet50 --save race.json", "runners.tune.measure", raced) == 130
    told = capsys.readouterr().err
    assert "interrupted; the race until then is saved (--resume race.json goes on)" in told


def test_race_on_a_list_of_devices_is_saved_over_itself(run, tmp_path):
    raced = Raced(load(ROOT / "results/nvidia-h200-x2/tune/resnet50-fp16.json"))
    words = "tune resnet50 --no-save --dtype fp16 --budget 240s --save race.json --device"

    assert [run(f"{words} all", "runners.tune.measure", raced) for _ in range(2)] == [0, 0]
    assert run(f"{words} auto", "runners.tune.measure", raced) == 2


def test_run_on_a_list_of_devices_is_saved_over_that_of_one(run, tmp_path):
    one = example()
    (tmp_path / "one.json").write_bytes(replace(one, spec=replace(one.spec, device="cuda:0")).to_json())
    asked = "--dtype fp16 --slo 10ms --headroom 20% --soak 50 --processes 1 --batches 100"
    words = f"run resnet50 {asked} --save one.json --no-save"

    assert run(f"{words} --device all", "commands.run.do", 0) == 0
    assert run(f"{words} --device auto", "commands.run.do", 0) == 2


def test_quiet_comparison_of_records_is_accepted(run):
    record = ROOT / "results/nvidia-h200/default/resnet50-fp16.json"

    assert run(f"compare {record} {record} --quiet --trust-model-file", "runners.compare.measure") == 0
    assert run(f"compare {record} {record} --quiet --dtype fp16", "runners.compare.measure") == 2


def test_comparison_that_a_problem_ends_early_is_saved_and_shown(run, tmp_path, capsys):
    ended = COMPARED._replace(problem=BrokenInstall("the machine allows no further process"))

    assert run("compare --run resnet18 resnet50 --save both.json", "runners.compare.measure", ended) == 2
    shown = capsys.readouterr()
    assert "the machine allows no further process" in shown.err
    assert "NEW over OLD" in shown.out
    assert (tmp_path / "both.json").exists()


def test_interrupted_comparison_is_saved_and_says_so(run, tmp_path, capsys):
    interrupted = COMPARED._replace(interrupted=True)

    assert run("compare --run resnet18 resnet50 --save both.json", "runners.compare.measure", interrupted) == 130
    assert "interrupted; the rounds until then are saved" in capsys.readouterr().err
    assert (tmp_path / "both.json").exists()
    assert run("compare --run resnet18 resnet50", "runners.compare.measure", interrupted) == 130
    assert "interrupted; nothing was saved: --save names a file" in capsys.readouterr().err
