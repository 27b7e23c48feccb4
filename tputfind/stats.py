"""Summaries, confidence intervals and signs of trouble from raw samples: pure functions that keep the samples' unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import correlation, fmean, median, stdev
from typing import Final, NamedTuple

CONFIDENCE: Final = 0.95
"""Confidence level of all reported intervals."""
_GROUPS: Final = 10
"""Batches into which the samples of one process are grouped. Schmeiser, "Batch Size Effects in the Analysis of
Simulation Output", Operations Research 30 (1982): more than 30 gain nothing, and 10 leave room for correlation.
"""
_FEWEST_IN_A_GROUP: Final = 2
NORMAL_IQR: Final = 1.349
"""Interquartile range of a normal distribution, in standard deviations."""
_OUTLIER_DEVIATIONS: Final = 10.0
"""Distance from the median that makes a sample an outlier: about three times the reach of ordinary noise."""
_TREND_RANK_CORRELATION: Final = 0.9
"""Rank correlation that makes a trend: ten groups in random order reach it in fewer than 1 of 1000 cases."""
MOST_HALF: Final = math.log(10)
"""Maximum half-width of the logarithm of a ratio: a wider interval is uninformative and cannot be printed."""
_RARE: Final = 0.05
"""If more than this fraction of the samples lie far from the median, none counts as an outlier."""
MSER_BATCH: Final = 5
_FEWEST_BATCHES_OF_MSER: Final = 10
_CLIPPED_DEVIATIONS: Final = 3.0


class Interval(NamedTuple):
    """A confidence interval in the unit of its samples, as computed: with few samples it may reach below 0."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Return half the width as a fraction of the middle; above 1 the interval reaches below 0.

        The middle of an interval of a mean or median is that mean or median, so this is also a fraction of the figure.
        """
        middle = (self.high + self.low) / 2
        return (self.high - self.low) / 2 / middle if middle else 0.0

    @property
    def above_zero(self) -> Interval:
        """Return the interval without its part below 0, for rates and times.

        The middle moves, so take the half-width from the interval itself.
        """
        return Interval(max(0.0, self.low), self.high)


def mean(samples: Sequence[float]) -> float | None:
    return fmean(samples) if samples else None


def standard_deviation(samples: Sequence[float]) -> float | None:
    """Return the sample standard deviation (divisor n - 1), or None for fewer than two samples."""
    return stdev(samples) if len(samples) > 1 else None


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """Return the ``percent``-th percentile (0 to 100), or None if there are too few samples.

    Linear interpolation between the closest ranks: definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical
    Packages", The American Statistician 50 (1996), which is also NumPy's default. Fewer than 1 / (1 - p) samples
    contain no sample above the percentile: the 99th would be just the largest, so it is None below 100 samples.
    """
    if not samples or len(samples) < samples_for_percentile(percent):
        return None
    return _quantile(sorted(samples), percent / 100)


def _quantile(ordered: Sequence[float], share: float) -> float:
    rank = (len(ordered) - 1) * share
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    part = rank - below
    return ordered[below] if ordered[below] == ordered[above] else ordered[below] * (1 - part) + ordered[above] * part


def samples_for_percentile(percent: float) -> int:
    """Return how many samples ``percentile`` needs: 100 for the 99th, 20 for the 95th, 10 for the 90th."""
    return math.ceil(round(100 / (100 - percent), 6))


def mean_interval(processes: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval of the mean of samples from one or several processes, each in order of time.

    Samples of one process are correlated, and processes differ by more than their samples show, so neither are
    independent. With two or more processes, each is one observation (Kalibera and Jones, "Rigorous Benchmarking in
    Reasonable Time", ISMM 2013), weighted by its number of samples: the mean is a ratio of totals, with the variance of
    a ratio estimator (Cochran, "Sampling Techniques", 1977, chapter 6). A single process is cut into ten batches of
    consecutive samples, each one observation (batch means: Schmeiser, see above); the interval then does not cover the
    variation between processes. Both cases use Student's t quantile. None for a single process with fewer than four
    samples.
    """
    groups = _groups(processes)
    if len(groups) < 2:
        return None
    centre, error = _mean_and_error(groups)
    return _interval_around(centre, error, len(groups), confidence)


