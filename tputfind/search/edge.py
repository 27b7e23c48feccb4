"""Find the edge: the largest batch that fits, with the next larger one tried and not fitting."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tputfind.record.record import Edge, LimitedBy

Ask = Callable[[int], LimitedBy | None]
"""A question about one batch size: None if it passes, else the reason why it fails."""
Expect = Callable[[int, int | None], int | None]
"""A forecast of the largest batch that passes, from the largest known to pass (0 if there is none yet) and the smallest
known to fail (None if there is none yet). It returns None if it has no estimate."""

MOST_GROWTH: Final = 16
"""Maximum ratio of a trial's batch size to the largest that passed: the model's behaviour further away is unknown."""
_BLIND_GROWTH: Final = 4
"""The same ratio without a forecast."""
_LEAST_GROWTH: Final = 2
"""Minimum of that ratio, as long as none failed, if a larger batch is not worth a trial."""
_SET_BACK: Final = 0.02
"""Relative step below a batch that failed against the forecast; it doubles with each further failure."""
_TRUSTED: Final = 2
"""Maximum ratio of a forecast to the largest batch that passed at which the forecast is mostly right. The batch above
the forecast is then tried first, so that the last process of a search holds the largest batch and can go on to time
it."""
_LEAST_LIMIT: Final = 8
_LEAST_GRID: Final = 2**15
"""Minimum powers of two that count as likely limits: as the last batch that passes, and as the first that fails (a
kernel starts as a grid of blocks, whose size is limited)."""
_NEAR_GRID: Final = 3 / 4
"""Fraction of a failing power of two: if a batch above it passes, no rounder number lies between, and the power is the
limit of a grid."""
_CREDIT: Final = 1
"""Number of useless forecasts before bisection; each step that narrows the bracket adds one."""
_NEAR_LATENCY: Final = 0.05
"""Fraction below a batch that is too slow at which the search ends: step times vary by as much."""
_NEAR_TIMEOUT: Final = 1 / 3
"""Fraction below a batch that timed out at which the search ends: further trials would only confirm that smaller
batches pass."""
_NEAR: Final[dict[LimitedBy, float]] = {"latency": _NEAR_LATENCY, "timeout": _NEAR_TIMEOUT}
_OF_SIZE: Final[tuple[LimitedBy, ...]] = ("memory", "host_memory", "latency", "timeout", "cap")
"""Reasons that can apply from any batch size on. The others, such as index and kernel limits, mostly begin at a round
number."""


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

    The search tries the batch that is forecast to be the largest, then the next one; if the forecast is less than twice
    the largest that passed, it tries the next one first. No trial exceeds 16 times the largest that passed. If answers
    keep contradicting the forecasts, trials move away from them by 1, 4, 16, ... steps. Without a forecast, the search
    multiplies by four until a batch fails, then bisects; ``linear`` counts up instead. A forecast only chooses the next
    trial. If it narrows the bracket no more than bisection would, it loses credit, and without credit the search
    bisects until a step earns some (as in Brent's method for roots: bad guesses cost little). Index and kernel limits
    are searched at ``index_limits`` and at the roundest numbers.

    If the forecast expects that a larger batch fits again beyond one that fails, one such batch is tried; if it passes,
    the search goes on there.

    The result is put to ``prove``, the longer question. If it fails there although it passed ``ask``, short trials are
    unreliable, and the search goes on below with ``prove`` alone.

    If the model itself fails above a power of two, the next power is tried too: a model may take only batch sizes that
    divide a number.

    If the batch above is too slow, the search ends within 5 % below it, since step times vary by as much. If that batch
    timed out, the search ends within a third. If there is no limit in sight, a batch that is not ``worth`` a trial is
    halved; if not even twice the largest that passed is worth one, the search ends, and the edge is not closed.

    No batch gets the same question twice. For an edge e >= 1 that both questions agree on, ``ask`` is called at most 2
    ceil(log2 e) + 4 times without forecasts, and with them at most twice as often and two times more. If the answers
    are not monotone, the result is still an edge with both sides tried.

    ``first`` is a guess at the answer, or a batch whose answer is recorded: it is tried first. ``worth`` says whether
    to try a batch while none is known to fail. ``index_limits`` returns, in ascending order, the batch sizes beyond
    which a tensor has more elements than 32 bits count.
    """
    search = _Search(max_batch // granularity, granularity, forecast, (first or 0) // granularity, index_limits)
    ended_early = False
    while (unit := search.next(linear=linear)) is not None:
        if worth is not None and search.passes and not search.has_limit:
            while not (is_worth := worth(unit * granularity)) and unit >= 2 * _LEAST_GROWTH * search.passes:
                unit //= 2
            if not is_worth:
                ended_early = True
                break
        search.learn(unit, ask(unit * granularity))
    proven = 0
    while (goes_on := search.open and not (ended_early and not search.has_limit)) or search.passes != proven:
        unit = search.next_blind(linear=linear, near=True) if goes_on else search.passes
        obstacle = prove(unit * granularity)
        search.learn(unit, obstacle)
        proven = unit if obstacle is None else proven
    limited_by = search.failed[search.fails_at]
    if not search.has_limit:
        limited_by = "timeout" if search.open else limited_by
        return Edge(largest_batch=proven * granularity, limited_by=limited_by, closed=not search.open)
    return _edge_between(proven * granularity, search.fails_at * granularity, limited_by, granularity)


def bracket(answers: Mapping[int, LimitedBy | None], granularity: int) -> Edge | None:
    """Return the edge by some answers: the largest batch that passes, and the next that fails; None if none passes."""
    passes = max((size for size, obstacle in answers.items() if obstacle is None), default=0)
    beyond = {size: obstacle for size, obstacle in answers.items() if size > passes and obstacle is not None}
    if not passes:
        return None
    if not beyond:
        return Edge(largest_batch=passes, limited_by="cut_short", closed=False)
    fails_at = min(beyond)
    return _edge_between(passes, fails_at, beyond[fails_at], granularity)


def _edge_between(passes: int, fails_at: int, limited_by: LimitedBy, granularity: int) -> Edge:
    """Return the edge between a passing and a failing batch size; closed if no batch between is worth a trial."""
    near = _NEAR_LATENCY * fails_at if limited_by == "latency" else 0.0
    closed = fails_at - passes <= max(granularity, near)
    return Edge(largest_batch=passes, limited_by=limited_by, fails_at=fails_at, closed=closed)


class _Search:
    """The answers so far, in steps of the granularity, and the choice of the next batch to try."""

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
        """Whether a forecast, or the guess, chose the last trial."""
        self._passes_in_a_row = 0
        """Number of consecutive answers that passed although a forecast expected hardly any larger batch to pass."""
        self._failures_in_a_row = 0
        """Number of consecutive answers that failed."""

    @property
    def passes(self) -> int:
        return self._passed[-1]

    @property
    def fails_at(self) -> int:
        return min(unit for unit in self.failed if unit > self.passes)

    @property
    def has_limit(self) -> bool:
        """Whether a larger batch than the largest that passed was tried and failed."""
        return self.fails_at <= self.cap

    @property
    def open(self) -> bool:
        near = _NEAR.get(self.failed[self.fails_at], 0.0) * self.fails_at
        return self.fails_at - self.passes > max(1, near)

    @property
    def _wide(self) -> bool:
        """Whether a step up narrows the bracket more than halving."""
        return not self.has_limit or self.fails_at > _BLIND_GROWTH * max(1, self.passes)

    def next_blind(self, *, linear: bool, near: bool = False) -> int:
        """Return the next trial without a forecast; ``near`` stays close to the failing batch."""
        passes, fails_at = self.passes, self.fails_at
        if linear:
            return passes + 1
        of_size = self.failed[fails_at] in _OF_SIZE
        if not passes:
            return max(1, fails_at // _BLIND_GROWTH) if of_size and self.has_limit else 1
        if not of_size:
            unit = self._next_at_limit()
        elif not self.has_limit:
            unit = _BLIND_GROWTH * passes
        else:
            unit = math.isqrt(passes * fails_at) if self._wide else (passes + fails_at) // 2
            if near:
                unit = max(unit, math.floor(fails_at * (1 - _SET_BACK * (1 << max(0, self._failures_in_a_row - 1)))))
        return min(max(unit, passes + 1), fails_at - 1, max(MOST_GROWTH * passes, passes + 1))

    def _next_at_limit(self) -> int:
        """Return the next trial if an index or a kernel sets the limit.

        This is the middle one of the batch sizes at which a tensor grows past 32 bits, or else the roundest number.
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
        """Return the next trial; None if both sides of the edge were tried, and no larger batch is expected to pass."""
        guess, self._guess = self._guess, None
        credit = self._credit > (0 if self.open else _CREDIT)
        expected = guess or (self._next_forecast() if credit else None)
        misled = self._expected and expected is None and credit and self.failed[self.fails_at] == "memory"
        self._expected = expected is not None
        if self.open or linear:
            return expected or (self.next_blind(linear=linear, near=misled) if self.open else None)
        return expected or self._next_divisor()

    def _next_divisor(self) -> int | None:
        """Return twice the largest that passes, if that is a power of two above which the model itself fails.

        The model may take only divisors of a number, such as the length of its queue. None if that was tried.
        """
        double = 2 * self.passes
        is_power = self.passes > 0 and self.passes & (self.passes - 1) == 0
        wanted = is_power and self.failed[self.fails_at] == "error" and double <= self.cap and double not in self.failed
        return double if wanted else None

    def _next_forecast(self) -> int | None:
        """Return the batch forecast to be the largest that passes, or the next if that has passed; None without one."""
        if self._forecast is None or not self.passes or not (self.open or self.failed[self.fails_at] == "memory"):
            return None
        known_to_fail = self.fails_at * self._granularity if self.open and self.has_limit else None
        batch_size = self._forecast(self.passes * self._granularity, known_to_fail)
        if batch_size is None:
            return None
        unit = batch_size // self._granularity
        most = min(self.cap, MOST_GROWTH * self.passes)
        if not self.open:
            return unit if self.fails_at < unit <= most and unit not in self.failed else None
        lowest = self.passes + (1 << 2 * max(0, self._passes_in_a_row - 1))
        highest = self.fails_at - (1 << 2 * max(0, self._failures_in_a_row - 1))
        if unit >= highest and self.failed[self.fails_at] not in _OF_SIZE:
            return None  # a forecast knows memory and time, but not this limit
        if known_to_fail is None and unit < _TRUSTED * self.passes:
            unit += 1
        if highest <= lowest:
            return min(max(unit, self.passes + 1), self.fails_at - 1) if self.fails_at - self.passes <= 3 else None
        return min(max(unit, lowest), highest, most)

    def learn(self, unit: int, obstacle: LimitedBy | None) -> None:
        """Add an answer. Doubling the batch or halving the bracket earns credit; other forecasts cost it."""
        passes, width, wide, was_open = self.passes, self.fails_at - self.passes, self._wide, self.open
        if obstacle is None:
            near = self._expected and unit < MOST_GROWTH * passes
            self._passes_in_a_row = self._passes_in_a_row + 1 if near or self._passes_in_a_row else 0
            self._failures_in_a_row = 0
            self._passed += [unit] if unit != passes else []
        else:
            self._passes_in_a_row = 0
            self._failures_in_a_row += 1
            self.failed[unit] = obstacle
            if unit == passes:
                self._passed.pop()
        if not was_open and obstacle is not None:
            self._forecast = None  # one trial beyond the edge is enough
        doubled = self.passes >= 2 * max(1, passes) or passes == 0 < self.passes
        halved = not self._wide and (wide or 2 * (self.fails_at - self.passes) <= width + 1)
        if was_open and (doubled or halved):
            self._credit += 1
        elif self._expected:
            self._credit -= 1


def _roundest(low: int, high: int) -> int:
    """Return the number strictly between two that is divisible by the largest power of two."""
    power = 1
    while (low // (2 * power) + 1) * 2 * power < high:
        power *= 2
    return (low // power + 1) * power
