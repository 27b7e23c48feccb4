import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tputfind.declaration import readers_of
from tputfind.errors import BadRequest
from tputfind.record.spec import Spec, own_step, read_spec

READERS = sorted(readers_of(Spec))


def test_missing_options_take_their_defaults():
    assert read_spec("resnet50", {"dtype": None, "max_batch": None}) == Spec(model="resnet50")


@pytest.mark.parametrize(
    ("option", "text", "number", "field"),
    [
        ("batch_sizes", "8,1,8", (1, 8), "batch_sizes"),
        ("memory_limit", "8GiB", 2**33, "memory_limit_bytes"),
        ("slo", "20ms", 20, "slo_ms"),
        ("input_size", "3x64x48", (3, 64, 48), "input_size"),
        ("input_size", "16", (16,), "input_size"),
        ("headroom", "5%", 0.05, "headroom"),
        ("headroom", "2GiB", 2**31, "headroom"),
        ("trial_timeout", "1.5min", 90, "trial_timeout_s"),
        ("budget", "1.5min", 90, "budget_s"),
        *(("max_seconds", text, 6, "max_seconds") for text in ("6", "6s", "0.1min", "6 s", "6000ms")),
    ],
)
def test_text_and_numbers_ask_for_the_same(option, text, number, field):
    assert read_spec("m", {option: text}) == read_spec("m", {option: number})
    assert getattr(read_spec("m", {option: text}), field) == number


@pytest.mark.parametrize("option", ["accumulate", "effective_batch"])
def test_accumulation_of_a_step_names_what_to_measure_instead(option):
    instead = "measure one for each number of micro-batches"
    with pytest.raises(BadRequest, match=instead):
        read_spec("mypkg.train:step", {option: 256})
    with pytest.raises(BadRequest, match=f"leave --phase, --{option.replace('_', '-')} out") as refused:
        own_step(read_spec("mypkg.train:step", {option: 256, "phase": "train"}))
    assert instead in refused.value.hint