def ratio_interval(
    above: Sequence[Sequence[float]], below: Sequence[Sequence[float]], share: float, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the interval of the ratio of two means, each of samples from several processes, as in ``mean_interval``.

    The interval is that of the logarithm of the ratio by Welch's method: the variances may differ, and the degrees of
    freedom are Satterthwaite's (Welch, "The Generalization of Student's Problem", Biometrika 34, 1947). ``share`` is an
    additional relative uncertainty of either mean that its samples do not show. Exchanging the two gives the
    reciprocal. None if either has samples of one process only, so that the variation between processes is unknown; if
    either mean is 0; and if the interval would span a factor of ten to either side.
    """
    top, bottom = estimate(above), estimate(below)
    if top is None or bottom is None:
        return None
    return interval_of_product(top.mean / bottom.mean, [(top, 1.0), (bottom, 1.0)], share, confidence)


class Estimate(NamedTuple):
    """A positive mean of samples from several processes, its standard error, and the number of processes."""

    mean: float
    error: float
    processes: int


def estimate(processes: Sequence[Sequence[float]]) -> Estimate | None:
    """Return the mean of samples, each process being one observation; None for a single process or a mean of 0."""
    several = [process for process in processes if process]
    if len(several) < 2:
        return None
    centre, error = _mean_and_error(several)
    return Estimate(centre, error, len(several)) if centre > 0 else None


def interval_of_product(
    value: float, factors: Sequence[tuple[Estimate, float]], share: float, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the interval of a product of powers of independent means, as in ``ratio_interval``.

    ``value`` is the product. Each of the ``factors`` is a mean with the size of its exponent: 1 in a ratio, 1/2 in a
    geometric mean of two. None if the interval would span a factor of ten to either side.
    """
    variances = [(exponent * mean.error / mean.mean) ** 2 for mean, exponent in factors]
    variance = sum(variances)
    noise = 0.0
    if variance > 0:
        # 1 over the degrees of freedom: those of each mean, weighted by the squares of their fractions of the variance.
        pairs = zip(variances, factors, strict=True)
        parts = ((each / variance) ** 2 / (mean.processes - 1) for each, (mean, _) in pairs)
        noise = _t_quantile_of(sum(parts), confidence) * math.sqrt(variance)
    half = math.hypot(noise, *(share * exponent for _, exponent in factors))
    if half > MOST_HALF:
        return None
    return Interval(value * math.exp(-half), value * math.exp(half))


def _mean_and_error(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the mean of all samples and its standard error, each group being one observation."""
    samples = sum(map(len, groups))
    centre = sum(map(sum, groups)) / samples
    residuals = (sum(group) - centre * len(group) for group in groups)
    variance = sum(residual**2 for residual in residuals) * len(groups) / (len(groups) - 1) / samples**2
    return centre, math.sqrt(variance)


def median_interval(processes: Sequence[Sequence[float]]) -> Interval | None:
    """Return the interval of the median of all samples: as ``mean_interval``, with the medians of the groups."""
    groups = _groups(processes)
    if len(groups) < 2:
        return None
    error = stdev([median(group) for group in groups]) / math.sqrt(len(groups))
    return _interval_around(median([sample for process in processes for sample in process]), error, len(groups))


def widen_interval(interval: Interval, share: float) -> Interval:
    """Return the interval with an independent uncertainty added, ``share`` of its middle.

    The root of the sum of squares: "Guide to the Expression of Uncertainty in Measurement" (JCGM 100:2008), 5.1.2.
    """
    middle = (interval.low + interval.high) / 2
    half = math.hypot(interval.high - middle, share * middle)
    return Interval(middle - half, middle + half)


def _interval_around(centre: float, error: float, groups: int, confidence: float = CONFIDENCE) -> Interval:
    half = t_quantile(groups - 1, confidence) * error
    return Interval(centre - half, centre + half)


def _groups(processes: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Return the independent observations: the processes, or batches of consecutive samples of the only process."""
    several = [process for process in processes if process]
    return several if len(several) > 1 else _runs(several[0]) if several else []


def _runs(samples: Sequence[float]) -> list[Sequence[float]]:
    """Cut samples into ten batches of nearly equal size, or fewer, of at least two samples each."""
    count = min(_GROUPS, len(samples) // _FEWEST_IN_A_GROUP)
    edges = [len(samples) * number // count for number in range(count + 1)] if count else []
    return [samples[low:high] for low, high in pairwise(edges)]


@cache
def t_quantile(degrees_of_freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return t such that Student's t lies between -t and t with probability ``confidence``, which is below 1."""
    low, high = 0.0, 2.0**40
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, degrees_of_freedom) < confidence else (low, middle)
    return high


def _t_quantile_of(fewness: float, confidence: float) -> float:
    """Return ``t_quantile`` for fractional degrees of freedom, given as their reciprocal.

    Its logarithm is nearly linear in the reciprocal.
    """
    few = max(1, math.floor(1 / fewness + 1e-9))
    low, high = t_quantile(few, confidence), t_quantile(few + 1, confidence)
    share = (1 / few - fewness) / (1 / few - 1 / (few + 1))
    return float(low * (high / low) ** max(0.0, share))


def _t_within(t: float, degrees_of_freedom: int) -> float:
    """Return the probability that Student's t lies between -t and t.

    Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and 26.7.4: a finite sum for every whole
    number of degrees of freedom.
    """
    angle = math.atan(t / math.sqrt(degrees_of_freedom))
    cosine_squared = math.cos(angle) ** 2
    odd = degrees_of_freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for step in range(1, degrees_of_freedom // 2 + 1):
        total += term
        term *= cosine_squared * ((2 * step) / (2 * step + 1) if odd else (2 * step - 1) / (2 * step))
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def spread(samples: Sequence[float]) -> float:
    """Return the relative standard deviation of the samples, estimated robustly, as a fraction of their median.

    It is the interquartile range over 1.349 (the ratio for normal samples), which a few outliers do not change:
    ``outlier_share`` measures those. If too many samples lie far out to be outliers, it is the standard deviation.
    """
    middle = median(samples)
    if middle and _too_many_far(samples, _near(samples)):
        return stdev(samples) / middle
    return _quartile_spread(samples)


def _quartile_spread(samples: Sequence[float]) -> float:
    ordered = sorted(samples)
    middle = _quantile(ordered, 0.5)
    return (_quantile(ordered, 0.75) - _quantile(ordered, 0.25)) / NORMAL_IQR / middle if middle else 0.0


def ordinary(samples: Sequence[float]) -> Sequence[float]:
    """Return the samples without the outliers, or all of them if more than 5 % lie that far out.

    An outlier lies ten deviations from the median; the deviation is the interquartile range over 1.349, or a hundredth
    of the median if that is more, so that samples that hardly differ have no outliers.
    """
    near = _near(samples)
    return samples if _too_many_far(samples, near) else near


def _near(samples: Sequence[float]) -> list[float]:
    middle = median(samples)
    reach = _OUTLIER_DEVIATIONS * max(_quartile_spread(samples), 0.01) * middle
    return [sample for sample in samples if abs(sample - middle) <= reach]


def _too_many_far(samples: Sequence[float], near: Sequence[float]) -> bool:
    return len(samples) - len(near) > max(1, _RARE * len(samples))


def outlier_share(samples: Sequence[float]) -> float:
    """Return the relative change of the mean, up or down, that the outliers cause."""
    without = fmean(ordinary(samples))
    return abs(fmean(samples) / without - 1) if without else 0.0


def trend(samples: Sequence[float]) -> float:
    """Return the relative rise of the samples from first to last (negative for a fall); 0 if it is not steady.

    The medians of ten batches of consecutive samples must be nearly in order: Spearman's rank correlation of at least
    0.9. The change is from the mean of the first two medians to that of the last two.
    """
    runs = _runs(samples)
    if len(runs) < _GROUPS:
        return 0.0
    middles = [median(run) for run in runs]
    ranks = [
        sum(other < value for other in middles) + sum(other == value for other in middles) / 2 for value in middles
    ]
    if len(set(ranks)) == 1 or abs(correlation(ranks, range(_GROUPS))) < _TREND_RANK_CORRELATION:
        return 0.0
    first = fmean(middles[:2])
    return fmean(middles[-2:]) / first - 1 if first else 0.0


def transient(samples: Sequence[float]) -> int:
    """Return how many samples at the start belong to a transient: at most half; half means that it has not ended.

    MSER-5: the cut that minimizes the standard error of the mean of the rest, over means of five (White, "An Effective
    Truncation Heuristic for Bias Reduction in Simulation Output", Simulation 69, 1997; White, Cobb and Spratt, "A
    Comparison of Five Steady-State Truncation Heuristics for Simulation", WSC 2000). With fewer than 50 samples, each
    counts by itself, as in MSER. Samples are first clipped to three deviations around their median, so that one
    disturbance among many samples moves no cut: a cut after it would claim that it never recurs.
    """
    if not samples:
        return 0
    size = MSER_BATCH if len(samples) >= MSER_BATCH * _FEWEST_BATCHES_OF_MSER else 1
    clipped = _clip_samples(samples)
    means = [fmean(clipped[low : low + size]) for low in range(0, len(samples) - size + 1, size)]
    kept, total, squares = 0, 0.0, 0.0
    centre = means[-1]  # sums of squares around it lose fewer digits
    errors: dict[int, float] = {}
    for number in range(len(means) - 1, -1, -1):
        offset = means[number] - centre
        kept, total, squares = kept + 1, total + offset, squares + offset**2
        errors[number] = max(0.0, squares - total**2 / kept) / kept**2
    return min(range(len(means) // 2 + 1), key=errors.__getitem__) * size  # the earliest of equal minima


def _clip_samples(samples: Sequence[float]) -> list[float]:
    middle = median(samples)
    reach = _CLIPPED_DEVIATIONS * max(_quartile_spread(samples), 0.001) * middle
    return [min(max(sample, middle - reach), middle + reach) for sample in samples]
