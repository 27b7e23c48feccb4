"""A model of PyTorch's caching allocator: which requests it serves from a given memory, and how much it reserves.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` for one stream and default settings, compared with torch
2.11. Requests are rounded up; small requests have segments of their own; the allocator takes the smallest free block
that suffices, splits off the rest, and merges free neighbours. If no block suffices, it requests a segment from the
device; if the device has no memory left, it first frees every unused segment. With expandable segments there is one
segment for small and one for large requests, and memory is mapped to its addresses by pages. Among free blocks of equal
size the allocator takes the lowest, so that the addresses from the NVIDIA driver decide which segments become unused:
``Addresses`` models them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

_MIB: Final = 2**20
ROUND_BYTES: Final = 512
SMALL_BYTES: Final = 1 * _MIB
"""Maximum size of a small request."""
SMALL_SEGMENT_BYTES: Final = 2 * _MIB
LARGE_SEGMENT_BYTES: Final = 20 * _MIB
"""Segment size of requests between ``SMALL_BYTES`` and ``OWN_SEGMENT_BYTES``; also the page size of their expandable
segment."""
OWN_SEGMENT_BYTES: Final = 10 * _MIB
OWN_SEGMENT_ROUND_BYTES: Final = 2 * _MIB


class Block:
    """A part of a segment: allocated, free, or, in an expandable segment, free and without memory mapped to it."""

    __slots__ = ("address", "after", "before", "free", "mapped", "size", "small")

    def __init__(self, address: int, size: int, *, small: bool, mapped: bool = True) -> None:
        self.address = address
        self.size = size
        self.small = small
        self.mapped = mapped
        self.free = True
        self.before: Block | None = None
        self.after: Block | None = None

    def cut(self, size: int) -> Block:
        """Shorten this block to ``size`` and return the rest, which follows it."""
        rest = Block(self.address + size, self.size - size, small=self.small, mapped=self.mapped)
        rest.before, rest.after = self, self.after
        if rest.after is not None:
            rest.after.before = rest
        self.after, self.size = rest, size
        return rest

    def join(self, rest: Block) -> None:
        """Absorb the block that follows this one."""
        self.size += rest.size
        self.after = rest.after
        if self.after is not None:
            self.after.before = self

    def joins(self, other: Block) -> bool:
        """Whether this block and its neighbour are to be merged."""
        return other.free and other.mapped == self.mapped


class _Pool:
    """Free blocks of one kind, ordered by size, then by address."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        insort(self._keys, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self._keys[bisect_left(self._keys, (block.size, block.address))]
        del self._blocks[block.address]

    def first(self, size: int) -> Block | None:
        index = bisect_left(self._keys, (size, 0))
        return self._blocks[self._keys[index][1]] if index < len(self._keys) else None

    def all_from(self, size: int) -> Iterator[Block]:
        for index in range(bisect_left(self._keys, (size, 0)), len(self._keys)):
            yield self._blocks[self._keys[index][1]]