def test_latency_limit_can_be_disabled():
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
        ({"thorough": True, "batches": "5"}, "--thorough and --batches both say how many batches a row takes"),
        ({"thorough": "yes"}, "--thorough: 'yes' is neither True nor False"),
        ({"budget": "0s"}, "--budget: '0s' is not above zero"),
        ({"budget": "60"}, "--budget: '60' is not a duration"),
        ({"min_seconds": "3"}, "there is no option 'min_seconds'"),
        ({"latency_batches": "100"}, "there is no option 'latency_batches'"),
        ({"max_batch": "1e3"}, "--max-batch: '1e3' is not a whole number"),
        ({"max_batch": str(2**40)}, "--max-batch"),
        ({"granularity": "0"}, "--granularity: 0"),
        ({"memory_limit": "8"}, "--memory-limit: '8' is not a size"),
        ({"memory_limit": "0GiB"}, "--memory-limit: '0GiB' is not a size of memory"),
        ({"max_latency": "0ms"}, "--max-latency: '0ms' is not above zero"),
        ({"slo": "fast"}, "--slo: 'fast' is not a duration"),
        ({"max_seconds": "nan"}, "--max-seconds: 'nan' is not a finite number"),
        ({"max_seconds": "0"}, "--max-seconds: '0' is not above zero"),
        ({"percentile": "100"}, "--percentile: '100' is not below"),
        ({"dtype": "float"}, "--dtype: 'float' is not one of fp32"),
        ({"layout": "nhcw"}, "--layout: 'nhcw' is not one of"),
        ({"search": "magic"}, "--search: 'magic' is not one of"),
        ({"device": "cuda:x"}, "--device: 'cuda:x' is not one of"),
        ({"device": "tpu"}, "--device: 'tpu' is not one of"),
        ({"input_size": "3xax2"}, "--input-size: 'a' is not a whole number"),
        ({"max_batch": "4", "granularity": "8"}, "--max-batch 4 is below --granularity 8"),
        ({"image_size": "64", "input_size": "3x64x64"}, "say the same thing"),
        ({"batch_sizes": "8", "max_batch": "9"}, "--batch-sizes cannot be combined with --max-batch"),
        ({"layout": "nhwc", "input_size": "8x8"}, "--layout nhwc needs samples of 3 or 4 dimensions"),
        ({"layout": "nhwc", "input_size": "1x2x3x4x5"}, "--layout nhwc needs samples of 3 or 4 dimensions"),
        ({"headroom": "100%"}, "--headroom: '100%' is not between 0 and 100 %"),
        ({"headroom": "-1%"}, "--headroom: '-1%' is not between"),
        ({"headroom": "0GiB"}, "--headroom: '0GiB' is not a size of memory"),
        ({"headroom": "5"}, "--headroom: '5' is not a size"),
        ({"headroom": "1GiB", "batch_sizes": "8"}, "--batch-sizes cannot be combined with --headroom or --soak"),
        ({"soak": "-1"}, "--soak: -1 is not between 0"),
        ({"trial_timeout": "0s"}, "--trial-timeout: '0s' is not above zero"),
        ({"trial_timeout": "5"}, "--trial-timeout: '5' is not a duration"),
        ({"strict": "yes"}, "--strict: 'yes' is neither True nor False"),
        ({"colour": "red"}, "there is no option 'colour'"),
        ({"batch_size": 8}, "there is no option 'batch_size': did you mean batch_sizes?"),
        ({"save": "a.csv"}, "there is no option 'save'"),
        ({"memory_limit": "8EiB"}, "--memory-limit: '8EiB' is more than 1 EiB"),
        ({"headroom": "8EiB"}, "--headroom: '8EiB' is more than 1 EiB"),
        ({"max_seconds": "1e300"}, "--max-seconds: '1e300' is more than 360000 seconds, which are 100h"),
        ({"trial_timeout": "1000h"}, "--trial-timeout: '1000h' is more than 100h"),
        ({"slo": "1" * 400 + "s"}, " is too large for a duration"),
        ({"slo": 1e-320}, "--slo: 1e-320 is less than 1us"),
        ({"max_batch": "--5"}, "--max-batch: '--5' is not a whole number"),
        ({"max_batch": "9" * 5000}, "...999999999999999999999999999999' is not between 1"),
        ({"max_batch": 10**5000}, "a very long int is not between 1"),
        ({"batches": object}, "is not a whole number"),
        ({"input_size": "99999999999"}, "--input-size: 99999999999 is not between"),
        ({"input_size": "2147483647x2147483647"}, "has more than 2^40 elements"),
        ({"input_size": "1x" * 30 + "1"}, "31 dimensions are more than 24"),
        ({"input": "x:float:Bx2147483647x2147483647"}, "--input: a sample of 2147483647x2147483647 has more than 2^40"),
        ({"image_size": "2147483647"}, "--image-size: 2147483647 is not between"),
        ({"batch_sizes": range(1, 10**6)}, "--batch-sizes: 999999 numbers are more than 10000"),
        ({"device": "cuda:99999999"}, "--device: 'cuda:99999999' is not one of"),
        ({"device": "cuda:0-3"}, "'cuda:0-3' is several devices: write --device cuda:0,cuda:1 or --gpus N"),
        ({"device": "all"}, "'all' is several devices"),
        ({"dtype": ["fp16"]}, "--dtype: ['fp16'] is not one of"),
        ({"max_latency": "50ms", "batch_sizes": "8"}, "--batch-sizes cannot be combined with --max-latency"),
        ({"effective_batch": 100, "accumulate": 3, "phase": "train"}, "--effective-batch 100 is no multiple of 3"),
        (
            {"effective_batch": 99, "gpus": 2, "parallel": "ddp", "phase": "train"},
            "--effective-batch 99 is no multiple of 2",
        ),
        ({"memory_limit": 1, "instances": 2}, "--memory-limit 1B leaves nothing for each of --instances 2"),
        (
            {"device": "cpu:0-3+0-3", "instances": 5},
            "--instances 5 takes as many cores, and --device cpu:0-3+0-3 has 4",
        ),
        ({"device": "cpu:0-3+2-6+9", "instances": 9}, "--instances 9 takes as many cores"),
        ({"clip": "1e20", "phase": "train"}, "--clip: '1e20' is more than 1e+15"),
    ],
)
def test_impossible_option_is_refused(options, expected):
    with pytest.raises(BadRequest) as refused:
        read_spec("m", options)

    assert expected in refused.value.message
    assert refused.value.exit_code == 2


