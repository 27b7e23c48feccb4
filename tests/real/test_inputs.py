"""Inputs of any structure: the sample axes are found, and samples can be picked."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.command import QUICK
from support.folders import MODELS
from torch.utils._pytree import tree_flatten, tree_map

from tputfind import load_record
from tputfind.errors import BadRequest
from tputfind.record.spec import read_spec
from tputfind.worker.inputs import Indivisible, divides, miscounts, outline, sample_shapes, select_samples, split_of
from tputfind.worker.structures import parts_of, replace_parts
from tputfind.worker.workload import Workload


class Pair(NamedTuple):
    one: Any
    other: Any


LENGTHS = st.lists(st.integers(5, 7), max_size=3)  # never mistaken for a batch size
LEAVES = st.one_of(
    st.builds(lambda before, after: ("tensor", tuple(before), tuple(after)), LENGTHS, LENGTHS),
    st.builds(lambda shape: ("whole", tuple(shape)), LENGTHS),
    st.builds(lambda shape: ("listed", tuple(shape)), LENGTHS),
    st.sampled_from([None, True, 7, "text"]),
)
STRUCTURES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
        st.builds(Pair, inner, inner),
        st.builds(lambda items: ("items", items), st.lists(inner, min_size=5, max_size=6)),
    ),
    max_leaves=6,
)
SIZES = st.integers(1, 4)


def made(structure, size):
    """Return the value of a structure for a batch size; the numbers of each sample are unique."""
    match structure:
        case ("tensor", before, after):
            own = torch.arange(size, dtype=torch.float64).reshape(-1, *(1 for _ in after))
            return own.expand(*before, size, *after)
        case ("whole", shape):
            return torch.ones(shape)
        case ("listed", shape):
            return [torch.full(shape, float(sample), dtype=torch.float64) for sample in range(size)]
        case ("items", items):
            return [made(item, size) for item in items]
        case dict():
            return {name: made(item, size) for name, item in structure.items()}
        case Pair(one, other):
            return Pair(made(one, size), made(other, size))
        case _:
            return structure


def probes(structure, size):
    """Return the values of a structure for three batch sizes, and the sizes."""
    sizes = [factor * size for factor in (1, 2, 3)]
    return [made(structure, each) for each in sizes], sizes


@given(STRUCTURES, SIZES, st.data())
def test_picked_samples_are_the_requested_ones_in_same_structure(structure, size, data):
    split = split_of(*probes(structure, size))
    whole = made(structure, 2 * size)
    samples = data.draw(st.lists(st.integers(0, 2 * size - 1), min_size=1, max_size=5))

    few = select_samples(whole, split, samples)

    expected = made(structure, len(samples))
    leaves, shape = tree_flatten(few)
    assert shape == tree_flatten(expected)[1]
    renamed = tree_map(lambda value: renumbered(value, samples), expected)
    for leaf, like in zip(leaves, tree_flatten(renamed)[0], strict=True):
        assert torch.equal(leaf, like) if isinstance(like, torch.Tensor) else leaf == like


def renumbered(value, samples):
    """Return a value whose samples 0, 1, 2, ... are numbered by ``samples``."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
        return value
    return value.clone().apply_(lambda number: float(samples[int(number)]))


@given(STRUCTURES, SIZES)
def test_inputs_divide_if_any_leaf_follows_the_batch_size(structure, size):
    values, sizes = probes(structure, size)

    split = split_of(values, sizes)

    assert divides(split) == any(outline(value) != outline(values[0]) for value in values[1:])
    assert len(list(sample_shapes(values, split))) >= divides(split)


@pytest.mark.parametrize("changed", [("b", torch.ones(3, 3)), ("b", torch.ones(4, 4)), ("c", torch.ones(2, 2))])
def test_unclear_dependence_on_batch_size_cannot_be_picked(changed):
    once = {"a": torch.ones(2), "b": torch.ones(2, 2)}
    twice = {"a": torch.ones(4), "b": torch.ones(2, 2)} | dict([changed])

    with pytest.raises(Indivisible):
        select_samples(once, split_of((once, twice), (2, 4)), [0])


