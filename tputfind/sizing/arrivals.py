"""When requests come."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.demand import Demand

Seed: TypeAlias = tuple[int, ...]
"""Of one stream: the demand's seed and the stream's number. Two seeds of demands share no stream."""


def arrivals_ms(demand: Demand, count: int, rate_per_s: float, share: float, seed: Seed) -> NDArray[np.float64]:
    """Return the times of ``count`` requests, rising, in ms.

    Args:
        demand: gives the stream its shape.
        count: of requests.
        rate_per_s: of these requests.
        share: of the whole stream that they are, each picked by chance: a stream that is thinned so is the nearer to a
            Poisson stream the less is left of it. Its index of dispersion is 1 + share (D - 1), with D that of the
            whole. A recorded stream is replayed from its beginning, and again when it ends.
        seed: the same one gives the same stream, faster or slower by its rate.
    """
    if demand.gaps is not None:
        generator = np.random.default_rng([*seed, 0])
        return _replayed(np.array(demand.gaps), count, share, generator) * (1000 / rate_per_s)
    times: NDArray[np.float64] = np.cumsum(_drawn(demand, count, share, seed)) * (1000 / rate_per_s)
    return times


def gaps_ms(demand: Demand, count: int, rate_per_s: float, share: float, seed: Seed) -> NDArray[np.float64]:
    """Return the times between the same requests, and before the first: of drawn ones with all their digits, in ms."""
    if demand.gaps is not None:
        return np.diff(arrivals_ms(demand, count, rate_per_s, share, seed), prepend=0.0)
    return _drawn(demand, count, share, seed) * (1000 / rate_per_s)


def samples_of(demand: Demand, count: int, share: float, seed: Seed) -> NDArray[np.int64]:
    """Return how many samples each of the same requests has."""
    if demand.counts is not None:
        generator = np.random.default_rng([*seed, 0])
        counts = np.array(demand.counts[1:])  # of the requests that end the gaps
        return counts[_places(count, share, generator) % len(counts)]
    samples, shares = zip(*demand.samples_per_request, strict=True)
    drawn: NDArray[np.int64] = np.random.default_rng([*seed, 6]).choice(samples, size=count, p=shares)
    return drawn


def _drawn(demand: Demand, count: int, share: float, seed: Seed) -> NDArray[np.float64]:
    """Return gaps with a mean of 1."""
    generator = np.random.default_rng([*seed, 0])
    dispersion = dispersion_of(demand, share)
    if dispersion == 1:
        return generator.standard_exponential(count)
    if dispersion == 0:
        return np.ones(count)
    return generator.standard_gamma(1 / dispersion, count) * dispersion


def without_idle_ms(gaps: NDArray[np.float64], request_ms: float, window_ms: float) -> NDArray[np.float64]:
    """Return the times of requests with idle time cut out: no latency changes, and early times have more digits.

    A gap stays longer than everything that came before it can take: the devices have then been idle for a while.

    Args:
        gaps: times between requests, and before the first, in ms.
        request_ms: more than one request can take by itself, waiting for others included.
        window_ms: what is cut is a multiple of this, for servers that wait by the clock; 0 for others.
    """
    # All requests one by one take no longer than the bound here, beyond which a gap says nothing new.
    ahead = np.cumsum(request_ms - np.minimum(gaps, request_ms * (len(gaps) + 1)))
    unanswered = ahead - np.minimum(np.minimum.accumulate(ahead), 0.0)
    idle = np.maximum(gaps - np.concatenate(([0.0], unanswered[:-1])) - 2 * request_ms, 0.0)
    if window_ms > 0:
        idle = np.floor(idle / window_ms) * window_ms
    times: NDArray[np.float64] = np.cumsum(gaps - idle)
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
    places = _places(count, share, generator)
    turns, within = np.divmod(places, len(trace))
    times: NDArray[np.float64] = (since[within] + turns * period) * (share * len(trace) / period)
    return times


def _places(count: int, share: float, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return which of the recorded requests, round and round, are those of the share."""
    if share == 1:
        return np.arange(count)
    places: NDArray[np.int64] = np.cumsum(generator.geometric(share, count)) - 1
    return places
