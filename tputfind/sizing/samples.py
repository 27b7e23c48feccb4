"""Requests of several samples: how many each has, and the batches that they fill where each stays whole."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, fsum
from typing import Final, TypeAlias

import numpy as np

from tputfind import options as values
from tputfind.units import echoed

Shares: TypeAlias = tuple[tuple[int, float], ...]
"""Numbers of samples, rising, each with the share of the requests that have so many."""
ALONE: Final[Shares] = ((1, 1.0),)
_HEAVIEST: Final = 1e15
_LIGHTEST: Final = 1e-9
_ROUNDING: Final = 0.0101
"""By how much shares may miss 1: those of three thirds are written 0.33."""
_PACKED: Final = 200_000
"""Requests that are packed into full batches, or more: their mean size is then known to a thousandth."""
_weight: Final = values.number_within(_LIGHTEST, _HEAVIEST)


def mean_samples(shares: Shares) -> float:
    """Return how many samples a request has on average."""
    return fsum(share * samples for samples, share in shares)


def mean_square_samples(shares: Shares) -> float:
    """Return the mean of their squares."""
    return fsum(share * samples**2 for samples, share in shares)


def read_shares(value: object) -> Shares:
    """Read how many samples requests have: ``4``, or shares or weights such as ``1:0.8,4:0.2``; or a mapping of them.

    Raises:
        ValueError: they are none; numbers below 1 are shares, and must add up to 1.
    """
    if isinstance(value, str) and ":" in value:
        pairs: list[Sequence[object]] = [part.split(":") for part in value.split(",")]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        pairs = list(value) if isinstance(value, (list, tuple)) else [(value, 1)]
    if not pairs:
        raise ValueError(f"{echoed(value)} has no number of samples")
    weights: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError(f"{echoed(pair)} is no number of samples with its share, such as 4:0.2")
        samples = values.whole(pair[0])
        if samples in weights:
            raise ValueError(f"{samples} samples have two shares")
        weights[samples] = _read_weight(pair[1])
    return _shares(weights)


def _read_weight(value: object) -> float:
    percent = isinstance(value, str) and value.strip().endswith("%")
    return _weight(str(value).strip()[:-1]) / 100 if percent else _weight(value)


def _shares(weights: Mapping[int, float]) -> Shares:
    total = fsum(weights.values())
    if all(weight < 1 for weight in weights.values()) and abs(total - 1) > _ROUNDING:
        raise ValueError(f"the shares add up to {total:g}, and not to 1")
    return tuple((samples, weights[samples] / total) for samples in sorted(weights))


def read_counts(value: object) -> tuple[int, ...]:
    """Read how many samples each recorded request has: of a list, a tuple or an array."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, (list, tuple)):
        raise ValueError(f"{echoed(value)} is no list of numbers of samples")  # noqa: TRY004  # as of all readers
    counts = []
    for place, each in enumerate(listed):
        try:
            counts.append(values.whole(each))
        except ValueError as problem:
            raise ValueError(f"number {place}: {problem}") from None
    return tuple(counts)


def shares_of(counts: Iterable[int]) -> Shares:
    """Return the shares of the requests that have each of these numbers of samples."""
    return _shares(Counter(counts))


@lru_cache(maxsize=8)
def many_of(shares: Shares) -> tuple[int, ...]:
    """Return how many samples each of many requests has, drawn with these shares: always the same ones."""
    samples, weights = zip(*shares, strict=True)
    return tuple(np.random.default_rng(0).choice(samples, size=_PACKED, p=weights).tolist())


@lru_cache(maxsize=256)
def full_batches(counts: tuple[int, ...], cap: int) -> Mapping[int, int]:
    """Return full batches of requests that stay whole: how many there are of each size, of many in a row.

    A batch is full when the next request does not fit: of requests with 4 samples, one up to a cap of 10 has 8.

    Args:
        counts: the samples of requests, in their order, round and round.
        cap: no request has more samples.
    """
    before = [0, *accumulate(counts * ceil(_PACKED / len(counts)))]
    marks = [0]
    while marks[-1] < len(before) - 1:
        marks.append(bisect_right(before, before[marks[-1]] + cap) - 1)
    sizes = [before[tail] - before[head] for head, tail in pairwise(marks)]
    return Counter(sizes[:-1] or [cap])  # the last one is what was left
