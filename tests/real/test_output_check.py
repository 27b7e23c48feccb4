"""Checks of batch outputs, with models that are wrong in one way each."""

import itertools
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tputfind.record.record import Failure, OutputCheck
from tputfind.record.types import NOISE
from tputfind.worker import output_check
from tputfind.worker.batch import Batch
from tputfind.worker.output_check import check_output, values_of_outputs

COMPANY = "a sample's output differs from run to run, or with the batch that it is in"
VANISHING = "its outputs are below the dtype's normal numbers"
NO_VALUES = "no output has floating-point values by sample"
UNLIKE = "its outputs differ in number, or in several lengths, between batch sizes"
ALIKE = "the outputs of different samples hardly differ, so that one would pass for another"


def batch_of(model, size, *, dtype=torch.float32, values=None, divisible=True):
    """Return a batch of vectors of four values, random unless given."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 4, generator=generator) if values is None else torch.tensor(values)
    split = {0: {0: 0 if divisible else "unknown"}, 1: {}}
    return Batch(model, size, ((inputs.to(dtype),), {}), lambda: split)


def checked(model, size=16, dtype="fp32", small_size=2, **how):
    return check_output(batch_of(model, size, **how), dtype, small_size)


def changes(place, value, *, above=4):
    """Return a model that adds a value to one sample's output in batches above a size."""

    def model(x):
        out = x * 2
        if len(x) > above:
            out[place] += value
        return out

    return model


def unchecked(remark):
    return OutputCheck(result="unchecked", remark=remark)


def test_sample_wise_model_is_right_with_its_difference():
    assert checked(lambda x: x * 2) == OutputCheck(result="right", difference=0.0)
    assert checked(lambda x: [x.T * 2, {"sum": x.sum(1)}]) == OutputCheck(result="right", difference=0.0)


def test_model_that_turns_rounding_into_another_output_is_unchecked():
    def nearest(x):
        x = x * (1 + (1e-6 if len(x) > 8 else 0.0))
        return torch.where(x > 1.0000005, torch.ones_like(x), -x)

    values = [[1.0] * 4, *[[float(n), 0.5, -1.0, 2.0] for n in range(2, 17)]]

    assert checked(nearest, 16, values=values) == unchecked(
        "a change of its inputs as small as rounding gives other outputs"
    )


@pytest.mark.parametrize("place", [0, 15])
def test_wrong_output_names_its_sample_and_difference(place):
    found = checked(changes(place, 1.0, above=8))

    expected = 2 / float(batch_of(lambda x: x * 2, 16)()[place].norm())
    assert found == Failure(
        kind="wrong_output",
        message=f"sample {place} of batch 16 differs by {expected:.2g} (relative) from its output in a batch of 2",
    )


@given(st.floats(1e-6, 1.0), st.sampled_from(sorted(NOISE)))
def test_rounding_within_the_dtype_is_right_with_its_difference(share, dtype):
    noise = NOISE[dtype]

    def model(x):
        return x * 2 * (1 + (share if len(x) > 8 else 0.0))

    found = checked(model, dtype=dtype)

    if share > noise * 1.01:
        assert isinstance(found, Failure)
    elif share < noise * 0.99:
        assert found.result == "right"
        assert found.difference == pytest.approx(share, rel=0.1, abs=1e-6)


LACKS = "it returned another number of outputs than samples: 12 for 16"