@pytest.mark.parametrize("factory", ["list_of_dicts", "nested"])
def test_inputs_in_lists_dicts_and_tuples_are_measured_and_their_outputs_checked(tmp_path, ask, factory):
    ran = ask(tmp_path, f"{MODELS}/nested.py:{factory}", "--batch-sizes", "2,16", *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert [row.output.result for row in record.rows] == ["small", "right"]
    assert record.input_shape == {"nested": "4x3+5+3"}.get(factory, "3x8x8")


@pytest.mark.parametrize("factory", ["packed", "bag"])
def test_indivisible_inputs_are_moved_whole_without_timed_copies(factory):
    batch = Workload(read_spec(f"{MODELS}/nested.py:{factory}", {}), torch.device("cpu")).batch(2)

    with torch.no_grad():
        batch()
    with pytest.raises(BadRequest, match="cannot be copied into"):
        batch.feed_from_host(pinned=False)


def cut(value, split, size, keep):
    """Cut the first part that holds ``size`` samples to ``keep``; return the value, and whether a part was cut."""
    match split:
        case int(axis):
            return value.narrow(axis, 0, keep), True
        case "listed":
            return type(value)(value[:keep]), True
        case dict():
            parts = parts_of(value)
            for key, of_part in split.items():
                parts[key], done = cut(parts[key], of_part, size, keep)
                if done:
                    return replace_parts(value, parts), True
    return value, False


@given(STRUCTURES, st.integers(1, 4), st.integers(1, 4), st.data())
def test_short_part_of_a_batch_is_detected(structure, small, times, data):
    split = split_of(*probes(structure, small))
    size = small * times
    whole = made(structure, size)
    assert not list(miscounts(whole, split, size))

    keep = data.draw(st.integers(0, size - 1))
    short, done = cut(whole, split, size, keep)

    assert done == divides(split)
    assert list(miscounts(short, split, size)) == ([keep] if done else [])


@pytest.mark.parametrize("changed", [None, 3, (), torch.tensor(1.0), {"b": torch.zeros(2)}])
def test_a_part_that_is_gone_holds_no_samples(changed):
    split = split_of([{"a": torch.zeros(1)}, {"a": torch.zeros(2)}], [1, 2])

    assert list(miscounts(changed, split, 2)) == [0]
    assert list(miscounts({"a": changed}, split, 2)) == [0]
    assert list(miscounts(changed, "listed", 2)) == [0]


SHORT = f"{MODELS}/short_inputs.py"


@pytest.mark.parametrize(
    ("factory", "more", "found"),
    [
        ("tensor", ["--max-batch", 8], "4 samples at batch size 8"),
        ("tensor", ["--max-batch", 8, "--phase", "train"], "4 samples at batch size 8"),
        ("tensor", ["--batch-sizes", "8"], "its inputs are the same at batch 8 and batch 16: 4x3x8x8"),
        ("labelled_that_the_model_fails_over", ["--batch-sizes", "1,8"], "4 samples at batch size 8"),
        ("more_than_asked", ["--max-batch", 8, "--search", "linear"], "9 samples at batch size 8"),
    ],
)
def test_wrong_number_of_samples_ends_the_run_without_a_row(tmp_path, ask, factory, more, found):
    ran = ask(tmp_path, f"{SHORT}:{factory}", *more, *QUICK, "--device", "cpu")

    assert ran.status == 5, ran.err
    assert found in ran.err
    assert "must return as many samples as it is called with" in ran.err
    assert "Traceback" not in ran.err
    assert all(row.batch_size <= 4 for saved in ran.folder.glob("results/*.json") for row in load_record(saved).rows)


@pytest.mark.parametrize("factory", ["candidates", "boxes"])
def test_ragged_or_limited_part_besides_all_samples_ends_no_run(tmp_path, ask, factory):
    ran = ask(tmp_path, f"{SHORT}:{factory}", "--batch-sizes", "1,8,128", *QUICK, "--device", "cpu")

    assert ran.status == 0, ran.err
    outputs = [row.output.result for row in ran.record().rows]
    assert outputs == ["small", "unchecked", "unchecked"]


@pytest.mark.parametrize("models", [["tensor"], ["tensor", "tensor"]], ids=["one", "a pipeline"])
def test_clocks_time_no_batch_that_holds_another_number_of_samples(tmp_path, ask, models):
    ran = ask(tmp_path, "clocks", *(f"{SHORT}:{name}" for name in models), "--batch-size", 8, "--device", "cpu")

    assert ran.status == 5, ran.err
    assert "its inputs are the same at batch 8 and batch 16: 4x3x8x8" in ran.err


def test_a_forecast_traces_no_batch_that_holds_another_number_of_samples(tmp_path, ask):
    ran = ask(tmp_path, "forecast", f"{SHORT}:tensor", "--memory", "1GiB", "--on-fake")

    assert ran.status == 5, ran.err
    assert "4 samples at batch" in ran.err
