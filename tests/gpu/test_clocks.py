"""The findings of `tputfind clocks` about timing methods are true on a real GPU."""

import msgspec
import pytest
from support.command import run
from support.folders import MODELS

from tputfind.record.clocks import BOUNDARIES, METHODS, Methods, Pipeline, cell_of, figures_of, stage_figures

SPIN_MS = 5
"""Duration of the spin kernel, as in ``hard_to_time.py``."""


def clocks(tmp_path, *arguments) -> tuple[Methods, str]:
    ran = run(tmp_path, "clocks", *arguments, "--save", "all.json")
    print(ran.out)
    assert ran.status == 0, ran.err
    return msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Methods), ran.out.replace("\n", " ")


def mean_ms(found: Methods, way: str, condition: str = "warm") -> float:
    return figures_of(found.cells, way, condition).mean_ms


def median_ms(found: Methods, way: str) -> float:
    return figures_of(found.cells, way, "warm").median_ms


def test_kernel_of_fixed_duration_is_timed_right_except_by_first_method(tmp_path):
    found, _ = clocks(tmp_path, f"{MODELS}/hard_to_time.py:spins", "--batch-size", 4)

    for way in ("events_waited", "events_at_end", "graph", "device_span"):
        assert median_ms(found, way) == pytest.approx(SPIN_MS, rel=0.04), way
    for way in ("host_clock_synchronised", "submission_and_device"):  # the host's part varies with the host
        assert SPIN_MS <= median_ms(found, way) < 1.2 * SPIN_MS, way
    assert mean_ms(found, "submission") < 0.2 * SPIN_MS
    assert mean_ms(found, "host_clock") < 0.2 * SPIN_MS


def test_the_host_clock_alone_sees_the_submission_and_the_others_agree(tmp_path):
    """Use few repeats: a full launch queue would make calls wait."""
    found, out = clocks(
        tmp_path, "vit_b_16", "--dtype", "fp16", "--batch-size", 512, "--repeats", 4, "--drop", 1, "--warmup", 20
    )

    whole = mean_ms(found, "host_clock_synchronised")
    assert mean_ms(found, "host_clock") < 0.5 * whole
    assert mean_ms(found, "submission") < 0.5 * mean_ms(found, "device_span")
    assert mean_ms(found, "device_span") <= mean_ms(found, "submission_and_device")
    for way in ("events_waited", "events_at_end"):
        assert mean_ms(found, way) == pytest.approx(whole, rel=0.05), way
    assert "The host clock alone sees" in out


def test_without_warm_up_the_first_call_takes_many_times_as_long(tmp_path):
    found, out = clocks(tmp_path, "mobilenet_v3_large")

    for way in ("host_clock_synchronised", "events_waited", "events_at_end", "submission_and_device"):
        cold = figures_of(found.cells, way, "cold")
        assert len(cold.samples_ms) == 50
        assert cold.samples_ms[0] > 3 * mean_ms(found, way), way
        assert cold.mean_ms > mean_ms(found, way), way
    assert len(figures_of(found.cells, "events_at_end").samples_ms) == 45
    assert cell_of(found.cells, "graph", "cold") is None
    assert "No warm-up: the mean of 50 is" in out


def test_a_copy_inside_the_timed_region_costs_and_pinned_memory_less(tmp_path):
    found, _ = clocks(tmp_path, "resnet18", "--dtype", "fp16", "--batch-size", 256, "--repeats", 20)

    for way in ("host_clock_synchronised", "events_at_end", "graph"):
        resident, pageable, pinned = (mean_ms(found, way, condition) for condition in ("warm", "pageable", "pinned"))
        assert resident < pinned < pageable, way


def test_a_graph_is_faster_than_python_at_batch_1(tmp_path):
    found, out = clocks(tmp_path, "resnet50", "--dtype", "fp16", "--batch-size", 1)

    assert mean_ms(found, "graph") < 0.8 * mean_ms(found, "events_at_end")
    assert "Python holds the device up: as a CUDA graph the batch takes" in out


@pytest.mark.opens_gpu
def test_replay_computes_the_step_on_current_inputs():
    import torch

    from tputfind.worker.modes.cudagraph import capture_graph

    torch.manual_seed(0)
    with torch.inference_mode():
        module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda().eval()
        inputs = torch.randn(16, 64, device="cuda")
        replay = capture_graph(lambda: module(inputs))
        for _ in range(3):
            inputs.copy_(torch.randn(16, 64))
            torch.testing.assert_close(replay(), module(inputs))


def test_uncapturable_model_is_reported_and_other_methods_are_timed(tmp_path):
    found, out = clocks(tmp_path, f"{MODELS}/compiled.py:waits_for_the_device", "--batch-size", 4)

    assert "not captured" in out
    assert "it could not be captured and replayed (" in out
    for condition in ("warm", "pageable", "pinned"):
        assert cell_of(found.cells, "graph", condition).failure is not None
        assert all(figures_of(found.cells, way, condition) for way in METHODS if way != "graph")
    assert all(figures_of(found.cells, way, "cold") for way in BOUNDARIES)


@pytest.mark.parametrize("options", [("--dtype", "amp-fp16"), ("--dtype", "bf16", "--layout", "nhwc")])
def test_autocast_and_channels_last_are_captured_too(tmp_path, options):
    found, _ = clocks(tmp_path, "resnet18", *options, "--repeats", 10)

    assert cell_of(found.cells, "graph", "pinned").failure is None


def test_a_batch_that_does_not_fit_ends_it_with_4(tmp_path):
    ran = run(tmp_path, "clocks", "resnet50", "--batch-size", 1_000_000, "--quiet")

    assert ran.status == 4, ran.err
    assert "batch 1000000 does not fit" in ran.err.splitlines()[-1]


def test_synchronising_around_each_stage_makes_a_pipeline_longer_and_events_do_not(tmp_path):
    asked = ("resnet50", "resnet50", "--dtype", "fp16", "--batch-size", 128, "--repeats", 30)
    ran = run(tmp_path, "clocks", *asked, "--save", "all.json")
    print(ran.out)
    assert ran.status == 0, ran.err
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Pipeline)
    synchronised, events, untimed = (
        stage_figures(found.cells, "whole", way).mean_ms for way in ("synchronised", "events", "untimed")
    )

    assert synchronised > 1.1 * untimed
    assert events == pytest.approx(untimed, rel=0.05)
    for stage in ("first", "second"):
        host, device = (stage_figures(found.cells, stage, way).mean_ms for way in ("synchronised", "events"))
        assert host == pytest.approx(device, rel=0.1), stage
    assert "Synchronising around each stage makes the whole take" in ran.out.replace("\n", " ")
    assert "The stage times agree within" in ran.out.replace("\n", " ")
