"""Forecast which batch sizes fit, from the requests of trials to the memory allocator.

A trace of one batch size is scaled to another batch size and replayed in a model of the allocator, which shows whether
that batch size would fit. The idea of replaying a trace through the allocator's rules is xMem's (arXiv 2510.21048).
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
"""Maximum error of the model in the reserved bytes of a trial; with a larger error, the model is not used for the
trace."""
_NEAR: Final = 2.0
"""Maximum ratio of two batch sizes that count as near."""
_FOLLOWS: Final = 0.05
"""Maximum relative error at which a size counts as following a power of the batch size."""
_HIGHEST_POWER: Final = 3.2
"""Maximum exponent of growth between two traces; a faster growth means that another tensor has the same place."""
_POWERS: Final = (1, 2, 3)
_PADDINGS: Final = (1, 8, 16, 32, 64, 128, 256)
"""Multiples to which models and libraries round a batch size up."""
_LAWS: Final = ((1, 0), *product(_PADDINGS, _POWERS))
"""Exact laws of growth: a padding, and the power of the padded batch size; among equally good laws, the first."""
_TELLING_PRIME: Final = 53
"""Minimum prime batch size at which a size divisible by its square is no coincidence."""


class Memory(NamedTuple):
    """The device memory that a process can have in total, and the mode of its allocator.

    ``capped`` says whether the limit was set on the allocator, instead of being the end of the device's memory.
    """

    limit_bytes: int
    expandable: bool = False
    capped: bool = False


class Replay(NamedTuple):
    """The result of the allocator model for a batch size."""

    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int


class Program:
    """The requests of one trace, which can be replayed at any batch size; other traces show how the requests grow."""

    def __init__(self, trace: Trace, *others: Trace) -> None:
        """Args: a trace, and others by distance of their batch sizes. Raises ValueError if one is invalid."""
        self.trace = trace
        self._events = list(trace.events())
        self._transient = _transient(self._events)
        self._last = max((index for index, event in enumerate(self._events) if event.kind != "outside"), default=None)
        growths = list(self._growths(others))
        self._distinct = list(dict.fromkeys(growths))
        places = {growth: place for place, growth in enumerate(self._distinct)}
        self._growth_of = [places[growth] for growth in growths]

    def replay(self, batch_size: int, memory: Memory) -> Replay:
        """Return the result for a batch size.

        A request that is freed before any other request is the workspace of a library. If there is no memory for it,
        the library uses a smaller one: the request does not count.
        """
        allocator = CachingAllocator(memory.limit_bytes, expandable=memory.expandable, capped=memory.capped)
        fits = self._run(allocator, batch_size, memory.limit_bytes)
        return Replay(fits, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)

    def allocated_at_peak(self, batch_size: int, kinds: Mapping[int, str]) -> dict[str, int]:
        """Return the bytes by kind at the peak of allocated memory of a batch size, without any limit.

        ``kinds`` maps numbers of allocations to kinds; other fixed allocations are ``weights``, all others
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
        """Return an exclusive upper bound of the device's memory in bytes: the total with the request that was refused.

        Returns None if no request was refused, or if the model refuses it too or serves it from memory that the process
        had.
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
        """Return the size of every allocation at a batch size; equal laws of growth are computed once."""
        sizes = []
        for padding, terms in self._distinct:
            padded = float(_pad(batch_size, padding))
            sizes.append(max(1, round(math.fsum(factor * padded**power for factor, power in terms))))
        return [sizes[place] for place in self._growth_of]

    def _growths(self, others: Sequence[Trace]) -> Iterator[Growth]:
        """Yield for every allocation how its size grows with the batch size.

        Allocations from before the batch are fixed. The growth of the others follows from the other traces, if the
        nearest has the allocation. Otherwise, a size divisible by the square of a prime batch size of at least 53 grows
        with the square; a size divisible by the batch size, or of a workspace, grows in proportion; any other size is
        fixed.
        """
        batch_size = self.trace.batch_size
        elsewhere = [(other.batch_size, _sizes_by_place(other)) for other in others]
        for number, (place, size) in enumerate(_places_and_sizes(self._events, self._transient)):
            away = [(other, sizes[place]) for other, sizes in elsewhere if sizes.get(place)]
            transient = number in self._transient
            if number < self.trace.fixed:
                yield _constant_growth(size)
            elif size and away and away[0][0] == others[0].batch_size:  # the nearest trace has it
                yield _fit_growth((batch_size, size), away, transient=transient)
            elif size % batch_size**2 == 0 and batch_size >= _TELLING_PRIME and _is_prime(batch_size):
                yield _power_growth(size, batch_size, 2)
            else:
                yield (
                    _power_growth(size, batch_size, 1)
                    if transient or size % batch_size == 0
                    else _constant_growth(size)
                )


class Growth(NamedTuple):
    """A size as a sum over powers of the batch size, rounded up to a multiple of ``padding``.

    Each of the ``terms`` is a factor and an exponent.
    """

    padding: int
    terms: tuple[tuple[float, float], ...]


def _constant_growth(size: int) -> Growth:
    return Growth(1, ((size, 0),))


def _power_growth(size: int, batch_size: int, power: float, padding: int = 1) -> Growth:
    return Growth(padding, ((size / _pad(batch_size, padding) ** power, power),))


def _pad(batch_size: int, padding: int) -> int:
    return -(-batch_size // padding) * padding


_Sized = tuple[int, int]
"""A batch size, and the size in bytes of a request at it."""


def _fit_growth(here: _Sized, elsewhere: Sequence[_Sized], *, transient: bool) -> Growth:
    """Return how a request grows that has several sizes, the nearest batch size ``elsewhere`` first.

    The first law that applies counts:

    - A fixed size or an exact power (1, 2, 3) of the batch size or of the padded batch size, between the first two
      sizes; the farther sizes choose among such laws.
    - A power within 5 %, for a workspace between batch sizes that are far apart.
    - A line for the size of a sample, if each batch size divides its size and the line rises.
    - Proportional growth, if this batch size divides its size and the other does not.
    - A fixed size, for a workspace between batch sizes that are far apart: the library changed the kernel.
    - A rising line for the size, or a power up to 3.2.
    - Proportional growth if this batch size divides its size, else a fixed size: the size falls or grows too fast.
    """
    (batch_size, size), (other, away) = here, elsewhere[0]
    exact = [law for law in _LAWS if _obeys(here, elsewhere[0], *law)]
    if exact:
        padding, power = max(exact, key=lambda law: sum(_obeys(here, each, *law) for each in elsewhere))
        return _power_growth(size, batch_size, power, padding)
    far_workspace = transient and ratio(batch_size, other) > _NEAR
    for power in _POWERS if far_workspace else ():
        if abs(size * other**power / (away * batch_size**power) - 1) < _FOLLOWS:
            return _power_growth(size, batch_size, power)
    divides = size % batch_size == 0 and away % other == 0
    steeper = (size / batch_size - away / other) / (batch_size - other)
    each = size / batch_size - steeper * batch_size
    if divides and steeper > 0 and each >= 0:
        return Growth(1, ((each, 1), (steeper, 2)))
    if size % batch_size == 0 and not divides:
        return _power_growth(size, batch_size, 1)
    if far_workspace:
        return _constant_growth(size)
    slope = (size - away) / (batch_size - other)
    base = size - slope * batch_size
    exponent = math.log(size / away) / math.log(batch_size / other)
    if slope > 0 and base >= 0:
        return Growth(1, ((base, 0), (slope, 1)))
    if 1 < exponent <= _HIGHEST_POWER:
        return _power_growth(size, batch_size, exponent)
    return _power_growth(size, batch_size, 1) if size % batch_size == 0 else _constant_growth(size)


def _obeys(here: _Sized, there: _Sized, padding: int, power: int) -> bool:
    one: int = here[1] * _pad(there[0], padding) ** power
    other: int = there[1] * _pad(here[0], padding) ** power
    return one == other


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


@lru_cache(maxsize=256)
def right_about(trace: Trace, peak_reserved_bytes: int) -> bool:
    """Whether the allocator model reproduces the peak of a passed trial from the trial's own trace."""
    memory = Memory(trace.memory_bytes, trace.expandable, trace.capped)
    try:
        replayed = Program(trace).replay(trace.batch_size, memory)
    except ValueError:
        return False
    return replayed.fits and abs(replayed.peak_reserved_bytes - peak_reserved_bytes) <= _TOLERANCE_BYTES


