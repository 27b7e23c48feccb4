"""Signals and interruptions: what was measured is written, and the exit code says that it was interrupted."""

import contextlib
import importlib
import os
import signal
import sys

import pytest
from support.folders import ROOT
from support.records import example

from tputfind import load
from tputfind.analysis.compare import compare
from tputfind.commands import main
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
            monkeypatch.setattr(command, "Children", lambda **_: contextlib.nullcontext())
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


def test_interrupted_comparison_is_saved_and_says_so(run, tmp_path, capsys):
    interrupted = COMPARED._replace(interrupted=True)

    assert run("compare --run resnet18 resnet50 --save both.json", "runners.compare.measure", interrupted) == 130
    assert "interrupted; the rounds until then are saved" in capsys.readouterr().err
    assert (tmp_path / "both.json").exists()
    assert run("compare --run resnet18 resnet50", "runners.compare.measure", interrupted) == 130
    assert "interrupted; nothing was saved: --save names a file" in capsys.readouterr().err
