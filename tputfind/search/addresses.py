"""A model of where the NVIDIA driver puts what it is asked for.

The caching allocator takes the lowest of equal free blocks, so addresses decide which segments are still free as a
whole when it has to give some back.
"""

from bisect import bisect_left, insort
from operator import attrgetter
from typing import Final, NamedTuple

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
