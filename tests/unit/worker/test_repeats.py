"""Large batches repeat the samples of small ones, in the form of a full call, and only if that is correct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tputfind.worker import placing
from tputfind.worker.inputs import (
    Rows,
    copies,
    indexes_samples,
    maxima_of,
    outline,
    repeatable_split,
    select_samples,
)
from tputfind.worker.placing import Placement, check_host_memory

CPU = torch.device("cpu")
GIB = 2**30
FEW = 64
PROBES = (1, 2, 3, FEW)


def repeated(samples: list[Any], many: int) -> list[Any]:
    """Return the samples as ``copies`` repeats them."""
    items = list(samples)
    for start, end, count in copies(len(samples), many):
        assert end == len(items)
        assert 0 <= start <= start + count <= end
        items += items[start : start + count]
    return items


@given(st.integers(1, 70), st.integers(0, 1000))
def test_copies_fill_a_batch_with_every_sample_and_end_with_the_last(few, more):
    items = repeated(list(range(few)), few + more)

    assert len(items) == few + more
    assert items[-1] == few - 1
    counts = [items.count(sample) for sample in range(few)]
    assert max(counts) <= 2 * min(counts) + 1


LENGTHS = st.lists(st.integers(1, 4), max_size=2)


@given(LENGTHS, LENGTHS, st.integers(1, 3), st.integers(2, 9), st.integers(0, 40))
def test_repeated_tensor_has_samples_shape_and_strides_of_full_one(before, after, each, few, more):
    placement, axis, many = Placement(CPU, torch.bfloat16, "nhwc"), len(before), few + more

    def made(size: int) -> torch.Tensor:
        own = torch.arange(size * each, dtype=torch.float32).reshape(-1, *(1 for _ in after))
        return own.expand(*before, size * each, *after)

    result = placement.repeat(made(few), axis if each == 1 else Rows(axis, each), few, many)

    full = placement.place(made(many))
    assert (result.shape, result.stride(), result.dtype) == (full.shape, full.stride(), full.dtype)
    rows = [each * sample + row for sample in repeated(list(range(few)), many) for row in range(each)]
    assert torch.equal(result, made(few).index_select(axis, torch.tensor(rows)).bfloat16())


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    "make",
    [
        lambda size: torch.randn(size, 3, 5, 4),
        lambda size: torch.randn(size, 1, 5, 4),
        lambda size: torch.randn(size, 3, 1, 1),
        lambda size: torch.randn(5, size, 4),
        lambda size: torch.randn(5, 4, size),
        lambda size: torch.randn(4, size).t(),
        lambda size: torch.randint(0, 9, (5, size)).t(),
        lambda size: torch.randint(0, 9, (size, 3, 4, 5)).permute(0, 3, 1, 2),
        lambda size: torch.zeros(size, 5, dtype=torch.complex64),
        lambda size: torch.zeros(size, 0, 5),
        lambda size: torch.zeros(size, 3, 5, 4, dtype=torch.uint8),
    ],
)
def test_a_repeated_tensor_has_the_layout_of_a_full_one(make, layout):
    placement = Placement(CPU, torch.float16, layout)
    split = repeatable_split([make(size) for size in PROBES], PROBES)

    result, full = placement.repeat(make(FEW), split, FEW, 200), placement.place(make(200))

    assert (result.shape, result.stride(), result.dtype) == (full.shape, full.stride(), full.dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda size: torch.randn(5, 4).expand(size, 5, 4),
        lambda size: torch.randn(4).expand(5, size, 4),
        lambda size: torch.randn(size, 1, 4).expand(size, 5, 4),
        lambda size: torch.randn(3 * size).expand(7, 3 * size),
        lambda size: torch.randn(1, 1).expand(size, 5),
    ],
)
def test_repeated_tensor_stays_expanded_unless_converted_or_moved(make):
    split = repeatable_split([make(size) for size in PROBES], PROBES)

    for dtype in (None, torch.float16):
        placement = Placement(CPU, dtype, "nchw")
        result, full = placement.repeat(make(FEW), split, FEW, 200), placement.place(make(200))
        assert (result.shape, result.stride(), result.dtype) == (full.shape, full.stride(), full.dtype)
        assert result.untyped_storage().nbytes() == full.untyped_storage().nbytes()
    moved = Placement(torch.device("meta"), None, "nchw").repeat(make(FEW), split, FEW, 200)
    assert moved.is_contiguous()


@pytest.mark.parametrize(("rows", "repeats"), [(30_000, True), (2_000_000, False)])
def test_rows_of_tables_beyond_any_cache_are_not_repeated(rows, repeats):
    torch.manual_seed(0)
    of_one = [torch.randint(0, rows, (size, 26)) for size in PROBES]
    of_several = [[torch.randint(rows // 40, rows // 26, (size,)) for _ in range(26)] for size in PROBES]

    assert (repeatable_split(of_one, PROBES) is not None) == repeats
    assert (repeatable_split(of_several, PROBES) is not None) == repeats


@dataclass
class Sample:
    image: torch.Tensor
    labels: list[int]


class Moves:
    def to(self, device: torch.device) -> Moves:
        return self


@dataclass
class Held:
    rows: torch.Tensor

    def to(self, device: torch.device) -> Held:
        return Held(self.rows.to(device))


def voxels(size: int) -> torch.Tensor:
    """Return coordinates after the number of their sample, as sparse convolutions take them."""
    places = torch.randint(0, 500, (20 * size, 4))
    places[:, 0] = torch.arange(size).repeat_interleave(20)
    return places


def targets(size: int) -> torch.Tensor:
    """Return boxes after the number of their image, all as floating-point numbers."""
    return torch.cat([torch.arange(size).repeat_interleave(3)[:, None].float(), torch.rand(3 * size, 5)], 1)


def padded_at_left(size: int) -> torch.Tensor:
    return torch.randint(1, 50000, (size, 12)) * (torch.arange(12) >= 12 - torch.randint(1, 13, (size, 1)))


def listed(size: int) -> list[Any]:
    return [{"image": torch.full((3,), float(number % 50)), "text": "words"} for number in range(size)]


REPEATABLE = {
    "one row a sample": lambda size: torch.randn(size, 5),
    "several rows a sample": lambda size: torch.randn(3 * size, 5),
    "samples on the last axis": lambda size: torch.randn(5, size),
    "tokens": lambda size: torch.randint(0, 50000, (size, 128)),
    "labels": lambda size: torch.randint(0, 1000, (size,)),
    "all alike": lambda size: torch.zeros(size, dtype=torch.int64),
    "in turn": lambda size: torch.arange(size) % 10,
    "positions": lambda size: torch.arange(128).expand(size, 128),
    "a mask": lambda size: torch.ones(size, 7, dtype=torch.bool),
    "images of bytes": lambda size: torch.randint(0, 256, (size, 3, 4, 4), dtype=torch.uint8),
    "a list": listed,
    "a dict": lambda size: {"x": torch.randn(size, 2), "scale": 2.0, "table": torch.ones(3)},
    "a dataclass": lambda size: Sample(torch.randn(size, 2), [7] * size),
    "texts": lambda size: ["words"] * size,
    "a tuple of texts": lambda size: ("words",) * size,
    "a tuple of items": lambda size: tuple(torch.full((3,), float(number % 50)) for number in range(size)),
    "labels as floating-point numbers": lambda size: torch.randint(0, 1000, (size, 1)).float(),
    "a mask of numbers": lambda size: torch.randint(0, 2, (size, 7)).float(),
    "images of bytes as numbers": lambda size: torch.randint(0, 256, (size, 3, 4, 4)).float(),
    "one hot": lambda size: torch.eye(10)[torch.randint(0, 10, (size,))],
    "no numbers at all": lambda size: torch.full((size, 3), float("inf")),
    "boxes": lambda size: 640 * torch.rand(size, 4),
    "padded at left": padded_at_left,
}
NOT_REPEATABLE = {
    "pairs": lambda size: torch.ones(size, size),
    "pairs of two": lambda size: torch.ones(2 * size, size),
    "padded to the longest": lambda size: torch.ones(size, 10 + size),
    "padded to a multiple": lambda size: (torch.randn(-(-size // 128) * 128, 4), torch.arange(128) < size),
    "indices": torch.arange,
    "indices in a list": lambda size: [{"x": torch.randn(2), "id": torch.tensor([number])} for number in range(size)],
    "indices as plain numbers": lambda size: list(range(size)),
    "graphs of nodes": lambda size: (torch.randn(7 * size, 2), torch.arange(size).repeat_interleave(7)),
    "edges between nodes": lambda size: (
        torch.randint(0, 7, (2, 9 * size)) + 7 * torch.arange(size).repeat_interleave(9)
    ),
    "offsets": lambda size: 12 * torch.arange(size, dtype=torch.int32),
    "the batch size": lambda size: (torch.randn(size, 2), torch.tensor([size])),
    "the batch size as a plain number": lambda size: (torch.randn(size, 2), size),
    "nested": lambda size: torch.nested.nested_tensor([torch.ones(3)] * size, layout=torch.jagged),
    "sparse": lambda size: torch.eye(5).repeat(size, 1).to_sparse(),
    "a subclass": lambda size: torch.randn(size, 2).as_subclass(type("Own", (torch.Tensor,), {})),
    "what moves itself": lambda size: {"x": torch.randn(size, 2), "other": Moves()},
    "a dataclass that moves itself": lambda size: {"held": Held(torch.randn(size, 2))},
    "items that move themselves": lambda size: [Moves() for _ in range(size)],
    "indices in a column": lambda size: (torch.randn(20 * size, 4), voxels(size)),
    "indices in a column of the other axis": lambda size: voxels(size).t(),
    "edges between nodes of two kinds": lambda size: torch.stack(
        [torch.randint(0, 5, (9 * size,)) + 5 * torch.arange(size).repeat_interleave(9), 9**9 * torch.ones(9 * size)]
    ),
    "floating-point indices": lambda size: torch.arange(size).float(),
    "floating-point indices in a column": lambda size: (torch.randn(size, 3, 8, 8), targets(size)),
    "floating-point indices in a column of items": lambda size: [*targets(size).split(3)],
    "floating-point batch size": lambda size: (torch.randn(size, 2), torch.tensor(float(size))),
}


@pytest.mark.parametrize("sizes", [PROBES, (1, 2, FEW), (96, 192, 288, 96), (96, 192, 96)], ids=str)
@pytest.mark.parametrize("name", REPEATABLE)
def test_independent_samples_can_be_repeated_whatever_is_drawn(name, sizes):
    for seed in range(30 if sizes == PROBES else 1):
        torch.manual_seed(seed)
        assert repeatable_split([REPEATABLE[name](size) for size in sizes], sizes) is not None


@pytest.mark.parametrize("sizes", [PROBES, (1, 2, FEW), (96, 192, 288, 96), (96, 192, 96)], ids=str)
@pytest.mark.parametrize("name", NOT_REPEATABLE)
def test_inputs_that_repeats_would_falsify_cannot_be_repeated(name, sizes):
    torch.manual_seed(0)

    assert repeatable_split([NOT_REPEATABLE[name](size) for size in sizes], sizes) is None


@pytest.mark.parametrize("name", REPEATABLE)
def test_repeated_samples_have_the_structure_of_a_batch_of_their_size(name):
    split = repeatable_split([REPEATABLE[name](size) for size in PROBES], PROBES)
    assert split is not None

    repeated = Placement(CPU, None, "nchw").repeat(REPEATABLE[name](FEW), split, FEW, 333)

    assert outline(repeated) == outline(REPEATABLE[name](333))


def test_samples_selected_from_a_tuple_are_a_tuple():
    assert select_samples(("a",) * 5, "listed", [0, 4]) == ("a", "a")
    assert select_samples(("a", "b", "c"), "listed", [0, 2]) == ("a", "c")


@pytest.mark.parametrize("size", [8, 64])
def test_random_numbers_in_a_batch_are_no_indices_of_samples(size):
    for seed in range(100):
        torch.manual_seed(seed)
        sizes = (1, 2, 3, size)
        assert not indexes_samples([maxima_of(5 * torch.randn(batch, 16), 0) for batch in sizes], sizes)


def test_a_data_set_that_ends_within_the_few_samples_cannot_be_repeated():
    data = torch.randn(40, 3)

    assert repeatable_split([data[:size] for size in PROBES], PROBES) is None


def test_parts_of_a_batch_repeat_the_same_samples():
    def made(size: int) -> tuple[object, ...]:
        numbers = torch.arange(size) % 10
        return numbers, numbers.repeat_interleave(2), [torch.tensor(number % 10) for number in range(size)]

    split = repeatable_split([made(size) for size in PROBES], PROBES)
    assert split is not None
    each, pairs, items = Placement(CPU, None, "nchw").repeat(made(FEW), split, FEW, 333)

    assert torch.equal(each, pairs[::2])
    assert torch.equal(each, torch.stack(items))
    assert len({item.data_ptr() for item in items}) == 333


def test_repeated_tensor_requires_gradients_like_its_samples():
    def repeat(needs: bool) -> torch.Tensor:
        return Placement(CPU, None, "nchw").repeat(torch.ones(4, 2, requires_grad=needs), 0, 4, 9)

    assert repeat(needs=True).requires_grad
    assert repeat(needs=True).is_leaf
    assert not repeat(needs=False).requires_grad
    with torch.no_grad():  # inputs are made so, and a move or a conversion then loses what they require
        samples = torch.ones(4, 2, requires_grad=True)
        assert Placement(CPU, torch.float16, "nchw").repeat(samples, 0, 4, 9).requires_grad


@pytest.mark.parametrize(("left", "fits"), [(1000, True), (999, False)])
def test_a_batch_that_the_host_has_no_memory_for_is_refused_beforehand(monkeypatch, left, fits):
    monkeypatch.setattr(placing, "host_memory", lambda: (GIB, left))

    if fits:
        check_host_memory(100, (1, 2, 64), (10, 20, 640))
    else:
        with pytest.raises(MemoryError, match="the inputs of batch 100 take"):
            check_host_memory(100, (1, 2, 64), (10, 20, 640))


@pytest.mark.parametrize(
    ("bytes_made", "left"), [((500, 500, 500), 500), ((501, 502, 564), 600), ((500, 400, 300), 300)]
)
def test_host_memory_independent_of_batch_is_counted_once(monkeypatch, bytes_made, left):
    monkeypatch.setattr(placing, "host_memory", lambda: (GIB, left))

    check_host_memory(100, (1, 2, 64), bytes_made)


def test_host_bytes_count_tensors_off_the_device_with_conversion():
    data = torch.zeros(1000)
    inputs = {"x": torch.zeros(100), "y": data[:10], "z": data[:20], "ids": torch.zeros(5, dtype=torch.int64)}

    assert Placement(torch.device("meta"), torch.float32, "nchw").host_bytes(inputs) == 400 + 4000 + 40
    assert Placement(torch.device("meta"), torch.float16, "nchw").host_bytes(inputs) == 400 + 4000 + 40 + 200
    assert Placement(CPU, torch.float16, "nchw").host_bytes(inputs) == 0
