"""Values as people write them: read if unambiguous, else refused with the nearest."""

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tputfind.errors import BadRequest
from tputfind.options import did_you_mean, nearest, one_of, percentile, rate, share, whole, wholes
from tputfind.record.spec import read_spec
from tputfind.record.types import DTYPES


@given(st.integers(1000, 2**31 - 1))
def test_a_count_with_commas_is_the_same_or_is_refused_with_it(count):
    try:
        assert whole(f"{count:,}") == count
    except ValueError as refusal:
        assert ",0" not in f"{count:,}"
        assert f"did you mean {count}?" in str(refusal)


@given(st.lists(st.integers(1, 999), min_size=2, max_size=4))
def test_a_list_of_batch_sizes_is_never_read_as_one_number(sizes):
    text = ",".join(map(str, sizes))

    assert wholes(text, ",") == tuple(sizes)
    with pytest.raises(ValueError, match="is not a whole number"):
        whole(text)


@given(st.floats(0.001, 1e9), st.sampled_from([("", 1), ("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9)]))
def test_a_rate_may_have_a_prefix_and_a_unit(number, prefix):
    sign, times = prefix

    assert rate(f"{number!r}{sign}") == rate(f" {number!r} {sign} / s ") == pytest.approx(number * times)


@given(st.integers(1000, 10**9), st.sampled_from(["", ".5"]))
def test_a_rate_may_have_commas(number, rest):
    assert rate(f"{number:,}{rest}") == float(f"{number}{rest}")


@pytest.mark.parametrize("text", ["5m", "5kk", "k", "", "/s", "5,5", "5,00", "nan", "infk", "5000/min", "5 k M"])
def test_a_rate_that_could_be_another_is_refused(text):
    with pytest.raises(ValueError, match="such as 5000, 5k or 1M"):
        rate(text)


@given(st.floats(1, 99.99))
def test_a_percentile_may_have_a_sign(number):
    assert percentile(f"{number!r}") == percentile(f"p{number!r}") == percentile(f" {number!r} % ") == number


@given(st.floats(0.001, 0.999))
def test_a_share_is_no_percentile_and_a_percentile_no_share(number):
    with pytest.raises(ValueError, match=rf"did you mean {100 * number:g}\?"):
        percentile(number)
    if number > 0.01:
        with pytest.raises(ValueError, match=rf"did you mean {100 * number:g}%\?"):
            share(f"{100 * number!r}")


@given(st.text(max_size=12))
def test_any_word_is_a_choice_or_is_refused_with_existing_choices(text):
    try:
        assert one_of(DTYPES)(text) in DTYPES
    except ValueError as refusal:
        assert str(refusal).count("did you mean") == bool(nearest(text, DTYPES))
    assert set(nearest(text, DTYPES)) <= set(DTYPES)


@pytest.mark.parametrize(
    ("word", "near"),
    [("Float16", ["fp16"]), ("half", ["fp16"]), ("bfloat16", ["bf16"]), ("amp", ["amp-fp16", "amp-bf16"]), ("xyz", [])],
)
def test_foreign_dtype_name_leads_to_ours(word, near):
    assert nearest(word, DTYPES) == near
    assert did_you_mean(word, DTYPES) == (f": did you mean {' or '.join(near)}?" if near else "")


def test_underscores_and_hyphens_are_equal_in_nearest_names():
    assert nearest("mobilenet-v3", ("mobilenet_v2", "mobilenet_v3_large")) == ["mobilenet_v3_large"]
    assert nearest("--Batch_Size", ("--batch-sizes", "--batches")) == ["--batch-sizes"]


@pytest.mark.parametrize("name", ["slo", "memory_limit", "percentile", "max_batch", "max_seconds", "dtype", "device"])
def test_a_wrong_value_with_very_many_blanks_is_refused_at_once(name):
    begin_s = process_time()
    with pytest.raises(BadRequest) as refused:
        read_spec("m", {name: f"1{' ' * 100_000}!"})

    assert len(refused.value.message) < 300
    assert process_time() - begin_s < 1


def test_a_rate_with_very_many_blanks_is_refused_at_once():
    begin_s = process_time()
    with pytest.raises(ValueError, match="such as 5000"):
        rate(f"1{' ' * 100_000}!/{' ' * 100_000}s")

    assert process_time() - begin_s < 1
