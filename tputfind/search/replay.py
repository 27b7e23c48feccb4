"""Forecast which batch sizes fit, from what trials asked of the memory allocator.

A trace of one batch size, its requests scaled to another and put to a model of the allocator, tells whether that one
would fit. The idea of replaying a trace through the allocator's rules is xMem's (arXiv 2510.21048).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Final, NamedTuple

from tputfind.record.trace import Event, Trace
from tputfind.search.allocator import Block, CachingAllocator, rounded_bytes

_TOLERANCE_BYTES: Final = 2 * 2**20
"""The model may be wrong by this about what a trial took, and is not used for its like where it is wrong by more."""
_NEAR: Final = 2.0
"""Batch sizes within this factor of each other."""
_FOLLOWS: Final = 0.05
"""A size follows a power of the batch size if it does so within this share."""
_HIGHEST_POWER: Final = 3.2
"""What grows faster from one trace to another is another tensor at the same place."""
_POWERS: Final = (1, 2, 3)
_PADDINGS: Final = (1, 8, 16, 32, 64, 128, 256)
"""Multiples that models and libraries round a batch size up to."""
_LAWS: Final = ((1, 0), *product(_PADDINGS, _POWERS))
"""How sizes may grow exactly: a padding, and the power of the padded batch size; of equal ones the first."""
_TELLING_PRIME: Final = 53
"""Where a prime batch size is no smaller, no size divides by its square by chance."""


class Memory(NamedTuple):
    """The memory that a process can have of its device in all, and how the allocator takes its part.

    ``capped`` says whether the limit is one set on the allocator, and not the end of the device's memory.
    """

    limit_bytes: int
    expandable: bool = False
    capped: bool = False


class Replay(NamedTuple):
    """What the model of the allocator says of a batch size."""

    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int


class Program:
    """The requests of one trace, which can be replayed at any batch size; other traces help to tell how they grow."""

    def __init__(self, trace: Trace, *others: Trace) -> None:
        """Read a trace, and others from the nearest batch size to the farthest; ValueError if one cannot be read."""
        self.trace = trace
        self._events = list(trace.events())
        self._transient = _transient(self._events)
        self._last = max((index for index, event in enumerate(self._events) if event.kind != "outside"), default=None)
        growths = list(self._growths(others))
        self._distinct = list(dict.fromkeys(growths))
        places = {growth: place for place, growth in enumerate(self._distinct)}
        self._growth_of = [places[growth] for growth in growths]

    def replay(self, batch_size: int, memory: Memory) -> Replay:
        """Return what becomes of a batch size.

        A request that nothing else is asked for before it is given back is some library's workspace. Where there is no
        memory for it, the library does with less: it does not count.
        """
        allocator = CachingAllocator(memory.limit_bytes, expandable=memory.expandable, capped=memory.capped)
        fits = self._run(allocator, batch_size, memory.limit_bytes)
        return Replay(fits, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)

    def allocated_at_peak(self, batch_size: int, kinds: Mapping[int, str]) -> dict[str, int]:
        """Return the bytes by kind at the moment of a batch size at which most are allocated, without any limit.

        ``kinds`` are those of allocations, by number; the others of the fixed ones are ``weights``, all others
        ``activations``.
        """
        sizes = self._sizes(batch_size)
        held: list[tuple[str, int]] = []
        now: dict[str, int] = {}
        peak: dict[str, int] = {}
        for kind, value in self._events:
            if kind == "allocate":
                number = len(held)
                what = kinds.get(number, "weights" if number < self.trace.fixed else "activations")
                held.append((what, rounded_bytes(sizes[number])))
                now[what] = now.get(what, 0) + held[number][1]
                if sum(now.values()) > sum(peak.values()):
                    peak = dict(now)
            elif kind == "release":
                what, size = held[value]
                now[what] -= size
        return peak

    def lacked_bytes(self) -> int | None:
        """Return what the process would have held with the request that ended it, where the model grants that.

        The device has less then. None where the model refuses it too, or grants it from what the process had.
        """
        trace, last = self.trace, self._events[self._last] if self._last is not None else None
        if trace.complete or last is None or last.kind != "refused":
            return None
        allocator = CachingAllocator(trace.memory_bytes, expandable=trace.expandable, capped=trace.capped)
        if not self._run(allocator, trace.batch_size, trace.memory_bytes, self._events[: self._last]):
            return None
        before_bytes = allocator.reserved_bytes
        granted = allocator.allocate(last.value) is not None and allocator.reserved_bytes > before_bytes
        return allocator.reserved_bytes + round(trace.memory_bytes - allocator.limit_bytes) if granted else None

    def _run(
        self, allocator: CachingAllocator, batch_size: int, memory_bytes: int, events: Sequence[Event] | None = None
    ) -> bool:
        sizes, held = self._sizes(batch_size), list[Block | None]()
        for index, (kind, value) in enumerate(self._events if events is None else events):
            if kind == "allocate":
                number = len(held)
                if number == self.trace.fixed:
                    allocator.start_anew()
                held.append(allocator.allocate(sizes[number]))
                if held[-1] is None and number not in self._transient:
                    return False
            elif kind == "release":
                block = held[value]
                held[value] = None
                if block is not None:
                    allocator.release(block)
            elif kind == "outside":
                allocator.limit_bytes = memory_bytes - value
                if allocator.reserved_bytes > allocator.limit_bytes:
                    return False
            else:
                block = allocator.allocate(round(value * batch_size / self.trace.batch_size))
                if block is not None:
                    allocator.release(block)
                elif index == self._last and not self.trace.complete:
                    return False
        return True

    def _sizes(self, batch_size: int) -> list[int]:
        """Return the size of every allocation at a batch size: most grow as others do."""
        sizes = []
        for padding, terms in self._distinct:
            padded = float(_padded(batch_size, padding))
            sizes.append(max(1, round(math.fsum(factor * padded**power for factor, power in terms))))
        return [sizes[place] for place in self._growth_of]

    def _growths(self, others: Sequence[Trace]) -> Iterator[Growth]:
        """Yield for every allocation how its size grows with the batch size.

        What was there before the batch is fixed. Of one batch size alone,
        what its square divides follows the square, what it divides follows it, and so do workspaces; nothing else does.
        """
        batch_size = self.trace.batch_size
        elsewhere = [(other.batch_size, _aligned(other)) for other in others]
        for number, (place, size) in enumerate(_placed(self._events, self._transient)):
            away = [(other, sizes[place]) for other, sizes in elsewhere if sizes.get(place)]
            transient = number in self._transient
            if number < self.trace.fixed:
                yield _fixed(size)
            elif size and away and away[0][0] == others[0].batch_size:  # the nearest has it
                yield _grown((batch_size, size), away, transient=transient)
            elif size % batch_size**2 == 0 and batch_size >= _TELLING_PRIME and _is_prime(batch_size):
                yield _follows(size, batch_size, 2)
            else:
                yield _follows(size, batch_size, 1) if transient or size % batch_size == 0 else _fixed(size)


class Growth(NamedTuple):
    """A size as a sum over powers of the batch size rounded up to a multiple of ``padding``.

    Each of the ``terms`` is a factor and an exponent.
    """

    padding: int
    terms: tuple[tuple[float, float], ...]


def _fixed(size: int) -> Growth:
    return Growth(1, ((size, 0),))


def _follows(size: int, batch_size: int, power: float, padding: int = 1) -> Growth:
    return Growth(padding, ((size / _padded(batch_size, padding) ** power, power),))


def _padded(batch_size: int, padding: int) -> int:
    return -(-batch_size // padding) * padding


_Sized = tuple[int, int]
"""A batch size, and the size of a request at it."""


def _grown(here: _Sized, elsewhere: Sequence[_Sized], *, transient: bool) -> Growth:
    """Return how a request grows that has several sizes, the nearest batch size ``elsewhere`` first.

    The size is fixed, or follows a power (1, 2, 3) of the batch size or of the padded batch size, if it does so exactly
    between the first two; the farther ones choose among such laws. If each batch size divides its size, the size of a
    sample follows a line; else the size does, or a power between. A size that falls or grows too fast stays as it is,
    unless the batch size divides it. If the batch sizes are far apart, a workspace stays as it is too, unless it
    followed a power within 5 %: the library then changed the kernel.
    """
    (batch_size, size), (other, away) = here, elsewhere[0]
    exact = [law for law in _LAWS if _obeys(here, elsewhere[0], *law)]
    if exact:
        padding, power = max(exact, key=lambda law: sum(_obeys(here, each, *law) for each in elsewhere))
        return _follows(size, batch_size, power, padding)
    far_workspace = transient and ratio(batch_size, other) > _NEAR
    for power in _POWERS if far_workspace else ():
        if abs(size * other**power / (away * batch_size**power) - 1) < _FOLLOWS:
            return _follows(size, batch_size, power)
    divides = size % batch_size == 0 and away % other == 0
    steeper = (size / batch_size - away / other) / (batch_size - other)
    each = size / batch_size - steeper * batch_size
    if divides and steeper > 0 and each >= 0:
        return Growth(1, ((each, 1), (steeper, 2)))
    if size % batch_size == 0 and not divides:
        return _follows(size, batch_size, 1)
    if far_workspace:
        return _fixed(size)
    slope = (size - away) / (batch_size - other)
    base = size - slope * batch_size
    exponent = math.log(size / away) / math.log(batch_size / other)
    if slope > 0 and base >= 0:
        return Growth(1, ((base, 0), (slope, 1)))
    if 1 < exponent <= _HIGHEST_POWER:
        return _follows(size, batch_size, exponent)
    return _follows(size, batch_size, 1) if size % batch_size == 0 else _fixed(size)


def _obeys(here: _Sized, there: _Sized, padding: int, power: int) -> bool:
    one: int = here[1] * _padded(there[0], padding) ** power
    other: int = there[1] * _padded(here[0], padding) ** power
    return one == other


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


@lru_cache(maxsize=256)
def right_about(trace: Trace, peak_reserved_bytes: int) -> bool:
    """Return whether the model tells what a trial that passed took, from the trial's own trace."""
    memory = Memory(trace.memory_bytes, trace.expandable, trace.capped)
    try:
        replayed = Program(trace).replay(trace.batch_size, memory)
    except ValueError:
        return False
    return replayed.fits and abs(replayed.peak_reserved_bytes - peak_reserved_bytes) <= _TOLERANCE_BYTES


