"""What a model asks for on fake tensors, against arithmetic."""

from __future__ import annotations

import pytest
from support.folders import MODELS

from tputfind.errors import BadRequest
from tputfind.record.spec import Spec
from tputfind.record.trace import Event
from tputfind.worker.fake_trace import OUTSIDE_BYTES, fake_trace

BLAS = [Event("allocate", 32 * 2**20), Event("allocate", 2**20)]


def sizes(trace):
    return [value for kind, value in trace.events() if kind == "allocate"]


@pytest.mark.parametrize("dtype", ["fp32", "amp-fp16"])
def test_what_follows_the_batch_doubles_with_it_and_the_rest_stays(dtype):
    once, twice = (fake_trace(Spec(model="resnet18", dtype=dtype, image_size=64), batch) for batch in (5, 10))

    assert once.fixed == twice.fixed == 122  # 62 parameters, 60 buffers
    pairs = list(zip(sizes(once), sizes(twice), strict=True))
    assert all(one == two for one, two in pairs[: once.fixed])
    steps = pairs[once.fixed :]
    assert {two / one for one, two in steps} == {1.0, 2.0}
    # Weights that autocast converts are the only other things that are the same for every batch.
    assert sum(one == two for one, two in steps) == (2 if dtype == "fp32" else 2 + 3 * 22)
    assert [kind for kind, _ in once.events()] == [kind for kind, _ in twice.events()]


def test_a_linear_layer_asks_for_its_weights_its_input_and_its_outputs():
    trace = fake_trace(Spec(model=f"{MODELS}/plain.py:module_alone", input_size=(16,)), 100)

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


def test_a_view_and_a_write_in_place_ask_for_nothing():
    trace = fake_trace(Spec(model=f"{MODELS}/plain.py:four_mebibytes"), 3)

    step = [3 * 4 * 2**20, 3 * 4]
    assert sizes(trace) == [3 * 4, *step, *step, *step]
    assert trace.fixed == 0


@pytest.mark.parametrize(
    ("factory", "reason"),
    [("as_long_as_the_longest", "DataDependentOutputException"), ("fails", "this model was made for 0 samples")],
)
def test_a_model_that_looks_at_values_or_fails_is_refused_in_one_line(factory, reason):
    with pytest.raises(BadRequest, match=f"{factory} does not run on fake tensors: .*{reason}") as refused:
        fake_trace(Spec(model=f"{MODELS}/plain.py:{factory}"), 2)

    assert "\n" not in refused.value.message
    assert refused.value.hint == "leave --on-fake out, on a machine with a GPU"


def test_a_layout_changes_no_sizes_and_a_narrower_dtype_halves_the_inputs():
    small = {"model": "resnet18", "image_size": 64}
    rows, channels, halves = (
        fake_trace(Spec(**small, **how), 4) for how in ({}, {"layout": "nhwc"}, {"dtype": "fp16"})
    )

    assert sizes(rows) == sizes(channels)
    assert 2 * sizes(halves)[halves.fixed] == sizes(rows)[rows.fixed] == 4 * 3 * 64 * 64 * 4
