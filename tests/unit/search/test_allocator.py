from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tputfind.search import allocator
from tputfind.search.allocator import Block, CachingAllocator, segment_bytes

MIB = 2**20
SIZES = st.one_of(
    st.integers(1, MIB),
    st.integers(MIB + 1, 10 * MIB),
    st.integers(10 * MIB, 200 * MIB),
    st.sampled_from([1, 512, MIB, MIB + 1, 10 * MIB, 10 * MIB + 1, 12 * MIB, 20 * MIB, 32 * MIB]),
)
# A positive number requests so many bytes, a negative one releases one of the live blocks, and 0 empties the cache.
STEP = st.booleans().flatmap(lambda request: SIZES if request else st.integers(-9, 0))
STEPS = st.one_of(st.lists(STEP, max_size=10), st.lists(STEP, min_size=20, max_size=60))
KINDS = [{"expandable": False}, {"expandable": True}, {"expandable": True, "capped": True}]
NAMES = ["native", "expandable", "capped"]
LIMITS = st.one_of(st.just(math.inf), st.integers(0, 600 * MIB))


def runs(*, kinds=KINDS, limits=LIMITS):
    many = settings(max_examples=150)
    return lambda test: many(given(steps=STEPS, kind=st.sampled_from(kinds), limit=limits)(test))


class Process:
    """Requests memory from an allocator, and records its live blocks."""

    def __init__(self, limit: float = math.inf, **kind: bool) -> None:
        self.allocator = CachingAllocator(limit, **kind)
        self.live: list[tuple[int, Block]] = []
        self.history: list[tuple[int, int] | None] = []

    def take(self, step: int) -> Block | None:
        if step > 0:
            block = self.allocator.allocate(step)
            self.history.append(block and (block.address, block.size))
            self.live += [(step, block)] if block else []
            return block
        if step == 0:
            self.allocator.empty_cache()
        elif self.live:
            self.allocator.release(self.live.pop(step % len(self.live))[1])
        return None

    def run(self, steps: list[int]) -> Process:
        for step in steps:
            self.take(step)
        return self

    def served_wholly(self) -> bool:
        return None not in self.history

    def release_all(self) -> None:
        self.run([-1] * len(self.live))


def neighbours(block: Block) -> Iterator[tuple[Block, Block]]:
    while block.before is not None:
        block = block.before
    while block.after is not None:
        yield block, block.after
        block = block.after


@runs()
def test_live_blocks_never_overlap(steps, kind, limit):
    process = Process(limit, **kind)

    for step in steps:
        process.take(step)
        ranges = sorted((block.address, block.address + block.size) for _, block in process.live)
        assert all(end <= start for (_, end), (start, _) in pairwise(ranges))


@runs()
def test_block_is_slightly_larger_than_its_request(steps, kind, limit):
    process = Process(limit, **kind).run(steps)

    for asked, block in process.live:
        assert 0 <= block.size - asked < (512 if kind["expandable"] or asked <= MIB else MIB + 512)
        assert block.size % 512 == 0


@runs()
def test_allocated_is_within_reserved_within_limit_and_peaks_are_maxima(steps, kind, limit):
    process = Process(limit, **kind)
    allocated, reserved = [0], [0]

    for step in steps:
        process.take(step)
        allocated.append(process.allocator.allocated_bytes)
        reserved.append(process.allocator.reserved_bytes)
        assert allocated[-1] == sum(block.size for _, block in process.live)
        assert allocated[-1] <= reserved[-1] <= limit

    assert process.allocator.peak_allocated_bytes == max(allocated)
    assert max(reserved) <= process.allocator.peak_reserved_bytes <= limit
    if not kind["expandable"]:  # a segment that cannot grow to the end is larger for a moment
        assert process.allocator.peak_reserved_bytes == max(reserved)


