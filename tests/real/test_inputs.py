"""Inputs of any structure: where the samples lie in them is found, and some can be picked."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.command import MODELS, QUICK, run
from torch.utils._pytree import tree_flatten, tree_map

from tputfind.errors import BadRequest
from tputfind.measure.inputs import Indivisible, divides, picked, sample_shapes, split_of
from tputfind.measure.workload import Workload
from tputfind.spec import read_spec


class Pair(NamedTuple):
    one: Any
    other: Any


LENGTHS = st.lists(st.integers(5, 7), max_size=3)  # none that a batch size could be taken for
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
    """The value of a structure for a batch size; each sample's numbers are its own."""
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


@given(STRUCTURES, SIZES, st.data())
def test_the_picked_samples_are_those_asked_for_in_the_same_structure(structure, size, data):
    split = split_of(made(structure, size), made(structure, 2 * size), size)
    whole = made(structure, 2 * size)
    samples = data.draw(st.lists(st.integers(0, 2 * size - 1), min_size=1, max_size=5))

    few = picked(whole, split, samples)

    expected = made(structure, len(samples))
    leaves, shape = tree_flatten(few)
    assert shape == tree_flatten(expected)[1]
    renamed = tree_map(lambda value: renumbered(value, samples), expected)
    for leaf, like in zip(leaves, tree_flatten(renamed)[0], strict=True):
        assert torch.equal(leaf, like) if isinstance(like, torch.Tensor) else leaf == like


def renumbered(value, samples):
    """A value whose samples 0, 1, 2, ... have the numbers of these."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
        return value
    return value.clone().apply_(lambda number: float(samples[int(number)]))


@given(STRUCTURES, SIZES)
def test_inputs_divide_where_any_tensor_or_list_follows_the_batch_size(structure, size):
    once, twice = made(structure, size), made(structure, 2 * size)

    shapes = list(sample_shapes(once, twice, size))

    assert divides(split_of(once, twice, size)) == any(follows for _, follows in shapes)


@pytest.mark.parametrize("changed", [("b", torch.ones(3, 3)), ("b", torch.ones(4, 4)), ("c", torch.ones(2, 2))])
def test_what_follows_the_batch_size_in_no_clear_way_cannot_be_picked(changed):
    once = {"a": torch.ones(2), "b": torch.ones(2, 2)}
    twice = {"a": torch.ones(4), "b": torch.ones(2, 2)} | dict([changed])

    with pytest.raises(Indivisible):
        picked(once, split_of(once, twice, 2), [0])


@pytest.mark.parametrize("factory", ["list_of_images", "list_of_dicts", "nested"])
def test_inputs_in_lists_dicts_and_tuples_are_measured_and_their_outputs_checked(tmp_path, factory):
    ran = run(tmp_path, f"{MODELS}/nested.py:{factory}", "--batch-sizes", "2,16", *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert [row.output.result for row in record.rows] == ["small", "right"]
    assert record.input_shape == {"nested": "4x3+5+3"}.get(factory, "3x8x8")


@pytest.mark.parametrize("factory", ["packed", "bag"])
def test_what_moves_as_a_whole_is_moved_and_no_copy_of_it_is_timed(tmp_path, factory):
    model = f"{MODELS}/nested.py:{factory}"

    ran = run(tmp_path, model, "--batch-sizes", "2", *QUICK)

    assert ran.status == 0, ran.err
    batch = Workload(read_spec(model, {}), torch.device("cpu")).batch(2)
    with pytest.raises(BadRequest, match="cannot be copied into"):
        batch.feed_from_host(pinned=False)
