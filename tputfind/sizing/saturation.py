"""What a device answers at most: while many requests wait, for good."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.demand import Demand
from tputfind.sizing.replicas import LONGEST_BACKOFF_MS
from tputfind.sizing.samples import ALONE
from tputfind.sizing.serve import Server, serve
from tputfind.sizing.service import ServiceTimes

_FEWEST, _MOST, _FILLS = 4000, 100_000, 20
"""Requests that wait at once, and how often they fill all the places of a replica."""
_SEEN: Final = 0.2, 0.8
"""Shares of the answers between which their rate is taken."""


def most_per_ms(cap: int, service: ServiceTimes, demand: Demand) -> float:
    """Return the samples per ms of a device, with batches up to a cap, while more requests wait than it can take.

    Full batches, one after the other. A replica of Ray Serve that may have only some requests at a time has these only
    as fast as those that wait for room ask for it: every 25 ms and later. A fleet that gets more than that goes on as
    long as hardly any wait, and after a pause never recovers. A fleet that gets less recovers from any.
    """
    limit, full_per_ms = demand.most_ongoing, service.per_ms(cap)
    if limit is None or limit >= 2 * cap + LONGEST_BACKOFF_MS * full_per_ms:
        return full_per_ms
    alike = msgspec.structs.replace(
        demand,
        rate_per_s=1.0,
        slo_ms=1.0,
        network_ms=0.0,
        burstiness=1.0,
        gaps=None,
        samples_per_request=ALONE,
        counts=None,
        requests=None,
        seed=0,
        devices=None,
        spare=0,
        most_load=1.0,
        max_queue=None,
        solve="devices",
    )
    return min(full_per_ms, _answered_per_ms(cap, service, alike))


@lru_cache(maxsize=256)
def _answered_per_ms(cap: int, service: ServiceTimes, demand: Demand) -> float:
    """Return how many of many requests that wait at one replica are answered per ms.

    Of several replicas each does as much: as many requests ask for each of them.
    """
    limit = demand.most_ongoing or 1
    requests = min(max(_FEWEST, _FILLS * limit), _MOST)
    return answers_per_ms(serve(np.zeros(requests), [0.0], Server(cap, service, demand), (0, 0)).done_ms)


def answers_per_ms(done_ms: NDArray[np.float64]) -> float:
    """Return the rate of answers that are done at these times, without the first and the last."""
    in_order = np.sort(done_ms)
    first, last = (int(share * len(in_order)) for share in _SEEN)
    return (last - first) / float(in_order[last] - in_order[first])