def test_all_problems_are_reported_at_once():
    with pytest.raises(BadRequest) as refused:
        read_spec("m", {"batches": "0", "dtype": "int3", "slo": "x"})

    for option in ("--batches", "--dtype", "--slo"):
        assert option in refused.value.message


VALUES = (
    st.sampled_from(["0", "-1", "1e400", "nan", "100%", "0B", "1x2", "٣", "1" * 5000, None, True, [], [[]], {}])
    | st.text(max_size=8)
    | st.integers()
    | st.floats()
)


@given(st.just("m") | st.text(max_size=12), st.dictionaries(st.sampled_from(READERS), VALUES))
def test_any_options_make_a_spec_or_a_bad_request(model, options):
    try:
        spec = read_spec(model, options)
    except BadRequest as refused:
        assert refused.message
        assert refused.hint
    else:
        assert spec.batches is None or spec.batches >= 1
        assert spec.max_batch is None or spec.max_batch >= spec.granularity


@pytest.mark.parametrize("options", [{}, {"instances": 2}])
def test_falling_range_of_cores_is_left_to_the_device(options):
    assert read_spec("m", {"device": "cpu:3-0", **options}).cores == "3-0"


@pytest.mark.parametrize(("value", "meant"), [("5", "5%"), ("0.05", "5%"), ("100", None), ("200", None), ("-5", None)])
def test_headroom_without_unit_suggests_only_percentages_that_are_taken(value, meant):
    with pytest.raises(BadRequest) as refused:
        read_spec("m", {"headroom": value})

    assert ("%" in refused.value.message) is (meant is not None)
    assert meant is None or f"did you mean {meant}?" in refused.value.message


numbers = st.floats() | st.integers(-(2**70), 2**70) | st.sampled_from([5e-324, 1e-6, 1e-3, 0.5, 99.99, 2**60, 2**63])
units = st.sampled_from(["", "us", "ms", "s", "h", "%", "B", "GiB", "EiB"])
texts = st.builds("{}{}".format, st.decimals(0, 10**12, places=3) | st.integers(0, 2**33), units)
shapes = st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=5).map(lambda lengths: "x".join(map(str, lengths)))
words = st.sampled_from(["auto", "none", "cuda:7", "nhwc", "train", "sgd", "bf16", "linear", "i:int64:Bx5:9"])


@given(st.sampled_from(READERS), numbers | texts | shapes | words | st.booleans())
@settings(max_examples=500)
def test_whatever_an_option_accepts_a_record_holds(name, value):
    """The parent builds a Spec without msgspec's checks, and its children read it with them."""
    try:
        spec = read_spec("m", {name: value})
    except BadRequest as refused:
        assert "Expected" not in refused.message
        assert len(refused.message) < 300
    else:
        assert msgspec.json.decode(msgspec.json.encode(spec), type=Spec) == spec


@given(st.sampled_from(READERS), st.sampled_from(["a" * 100_000, ["a" * 100_000], list("ab" * 100_000)]))
def test_a_long_value_is_not_echoed_whole(name, value):
    try:
        read_spec("m", {name: value})
    except BadRequest as refused:
        assert len(refused.message) < 300
    else:
        assert name == "weights"


@pytest.mark.parametrize("model", [5, None, "", b"m", ["m"]])
def test_invalid_model_name_is_refused(model):
    with pytest.raises(BadRequest, match="MODEL must be a name"):
        read_spec(model, {})


@pytest.mark.parametrize("shape", ["3x8x8", "3x4x8x8"])
def test_channels_last_is_for_samples_of_three_and_four_dimensions(shape):
    assert read_spec("m", {"layout": "nhwc", "input_size": shape}).layout == "nhwc"
