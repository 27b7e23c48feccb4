"""When requests come."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.demand import Demand


def arrivals_ms(demand: Demand, count: int, rate_per_s: float, share: float, seed: int) -> NDArray[np.float64]:
    """Return the times of so many requests, rising, in ms.

    Args:
        demand: gives the stream its shape.
        count: of requests.
        rate_per_s: of these requests.
        share: of the whole stream that they are, each picked by chance: a stream that is thinned so is the nearer to a
            Poisson stream the less is left of it. Its index of dispersion is 1 + share (D - 1), with D that of the
            whole. A recorded stream is replayed from its beginning, and again when it ends.
        seed: the same one gives the same stream, faster or slower by its rate.
    """
    generator = np.random.default_rng(seed)
    if demand.gaps is not None:
        return _replayed(np.array(demand.gaps), count, share, generator) * (1000 / rate_per_s)
    dispersion = dispersion_of(demand, share)
    if dispersion == 1:
        gaps = generator.standard_exponential(count)
    elif dispersion == 0:
        gaps = np.ones(count)
    else:
        gaps = generator.standard_gamma(1 / dispersion, count) * dispersion
    times: NDArray[np.float64] = np.cumsum(gaps) * (1000 / rate_per_s)
    return times


def dispersion_of(demand: Demand, share: float) -> float:
    """Return the index of dispersion of the part of a stream: the variance of its counts over their mean."""
    return 1 + share * (demand.burstiness**2 - 1)


def _replayed(
    trace: NDArray[np.float64], count: int, share: float, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return times with a mean gap of 1: those of the trace from its beginning, round and round, thinned to a share."""
    since = np.cumsum(trace)
    period = float(since[-1]) + float(trace.mean())
    places = np.arange(count) if share == 1 else np.cumsum(generator.geometric(share, count)) - 1
    turns, within = np.divmod(places, len(trace))
    times: NDArray[np.float64] = (since[within] + turns * period) * (share * len(trace) / period)
    return times