@lru_cache(maxsize=256)
def memory_below(trace: Trace) -> int | None:
    """Return the memory that the device of a trial has less of, as the request that ended the trial tells.

    None where it tells nothing, since the model refuses that request too, and where the trace cannot be read.
    """
    try:
        return Program(trace).lacked_bytes()
    except ValueError:
        return None


@lru_cache(maxsize=256)
def readable(trace: Trace) -> bool:
    """Return whether the events of a trace can be told: a record may have been edited."""
    try:
        return all(True for _ in trace.events())
    except ValueError:
        return False


class Forecast:
    """What the traces of some trials let expect of other batch sizes."""

    def __init__(self, traces: Iterable[Trace], memory: Memory) -> None:
        """Take traces in different batch sizes, at least one of them complete, and the memory to fill."""
        self.memory = memory
        self._programs: dict[int, Program] = {}
        self._traces = list(traces)

    def within(self, memory: Memory) -> Forecast:
        """Return the same for another memory."""
        other = Forecast(self._traces, memory)
        other._programs = self._programs
        return other

    def fits(self, batch_size: int) -> bool:
        """Return whether a batch size is expected to fit.

        The nearest trial that passed is replayed whole. One that failed nearer by may show, up to where it did, that
        the requests are others there.
        """
        by_distance = sorted(self._traces, key=lambda trace: ratio(trace.batch_size, batch_size))
        whole = next(trace for trace in by_distance if trace.complete)
        used = dict.fromkeys(trace.batch_size for trace in (by_distance[0], whole))
        return all(self._program(near).replay(batch_size, self.memory).fits for near in used)

    def _program(self, batch_size: int) -> Program:
        if batch_size not in self._programs:
            trace = next(trace for trace in self._traces if trace.batch_size == batch_size)
            others = [other for other in self._traces if other is not trace]
            others.sort(key=lambda other: ratio(other.batch_size, batch_size))
            self._programs[batch_size] = Program(trace, *others)
        return self._programs[batch_size]


def _transient(events: Sequence[Event]) -> set[int]:
    """Return the allocations that are given back before anything else is asked for."""
    found, number = set(), -1
    for event, following in pairwise(events):
        number += event.kind == "allocate"
        if event.kind == "allocate" and following == Event("release", number):
            found.add(number)
    return found


def _placed(events: Iterable[Event], transient: set[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield every allocation's place among the lasting ones, and its size.

    A model asks for the same tensors whatever the batch size; only the workspaces between them come and go.
    """
    lasting, between, number = 0, 0, -1
    for kind, size in events:
        if kind != "allocate":
            continue
        number += 1
        if number in transient:
            between += 1
            yield (lasting, between), size
        else:
            lasting, between = lasting + 1, 0
            yield (lasting, 0), size


@lru_cache(maxsize=32)
def _aligned(trace: Trace) -> dict[tuple[int, int], int]:
    events = list(trace.events())
    return dict(_placed(events, _transient(events)))


def ratio(one: int, other: int) -> float:
    """Return how many times the one batch size is the other, or the other the one: at least 1."""
    return max(one / other, other / one)
