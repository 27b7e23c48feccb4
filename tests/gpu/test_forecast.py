"""Forecasts on a real GPU lead to the edge that bisection finds, and the model of the allocator is right."""

import csv

import pytest
from support.command import QUICK, measured, run

from tputfind.processes.messages import TryBatch
from tputfind.record.record import Trial
from tputfind.record.spec import read_spec
from tputfind.record.trace import Event
from tputfind.search.replay import right_about

GIB = 2**30
ASKED = ("resnet50", "--dtype", "fp16", "--memory-limit", "8GiB")


def record_of(folder, *arguments):
    return measured(folder, *ASKED, *arguments, *QUICK, "--device", "cuda")


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    return record_of(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def expandable(tmp_path_factory):
    return record_of(tmp_path_factory.mktemp("expandable"), "--allocator", "expandable")


def test_forecast_search_finds_bisection_edge_in_few_trials(native, tmp_path):
    bisected = record_of(tmp_path, "--search", "bisect")

    print(f"{native.edge.largest_batch} in {len(native.trials)} trials, by bisection in {len(bisected.trials)}")
    assert native.edge.largest_batch == bisected.edge.largest_batch
    assert native.edge.fails_at == bisected.edge.fails_at
    assert len(native.trials) <= 8 < len(bisected.trials)


@pytest.mark.parametrize("segments", ["native", "expandable"])
def test_the_model_of_the_allocator_is_right_about_every_trial_that_passed(segments, request):
    record = request.getfixturevalue(segments)
    passed = [trial for trial in record.trials if trial.failure is None]

    assert len(passed) >= 2
    for trial in passed:
        assert trial.trace.expandable == (segments == "expandable")
        assert right_about(trial.trace, trial.peak_reserved_bytes), trial.batch_size


def test_trial_under_a_limit_makes_same_requests_as_unlimited(children):
    spec = read_spec("resnet50", {"device": "cuda", "dtype": "fp16"})
    trials = [children.ask_one(TryBatch(spec, 61, memory_limit_bytes=limit), Trial, 60) for limit in (None, 8 * GIB)]
    asked = [[event for event in trial.trace.events() if event.kind != "outside"] for trial in trials]

    assert [trial.trace.capped for trial in trials] == [False, True]
    assert asked[0] == asked[1]


def test_failed_trial_ends_with_its_refused_request(native):
    failed = next(trial for trial in native.trials if trial.batch_size == native.edge.fails_at)
    last = [*failed.trace.events()][-1]

    assert not failed.trace.complete
    assert isinstance(last, Event)
    assert last.kind in ("refused", "outside")


def test_non_monotonic_batches_around_edge_are_tried_and_reported(tmp_path):
    asked = ("densenet121", "--dtype", "fp32", "--memory-limit", "24GiB", *QUICK, "--device", "cuda")
    record = run(tmp_path, *asked).record()
    told = {notice.kind: notice.batch_sizes for notice in record.notices}
    (smaller,), (larger,) = told["smaller_batches_fail"], told["larger_batches_fit"]
    print(f"{record.edge.largest_batch} is the edge, {smaller} fails, {larger} fits")

    def failure(size):
        folder = tmp_path / str(size)
        folder.mkdir()
        (row,) = run(folder, *asked, "--batch-sizes", size).record().rows
        return row.failure

    assert smaller < record.edge.largest_batch < larger
    assert failure(smaller).kind == "out_of_memory"
    assert failure(larger) is None


def test_expandable_segments_are_set_and_fit_their_forecast(native, expandable):
    (notice,) = (notice for notice in native.notices if notice.kind == "fragmentation")
    found, forecast = expandable.edge.largest_batch, native.edge.expandable_forecast

    print(f"native {native.edge.largest_batch}, expandable {found}, forecast {forecast}: {notice.seen}")
    assert expandable.environment.allocator_conf == "expandable_segments:True"
    assert found > 1.2 * native.edge.largest_batch
    assert forecast == pytest.approx(found, rel=0.05)
    assert str(forecast) in notice.advice
    assert expandable.edge.expandable_forecast is None


@pytest.mark.parametrize("how", [(), ("--on-fake",)])
def test_forecast_for_another_memory_is_within_its_error(how, native, tmp_path):
    asked = ("forecast", "resnet50", "--dtype", "fp16", "--memory", "8GiB,24GiB", "--save", "forecast.csv")
    ran = run(tmp_path, *asked, *how, "--allocator", "native")
    assert ran.status == 0, ran.err
    small, large = csv.DictReader((tmp_path / "forecast.csv").open())

    print(ran.out)
    assert "forecast, not measured" in ran.out
    off = int(small["largest_batch_forecast"]) / native.edge.largest_batch - 1
    assert abs(off) <= float(small["error_percent"]) / 100
    assert int(large["largest_batch_forecast"]) > 3 * int(small["largest_batch_forecast"])
