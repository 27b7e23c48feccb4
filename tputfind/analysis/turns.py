"""Variants timed in turn: the ratio of their throughputs, with an interval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, hypot, log, pi, sqrt
from random import Random
from statistics import NormalDist, fmean, median, quantiles, stdev, variance
from typing import Final, Literal, NamedTuple

import msgspec

from tputfind.record.types import REPEATABILITY, Above0, Amount, Count
from tputfind.stats import CONFIDENCE, MOST_HALF, NORMAL_IQR, Interval, t_quantile

LOOKS: Final = (1, 2, 3, 4, 6, 8, 11, 15, 20, 28)
VERDICT_CONFIDENCE: Final = 0.99
"""The confidence of a verdict on two variants: at most 1 of 100 pairs of equal ones is called faster or slower."""
FEWEST_ROUNDS: Final = 3
"""Fewer rounds do not show their variation."""
_FEWEST_BLOCKS: Final = 8
"""Fewer blocks may agree by chance."""
_WINDOWS_OF_BLOCK: Final = 2
"""Windows of each variant in a block: one in the forward order, and one in the reverse order."""


class Scatter(NamedTuple):
    """How far rounds differ: the standard deviation of a log ratio, and its degrees of freedom, 0 if it is assumed."""

    deviation: float
    freedom: int = 0


ASSUMED: Final = Scatter(0.05)
ASSUMED_DEVICE_BOUND: Final = Scatter(0.01, 20)
"""The same for pairs that keep their device busy: of 510 such processes, 95 % lay within 0.61 % of the others of their
row (``benchmarks/plan.py one``). Beside an estimate it counts as 20 degrees of freedom (Smyth, "Linear Models
and Empirical Bayes Methods", 2004)."""
_FEWEST_FREEDOM: Final = 3


class Cost(NamedTuple):
    """The cost that variants are judged by, for a ``goal``: the more samples per ``unit``, the better.

    With ``alone``, batches are sent to the idle device one at a time, else back to back. ``needs`` is the capability of
    a device that reports the cost. A window lasts for ``window_s``, or for one window of the process if that is longer.
    """

    goal: Goal
    unit: Literal["s", "GiB", "J"]
    alone: bool = False
    needs: str = ""
    window_s: float = 0.0


Goal = Literal["throughput", "latency", "memory", "energy"]
THROUGHPUT: Final = Cost("throughput", "s")
COSTS: Final[Mapping[Goal, Cost]] = {
    one.goal: one
    for one in (
        THROUGHPUT,
        Cost("latency", "s", alone=True),
        Cost("memory", "GiB", needs="memory_peaks"),
        Cost("energy", "J", needs="health", window_s=0.5),  # readings of power lag by 0.15 s
    )
}


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The throughput of a batch size, which is that of each instance, and its latency: the median in ms.

    ``host_bound`` is whether submitting a batch takes most of its latency; None if unknown. ``compile_s`` is the time
    of compiling, which is shorter in processes that reuse the results of an earlier one; None without compiling.
    """

    batch_size: Count
    samples_per_s: Above0
    latency_ms: Above0
    host_bound: bool | None = None
    compile_s: Amount | None = None


class Round(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process of each variant, the samples/s of their windows, and their speeds, if known.

    ``per_s`` are samples per unit of another cost if variants are judged by that. There is one tuple per
    variant. The windows at the same index were measured shortly after each other.
    """

    per_s: tuple[tuple[Above0, ...], ...]
    speeds: tuple[Speed, ...] = ()


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Variants at their batch sizes, and the rounds in which they were timed."""

    batch_sizes: tuple[Count, ...]
    rounds: tuple[Round, ...] = ()

    @property
    def device_bound(self) -> bool:
        speeds = [speed for one in self.rounds for speed in one.speeds]
        return bool(speeds) and all(speed.host_bound is False for speed in speeds)

    def rate_per_s(self, variant: int) -> float | None:
        """Return the samples per unit of a variant: the geometric mean of the rounds' medians; None without rounds."""
        rates = [log(median(one.per_s[variant])) for one in self.rounds]
        return exp(fmean(rates)) if rates else None

    def median_speed(self, variant: int) -> Speed | None:
        known = [one.speeds[variant] for one in self.rounds if one.speeds]
        if not known:
            return None
        rate, latency_ms = median(one.samples_per_s for one in known), median(one.latency_ms for one in known)
        return Speed(batch_size=self.batch_sizes[variant], samples_per_s=rate, latency_ms=latency_ms)

    def ratio(self, variant: int, to: int) -> float | None:
        """Return the samples per unit of a variant over those of another, from all rounds; None without rounds."""
        values = [median(_log_ratios(one, variant, to)) for one in self.rounds]
        return exp(fmean(values)) if values else None

    def interval(self, variant: int, to: int, comparisons: int = 1, scatter: Scatter | None = None) -> Interval | None:
        """Return the interval of that ratio; None with fewer than ``FEWEST_ROUNDS`` unless ``scatter`` is given.

        It is also None if it would span more than a factor of ten to either side.

        A round is one observation: the median, over its blocks, of the logarithm of the ratio of two throughputs
        measured within a block. Disturbances common to both cancel (Bulej et al., "Duet Benchmarking", ICPE 2020). Each
        round has fresh processes, because processes of one program vary more than their own windows show (Kalibera and
        Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013). The interval is Student's t over rounds. It has a
        confidence of ``VERDICT_CONFIDENCE``, or 95 % with ``scatter``, for all ``comparisons`` together and for every
        test in ``LOOKS``, or after every round of a race (Bonferroni): stopping at the first certain verdict does not
        raise the error rate. ``scatter`` is that of all pairs of a race together; or an assumed one, which counts if
        there are too few rounds to estimate it, and to which the variation within the rounds is added.
        """
        count = len(self.rounds)
        ratios = [_log_ratios(one, variant, to) for one in self.rounds]
        values = list(map(median, ratios))
        tests = len(LOOKS) if scatter is None else LOOKS[-1]
        confidence = VERDICT_CONFIDENCE if scatter is None else CONFIDENCE
        level = 1 - (1 - confidence) / tests / comparisons
        if scatter is not None and scatter.freedom and count:
            error = t_quantile(scatter.freedom, level) * scatter.deviation
        elif count >= FEWEST_ROUNDS:
            error = t_quantile(count - 1, level) * stdev(values)
        elif scatter is not None and ratios and min(map(len, ratios)) > 1:
            error = NormalDist().inv_cdf((1 + level) / 2) * hypot(scatter.deviation, *map(_error_of_median, ratios))
        else:
            return None
        half = hypot(error / sqrt(count), sqrt(2) * REPEATABILITY)
        if half > MOST_HALF:
            return None
        middle = fmean(values)
        return Interval(exp(middle - half), exp(middle + half))


def scatter_of(pairs: Iterable[Turns], assumed: Scatter = ASSUMED) -> Scatter:
    """Return the scatter of all pairs of variants together, and the assumed one if too few rounds were repeated."""
    of_pairs = [[median(_log_ratios(one, 1, 0)) for one in turns.rounds] for turns in pairs]
    freedom = sum(len(values) - 1 for values in of_pairs if values)
    if freedom < _FEWEST_FREEDOM:
        return Scatter(assumed.deviation)
    squares = [variance(values) * (len(values) - 1) for values in of_pairs if len(values) > 1]
    freedom += assumed.freedom
    return Scatter(sqrt((sum(squares) + assumed.freedom * assumed.deviation**2) / freedom), freedom)


def is_steady(one: Round, error: float = REPEATABILITY) -> bool:
    """Return whether a round needs no more blocks: it has enough, and its ratios have this standard error or less."""
    blocks = len(one.per_s[0]) // _WINDOWS_OF_BLOCK
    # Host-bound processes scatter so much that a quarter of their scatter suffices.
    enough = max(error, ASSUMED.deviation / 4) if any(speed.host_bound for speed in one.speeds) else error
    return blocks >= _FEWEST_BLOCKS and all(
        _error_of_median(_log_ratios(one, variant, 0)) <= enough for variant in range(1, len(one.per_s))
    )


def _error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median of approximately normal values with a few outliers."""
    low, _, high = quantiles(values, n=4)
    return sqrt(pi / 2) * (high - low) / NORMAL_IQR / sqrt(len(values))


def _log_ratios(one: Round, variant: int, to: int) -> list[float]:
    pairs = zip(_blocks(one.per_s[variant]), _blocks(one.per_s[to]), strict=True)
    return [log(here / there) for here, there in pairs]


def _blocks(per_s: Sequence[float]) -> list[float]:
    """Return the mean throughput of each block; its windows are equally long."""
    return [fmean(per_s[low : low + _WINDOWS_OF_BLOCK]) for low in range(0, len(per_s), _WINDOWS_OF_BLOCK)]


def order_of_block(variants: Sequence[int], random: Random) -> Iterator[int]:
    """Yield the order of a block: the variants in random order, then in reverse, so that linear drift cancels."""
    order = random.sample(variants, len(variants))
    yield from order
    yield from reversed(order)
