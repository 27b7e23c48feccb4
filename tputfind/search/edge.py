"""Find the edge: the largest batch that passes, with the next one tried and not passing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tputfind.record.record import Edge, LimitedBy

Ask = Callable[[int], LimitedBy | None]
"""A question about one batch size: None where it passes, else what stands in its way."""
Expect = Callable[[int, int | None], int | None]
"""A forecast: from the largest batch known to pass (0 while there is none) and the smallest known not to (None while
there is none) to the largest expected to pass; None where nothing can be said."""

_CREDIT: Final = 1
"""Useless forecasts tolerated before bisection; each step that narrows the bracket earns one more."""
NEAR_LATENCY: Final = 0.05
"""Of a batch that takes too long: times scatter by as much, so that no batch just below it is asked about."""


def find_edge(
    ask: Ask,
    prove: Ask,
    *,
    granularity: int,
    max_batch: int,
    linear: bool = False,
    first: int | None = None,
    forecast: Expect | None = None,
) -> Edge:
    """Return the largest multiple of ``granularity`` up to ``max_batch`` that passes both questions.

    Asks the batch that is forecast to be the last, and then the next one; without a forecast it doubles until a batch
    does not pass, then bisects; ``linear`` counts up instead. A forecast only chooses where to look. Where it brings
    the search no further than doubling or bisection would have, it loses credit, and without credit it waits until a
    step of those has earned some (as in Brent's method for roots: bad guesses cost little more than none).

    Where larger batches fit again beyond one that does not, the forecast may expect so. One is then tried, and if it
    passes the search goes on there.

    The batch left over is put to ``prove``, the longer question. Where it fails there although it passed ``ask``, short
    answers are not to be relied on, and the search goes on below with ``prove`` alone.

    Where the batch above takes too long, the search ends within 5 % below it: an exact batch would be one of that day.

    Neither question is asked twice of a batch. For an edge e >= 1 that both questions agree on, ``ask`` is called at
    most 2 ceil(log2 e) + 2 times without forecasts, and with them at most twice as often and two times more. If the
    answers are not monotone, the result is still an edge with both sides tried.

    Args:
        ask: a short trial of a batch size.
        prove: the full run of a batch size.
        granularity: the step of the answer, at least 1.
        max_batch: the cap, at least ``granularity``; no larger batch is tried.
        linear: count up one step at a time.
        first: a guess at the answer, or a batch that is answered already: it is asked before all others.
        forecast: what to expect from what is known.
    """
    search = _Search(max_batch // granularity, granularity, forecast, (first or 0) // granularity)
    while (unit := search.next(linear=linear)) is not None:
        search.learn(unit, ask(unit * granularity))
    proven = 0
    while search.open or search.passes != proven:
        unit = search.plain(linear=linear) if search.open else search.passes
        obstacle = prove(unit * granularity)
        search.learn(unit, obstacle)
        proven = unit if obstacle is None else proven
    tried = search.fails_at * granularity if search.fails_at <= search.cap else None
    limited_by = search.failed[search.fails_at]
    return Edge(largest_batch=proven * granularity, limited_by=limited_by, fails_at=tried)


class _Search:
    """What is known of batch sizes, in steps of the granularity, and what to ask next."""

    def __init__(self, cap: int, granularity: int, forecast: Expect | None, guess: int) -> None:
        self.cap = cap
        self.failed: dict[int, LimitedBy] = {cap + 1: "cap"}
        self._passed = [0]
        self._granularity = granularity
        self._forecast = forecast
        self._guess = min(max(0, guess), cap) or None
        self._credit = _CREDIT
        self._expected = False
        """Whether a forecast, or the guess, chose what was asked last."""

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
        near = NEAR_LATENCY * self.fails_at if self.failed[self.fails_at] == "latency" else 1
        return self.fails_at - self.passes > max(1, near)

    @property
    def _wide(self) -> bool:
        """Whether doubling from below tells more than halving from above."""
        return self.fails_at > self.cap or self.fails_at > 4 * max(1, self.passes)

    def plain(self, *, linear: bool) -> int:
        """Return what to ask where nothing is expected."""
        if linear:
            return self.passes + 1
        if self._wide:
            return min(2 * self.passes or 1, self.fails_at - 1)
        return (self.passes + self.fails_at) // 2

    def next(self, *, linear: bool) -> int | None:
        """Return what to ask; None where both sides of the edge are known, and nothing is expected beyond."""
        guess, self._guess = self._guess, None
        expected = guess or (self._next_expected() if self._credit > (0 if self.open else _CREDIT) else None)
        self._expected = expected is not None
        return expected or (self.plain(linear=linear) if self.open else None)

    def _next_expected(self) -> int | None:
        """Return what is expected to be the last that passes, or the next one where that has passed."""
        if self._forecast is None:
            return None
        known_to_fail = self.fails_at * self._granularity if self.open and self.fails_at <= self.cap else None
        batch_size = self._forecast(self.passes * self._granularity, known_to_fail)
        if batch_size is None:
            return None
        unit = batch_size // self._granularity
        if self.open:
            return min(max(unit, self.passes + 1), self.fails_at - 1)
        return unit if self.fails_at < unit <= self.cap and unit not in self.failed else None

    def learn(self, unit: int, obstacle: LimitedBy | None) -> None:
        """Take an answer, and give or take credit for it."""
        passes, width, wide, was_open = self.passes, self.fails_at - self.passes, self._wide, self.open
        if obstacle is None:
            self._passed += [unit] if unit != passes else []
        else:
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
