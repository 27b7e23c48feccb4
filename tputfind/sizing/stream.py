"""One stream of requests through one fleet, in parts in which the devices begin at new phases."""

from __future__ import annotations

from math import ceil, inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.arrivals import Seed, gaps_ms, samples_of, without_idle_ms
from tputfind.sizing.demand import Demand
from tputfind.sizing.power import Computing, mean_of
from tputfind.sizing.queues import Served
from tputfind.sizing.serve import Server, serve, takes_what_waits
from tputfind.sizing.side_by_side import greedy_parts

WARM_UP_SHARE: Final = 0.1
"""Of each part, which is not looked at."""
_EXACT: Final = 2.0**32
"""Longest stream, in shortest batches, with latencies exact to a millionth of one: float64 has 53 binary digits."""
_MANY: Final = 48
"""Queues that are served side by side: of fewer each is served faster by itself."""


class Stream(NamedTuple):
    """What one stream shows: how long its requests take, in the order of time since their part began, and batches.

    A request that is refused takes infinitely long. ``utilisation`` is the time of all batches over that of the
    devices: above 1 where they cannot keep up. ``computing`` is None where the power is not known.
    """

    latency_ms: NDArray[np.float64]
    utilisation: float
    computing: Computing | None
    batches: int
    samples: int


class Pace(NamedTuple):
    """The devices that are simulated, the requests per second that they get, and how long their usual batch takes.

    ``share`` is the share of the whole stream that these requests are. For ``pause_ms`` no device begins a batch.
    """

    devices: int
    rate_per_s: float
    share: float
    usual_ms: float
    pause_ms: float = 0.0


def run(server: Server, pace: Pace, seed: Seed, requests: int, parts: int = 1) -> Stream:
    """Return what a stream of requests shows, served in parts of equal length.

    Batches that all take the same time keep the phases in which the devices began, for ever. Each part begins at new
    ones, so that a percentile is of all phases, as it is of a server that runs for long.
    """
    demand = server.demand
    each = ceil(requests / parts)
    count = each * parts
    gaps = gaps_ms(demand, count, pace.rate_per_s, pace.share, seed)
    if are_side_by_side(demand, pace.devices, parts):
        return _side_by_side(server, pace, seed, gaps.reshape(parts, each))
    counts = samples_of(demand, count, pace.share, seed) if demand.several else None
    seen = []
    for part in range(parts):
        its_seed = seed if parts == 1 else (*seed, 7, part)
        places = slice(part * each, (part + 1) * each)
        seen.append(_part(server, pace, its_seed, gaps[places], None if counts is None else counts[places]))
    return Stream(
        latency_ms=np.stack([one.latency_ms for one in seen], axis=1).ravel(),
        utilisation=float(np.mean([one.utilisation for one in seen])),
        computing=mean_of([one.computing for one in seen]),
        batches=sum(one.batches for one in seen),
        samples=sum(one.samples for one in seen),
    )


def are_side_by_side(demand: Demand, devices: int, parts: int) -> bool:
    """Whether the parts of a stream are served side by side: where they can be, and have many queues."""
    queues = parts * devices if demand.routing == "random" else parts
    return demand.gaps is None and queues >= _MANY and takes_what_waits(demand, devices)


def _side_by_side(server: Server, pace: Pace, seed: Seed, gaps: NDArray[np.float64]) -> Stream:
    """Return what parts with these times between their requests show, ``(parts, requests)``, served all at once."""
    parts, each = gaps.shape
    arrivals = np.stack([_arrivals_ms(server, part) for part in gaps])
    free_ms = np.random.default_rng([*seed, 4]).uniform(0.0, pace.usual_ms, (parts, pace.devices))
    dealt_out = server.demand.routing == "random"
    answered = greedy_parts(arrivals, free_ms, server.cap, server.service, seed, dealt_out=dealt_out)
    latency_ms = answered.done_ms - arrivals
    lasts_ms = pace.devices * gaps.size / pace.rate_per_s * 1000
    power = server.service.power
    return Stream(
        latency_ms=latency_ms[:, int(WARM_UP_SHARE * each) :].T.ravel(),
        utilisation=answered.busy_ms / lasts_ms,
        computing=None if power is None else power.computing(answered.sizes, lasts_ms),
        batches=len(answered.sizes),
        samples=gaps.size,
    )


def _part(
    server: Server, pace: Pace, seed: Seed, gaps: NDArray[np.float64], counts: NDArray[np.int64] | None
) -> Stream:
    """Return what requests with these times between them show, once the devices are warm."""
    arrivals = _arrivals_ms(server, gaps)
    # By the mean rate: what chance leaves open of it is not in the utilisation.
    lasts_ms = pace.devices * len(gaps) / pace.rate_per_s * 1000
    free_ms = [pace.pause_ms + drawn_ms for drawn_ms in under_way_ms(pace.devices, pace.usual_ms, server, seed)]
    served = serve(arrivals, free_ms, server, seed, counts)
    warm = 0 if server.demand.gaps is not None else int(WARM_UP_SHARE * len(gaps))
    power, was_answered = server.service.power, served.batch >= 0
    return Stream(
        latency_ms=_latency_ms(served, arrivals)[warm:],
        utilisation=served.busy_ms / lasts_ms,
        computing=None
        if power is None or counts is not None
        else power.computing(np.bincount(served.batch[was_answered]), lasts_ms),
        batches=served.batches,
        samples=int(was_answered.sum()) if counts is None else int(counts.sum()),
    )


def _arrivals_ms(server: Server, gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return when requests come, of a part that is too long for exact latencies without the idle time in it."""
    arrivals: NDArray[np.float64] = np.cumsum(gaps)
    if arrivals[-1] > _EXACT * server.service.mean_ms(1):
        return without_idle_ms(gaps, *server.request_and_window_ms())
    return arrivals


def _latency_ms(served: Served, arrivals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how long requests take, which is without end for those that are refused."""
    latency_ms: NDArray[np.float64] = served.done_ms - arrivals
    latency_ms[np.isnan(latency_ms)] = inf
    return latency_ms


def under_way_ms(devices: int, usual_ms: float, server: Server, seed: Seed) -> list[float]:
    """Return from when on each device is free: anywhere within a usual batch, as in a stream under way.

    Devices that all begin idle take their batches in step, and stay so for hundreds of batches. Before a recorded
    stream nothing came.
    """
    if server.demand.gaps is not None:
        return [0.0] * devices
    drawn = np.random.default_rng([*seed, 4]).uniform(0.0, usual_ms, devices)
    return [float(free_ms) for free_ms in drawn]
