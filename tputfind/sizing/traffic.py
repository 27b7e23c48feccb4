"""Streams of requests: interarrival times and sizes, drawn or recorded, thinned exactly to the part of one queue."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, fsum
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tputfind import options as values
from tputfind.units import echo

Shares: TypeAlias = tuple[tuple[int, float], ...]
"""Numbers of samples, rising, each with its fraction of the requests."""
ALONE: Final[Shares] = ((1, 1.0),)
_HEAVIEST: Final = 1e15
_LIGHTEST: Final = 1e-9
_ROUNDING: Final = 0.0101
"""Maximum deviation of fractions from a sum of 1: three thirds are written 0.33."""
_EVEN: Final = 1e-6
"""Coefficient of variation of interarrival times below which all are equal; its square is soon no number."""
_PACKED: Final = 200_000
"""Minimum requests that are packed into full batches; their mean size is then known to a thousandth."""
_read_weight: Final = values.number_within(_LIGHTEST, _HEAVIEST)
FEWEST_ARRIVALS: Final = 100
MOST_ARRIVALS: Final = 2_000_000
_LONGEST_GAP: Final = 1e15
_SHORTEST_GAP: Final = 1e-15
_LONGEST_TRACE: Final = 4_000_000
"""Maximum recorded requests, round and round, in one replication; keeps it within seconds."""
_read_gap: Final = values.number_within(0, _LONGEST_GAP)
_Value = TypeVar("_Value")


class Stream(NamedTuple):
    """Requests of one replication: times with a mean gap of 1, and samples per request (None: one each)."""

    times: NDArray[np.float64]
    sizes: NDArray[np.int64] | None


class Traffic(NamedTuple):
    """The shape of a stream of requests, independent of its rate.

    ``burstiness`` is the coefficient of variation of interarrival times; ``gaps`` are recorded interarrival times in
    any unit, which replace it. ``sizes`` are samples per request with their fractions of the requests; ``counts`` are
    the samples of the request that ends each gap.
    """

    burstiness: float = 1.0
    gaps: tuple[float, ...] | None = None
    sizes: Shares = ALONE
    counts: tuple[int, ...] | None = None

    @property
    def mean_samples(self) -> float:
        return fsum(share * samples for samples, share in self.sizes)

    @property
    def has_several_samples(self) -> bool:
        return self.sizes[-1][0] > 1

    def dispersion(self, share: float) -> float:
        """Return the index of dispersion of samples in a random part of the stream with this fraction of the requests.

        Thinning brings any stream nearer to a Poisson one. Recorded streams count as Poisson here.
        """
        squared = 1.0 if self.gaps is not None else self.burstiness**2
        mean_square = fsum(share * samples**2 for samples, share in self.sizes)
        return 1 + share * (squared - 1) + (mean_square / self.mean_samples**2 - 1)

    def draw(self, count: int, share: float, seed: Sequence[int]) -> Stream:
        """Return the part of a stream that each request joins with probability ``share``: ``count`` requests if drawn.

        A recorded stream is replayed as a whole, from its beginning, until about ``count`` requests join; if all join,
        no longer than ``_LONGEST_TRACE``.
        """
        chance = np.random.default_rng([*seed, 0])
        if self.gaps is not None:
            return self._replay(count, share, chance, seed)
        if self.burstiness == 1:
            gaps = chance.standard_exponential(count)
        else:  # requests that join are a geometric number of gaps apart
            steps = chance.geometric(share, count).astype(np.float64) if share < 1 else np.ones(count)
            is_even = self.burstiness < _EVEN
            shape = 1.0 if is_even else 1 / self.burstiness**2
            gaps = (steps if is_even else chance.standard_gamma(shape * steps)) * (share / shape)
        return Stream(np.cumsum(gaps), self._draw_sizes(count, seed))

    def _draw_sizes(self, count: int, seed: Sequence[int]) -> NDArray[np.int64] | None:
        if not self.has_several_samples:
            return None
        samples, shares = zip(*self.sizes, strict=True)
        drawn: NDArray[np.int64] = np.random.default_rng([*seed, 6]).choice(samples, size=count, p=shares)
        return drawn

    def _replay(self, count: int, share: float, chance: np.random.Generator, seed: Sequence[int]) -> Stream:
        assert self.gaps is not None
        since = _times_of(self.gaps)
        passes = max(1, ceil((count - 1) / share / len(since)))
        if share == 1:
            places = np.arange(min(passes, max(1, _LONGEST_TRACE // len(since))) * len(since))
        else:
            skips = chance.geometric(share, ceil(1.2 * share * passes * len(since)) + 100)
            places = np.cumsum(skips) - 1
            places = places[places < passes * len(since)]
        turns, within = np.divmod(places, len(since))
        times: NDArray[np.float64] = (since[within] + turns * since[-1]) * (share * len(since) / since[-1])
        sizes = self._draw_sizes(len(times), seed) if self.counts is None else np.array(self.counts)[within]
        return Stream(times, sizes)


@lru_cache(maxsize=2)
def _times_of(gaps: tuple[float, ...]) -> NDArray[np.float64]:
    return np.cumsum(gaps)


def without_idle(times: NDArray[np.float64], longest: float, window: float) -> NDArray[np.float64]:
    """Return times of requests with idle time removed, which changes no latency and keeps digits in long streams.

    ``longest`` is an upper bound on the time of one request by itself, including its wait for others. Idle time is
    removed in multiples of ``window``, for servers that batch by the clock; it is 0 for others.
    """
    gaps = np.diff(times, prepend=0.0)
    # A longer gap than all requests take one by one makes no difference.
    ahead = np.cumsum(longest - np.minimum(gaps, longest * (len(gaps) + 1)))
    unanswered = ahead - np.minimum(np.minimum.accumulate(ahead), 0.0)
    idle = np.maximum(gaps - np.concatenate(([0.0], unanswered[:-1])) - 2 * longest, 0.0)
    if window > 0:
        idle = np.floor(idle / window) * window
    shorter: NDArray[np.float64] = np.cumsum(gaps - idle)
    return shorter


def gaps_of(times: Sequence[float], names: Sequence[str]) -> tuple[float, ...]:
    """Return the times between requests; ValueError, with one of ``names``, if times fall or lie too far apart."""
    for number, (before, time) in enumerate(pairwise(times), start=1):
        if not 0 <= time - before <= _LONGEST_GAP:
            rise = f"times must rise, by at most {_LONGEST_GAP:g}"
            raise ValueError(f"{names[number]}: {time!r} comes after {before!r}: {rise}")
    return _check_gaps([time - before for before, time in pairwise(times)], len(times))


def read_gaps(value: object) -> tuple[float, ...]:
    gaps = _read_list(value, _read_gap, "times between requests")
    return _check_gaps(gaps, len(gaps) + 1)


def _check_gaps(gaps: Sequence[float], requests: int) -> tuple[float, ...]:
    if not FEWEST_ARRIVALS <= requests <= MOST_ARRIVALS:
        raise ValueError(f"{requests} requests are not from {FEWEST_ARRIVALS} to {MOST_ARRIVALS}")
    mean = fsum(gaps) / len(gaps)
    if mean < _SHORTEST_GAP:
        raise ValueError(f"the times of requests must rise, by {_SHORTEST_GAP:g} on average, and rise by {mean:g}")
    return tuple(gaps)


def read_counts(value: object) -> tuple[int, ...]:
    return tuple(_read_list(value, values.whole, "numbers of samples"))


def _read_list(value: object, read: Callable[[object], _Value], what: str) -> list[_Value]:
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, (list, tuple)):
        raise ValueError(f"{echo(value)} is not a list of {what}")  # noqa: TRY004  # as of all readers
    done = list[_Value]()
    for place, each in enumerate(listed):
        try:
            done.append(read(each))
        except ValueError as problem:
            raise ValueError(f"number {place}: {problem}") from None
    return done


def read_shares(value: object) -> Shares:
    """Read samples per request: ``4``, or weights or fractions (of sum 1) such as ``1:0.8,4:0.2``, or a mapping."""
    if isinstance(value, str) and ":" in value:
        pairs: list[Sequence[object]] = [part.split(":") for part in value.split(",")]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        pairs = list(value) if isinstance(value, (list, tuple)) else [(value, 1)]
    if not pairs:
        raise ValueError(f"{echo(value)} has no number of samples")
    weights: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError(f"{echo(pair)} is not a number of samples with its fraction, such as 4:0.2")
        samples = values.whole(pair[0])
        if samples in weights:
            raise ValueError(f"{samples} samples have two shares")
        weights[samples] = _read_weight(pair[1])
    total = fsum(weights.values())
    if all(weight < 1 for weight in weights.values()) and abs(total - 1) > _ROUNDING:
        raise ValueError(f"the shares add up to {total:g}, and not to 1")
    return shares_of(weights)


def shares_of(weights: Mapping[int, float]) -> Shares:
    """Return the fraction of requests for each number of samples, from their weights."""
    total = fsum(weights.values())
    return tuple((samples, weights[samples] / total) for samples in sorted(weights))


@lru_cache(maxsize=8)
def many_of(shares: Shares) -> tuple[int, ...]:
    """Return the samples of many requests, drawn with these fractions and a fixed seed."""
    samples, weights = zip(*shares, strict=True)
    return tuple(np.random.default_rng(0).choice(samples, size=_PACKED, p=weights).tolist())


@lru_cache(maxsize=256)
def full_batches(counts: tuple[int, ...], cap: int) -> Mapping[int, int]:
    """Return the full batches of many requests that stay whole: their number by size.

    A batch is full when the next request does not fit: with 4 samples per request, a batch up to a cap of 10 has 8. The
    ``counts`` of samples are repeated as needed; none is above the cap.
    """
    before = [0, *accumulate(counts * ceil(_PACKED / len(counts)))]
    marks = [0]
    while marks[-1] < len(before) - 1:
        marks.append(bisect_right(before, before[marks[-1]] + cap) - 1)
    sizes = [before[tail] - before[head] for head, tail in pairwise(marks)]
    return Counter(sizes[:-1] or [cap])  # without the last, which may not be full