@example(steps=[20 * MIB, 20 * MIB, 20 * MIB, -3, 0, -2, 0], kind=KINDS[1], limit=math.inf)
@runs()
def test_blocks_of_a_segment_are_contiguous_and_free_neighbours_merge(steps, kind, limit):
    process = Process(limit, **kind)

    for step in steps:
        process.take(step)
        for one, other in neighbours(process.live[-1][1]) if process.live else []:
            assert other.before is one
            assert other.address == one.address + one.size
            assert not (one.free and other.free and one.mapped == other.mapped)


@runs()
def test_reserved_is_0_after_release_and_empty_cache(steps, kind, limit):
    process = Process(limit, **kind).run(steps)

    process.release_all()
    process.allocator.empty_cache()
    assert (process.allocator.allocated_bytes, process.allocator.reserved_bytes) == (0, 0)


@runs()
def test_request_after_release_of_all_reuses_reserved_memory(steps, kind, limit):
    process = Process(limit, **kind).run(steps)
    never_emptied = limit == math.inf and 0 not in steps
    largest = max(steps if never_emptied else [asked for asked, _ in process.live], default=-1)
    reserved = process.allocator.reserved_bytes

    process.release_all()
    assert process.take(largest) is not None or largest < 0
    assert process.allocator.reserved_bytes == reserved


