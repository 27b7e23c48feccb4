"""Variants that were timed in turn: how many times as fast one is as another, with an interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, hypot, log, pi, sqrt
from random import Random
from statistics import NormalDist, fmean, median, quantiles, stdev
from typing import Final

import msgspec

from tputfind.record.types import REPEATABILITY, Above0, Count
from tputfind.stats import CONFIDENCE, NORMAL_IQR, Interval, t_quantile

LOOKS: Final = (1, 2, 3, 4, 6, 8, 11, 15, 20, 28)
"""Numbers of rounds after which somebody looks whether the verdict is certain."""
FEWEST_ROUNDS: Final = 3
"""Fewer do not show how far rounds scatter."""
SCATTER: Final = 0.05
"""The standard deviation of a round's ratio, as a share, that a race assumes until there are so many: the processes of
one program differ by less."""
_FEWEST_BLOCKS: Final = 8
"""Fewer may agree by chance."""
_WINDOWS_OF_BLOCK: Final = 2
"""Of each variant: one on the way through an order, and one on the way back."""


class Round(msgspec.Struct, frozen=True):
    """One process of each variant, and the samples per second of their windows.

    There is a tuple for each variant. The windows at one place of all tuples were taken shortly after each other.
    """

    per_s: tuple[tuple[Above0, ...], ...]


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Variants at their batch sizes, and what was timed of them in rounds."""

    batch_sizes: tuple[Count, ...]
    rounds: tuple[Round, ...] = ()

    def rate_per_s(self, variant: int) -> float | None:
        """Return the samples per second of a variant: the geometric mean of the rounds' medians; None without any."""
        rates = [log(median(one.per_s[variant])) for one in self.rounds]
        return exp(fmean(rates)) if rates else None

    def ratio(self, variant: int, to: int) -> float | None:
        """Return how many times as fast a variant is as another, by all rounds; None without any."""
        values = [median(_log_ratios(one, variant, to)) for one in self.rounds]
        return exp(fmean(values)) if values else None

    def interval(self, variant: int, to: int, comparisons: int = 1, scatter: float | None = None) -> Interval | None:
        """Return the interval of that ratio; None of fewer than ``FEWEST_ROUNDS``, unless a scatter is assumed.

        A round is one observation: the median, over its blocks, of the logarithm of the ratio of two rates that were
        measured within a block. What slows both alike cancels (Bulej et al., "Duet Benchmarking", ICPE 2020). Each
        round has fresh processes, since those of one program differ by more than their own windows say (Kalibera and
        Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013). Student's t over rounds, at a level that holds
        for all ``comparisons`` together and for every look at them (Bonferroni), so that whoever stops at the first
        certain verdict is wrong no more often than the level says.

        Args:
            variant: whose rate is divided.
            to: by whose.
            comparisons: intervals that are to hold together.
            scatter: the standard deviation of a round's ratio, as a share, that is assumed of too few rounds to show
                it. What their own blocks scatter comes on top.
        """
        count = len(self.rounds)
        ratios = [_log_ratios(one, variant, to) for one in self.rounds]
        values = list(map(median, ratios))
        level = 1 - (1 - CONFIDENCE) / len(LOOKS) / comparisons
        if count >= FEWEST_ROUNDS:
            error = t_quantile(count - 1, level) * stdev(values)
        elif scatter is not None and ratios and min(map(len, ratios)) > 1:
            error = NormalDist().inv_cdf((1 + level) / 2) * hypot(scatter, *map(_error_of_median, ratios))
        else:
            return None
        half = hypot(error / sqrt(count), sqrt(2) * REPEATABILITY)
        middle = fmean(values)
        return Interval(exp(middle - half), exp(middle + half))


def is_steady(one: Round) -> bool:
    """Return whether more blocks of a round would tell nothing: its ratios are known to what any figure repeats to."""
    blocks = len(one.per_s[0]) // _WINDOWS_OF_BLOCK
    return blocks >= _FEWEST_BLOCKS and all(
        _error_of_median(_log_ratios(one, variant, 0)) <= REPEATABILITY for variant in range(1, len(one.per_s))
    )


def _error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median of values that are about normal but for a few that were disturbed."""
    low, _, high = quantiles(values, n=4)
    return sqrt(pi / 2) * (high - low) / NORMAL_IQR / sqrt(len(values))


def _log_ratios(one: Round, variant: int, to: int) -> list[float]:
    pairs = zip(_blocks(one.per_s[variant]), _blocks(one.per_s[to]), strict=True)
    return [log(here / there) for here, there in pairs]


def _blocks(per_s: Sequence[float]) -> list[float]:
    """Return the rate of each block: that of its windows together, which are equally long."""
    return [fmean(per_s[low : low + _WINDOWS_OF_BLOCK]) for low in range(0, len(per_s), _WINDOWS_OF_BLOCK)]


def order_of_block(variants: Sequence[int], random: Random) -> Iterator[int]:
    """Yield the order of a block: the variants in random order, then the other way round, so that a drift cancels."""
    order = random.sample(variants, len(variants))
    yield from order
    yield from reversed(order)