@lru_cache(maxsize=256)
def memory_below(trace: Trace) -> int | None:
    """Return an exclusive upper bound of a device's memory in bytes, from the request that ended the trial.

    Returns None if the request shows no bound (see ``Program.lacked_bytes``), or if the trace is invalid.
    """
    try:
        return Program(trace).lacked_bytes()
    except ValueError:
        return None


@lru_cache(maxsize=256)
def readable(trace: Trace) -> bool:
    """Whether the events of a trace are valid: a record may have been edited."""
    try:
        return all(True for _ in trace.events())
    except ValueError:
        return False


class Forecast:
    """The forecast for other batch sizes from the traces of some trials."""

    def __init__(self, traces: Iterable[Trace], memory: Memory) -> None:
        """Args: traces of different batch sizes, at least one of them complete, and the memory to fill."""
        self.memory = memory
        self._programs: dict[int, Program] = {}
        self._traces = list(traces)

    def within(self, memory: Memory) -> Forecast:
        other = Forecast(self._traces, memory)
        other._programs = self._programs
        return other

    def fits(self, batch_size: int) -> bool:
        """Whether a batch size is expected to fit.

        The nearest complete trace is replayed. If a failed trial is nearer, its trace is replayed too, up to its
        failure: its requests may differ.
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
    """Return the numbers of the allocations that are freed before any other request."""
    found, number = set(), -1
    for event, following in pairwise(events):
        number += event.kind == "allocate"
        if event.kind == "allocate" and following == Event("release", number):
            found.add(number)
    return found


def _places_and_sizes(events: Iterable[Event], transient: set[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the place of every allocation among the lasting ones, and its size in bytes.

    A model requests the same tensors at every batch size; only the workspaces between them vary.
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
def _sizes_by_place(trace: Trace) -> dict[tuple[int, int], int]:
    events = list(trace.events())
    return dict(_places_and_sizes(events, _transient(events)))


def ratio(one: int, other: int) -> float:
    """Return the ratio of the larger number to the smaller: at least 1."""
    return max(one / other, other / one)
