"""Raw samples to summaries. Every function is pure, keeps the unit of its samples and ignores their order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev


def mean(samples: Sequence[float]) -> float | None:
    """Return the arithmetic mean, or None of no samples."""
    return fmean(samples) if samples else None


def standard_deviation(samples: Sequence[float]) -> float | None:
    """Return the sample standard deviation (divisor n - 1), or None of fewer than two samples."""
    return stdev(samples) if len(samples) > 1 else None


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """Return the ``percent``-th percentile (0 to 100), or None where there are too few samples to speak of one.

    Linear interpolation between the closest ranks: definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical
    Packages", The American Statistician 50 (1996), which is also NumPy's default. Fewer than 1 / (1 - p) samples hold
    no sample above the percentile: the 99th of them would be just the largest, so it is None below 100 samples.
    """
    if not samples or len(samples) < samples_for_percentile(percent):
        return None
    ordered = sorted(samples)
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    share = rank - below
    return ordered[below] if ordered[below] == ordered[above] else ordered[below] * (1 - share) + ordered[above] * share


def samples_for_percentile(percent: float) -> int:
    """Return how many samples ``percentile`` asks for: 100 for the 99th, 20 for the 95th, 10 for the 90th."""
    return math.ceil(round(100 / (100 - percent), 6))
