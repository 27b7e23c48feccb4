"""The requests of a model on fake tensors, compared with arithmetic."""

from collections import Counter

import msgspec
import pytest
from support.folders import MODELS, record_path

from tputfind import load_record
from tputfind.errors import BadRequest
from tputfind.record.record import TRIAL_STEPS
from tputfind.record.spec import Spec
from tputfind.record.trace import Event
from tputfind.search.allocator import rounded_bytes
from tputfind.search.forecast import FIRST_BATCH
from tputfind.search.replay import Program, _transient
from tputfind.worker.fake_trace import OUTSIDE_BYTES, fake_trace

BLAS = [Event("allocate", 32 * 2**20), Event("allocate", 2**20)]


def sizes(trace):
    return [value for kind, value in trace.events() if kind == "allocate"]


@pytest.mark.parametrize("dtype", ["fp32", "amp-fp16"])
def test_request_sizes_double_with_batch_or_stay_constant(dtype):
    once, twice = (fake_trace(Spec(model="resnet18", dtype=dtype, image_size=64), batch).trace for batch in (5, 10))

    assert once.fixed == twice.fixed == 122  # 62 parameters, 60 buffers
    pairs = list(zip(sizes(once), sizes(twice), strict=True))
    assert all(one == two for one, two in pairs[: once.fixed])
    steps = pairs[once.fixed :]
    assert {two / one for one, two in steps} == {1.0, 2.0}
    # Only weights converted by autocast are also the same for every batch.
    assert sum(one == two for one, two in steps) == (2 if dtype == "fp32" else 2 + 3 * 22)
    assert [kind for kind, _ in once.events()] == [kind for kind, _ in twice.events()]


def test_a_linear_layer_asks_for_its_weights_its_input_and_its_outputs():
    trace = fake_trace(Spec(model=f"{MODELS}/plain.py:module_alone", input_size=(16,)), 100).trace

    assert list(trace.events()) == [
        Event("outside", OUTSIDE_BYTES),
        Event("allocate", 16 * 4 * 4),
        Event("allocate", 4 * 4),
        Event("allocate", 100 * 16 * 4),
        Event("allocate", 100 * 4 * 4),
        *BLAS,
        Event("allocate", 100 * 4 * 4),
        Event("release", 3),  # the first output, alive while the second was made
        Event("allocate", 100 * 4 * 4),
        Event("release", 6),
        Event("release", 7),
    ]
    assert (trace.batch_size, trace.fixed, trace.complete) == (100, 2, True)


def test_views_and_in_place_writes_allocate_no_memory():
    trace = fake_trace(Spec(model=f"{MODELS}/plain.py:four_mebibytes"), 3).trace

    step = [3 * 4 * 2**20, 3 * 4]
    assert sizes(trace) == [3 * 4, *step, *step, *step]
    assert trace.fixed == 0


@pytest.mark.parametrize(
    ("factory", "reason"),
    [("as_long_as_the_longest", "DataDependentOutputException"), ("fails", "this model was made for 0 samples")],
)
def test_value_dependent_or_failing_model_is_refused_in_one_line(factory, reason):
    with pytest.raises(BadRequest, match=f"{factory} does not run on fake tensors: .*{reason}") as refused:
        fake_trace(Spec(model=f"{MODELS}/plain.py:{factory}"), 2)

    assert "\n" not in refused.value.message
    assert refused.value.hint == "leave --on-fake out, on a machine with a GPU"


def test_a_layout_changes_no_sizes_and_a_narrower_dtype_halves_the_inputs():
    small = {"model": "resnet18", "image_size": 64}
    rows, channels, halves = (
        fake_trace(Spec(**small, **how), 4).trace for how in ({}, {"layout": "nhwc"}, {"dtype": "fp16"})
    )

    assert sizes(rows) == sizes(channels)
    assert 2 * sizes(halves)[halves.fixed] == sizes(rows)[rows.fixed] == 4 * 3 * 64 * 64 * 4


def kinds(found, batch_size):
    numbered = {number: kind for kind in ("gradients", "optimizer", "libraries") for number in getattr(found, kind)}
    return Program(found.trace).allocated_at_peak(batch_size, numbered)


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 1), ("adamw", 2)])
def test_training_keeps_gradients_and_optimizer_state_of_the_size_of_the_weights(optimizer, moments):
    spec = Spec(model=f"{MODELS}/compiled.py:wide", phase="train", optimizer=optimizer)

    found = fake_trace(spec, 1)

    wide = 4096 * 4096 * 4
    counts = sizes(found.trace)
    assert [counts[number] for number in found.gradients].count(wide) == TRIAL_STEPS
    assert [counts[number] for number in found.optimizer].count(wide) == moments
    at_peak = kinds(found, 1)
    assert at_peak["weights"] == wide
    assert at_peak["gradients"] == wide
    assert at_peak["optimizer"] == moments * wide


@pytest.mark.parametrize("model", ["resnet50", "mobilenet_v3_large"])
def test_training_trace_matches_requests_on_a_device(model):
    """The trace of a trial on an H200 holds the same allocations, except those that libraries make for themselves."""
    record = load_record(record_path(f"nvidia-h200/training/{model}-amp-bf16-adamw-24GiB.json"))
    measured = next(trial.trace for trial in record.trials if trial.batch_size == FIRST_BATCH)

    found = fake_trace(record.spec, FIRST_BATCH)

    on_device, on_fake = lasting(measured), lasting(found.trace, libraries=found.libraries)
    assert not on_fake - on_device
    workspaces = {33554432: 2, 1048576: 1}
    assert all(size <= 1024 or workspaces.get(size) == times for size, times in (on_device - on_fake).items())


def lasting(trace, libraries=()):
    """Count the allocations of a trace by block size, without those that are released at once."""
    events = list(trace.events())
    transient, counted = _transient(events), Counter()
    for number, size in enumerate(value for kind, value in events if kind == "allocate"):
        if number not in transient and number not in libraries:
            counted[rounded_bytes(size)] += 1
    return counted


@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("efficientnet_b0", {"image_size": 32}),  # dropout in place, in a view
        ("timm:test_vit", {"grad_checkpoint": True}),
        ("timm:test_vit", {"dtype": "amp-fp16"}),  # with a gradient scaler
        (f"{MODELS}/compiled.py:small", {"dtype": "bf16"}),
    ],
)
def test_steps_of_many_kinds_train_on_fake_tensors(model, how):
    found = fake_trace(Spec(model=model, phase="train", optimizer="adamw", **how), 3)

    weights = len(found.optimizer) // 2
    assert len(found.gradients) >= TRIAL_STEPS * weights > 0
    assert len(found.gradients) % weights == 0


def test_checkpointing_leaves_fewer_activations():
    spec = Spec(model="timm:test_vit", phase="train")
    plain, checkpointed = (
        kinds(fake_trace(msgspec.structs.replace(spec, grad_checkpoint=on), 61), 61) for on in (False, True)
    )

    assert checkpointed["activations"] < 0.7 * plain["activations"]
    assert checkpointed["weights"] == plain["weights"]