@pytest.mark.parametrize(("least", "short", "lacks"), [(8, False, True), (8, True, False), (7, True, True)])
def test_output_with_fewer_samples_is_wrong_if_only_lack_of_memory_explains_it(least, short, lacks):
    batch = batch_of(lambda x: x[: len(x) * 3 // 4] if len(x) > least else x, 16)

    assert check_output(batch, "fp32", 2, short=short) == (unchecked(LACKS) if lacks else LOST)


LOST = Failure(
    kind="wrong_output",
    message="batch 16 returned outputs of another number of samples, where small batches return all: 12x4",
)


@pytest.mark.parametrize("lacks", [lambda _: None, lambda x: x.sum(), lambda x: [x.sum(0)] * 2, lambda x: [x[:0]] * 2])
def test_no_output_as_long_as_batch_is_wrong_if_small_batches_have_one(lacks):
    found = checked(lambda x: lacks(x) if len(x) > 8 else [x, x * 2])

    assert found.kind == "wrong_output"


def test_samples_that_another_run_returns_are_wrong_only_if_memory_was_short():
    def check(*, short):
        lengths = iter([8, 16, 16, 16])
        batch = batch_of(lambda x: x[: next(lengths) if len(x) > 8 else None], 16)
        return check_output(batch, "fp32", 2, short=short)

    assert check(short=False) == unchecked(COMPANY)
    assert check(short=True).kind == "wrong_output"


def test_leaf_that_requires_grad_does_so_in_the_check():
    def model(x):
        return torch.autograd.grad((x * x).sum(), x)[0]

    batch = batch_of(model, 16)
    batch._inputs[0][0].requires_grad_()

    assert check_output(batch, "fp32", 2).result == "right"


def test_model_with_fewer_outputs_for_large_batch_is_unchecked():
    assert checked(lambda x: [x] if len(x) > 8 else [x, x * 2]) == unchecked(COMPANY)


@pytest.mark.parametrize(
    ("model", "remark"),
    [
        (lambda x: x - x.mean(0), COMPANY),
        (lambda x: x + torch.rand(x.shape), COMPANY),
        (lambda x: x + torch.arange(len(x))[:, None], COMPANY),
        (lambda x: x / len(x), COMPANY),
        (lambda x: x.argmax(1), NO_VALUES),
        (lambda _: None, NO_VALUES),
        (lambda x: x.sum(), NO_VALUES),
        (list, UNLIKE),
        (lambda x: x @ x.T, UNLIKE),
        (lambda x: x[:, :0], NO_VALUES),
        (lambda x: x * 1e-44, VANISHING),
        (torch.ones_like, ALIKE),
        (lambda x: torch.ones_like(x) + x * 1e-4 + (2e-4 if len(x) > 8 else 0), ALIKE),
    ],
)
def test_uncheckable_output_is_unchecked_with_the_reason(model, remark):
    found = checked(model)

    assert (found.result, found.remark) == ("unchecked", remark)


def test_inputs_that_cannot_be_taken_apart_are_unchecked():
    assert checked(lambda x: x * 2, divisible=False) == unchecked("its inputs cannot be taken apart by sample")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_batch_as_small_as_its_reference_is_small_or_not_finite(size):
    assert checked(lambda x: x * 2, size) == OutputCheck(result="small")
    assert checked(lambda x: x / 0, size) == OutputCheck(result="not_finite")
    assert checked(lambda x: x.sum() / 0, size) == OutputCheck(result="not_finite")
    assert checked(lambda x: x.argmax(1), size) == unchecked(NO_VALUES)


def test_the_reference_of_a_batch_above_twice_its_size_is_another_batch():
    seen = []

    def model(x):
        seen.append(len(x))
        return x * 2

    for size, small in ((5, 2), (16, 2), (64, 2), (1000, 2), (9, 4)):
        seen.clear()
        assert checked(model, size, small_size=small).result == "right"
        assert seen[0] == size
        assert seen[1] == small
        assert seen[2] == small * min(16, max(2, size // (4 * small)))


@pytest.mark.parametrize("sizes", [{2}, {4}, {2, 4}, {2, 4, 16}])
def test_not_finite_reference_outputs_are_reported(sizes):
    found = checked(lambda x: x * (float("nan") if len(x) in sizes else 1))

    assert found == OutputCheck(result="not_finite")


@pytest.mark.parametrize("place", range(16))
def test_sample_not_finite_only_in_large_batch_is_wrong(place):
    found = checked(changes(place, float("inf"), above=4))

    assert isinstance(found, Failure)
    assert re.fullmatch(rf"sample {place} of batch 16 .+ in a batch of \d+", found.message)


def test_a_sample_that_is_nowhere_finite_is_no_fault_of_the_batch():
    values = [[1.0, 2.0, 3.0, float(number)] for number in range(16)]
    values[7] = [float("nan")] * 4

    assert checked(lambda x: x * 2, values=values) == OutputCheck(result="not_finite")


def test_sample_near_largest_number_may_overflow_in_another_batch():
    values = [[9e3, 1e3, 2e3, float(number)] for number in range(16)]

    def model(x):
        return x * (8 if len(x) > 8 else 4)

    found = checked(model, dtype="fp16", values=values)
    assert isinstance(found, Failure)

    model_fp16 = batch_of(lambda x: x * (8 if len(x) > 8 else 4), 16, dtype=torch.float16, values=values)
    assert check_output(model_fp16, "fp16", 2).result == "not_finite"


def masked(x):
    return x.masked_fill(x > 1, -torch.inf)


def test_scores_masked_by_minus_infinity_are_compared_by_the_others():
    assert checked(masked).result == "right"
    assert checked(masked, size=4).result == "small"
    assert checked(lambda x: changes(0, 1.0)(masked(x))).kind == "wrong_output"
    assert checked(masked, dtype="fp16").result == "right"  # computed in fp32
    in_half = batch_of(masked, 16, dtype=torch.float16)
    assert check_output(in_half, "fp16", 2).result == "not_finite"  # fp16 overflows to minus infinity, too


def test_model_writing_into_input_or_output_is_not_wrong():
    kept = torch.zeros(64, 4)

    def reuses(x):
        return torch.mul(x, 2, out=kept[: len(x)])

    assert checked(reuses).result == "right"
    assert checked(lambda x: x.add_(1)) == unchecked(COMPANY)


def test_output_dependent_on_few_samples_is_not_wrong():
    def scales(x):
        return (x * 10 / x.abs().max()).round() * x.abs().max()

    for size in (16, 40, 100):
        assert not isinstance(checked(scales, size), Failure)


def drops(x):
    """Return zeros for positive samples beyond a third of the batch, or beyond four."""
    place = (x[:, :1] > 0).cumsum(0)
    return x * ((x[:, :1] < 0) | (place <= max(4, len(x) // 3)))


@pytest.mark.parametrize("size", [8, 16])
def test_output_dependent_on_company_in_large_batches_alone_is_not_wrong(size):
    values = [[-1.0 if number == 1 else 1.0, *torch.rand(3).tolist()] for number in range(size)]

    assert checked(drops, size, values=values) == unchecked(COMPANY)


def test_wrong_output_of_a_mode_is_wrong_though_eager_runs_are_right():
    batch = batch_of(lambda x: x * 2, 16)
    batch._prepared = lambda: changes(15, 1.0)(*batch._inputs[0])

    assert check_output(batch, "fp32", 2).kind == "wrong_output"


def eager_and_other(eager, other, size=2):
    """Check a small batch that runs ``other``, with ``eager`` as its reference."""
    batch = batch_of(eager, size)
    batch._prepared = lambda: other(*batch._inputs[0])
    return check_output(batch, "fp32", 2)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (lambda x: x * 2, OutputCheck(result="right", difference=0.0)),
        (
            lambda x: x * 3,
            Failure(kind="wrong_output", message="batch 2 differs by 0.5 (relative) from the model run eagerly"),
        ),
        (
            lambda x: x[:1],
            Failure(kind="wrong_output", message="batch 2 returned outputs of other shapes than eagerly"),
        ),
        (
            lambda x: x / 0,
            Failure(kind="wrong_output", message="batch 2 differs by 1e+09 (relative) from the model run eagerly"),
        ),
    ],
)
def test_small_batch_in_another_mode_is_compared_with_eager(other, found):
    assert eager_and_other(lambda x: x * 2, other) == found


def test_input_that_is_overwritten_is_restored_before_the_eager_run():
    def model(x):
        out = x * 2
        x.zero_()
        return out

    batch = batch_of(model, 2)
    batch._again = lambda: batch_of(model, 2)._inputs
    batch._prepared = lambda: model(*batch._inputs[0])

    assert check_output(batch, "fp32", 2) == OutputCheck(result="right", difference=0.0)


def test_input_from_memory_handed_out_again_is_restored():
    batch = batch_of(lambda x: x.mul_(0.5), 4)
    batch._again = lambda: ((batch._inputs[0][0][:],), {})

    after_first = batch().clone()
    batch()
    batch.restore()

    assert torch.equal(batch._inputs[0][0], after_first)


def test_written_input_is_restored_beside_an_expanded_one():
    def made():
        return (torch.ones(4, 4), torch.ones(4).expand(4, 4)), {}

    batch = Batch(lambda x, mask: x.mul_(0.5) + mask, 4, made(), lambda: "unknown", made)
    batch()
    batch.restore()

    assert torch.equal(batch._inputs[0][0], torch.ones(4, 4))
    assert batch._inputs[0][1].stride() == (0, 1)


def test_incomparable_model_is_unchecked_in_another_mode_too():
    count = itertools.count(1)

    assert eager_and_other(lambda x: x * next(count), lambda x: x) == unchecked(COMPANY)
    assert eager_and_other(lambda x: x * 1e-44, lambda x: x) == unchecked(VANISHING)
    assert eager_and_other(lambda x: x.argmax(1), lambda x: x) == unchecked(NO_VALUES)
    assert eager_and_other(lambda x: x / 0, lambda x: x) == OutputCheck(result="not_finite")


def test_a_batch_that_is_checked_in_pieces_is_checked_whole(monkeypatch):
    monkeypatch.setattr(output_check, "_CHUNK_ELEMENTS", 8)

    for place in (3, 4, 12, 15):
        assert f"sample {place} of batch 16" in checked(changes(place, float("nan"), above=8)).message


def test_values_of_outputs_follow_the_axes_and_are_few():
    size = 4096

    def in_order(x):
        return x.clone()

    def transposed(x):
        return x.t().contiguous().t()

    values = values_of_outputs(batch_of(in_order, size), "fp32")

    assert values == values_of_outputs(batch_of(transposed, size), "fp32")
    assert len(values) == size


@pytest.mark.parametrize(
    "model", [torch.rand_like, lambda x: x / 0, lambda x: x.int(), lambda x: None, lambda x: x.sign() * 1e-40]
)
def test_values_of_random_infinite_vanishing_or_no_outputs_are_not_compared(model):
    assert values_of_outputs(batch_of(model, 8), "fp32") == ()
