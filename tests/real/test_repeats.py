"""An input function makes a few samples that larger batches repeat, or all of them within the host's memory."""

from collections.abc import Callable

import pytest
import torch
from support.command import EDGE, QUICK
from support.folders import MODELS
from torch._subclasses.fake_tensor import FakeTensorMode

import tputfind
from tputfind.errors import ModelFailed
from tputfind.record.spec import read_spec
from tputfind.record.trace import Event
from tputfind.worker import placing
from tputfind.worker.fake_trace import _Recorder
from tputfind.worker.inputs import repeatable_split
from tputfind.worker.inspect import inspect
from tputfind.worker.placing import Placement
from tputfind.worker.workload import Workload

REPEATED = f"{MODELS}/repeated.py"
CPU = torch.device("cpu")


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Return a function that returns the batch sizes of all input calls since its last call."""
    path = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(path))

    def since() -> list[int]:
        sizes = [int(line) for line in path.read_text().split()] if path.exists() else []
        path.write_text("")
        return sizes

    return since


def workload(factory, **options):
    return Workload(read_spec(f"{REPEATED}:{factory}", options), CPU)


@pytest.mark.parametrize("factory", ["refuses_many", "refuses_many_targets", "refuses_many_triples"])
@pytest.mark.parametrize("batch_size", [65, 128, 1000])
def test_a_large_batch_calls_the_input_function_for_few_samples(calls, factory, batch_size):
    made = workload(factory)

    batch = made.batch(batch_size)  # the function raises for larger batches
    batch()
    made.check_samples(batch)

    assert calls() == [1, 2, 3, 64]
    assert "inputs_repeated" in batch.seen
    assert list(batch.miscounts()) == []


@pytest.mark.parametrize(("options", "few"), [({}, 64), ({"granularity": 3}, 63), ({"granularity": 96}, 96)])
def test_the_few_samples_are_a_multiple_of_the_granularity(calls, options, few):
    workload("widens", **options).batch(960)

    assert calls()[-1] == few


@pytest.mark.parametrize("batch_size", [1, 63, 64])
def test_a_batch_of_few_samples_is_made_in_full(calls, batch_size):
    batch = workload("refuses_many").batch(batch_size)

    assert calls() == [batch_size]
    assert "inputs_repeated" not in batch.seen


def test_each_draw_repeats_other_samples():
    made = workload("widens")
    one, other, same = (made.batch(100, draw)().sum() for draw in (0, 1, 0))

    assert one == same != other


@pytest.mark.parametrize("factory", ["pairs", "graphs", "crops", "objects"])
def test_inputs_that_repeats_would_falsify_are_made_in_full_once(calls, factory):
    made = workload(factory)

    batch = made.batch(256)
    batch()
    made.check_samples(batch)

    assert calls().count(256) == 1
    assert "inputs_repeated" not in batch.seen


def test_fresh_inputs_are_made_in_full(calls):
    batch = workload("widens", fresh_inputs=True).batch(256)

    assert calls()[-1] == 256
    assert "inputs_repeated" not in batch.seen


def test_exhausted_data_set_is_refused_if_samples_cannot_be_repeated():
    made = workload("objects_that_end")
    made.check_samples(made.batch(90))

    with pytest.raises(ModelFailed, match="of the same size at batch sizes 375 and 400"):
        made.check_samples(made.batch(400))


@pytest.mark.parametrize("factory", ["pairs", "widens"])
def test_a_batch_that_the_host_has_no_memory_for_is_never_made(calls, monkeypatch, factory):
    made = workload(factory, fresh_inputs=True)
    monkeypatch.setattr(made, "_device", torch.device("meta"))  # so that its inputs come from the host
    monkeypatch.setattr(placing, "host_memory", lambda: (2**40, 2**22))

    with pytest.raises(MemoryError, match="of the host's memory"):
        made.batch(10**6)

    assert max(calls()) == 64


def test_an_inspection_calls_the_input_function_no_more_than_five_times(calls):
    inspect(read_spec(f"{REPEATED}:widens", {"device": "cpu"}))

    assert len(calls()) <= 5


def test_repeated_inputs_are_noticed_and_recorded(tmp_path, ask):
    ran = ask(tmp_path, f"{REPEATED}:refuses_many", "--max-batch", 200, *QUICK, "--device", "cpu")

    assert ran.status == 0, ran.err
    record = ran.record()
    assert record.edge.largest_batch == 200
    assert {row.batch_size for row in record.rows if "inputs_repeated" in row.seen} == {128, 200}
    assert {trial.batch_size for trial in record.trials if "inputs_repeated" in trial.seen} == {
        trial.batch_size for trial in record.trials if trial.batch_size > 64
    }
    (notice,) = [notice for notice in record.notices if notice.kind == "inputs_repeated"]
    assert notice.batch_sizes == (128, 200)
    assert notice.seen == "batches above 64 repeat 64 samples"
    assert "--fresh-inputs" in notice.advice


def test_outputs_of_samples_that_inputs_index_are_not_checked(tmp_path, ask):
    ran = ask(tmp_path, f"{REPEATED}:crops", "--batch-sizes", "8,256", *QUICK, "--device", "cpu")

    assert ran.status == 0, ran.err
    outputs = [row.output for row in ran.record().rows]
    assert [output.result for output in outputs] == ["unchecked"] * 2
    assert all("cannot be taken apart by sample" in output.remark for output in outputs)


def test_training_repeats_targets_with_their_samples(tmp_path, ask):
    options = ("--phase", "train", "--batch-sizes", "2,256", *QUICK, "--device", "cpu")

    ran = ask(tmp_path, f"{REPEATED}:refuses_many_targets", *options)

    assert ran.status == 0, ran.err
    assert [row.output.result for row in ran.record().rows] == ["loss", "loss"]


def test_largest_batch_and_peak_equal_those_of_fresh_inputs(tmp_path, ask):
    asked = (f"{REPEATED}:widens", "--memory-limit", "300.5MiB", "--granularity", 16, "--device", "cpu:0", *EDGE)

    def measure(*more):
        ran = ask(tmp_path, *asked, *more, "--no-save", "--save", "found.json", "--overwrite")
        assert ran.status == 0, ran.err
        return tputfind.load_record(tmp_path / "found.json")

    repeated, fresh = measure(), measure("--fresh-inputs")

    assert repeated.edge.largest_batch > 2 * 64
    assert repeated.edge.largest_batch == fresh.edge.largest_batch
    assert repeated.spec.fresh_inputs is False
    assert fresh.spec.fresh_inputs is True
    assert not any("inputs_repeated" in row.seen for row in fresh.rows)
    peaks = [record.rows[-1].peak_reserved_bytes for record in (repeated, fresh)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("axis", [0, 1])
def test_repeated_inputs_request_same_bytes_as_full_ones(layout, axis):
    few, many, placement = 64, 200, Placement(torch.device("cuda"), torch.float16, layout)

    def events(place: Callable[[], object]) -> list[Event]:
        recorder = _Recorder()
        with FakeTensorMode(allow_non_fake_inputs=True), recorder:
            value = place()
            seen = list(recorder.events)
        del value
        return seen

    def made(size: int) -> tuple[object, ...]:
        shape = (size, 3, 8, 8) if axis == 0 else (3, size, 8, 8)
        return (
            torch.randn(shape),
            torch.ones(5),
            [torch.randn(4) for _ in range(size)],
            {"ids": torch.ones(size).long()},
        )

    split = repeatable_split([made(size) for size in (1, 2, few)], (1, 2, few))
    full = events(lambda: placement.place(made(many)))

    assert len(full) == many + 3
    assert events(lambda: placement.repeat(made(few), split, few, many)) == full