class CachingAllocator:
    """The allocator of one device with ``limit_bytes`` of memory, which may change over time.

    ``capped`` says whether ``set_per_process_memory_fraction`` set the limit. With expandable segments the allocator
    then needs free memory for the whole request, and not only for the growth of the segment.
    """

    def __init__(self, limit_bytes: float, *, expandable: bool = False, capped: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self._expandable = expandable
        self._capped = capped
        self._addresses = Addresses()
        self._free = {small: _Pool() for small in (True, False)}
        self._unmapped: dict[bool, dict[int, Block]] = {True: {}, False: {}}
        for small, base in ((True, ADDRESSES), (False, 0)):
            self._unmapped[small][base] = Block(base, ADDRESSES, small=small, mapped=False)

    def allocate(self, size_bytes: int) -> Block | None:
        """Return the block that serves a request; None if there is no memory for it."""
        size = rounded_bytes(size_bytes)
        small = size <= SMALL_BYTES
        block = self._best_fit(size, small=small) or self._new(size, small=small)
        if block is None:
            self.empty_cache()
            block = self._new(size, small=small)
        if block is None:
            return None
        left = block.size - size
        if left >= ROUND_BYTES if small or self._expandable else left > SMALL_BYTES:
            self._free[small].add(block.cut(size))
        block.free = False
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def release(self, block: Block) -> None:
        self.allocated_bytes -= block.size
        block.free = True
        self._add(block)

    def empty_cache(self) -> None:
        """Return unused memory to the device: unused segments, or unused pages of an expandable segment."""
        for pool in self._free.values():
            for block in list(pool.all_from(0)):
                if self._expandable:
                    self._unmap(block)
                elif block.before is None and block.after is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.size
                    self._addresses.give_back(block.address, block.size)

    def start_anew(self) -> None:
        """Release unused memory and restart the peaks: building the model may have taken more memory than the model."""
        self.empty_cache()
        self.peak_allocated_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def _best_fit(self, size: int, *, small: bool) -> Block | None:
        """Take the best free block for a size out of its pool; None if there is none."""
        pool = self._free[small]
        found = pool.first(size)
        if found is None:
            return None
        if self._expandable:  # a block that can grow counts with the size that it may reach
            for other in islice(pool.all_from(size), 1, None):
                if _growable_size(other) >= _growable_size(found):
                    break
                found = other
        pool.remove(found)
        return found

    def _new(self, size: int, *, small: bool) -> Block | None:
        taken = segment_bytes(size)
        if (self._capped or not self._expandable) and self.reserved_bytes + taken > self.limit_bytes:
            return None
        if self._expandable:
            return self._grow_segment(size, small=small)
        self._reserve(taken)
        return Block(self._addresses.take(taken), taken, small=small)

    def _grow_segment(self, size: int, *, small: bool) -> Block | None:
        """Map memory to the first address range that is long enough, as far as it has none."""
        unmapped = self._unmapped[small]
        for address in sorted(unmapped):
            hole = unmapped[address]
            start = hole.before if hole.before is not None and hole.before.free else hole
            if _stretch(start, size) < size:
                continue
            block = start if start.mapped else self._map(start, size)
            while block is not None and block.size < size:
                assert block.after is not None
                block = self._map(block.after, size - block.size)
            if block is not None:
                self._free[small].remove(block)
            return block
        return None  # the request exceeds the addresses

    def _map(self, hole: Block, size: int) -> Block | None:
        """Map memory to the start of a hole; return the free block that contains it, or None beyond the limit."""
        taken = min(_up(min(size, hole.size), _page(hole)), hole.size)
        if self.reserved_bytes + taken > self.limit_bytes:
            return None
        unmapped = self._unmapped[hole.small]
        del unmapped[hole.address]
        if taken < hole.size:
            rest = hole.cut(taken)
            unmapped[rest.address] = rest
        hole.mapped = True
        self._reserve(taken)
        return self._add(hole)

    def _unmap(self, block: Block) -> None:
        """Return the pages that lie wholly in a free block to the device."""
        page = _page(block)
        start, end = _up(block.address, page), (block.address + block.size) // page * page
        if end <= start:
            return
        pool, unmapped = self._free[block.small], self._unmapped[block.small]
        pool.remove(block)
        if end < block.address + block.size:
            pool.add(block.cut(end - block.address))
        if start > block.address:
            rest = block.cut(start - block.address)
            pool.add(block)
            block = rest
        block.mapped = False
        self.reserved_bytes -= block.size
        before, after = block.before, block.after
        if after is not None and block.joins(after):
            del unmapped[after.address]
            block.join(after)
        if before is not None and block.joins(before):
            before.join(block)
        else:
            unmapped[block.address] = block

    def _add(self, block: Block) -> Block:
        """Merge a free block with its free neighbours, add the result to its pool, and return it."""
        pool = self._free[block.small]
        before, after = block.before, block.after
        if before is not None and block.joins(before):
            pool.remove(before)
            before.join(block)
            block = before
        if after is not None and block.joins(after):
            pool.remove(after)
            block.join(after)
        pool.add(block)
        return block

    def _reserve(self, count: int) -> None:
        self.reserved_bytes += count
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)


def rounded_bytes(size_bytes: int) -> int:
    """Return the bytes of the smallest block that serves a request."""
    return max(ROUND_BYTES, _up(size_bytes, ROUND_BYTES))