@runs(limits=st.integers(0, 300 * MIB))
def test_refused_request_keeps_live_blocks_and_fails_with_empty_cache_too(steps, kind, limit):
    process = Process(limit, **kind)

    for step in steps:
        before = [(block.address, block.size, block.free) for _, block in process.live]
        if process.take(step) is None and step > 0:
            assert [(block.address, block.size, block.free) for _, block in process.live] == before
            reserved = process.allocator.reserved_bytes
            process.allocator.empty_cache()
            assert process.allocator.reserved_bytes == reserved
            assert process.take(step) is None
            if not kind["expandable"]:
                assert reserved + segment_bytes(-(-step // 512) * 512) > limit


@runs(kinds=KINDS[:2])  # a cap counts the whole request rather than the growth of a segment
def test_limit_caps_the_peak_and_has_no_effect_above_it(steps, kind, limit):
    free, limited = Process(**kind).run(steps), Process(limit, **kind).run(steps)
    enough = Process(free.allocator.peak_reserved_bytes, **kind).run(steps)

    if limited.served_wholly():
        assert limited.allocator.peak_reserved_bytes <= min(limit, free.allocator.peak_reserved_bytes)
    assert enough.history == free.history


def test_a_process_may_do_with_less_memory_and_not_with_more():
    def reserved(limit):
        process = Process(limit).run([20 * MIB, -1, 30 * MIB, 14 * MIB, 1])
        return process.allocator.peak_reserved_bytes if process.served_wholly() else None

    # If the first segment must be released at once, the second request leaves no rest in it.
    assert reserved(48 * MIB) == 46 * MIB
    assert reserved(50 * MIB) is None
    assert reserved(52 * MIB) == 52 * MIB


@pytest.mark.parametrize(
    ("asked", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_a_first_request_takes_a_segment_by_its_size(asked, reserved):
    process = Process(reserved).run([asked])
    assert process.served_wholly()
    assert process.allocator.reserved_bytes == reserved == segment_bytes(-(-asked // 512) * 512)
    assert Process(reserved - 1).run([asked]).history == [None]


@pytest.mark.parametrize(("asked", "reserved"), [(1, 2), (MIB, 2), (MIB + 1, 20), (20 * MIB, 20), (101 * MIB, 120)])
def test_an_expandable_segment_grows_by_pages(asked, reserved):
    assert Process(expandable=True).run([asked]).allocator.reserved_bytes == reserved * MIB


@pytest.mark.parametrize(
    ("free", "asked", "expandable", "block"),
    [
        (12 * MIB, 11 * MIB, False, 12 * MIB),  # 1 MiB is left
        (12 * MIB, 11 * MIB - 512, False, 11 * MIB - 512),
        (14 * MIB, 11 * MIB, False, 11 * MIB),
        (20 * MIB, 19 * MIB + 1, True, 19 * MIB + 512),
        (MIB, MIB - 512, False, MIB - 512),
    ],
)
def test_remainder_of_free_block_is_split_off_if_large_enough(free, asked, expandable, block):
    process = Process(expandable=expandable).run([free, -1])
    reserved = process.allocator.reserved_bytes

    process.take(asked)
    assert process.live[0][1].size == process.allocator.allocated_bytes == block
    assert process.allocator.reserved_bytes == reserved


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_smallest_sufficient_free_block_with_lowest_address_is_taken(kind):
    process = Process(**kind).run([100 * MIB, 20 * MIB, 60 * MIB, 20 * MIB, 60 * MIB, 20 * MIB])
    large, one, other = (process.live[index][1].address for index in (0, 2, 4))
    process.run([-6, -4, -2])

    assert [process.take(50 * MIB).address for _ in range(3)] == [min(one, other), max(one, other), large]


def test_a_block_that_can_grow_counts_as_large_as_it_may_become():
    process = Process(expandable=True).run([60 * MIB, 20 * MIB, 40 * MIB, -3, -1])

    assert process.take(30 * MIB).address == 0


def test_segment_lies_below_older_ones_except_in_a_released_gap():
    process = Process().run([200 * MIB, 60 * MIB, 60 * MIB])
    above, older, newer = (block.address for _, block in process.live)
    process.run([-3, 0])
    last = process.take(60 * MIB).address

    assert newer < older < last < above + 200 * MIB


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_free_memory_is_released_before_a_request_is_refused(kind):
    steps = [20 * MIB, 20 * MIB, -2, 40 * MIB]

    assert Process(**kind).run(steps).allocator.reserved_bytes == 80 * MIB
    assert Process(60 * MIB, **kind).run(steps).served_wholly()
    assert Process(60 * MIB - 1, **kind).run(steps).history[-1] is None


def test_capped_expandable_segment_grows_only_if_whole_request_fits():
    steps = [30 * MIB, 30 * MIB]

    assert Process(60 * MIB, expandable=True).run(steps).allocator.reserved_bytes == 60 * MIB
    assert Process(60 * MIB, expandable=True, capped=True).run(steps).history[1] is None
    assert Process(70 * MIB, expandable=True, capped=True).run(steps).allocator.reserved_bytes == 60 * MIB


def test_a_limit_may_change_as_it_goes():
    process = Process(100 * MIB).run([40 * MIB])
    process.allocator.limit_bytes = 60 * MIB - 1
    assert process.take(20 * MIB) is None
    process.allocator.limit_bytes = 60 * MIB
    assert process.take(20 * MIB) is not None


@pytest.mark.parametrize(
    ("names", "mine"),
    [
        ("kMinBlockSize", allocator.ROUND_BYTES),
        ("kSmallSize", allocator.SMALL_BYTES),
        ("kSmallBuffer", allocator.SMALL_SEGMENT_BYTES),
        ("large_segment_size_|kLargeBuffer", allocator.LARGE_SEGMENT_BYTES),
        ("kMinLargeAlloc", allocator.OWN_SEGMENT_BYTES),
        ("kRoundLarge", allocator.OWN_SEGMENT_ROUND_BYTES),
    ],
)
def test_allocator_constants_match_installed_torch(names, mine):
    spec = importlib.util.find_spec("torch")  # without importing it
    if spec is None or spec.origin is None:
        pytest.skip("no torch here")
    header = Path(spec.origin).parent / "include/c10/core/AllocatorConfig.h"
    found = re.search(rf"\b(?:{names})[ ={{]+(\d+)", header.read_text() if header.exists() else "")
    if found is None:
        pytest.skip(f"this torch has no {names} in {header.name}")
    assert int(found[1]) == mine
