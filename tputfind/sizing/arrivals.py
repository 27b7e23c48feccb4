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
            whole.
        seed: the same one gives the same stream, faster or slower by its rate.
    """
    generator = np.random.default_rng(seed)
    if demand.gaps is not None:
        gaps = _of_trace(np.array(demand.gaps), count, share, generator)
    else:
        dispersion = 1 + share * (demand.burstiness**2 - 1)
        if dispersion == 1:
            gaps = generator.standard_exponential(count)
        elif dispersion == 0:
            gaps = np.ones(count)
        else:
            gaps = generator.standard_gamma(1 / dispersion, count) * dispersion
    times: NDArray[np.float64] = np.cumsum(gaps) * (1000 / rate_per_s)
    return times


def _of_trace(
    trace: NDArray[np.float64], count: int, share: float, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return gaps of mean 1: the trace from a place by chance, round and round, thinned to a share."""
    wanted = count if share == 1 else int(count / share) + count
    start = generator.integers(len(trace))
    gaps: NDArray[np.float64] = np.resize(np.roll(trace, -start), wanted) / trace.mean()
    if share == 1:
        return gaps
    kept = np.cumsum(gaps)[generator.random(wanted) < share][:count] * share
    return np.diff(kept, prepend=0.0)
