"""A model of PyTorch's caching allocator: which requests it grants from a given amount of memory, and what it takes.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` for one stream and default settings, compared with what
torch 2.11 did. Requests are rounded; small ones are served from segments of their own; the smallest free block that
suffices is taken and what is left of it split off; free neighbours are merged. Where no block suffices the device is
asked for a segment, and where it has no memory left, every segment that is free as a whole is given back first. With
expandable segments there is one segment for small and one for large requests, and memory is put behind its addresses by
pages. The allocator takes the lowest of equal free blocks, so the addresses that the NVIDIA driver gives decide which
segments are free as a whole: ``Addresses`` models them.
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
"""Requests up to this are small."""
SMALL_SEGMENT_BYTES: Final = 2 * _MIB
LARGE_SEGMENT_BYTES: Final = 20 * _MIB
"""For requests that are not small but below ``OWN_SEGMENT_BYTES``; also the page of an expandable segment of theirs."""
OWN_SEGMENT_BYTES: Final = 10 * _MIB
OWN_SEGMENT_ROUND_BYTES: Final = 2 * _MIB


class Block:
    """A stretch of a segment: allocated, free, or free and without memory behind it (in an expandable segment)."""

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
        """Shorten this to ``size`` and return the rest, which follows it."""
        rest = Block(self.address + size, self.size - size, small=self.small, mapped=self.mapped)
        rest.before, rest.after = self, self.after
        if rest.after is not None:
            rest.after.before = rest
        self.after, self.size = rest, size
        return rest

    def join(self, rest: Block) -> None:
        """Take over the block that follows this."""
        self.size += rest.size
        self.after = rest.after
        if self.after is not None:
            self.after.before = self

    def joins(self, other: Block) -> bool:
        """Whether this and its neighbour are to be one block."""
        return other.free and other.mapped == self.mapped


class _Pool:
    """Free blocks of one kind, the smallest first, and of the same size the one with the lowest address."""

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
    """The allocator of one device; ``limit_bytes`` is the memory that there is for it, and may change as it goes.

    ``capped`` says whether the limit is one set by ``set_per_process_memory_fraction``: with expandable segments the
    allocator then asks for all of a request to be free, and not just for what a segment has to grow by.
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
        """Return the block that serves a request, or None where there is no memory for it."""
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
        """Take back a block that was allocated."""
        self.allocated_bytes -= block.size
        block.free = True
        self._add(block)

    def empty_cache(self) -> None:
        """Give the device back what is free as a whole: segments, or pages of an expandable one."""
        for pool in self._free.values():
            for block in list(pool.all_from(0)):
                if self._expandable:
                    self._unmap(block)
                elif block.before is None and block.after is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.size
                    self._addresses.give_back(block.address, block.size)

    def start_anew(self) -> None:
        """Give unused memory back, and count peaks from now on: what made the model may have held more than it does."""
        self.empty_cache()
        self.peak_allocated_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def _best_fit(self, size: int, *, small: bool) -> Block | None:
        """Take the free block that suits best out of its pool."""
        pool = self._free[small]
        found = pool.first(size)
        if found is None:
            return None
        if self._expandable:  # one that can still grow counts as large as it may become
            for other in islice(pool.all_from(size), 1, None):
                if _when_grown(other) >= _when_grown(found):
                    break
                found = other
        pool.remove(found)
        return found

    def _new(self, size: int, *, small: bool) -> Block | None:
        """Return a block with new memory; None where the device has none."""
        taken = segment_bytes(size)
        if (self._capped or not self._expandable) and self.reserved_bytes + taken > self.limit_bytes:
            return None
        if self._expandable:
            return self._grown(size, small=small)
        self._reserve(taken)
        return Block(self._addresses.take(taken), taken, small=small)

    def _grown(self, size: int, *, small: bool) -> Block | None:
        """Put memory behind the first addresses that are many enough, as far as they have none."""
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
        return None  # more than there are addresses for

    def _map(self, hole: Block, size: int) -> Block | None:
        """Put memory behind the start of a hole, and return the free block that it is part of."""
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
        """Give back the pages that lie wholly in a free block."""
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
        """Add a free block to its pool, as one with its free neighbours, and return that."""
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
    """Return the size of the segment that is asked for to serve a request."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if size < OWN_SEGMENT_BYTES else _up(size, OWN_SEGMENT_ROUND_BYTES)


def _page(block: Block) -> int:
    return SMALL_SEGMENT_BYTES if block.small else LARGE_SEGMENT_BYTES


def _when_grown(block: Block) -> int:
    """Return how large a block can become where addresses without memory follow it."""
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _stretch(block: Block | None, enough: int) -> int:
    """Return how many addresses from a block on are not allocated, up to enough."""
    length = 0
    while block is not None and block.free and length < enough:
        length += block.size
        block = block.after
    return length


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


_CHUNK_BYTES: Final = 32 * 2**20
ADDRESSES: Final = 2**60
"""More than there is memory."""


class _Stretch(NamedTuple):
    """Addresses from ``start`` up to ``end``."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class _Run:
    """Chunks that follow each other, the ``number``-th of such runs: what of it is free, and the longest of that."""

    __slots__ = ("free", "number", "room", "whole")

    def __init__(self, whole: _Stretch, number: int) -> None:
        self.whole = whole
        self.number = number
        self.free = [whole]
        self.room = whole.length


_number = attrgetter("number")


class Addresses:
    """The addresses of one process, handed out as on an H200 with driver 580.

    They are taken in runs of chunks. A request is served by the newest run with a free stretch that suffices: from the
    shortest one there, at its lower end. Without any it gets a new run, at the upper end of the highest gap that is
    longer than the run. A run that is free again goes back whole.

    These rules tell where every one of 1 677 allocations went, asked for and given back at random. That a gap of just
    the right length does not do is how a mapping is aligned: it is asked for with a chunk to spare.
    """

    def __init__(self) -> None:
        self._gaps = [_Stretch(0, ADDRESSES)]
        self._owners: dict[int, _Run] = {}
        self._by_room: dict[int, list[_Run]] = {}
        self._runs = 0

    def take(self, size: int) -> int:
        """Return the address of a new segment of this size."""
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
        """Take back the segment at this address."""
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
        """Put a run where its longest free stretch says, after that may have changed."""
        room = max((stretch.length for stretch in run.free), default=0)
        if room != run.room:
            self._by_room[run.room].remove(run)
            run.room = room
            insort(self._by_room.setdefault(room, []), run, key=_number)


def _add(stretches: list[_Stretch], added: _Stretch) -> None:
    """Add a stretch to others in the order of their addresses, as one with those that it touches."""
    index = bisect_left(stretches, added)
    if index < len(stretches) and stretches[index].start == added.end:
        added = _Stretch(added.start, stretches.pop(index).end)
    if index and stretches[index - 1].end == added.start:
        stretches[index - 1] = _Stretch(stretches[index - 1].start, added.end)
    else:
        stretches.insert(index, added)