def segment_bytes(size: int) -> int:
    """Return the size in bytes of the segment that is requested for a rounded request."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if size < OWN_SEGMENT_BYTES else _up(size, OWN_SEGMENT_ROUND_BYTES)


def _page(block: Block) -> int:
    return SMALL_SEGMENT_BYTES if block.small else LARGE_SEGMENT_BYTES


def _growable_size(block: Block) -> int:
    """Return the size that a block can reach if addresses without memory follow it."""
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _stretch(block: Block | None, enough: int) -> int:
    """Return the number of free addresses from a block on, counted up to at least ``enough``."""
    length = 0
    while block is not None and block.free and length < enough:
        length += block.size
        block = block.after
    return length


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


_CHUNK_BYTES: Final = 32 * 2**20
ADDRESSES: Final = 2**60
"""Size of the address space; more than any memory."""


class _Stretch(NamedTuple):
    """Addresses from ``start`` up to ``end``, without ``end``."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class _Run:
    """Consecutive chunks, the ``number``-th such run: its free stretches, and the length of the longest (``room``)."""

    __slots__ = ("free", "number", "room", "whole")

    def __init__(self, whole: _Stretch, number: int) -> None:
        self.whole = whole
        self.number = number
        self.free = [whole]
        self.room = whole.length


_number = attrgetter("number")


class Addresses:
    """The addresses of one process, assigned as on an H200 with driver 580.

    The process takes them in runs of chunks. The newest run with a free stretch that suffices serves a request, at the
    lower end of its shortest such stretch. If there is none, a new run is taken at the upper end of the highest gap
    that is longer than the run. A run without segments is returned as a whole.

    These rules reproduce the addresses of all 1 677 allocations in a random sequence of allocations and frees. A gap of
    exactly the right length does not suffice, since the driver aligns a mapping: it requests one chunk more.
    """

    def __init__(self) -> None:
        self._gaps = [_Stretch(0, ADDRESSES)]
        self._owners: dict[int, _Run] = {}
        self._by_room: dict[int, list[_Run]] = {}
        self._runs = 0

    def take(self, size: int) -> int:
        newest = [runs[-1] for room, runs in self._by_room.items() if room >= size and runs]
        run = max(newest, key=_number) if newest else self._new_run(-(-size // _CHUNK_BYTES) * _CHUNK_BYTES)
        shortest = min((stretch for stretch in run.free if stretch.length >= size), key=lambda stretch: stretch.length)
        run.free.remove(shortest)
        if shortest.length > size:
            insort(run.free, _Stretch(shortest.start + size, shortest.end))
        self._file(run)
        self._owners[shortest.start] = run
        return shortest.start

    def give_back(self, address: int, size: int) -> None:
        run = self._owners.pop(address)
        _add(run.free, _Stretch(address, address + size))
        self._file(run)
        if run.free == [run.whole]:
            self._by_room[run.room].remove(run)
            _add(self._gaps, run.whole)

    def _new_run(self, size: int) -> _Run:
        index = next(index for index in reversed(range(len(self._gaps))) if self._gaps[index].length > size)
        start, end = self._gaps[index]
        self._gaps[index] = _Stretch(start, end - size)
        self._runs += 1
        run = _Run(_Stretch(end - size, end), self._runs)
        self._by_room.setdefault(run.room, []).append(run)
        return run

    def _file(self, run: _Run) -> None:
        """Move a run to the list of its longest free stretch, which may have changed."""
        room = max((stretch.length for stretch in run.free), default=0)
        if room != run.room:
            self._by_room[run.room].remove(run)
            run.room = room
            insort(self._by_room.setdefault(room, []), run, key=_number)


def _add(stretches: list[_Stretch], added: _Stretch) -> None:
    """Insert a stretch into an ordered list, merged with the stretches that it touches."""
    index = bisect_left(stretches, added)
    if index < len(stretches) and stretches[index].start == added.end:
        added = _Stretch(added.start, stretches.pop(index).end)
    if index and stretches[index - 1].end == added.start:
        stretches[index - 1] = _Stretch(stretches[index - 1].start, added.end)
    else:
        stretches.insert(index, added)
