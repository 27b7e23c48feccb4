from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tputfind.errors import BadRequest
from tputfind.spec import _READERS, Spec, read_spec


def test_what_is_not_given_is_the_default():
    assert read_spec("resnet50", {"dtype": None, "max_batch": None}) == Spec(model="resnet50")


def test_text_and_numbers_ask_for_the_same():
    text = {"batch_sizes": "8,1,8", "memory_limit": "8GiB", "slo": "20ms", "input_size": "3x64x48", "max_seconds": "5"}
    numbers = {
        "batch_sizes": [1, 8],
        "memory_limit": 2**33,
        "slo": 20,
        "input_size": (3, 64, 48),
        "max_seconds": 5,
    }

    assert read_spec("m", text) == read_spec("m", numbers)
    assert read_spec("m", text).batch_sizes == (1, 8)
    assert read_spec("m", {"input_size": "16"}).input_size == (16,)


def test_headroom_is_a_share_or_bytes_and_a_timeout_is_in_seconds():
    assert read_spec("m", {"headroom": "5%"}) == read_spec("m", {"headroom": 0.05})
    assert read_spec("m", {"headroom": "2GiB"}) == read_spec("m", {"headroom": 2**31})
    assert read_spec("m", {"trial_timeout": "1.5min"}) == read_spec("m", {"trial_timeout": 90})


def test_no_latency_limit_can_be_asked_for():
    assert read_spec("m", {"max_latency": "none"}).max_latency_ms is None
    assert read_spec("m", {}).max_latency_ms == "auto"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_sizes": "8,x"}, "--batch-sizes: 'x' is not a whole number"),
        ({"batch_sizes": ""}, "--batch-sizes: '' is not a whole number"),
        ({"batch_sizes": "0"}, "--batch-sizes: 0 is not between 1"),
        ({"batches": "0"}, "--batches: 0 is not between 1"),
        ({"batches": "-5"}, "--batches: -5 is not between 1"),
        ({"batches": True}, "--batches: True is not a whole number"),
        ({"warmup": "-1"}, "--warmup: -1 is not between 0"),
        ({"max_batch": "1e3"}, "--max-batch: '1e3' is not a whole number"),
        ({"max_batch": str(2**40)}, "--max-batch"),
        ({"granularity": "0"}, "--granularity: 0"),
        ({"memory_limit": "8"}, "--memory-limit: '8' is not a size"),
        ({"memory_limit": "0GiB"}, "--memory-limit: '0GiB' is no memory"),
        ({"max_latency": "0ms"}, "--max-latency: '0ms' is not above zero"),
        ({"slo": "fast"}, "--slo: 'fast' is not a duration"),
        ({"max_seconds": "nan"}, "--max-seconds: 'nan' is not a finite number"),
        ({"max_seconds": "0"}, "--max-seconds: '0' is not above zero"),
        ({"percentile": "100"}, "--percentile: '100' is not between"),
        ({"dtype": "float"}, "--dtype: 'float' is none of fp32"),
        ({"layout": "nhcw"}, "--layout: 'nhcw' is none of"),
        ({"search": "magic"}, "--search: 'magic' is none of"),
        ({"device": "cuda:x"}, "--device: 'cuda:x' is none of"),
        ({"device": "tpu"}, "--device: 'tpu' is none of"),
        ({"input_size": "3xax2"}, "--input-size: 'a' is not a whole number"),
        ({"max_batch": "4", "granularity": "8"}, "--max-batch 4 is below --granularity 8"),
        ({"image_size": "64", "input_size": "3x64x64"}, "say the same thing"),
        ({"batch_sizes": "8", "max_batch": "9"}, "--batch-sizes names every batch size"),
        ({"layout": "nhwc", "input_size": "16"}, "--layout nhwc needs samples of 3 or 4"),
        ({"headroom": "100%"}, "--headroom: '100%' is not between 0 and 100 %"),
        ({"headroom": "-1%"}, "--headroom: '-1%' is not between"),
        ({"headroom": "0GiB"}, "--headroom: '0GiB' is no memory"),
        ({"headroom": "5"}, "--headroom: '5' is not a size"),
        ({"headroom": "1GiB", "batch_sizes": "8"}, "--headroom and --soak have no answer to be about"),
        ({"soak": "-1"}, "--soak: -1 is not between 0"),
        ({"trial_timeout": "0s"}, "--trial-timeout: '0s' is not above zero"),
        ({"trial_timeout": "5"}, "--trial-timeout: '5' is not a duration"),
        ({"strict": "yes"}, "--strict: 'yes' is neither True nor False"),
        ({"colour": "red"}, "there is no option 'colour'"),
    ],
)
def test_what_cannot_be_done_is_refused(options, expected):
    with pytest.raises(BadRequest) as refused:
        read_spec("m", options)

    assert expected in refused.value.message
    assert refused.value.exit_code == 2


def test_all_problems_are_reported_at_once():
    with pytest.raises(BadRequest) as refused:
        read_spec("m", {"batches": "0", "dtype": "int3", "slo": "x"})

    for option in ("--batches", "--dtype", "--slo"):
        assert option in refused.value.message


@given(st.dictionaries(st.sampled_from(sorted(_READERS)), st.text(max_size=8) | st.integers() | st.floats()))
def test_any_options_make_a_spec_or_a_bad_request(options):
    try:
        spec = read_spec("m", options)
    except BadRequest as refused:
        assert refused.message
    else:
        assert spec.batches >= 1
        assert spec.max_batch is None or spec.max_batch >= spec.granularity
