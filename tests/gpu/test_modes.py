"""Compiled models and CUDA graphs on a real GPU."""

import pytest
from support.command import run
from support.folders import MODELS

ROWS = ("--processes", 1, "--dtype", "fp16", "--layout", "nhwc")


def test_cuda_graph_replays_the_model_and_is_faster_if_host_bound(tmp_path):
    eager = run(tmp_path, "resnet18", "--batch-sizes", "1,64", *ROWS)
    graph = run(tmp_path, "resnet18", "--batch-sizes", "1,64", "--mode", "cudagraph", *ROWS)

    assert (eager.status, graph.status) == (0, 0), graph.err
    rows = graph.record("*-cudagraph-*").rows
    assert [row.output.result for row in rows] == ["right", "right"]
    faster = [
        replay.samples_per_s / row.samples_per_s
        for replay, row in zip(rows, eager.record("*-nhwc-nvidia-*").rows, strict=True)
    ]
    assert faster[0] > 1.5
    assert faster[1] > 0.95


def test_synchronising_model_cannot_be_captured_and_reason_is_shown(tmp_path):
    ran = run(
        tmp_path, f"{MODELS}/compiled.py:waits_for_the_device", "--mode", "cudagraph", "--quiet", "--no-save", *ROWS
    )

    assert ran.status == 3, ran.err
    assert "--mode cudagraph on this device: " in ran.err
    assert "captur" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_largest_batch_of_cuda_graph_is_proven_on_both_sides(tmp_path):
    ran = run(tmp_path, "resnet18", "--mode", "cudagraph", "--memory-limit", "4GiB", *ROWS)

    assert ran.status == 0, ran.err
    edge, trials = ran.record().edge, {trial.batch_size: trial for trial in ran.record().trials}
    assert edge.limited_by == "memory"
    assert edge.fails_at == edge.largest_batch + 1
    assert trials[edge.fails_at].failure.kind == "out_of_memory"


@pytest.mark.parametrize("more", [(), ("--memory-limit", "8GiB"), ("--transfer", "both")])
def test_compiled_model_is_one_graph_and_agrees_with_eager(tmp_path, more):
    ran = run(tmp_path, "resnet18", "--mode", "compile", "--batch-sizes", "2,64", *more, *ROWS)

    assert ran.status == 0, ran.err
    rows = ran.record().rows
    assert [row.output.result for row in rows] == ["right", "right"]
    assert [row.timings[0].compiled.graphs for row in rows] == [1, 1]
    assert all(row.timings[0].compiled.seconds > 1 for row in rows)


def test_copies_run_alongside_cuda_graph_replay(tmp_path):
    ran = run(tmp_path, "resnet18", "--mode", "cudagraph", "--transfer", "both", "--batch-sizes", "64", *ROWS)

    assert ran.status == 0, ran.err
    (row,) = ran.record().rows
    assert row.output.result == "right"
    assert row.timings[0].copy_in_ms > 0
