"""Variants timed in interleaved rounds on a GPU: ``tputfind compare --run`` and ``tputfind tune``."""

import json

import pytest
from support.command import run
from support.folders import MODELS

import tputfind

FILE = MODELS / "in_turn.py"
RUN = ("compare", "--run", "--device", "cuda", "--quiet", "--save", "all.json", "--overwrite")


@pytest.mark.parametrize("batch_size", [1, 256])
def test_equal_model_passes_and_5_percent_more_work_fails(tmp_path, batch_size):
    equal = run(tmp_path, *RUN, f"{FILE}:spins", f"{FILE}:spins", "--batch-sizes", batch_size, "--fail-slower", "3%")
    slower = run(
        tmp_path, *RUN, f"{FILE}:spins", f"{FILE}:spins_on", "--batch-sizes", batch_size, "--fail-slower", "3%"
    )

    (saved,) = json.loads((tmp_path / "all.json").read_text())
    (row,) = saved["rows"]
    assert equal.status == 0, equal.err
    assert slower.status == 1, slower.err
    assert row["low"] < 1 / 1.05 < row["high"]


def test_models_that_fill_the_memory_take_turns_one_after_the_other(tmp_path):
    ran = run(tmp_path, *RUN, f"{FILE}:fills", f"{FILE}:fills", "--batch-sizes", 1, "--fail-slower", "10%")

    assert ran.status == 0, ran.err


def test_cuda_graph_wins_if_the_model_is_host_bound(tmp_path):
    arguments = ("--image-size", 64, "--dtype", "fp16", "--mode", "eager,cudagraph", "--layout", "nchw")
    ran = run(tmp_path, "tune", "resnet18", *arguments, "--for", "latency", "--budget", "60s", "--save", "race.json")

    race = tputfind.load(tmp_path / "race.json")
    assert ran.status == 0, ran.err
    assert race.winner.mode == "cudagraph"
    assert race.record.rows[0].output.result == "right"


@pytest.mark.parametrize("goal", ["memory", "energy"])
def test_half_precision_wins_for_memory_and_for_energy(tmp_path, goal):
    arguments = ("--dtype", "fp32,fp16", "--mode", "eager", "--layout", "nchw", "--batch-sizes", 64, "--budget", "60s")
    ran = run(tmp_path, "tune", "resnet50", *arguments, "--for", goal, "--save", "race.json")

    race = tputfind.load(tmp_path / "race.json")
    assert ran.status == 0, ran.err
    assert race.winner.dtype == "fp16"
    assert race.contenders[1].judgement.ratio > 1.3


def test_allocators_race_and_each_is_named(tmp_path):
    arguments = ("--mode", "eager", "--layout", "nchw", "--batch-sizes", 64, "--budget", "60s", "--for", "memory")
    ran = run(tmp_path, "tune", "resnet50", *arguments, "--allocator", "native,expandable", "--save", "race.json")

    race = tputfind.load(tmp_path / "race.json")
    assert ran.status == 0, ran.err
    assert [one.spec.allocator for one in race.contenders] == ["native", "expandable"]
    assert race.contenders[1].judgement.ratio >= 0.99  # expandable segments leave less of their memory unused
