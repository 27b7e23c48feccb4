"""Find the edge: the largest batch that passes, with the next one tried and not passing."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tputfind.record.record import Edge, LimitedBy

Ask = Callable[[int], LimitedBy | None]
"""A question about one batch size: None where it passes, else what stands in its way."""
Expect = Callable[[int, int | None], int | None]
"""A forecast: from the largest batch known to pass (0 while there is none) and the smallest known not to (None while
there is none) to the largest expected to pass; None where nothing can be said."""

MOST_GROWTH: Final = 16
"""No batch is asked that is more than so many times the largest that passed: what a model does far from there, nobody
has seen."""
_BLIND_GROWTH: Final = 4
"""The same where nothing is expected."""
_SET_BACK: Final = 0.02
"""Below a batch that failed against what was expected, the next one tried lies lower by this share, then twice it."""
_TRUSTED: Final = 2
"""A forecast below so many times the largest that passed is mostly right: the batch above it is then tried first,
so that the last process of a search holds the largest batch, and can go on to time it.
"""
_LEAST_LIMIT: Final = 8
_LEAST_GRID: Final = 2**15
"""Powers of two from here on are where limits mostly lie: the last that passes, or, of grids, the first that does not.
"""
_NEAR_GRID: Final = 3 / 4
"""Of a power of two that fails: if so many pass, no rounder number lies between, and that is the limit of a grid."""
_CREDIT: Final = 1
"""Useless forecasts tolerated before bisection; each step that narrows the bracket earns one more."""
_NEAR_LATENCY: Final = 0.05
"""Of a batch that takes too long: times scatter by as much, so that no batch just below it is asked about."""
_NEAR_TIMEOUT: Final = 1 / 3
"""Of a batch that gave no answer in time: that there is one below it is all that more trials would tell."""
_NEAR: Final[dict[LimitedBy, float]] = {"latency": _NEAR_LATENCY, "timeout": _NEAR_TIMEOUT}
_OF_SIZE: Final[tuple[LimitedBy, ...]] = ("memory", "host_memory", "latency", "timeout", "cap")
"""What ends anywhere. What else stands in the way, an index or a kernel's limit, mostly does so at a round number."""


def find_edge(
    ask: Ask,
    prove: Ask,
    *,
    granularity: int,
    max_batch: int,
    linear: bool = False,
    first: int | None = None,
    forecast: Expect | None = None,
    worth: Callable[[int], bool] | None = None,
    index_limits: Callable[[], Sequence[int]] = tuple,
) -> Edge:
    """Return the largest multiple of ``granularity`` up to ``max_batch`` that passes both questions.

    Asks the batch that is forecast to be the last, and then the next one, or first the next one if the forecast is less
    than twice the largest that passed; but never more than 16 times the largest that passed. Where each forecast is
    contradicted by the next answer, the questions move away from it by 1, 4, 16, ... steps. Without a forecast it takes
    four times as many until a batch does not pass, then bisects; ``linear`` counts up instead. A forecast only chooses
    where to look. Where it brings the search no further than bisection would have, it loses credit, and without credit
    it waits until a step of that has earned some (as in Brent's method for roots: bad guesses cost little more than
    none). What is no matter of size, such as an index or a kernel's limit, is looked for at
    ``index_limits`` and the roundest numbers.

    Where larger batches fit again beyond one that does not, the forecast may expect so. One is then tried, and if it
    passes the search goes on there.

    The batch left over is put to ``prove``, the longer question. Where it fails there although it passed ``ask``, short
    answers are not to be relied on, and the search goes on below with ``prove`` alone.

    Where the batch above takes too long, the search ends within 5 % below it: an exact batch would be one of that day.
    Where it gave no answer in time, it ends within a third. Where no end is in sight, it ends before a batch that is
    not ``worth`` a trial.

    Neither question is asked twice of a batch. For an edge e >= 1 that both questions agree on, ``ask`` is called at
    most 2 ceil(log2 e) + 4 times without forecasts, and with them at most twice as often and two times more. If the
    answers are not monotone, the result is still an edge with both sides tried.

    Args:
        ask: a short trial of a batch size.
        prove: the full run of a batch size.
        granularity: the step of the answer, at least 1.
        max_batch: the cap, at least ``granularity``; no larger batch is tried.
        linear: count up one step at a time.
        first: a guess at the answer, or a batch that is answered already: it is asked before all others.
        forecast: what to expect from what is known.
        worth: says of a batch, where none is known to fail, whether it is to be tried; all are, where it is None.
        index_limits: returns the batch sizes, in ascending order, beyond which a tensor has more elements than 32 bits
            count.
    """
    search = _Search(max_batch // granularity, granularity, forecast, (first or 0) // granularity, index_limits)
    while (unit := search.next(linear=linear)) is not None:
        if worth is not None and search.passes and search.fails_at > search.cap and not worth(unit * granularity):
            return Edge(largest_batch=search.passes * granularity, limited_by="timeout", closed=False)
        search.learn(unit, ask(unit * granularity))
    proven = 0
    while search.open or search.passes != proven:
        unit = search.plain(linear=linear, near=True) if search.open else search.passes
        obstacle = prove(unit * granularity)
        search.learn(unit, obstacle)
        proven = unit if obstacle is None else proven
    limited_by = search.failed[search.fails_at]
    if search.fails_at > search.cap:
        return Edge(largest_batch=proven * granularity, limited_by=limited_by)
    return _between(proven * granularity, search.fails_at * granularity, limited_by, granularity)


def bracket(answers: Mapping[int, LimitedBy | None], granularity: int) -> Edge | None:
    """Return the edge as far as answers tell: the largest that passes, and the smallest beyond it that does not.

    None where nothing passes.
    """
    passes = max((size for size, obstacle in answers.items() if obstacle is None), default=0)
    beyond = {size: obstacle for size, obstacle in answers.items() if size > passes and obstacle is not None}
    if not passes:
        return None
    if not beyond:
        return Edge(largest_batch=passes, limited_by="cut_short", closed=False)
    fails_at = min(beyond)
    return _between(passes, fails_at, beyond[fails_at], granularity)


def _between(passes: int, fails_at: int, limited_by: LimitedBy, granularity: int) -> Edge:
    """Return the edge between a batch size that passes and one that does not: closed where nothing worth asking lies
    between.
    """
    near = _NEAR_LATENCY * fails_at if limited_by == "latency" else 0.0
    closed = fails_at - passes <= max(granularity, near)
    return Edge(largest_batch=passes, limited_by=limited_by, fails_at=fails_at, closed=closed)


class _Search:
    """What is known of batch sizes, in steps of the granularity, and what to ask next."""

    def __init__(
        self,
        cap: int,
        granularity: int,
        forecast: Expect | None,
        guess: int,
        index_limits: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self.cap = cap
        self.failed: dict[int, LimitedBy] = {cap + 1: "cap"}
        self._passed = [0]
        self._granularity = granularity
        self._forecast = forecast
        self._index_limits = index_limits
        self._guess = min(max(0, guess), cap) or None
        self._credit = _CREDIT
        self._expected = False
        """Whether a forecast, or the guess, chose what was asked last."""
        self._above = 0
        """Answers in a row that passed where a forecast said that hardly more would."""
        self._below = 0
        """Answers in a row that failed."""

    @property
    def passes(self) -> int:
        """The largest that passes."""
        return self._passed[-1]

    @property
    def fails_at(self) -> int:
        """The smallest beyond it that does not."""
        return min(unit for unit in self.failed if unit > self.passes)

    @property
    def open(self) -> bool:
        """Whether there is anything between the two that is worth asking about."""
        near = _NEAR.get(self.failed[self.fails_at], 0.0) * self.fails_at
        return self.fails_at - self.passes > max(1, near)

    @property
    def _wide(self) -> bool:
        """Whether a step up tells more than halving."""
        return self.fails_at > self.cap or self.fails_at > _BLIND_GROWTH * max(1, self.passes)

    def plain(self, *, linear: bool, near: bool = False) -> int:
        """Return what to ask where nothing is expected; ``near`` the batch that fails, where all spoke for it."""
        passes, fails_at = self.passes, self.fails_at
        if linear:
            return passes + 1
        of_size = self.failed[fails_at] in _OF_SIZE
        if not passes:
            return max(1, fails_at // _BLIND_GROWTH) if of_size and fails_at <= self.cap else 1
        if not of_size:
            unit = self._at_a_limit()
        elif fails_at > self.cap:
            unit = _BLIND_GROWTH * passes
        else:
            unit = math.isqrt(passes * fails_at) if self._wide else (passes + fails_at) // 2
            if near:
                unit = max(unit, math.floor(fails_at * (1 - _SET_BACK * (1 << max(0, self._below - 1)))))
        return min(max(unit, passes + 1), fails_at - 1, max(MOST_GROWTH * passes, passes + 1))

    def _at_a_limit(self) -> int:
        """Return what to ask where an index or a kernel sets the limit.

        That is the middle of the batch sizes at which a tensor grows past 32 bits, or else the roundest number.
        """
        passes, fails_at = self.passes, self.fails_at
        limits = {size // self._granularity for size in self._index_limits()}
        inside = sorted(unit for unit in limits if passes < unit < fails_at)
        near = fails_at >= _LEAST_GRID or passes >= _NEAR_GRID * fails_at
        if (passes in limits and len(inside) <= 1) or (passes >= _LEAST_LIMIT and passes & (passes - 1) == 0):
            return passes + 1
        if near and fails_at & (fails_at - 1) == 0:
            return fails_at - 1
        return inside[len(inside) // 2] if inside else _roundest(passes, fails_at)

    def next(self, *, linear: bool) -> int | None:
        """Return what to ask; None where both sides of the edge are known, and nothing is expected beyond."""
        guess, self._guess = self._guess, None
        credit = self._credit > (0 if self.open else _CREDIT)
        expected = guess or (self._next_expected() if credit else None)
        misled = self._expected and expected is None and credit and self.failed[self.fails_at] == "memory"
        self._expected = expected is not None
        return expected or (self.plain(linear=linear, near=misled) if self.open else None)

    def _next_expected(self) -> int | None:
        """Return what is expected to be the last that passes, or the next one where that has passed."""
        if self._forecast is None or not self.passes or not (self.open or self.failed[self.fails_at] == "memory"):
            return None
        known_to_fail = self.fails_at * self._granularity if self.open and self.fails_at <= self.cap else None
        batch_size = self._forecast(self.passes * self._granularity, known_to_fail)
        if batch_size is None:
            return None
        unit = batch_size // self._granularity
        most = min(self.cap, MOST_GROWTH * self.passes)
        if not self.open:
            return unit if self.fails_at < unit <= most and unit not in self.failed else None
        lowest = self.passes + (1 << 2 * max(0, self._above - 1))
        highest = self.fails_at - (1 << 2 * max(0, self._below - 1))
        if unit >= highest and self.failed[self.fails_at] not in _OF_SIZE:
            return None  # of what stands in the way there, a forecast says nothing
        if known_to_fail is None and unit < _TRUSTED * self.passes:
            unit += 1
        if highest <= lowest:
            return min(max(unit, self.passes + 1), self.fails_at - 1) if self.fails_at - self.passes <= 3 else None
        return min(max(unit, lowest), highest, most)

    def learn(self, unit: int, obstacle: LimitedBy | None) -> None:
        """Take an answer, and give or take credit for it."""
        passes, width, wide, was_open = self.passes, self.fails_at - self.passes, self._wide, self.open
        if obstacle is None:
            near = self._expected and unit < MOST_GROWTH * passes
            self._above = self._above + 1 if near or self._above else 0
            self._below = 0
            self._passed += [unit] if unit != passes else []
        else:
            self._above = 0
            self._below += 1
            self.failed[unit] = obstacle
            if unit == passes:
                self._passed.pop()
        if not was_open and obstacle is not None:
            self._forecast = None  # one look beyond the edge is enough
        doubled = self.passes >= 2 * max(1, passes) or passes == 0 < self.passes
        halved = not self._wide and (wide or 2 * (self.fails_at - self.passes) <= width + 1)
        if was_open and (doubled or halved):
            self._credit += 1
        elif self._expected:
            self._credit -= 1


def _roundest(low: int, high: int) -> int:
    """Return the number between two, neither of them, that the largest power of two divides."""
    power = 1
    while (low // (2 * power) + 1) * 2 * power < high:
        power *= 2
    return (low // power + 1) * power
