"""What a server adds to the model's own time, found in logs of it: by when batches began, or by latencies alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.record.record import Record
from tputfind.sizing.engine.servers import Server
from tputfind.sizing.engine.service_times import Overheads, ServiceTimes, service_times_of
from tputfind.sizing.engine.serving import Kind, serve

Floats = NDArray[np.float64]

_DRAWS: Final = 200
"""Bootstrap samples, from which intervals come."""
_BLOCKS: Final = 40
"""Stretches of each log that are drawn: long against a busy spell, so that they are independent."""
_MOST_POINTS: Final = 3000
_MOST_DRAWN_POINTS: Final = 400
"""Points that a slope is found from, and in each bootstrap sample: it takes their pairs."""
_FEWEST_POINTS: Final = 30
_ON_THE_WAY_MS: Final = 2.0
"""A request that was due so long ago is in the queue."""
_ROUNDS, _ROUNDS_OF_PART = 8, 4
"""Of finding overheads by latencies, each with streams of its own: in logs, and in parts of them."""
_PARTS: Final = 6
_SEEDS: Final = 2
_STREAM: Final = 7
"""Tells these streams from those of plans."""
_WARM_UP_SHARE: Final = 0.1


class Log(NamedTuple):
    """What became of requests to a server with one device, in the order in which they were sent; times in ms.

    ``begun_ms`` and ``ended_ms`` are of the model's step on the batch that a request was in, and equal for all of it;
    None where the server does not tell them.
    """

    name: str
    sent_ms: Floats
    answered_ms: Floats
    begun_ms: Floats | None = None
    ended_ms: Floats | None = None

    @property
    def latency_ms(self) -> Floats:
        """From when each request was sent to its answer."""
        return self.answered_ms - self.sent_ms

    def cut(self, places: slice | NDArray[np.int64]) -> Log:
        """Return the log of some of the requests alone."""
        return Log._make([self.name, *(None if one is None else one[places] for one in self[1:])])

    @property
    def rate_per_s(self) -> float:
        """Requests per second."""
        return float(1000 * (len(self.sent_ms) - 1) / (self.sent_ms[-1] - self.sent_ms[0]))


class Estimate(NamedTuple):
    """What a server adds to a batch, for each request in it, to answer it, and beside the queue, in ms."""

    per_batch: float = 0.0
    per_request: float = 0.0
    per_answer: float = 0.0
    beside: float = 0.0

    @property
    def overheads(self) -> Overheads:
        """What of it holds a device or an answer up."""
        return Overheads(self.per_batch, self.per_request, self.per_answer)


class Found(NamedTuple):
    """An estimate, and bootstrap samples of it: a row each, in the same order; those may be below 0."""

    estimate: Estimate
    draws: Floats


class Batches(NamedTuple):
    """When batches began and ended, their sizes, and when the first request of each was sent; times in ms.

    ``batch_of`` is the number of each request's.
    """

    begun: Floats
    ended: Floats
    sizes: Floats
    first_sent: Floats
    batch_of: NDArray[np.int64]


def batches_of(log: Log) -> Batches:
    """Return the batches of a log, in order.

    Raises:
        ValueError: it does not tell when they began and ended.
    """
    if log.begun_ms is None or log.ended_ms is None:
        raise ValueError("the log does not tell when batches began and ended")
    begun, first, batch_of, sizes = np.unique(log.begun_ms, return_index=True, return_inverse=True, return_counts=True)
    first_sent = np.full(len(begun), np.inf)
    np.minimum.at(first_sent, batch_of, log.sent_ms)
    return Batches(begun, log.ended_ms[first], sizes.astype(np.float64), first_sent, batch_of)


class Bench(NamedTuple):
    """What is set beside a log: one device of a record behind its server without overheads, and its largest batch."""

    record: Record
    server: Server
    cap: int
    seed: int = 0

    def service(self, overheads: Overheads = Overheads()) -> ServiceTimes:  # noqa: B008  # it is immutable
        """Return how long batches take."""
        return service_times_of(self.record, overheads)

    def latencies_ms(self, sent_ms: Floats, estimate: Estimate, seeds: Sequence[int]) -> Floats:
        """Return how long each request takes that is sent at these times, on average over simulations."""
        kinds = [Kind(1, self.cap, self.service(estimate.overheads))]
        server = self.server._replace(per_answer_ms=estimate.per_answer)
        first = [float(sent_ms[0])]
        runs = [
            serve(sent_ms, None, kinds, server, free_ms=first, seed=(_STREAM, seed)).done_ms - sent_ms for seed in seeds
        ]
        mean_ms: Floats = np.mean(runs, axis=0) + estimate.beside
        return mean_ms


def steady(latency_ms: Floats) -> Floats:
    """Return latencies without those of the first requests, which found a cold server."""
    return latency_ms[int(_WARM_UP_SHARE * len(latency_ms)) :]


def by_batches(bench: Bench, logs: Sequence[Log]) -> Found | None:
    """Return the overheads of a server with one device, from when its batches began and its answers came.

    What it adds to a batch and for each request in it is seen where requests waited as the batch before ended: the
    device then did nothing for as long as the server holds a batch back by its rule, and for the overheads. The answers
    of a batch come one after the other from then on. What is left of the median latency lies beside the queue.

    None if the logs hold too few such batches, or batches of one size only.
    """
    held = bench.server.held_ms
    pauses = [_pauses(log, bench.cap, held) for log in logs]
    late = [_late(log) for log in logs]
    chance = np.random.default_rng(bench.seed)
    if sum(map(len, pauses)) < _FEWEST_POINTS or len(np.unique(np.concatenate(pauses)[:, 0])) == 1:
        return None
    first = _of_points(pauses, late, _MOST_POINTS, chance)
    estimate = Estimate(*(max(0.0, float(one)) for one in first))
    pairs = [(log.latency_ms, bench.latencies_ms(log.sent_ms, estimate, range(_SEEDS))) for log in logs]
    draws = np.zeros((_DRAWS, len(Estimate._fields)))
    for draw in draws:
        drawn_pauses, drawn_late = ([_blocks(one, chance) for one in points] for points in (pauses, late))
        draw[:3] = _of_points(drawn_pauses, drawn_late, _MOST_DRAWN_POINTS, chance)
        draw[3] = _rest([_blocks(np.column_stack(pair), chance) for pair in pairs])
    return Found(estimate._replace(beside=max(0.0, _rest([np.column_stack(pair) for pair in pairs]))), draws)


def _rest(pairs: Sequence[Floats]) -> float:
    """Return what is left of the median latency: observed in the first column, simulated in the second."""
    medians = [np.median(steady(pair), axis=0) for pair in pairs]
    return float(np.mean([observed - simulated for observed, simulated in medians]))


def _of_points(pauses: Sequence[Floats], late: Sequence[Floats], most: int, chance: np.random.Generator) -> Floats:
    """Return the overhead per batch, per request and per answer."""
    paused = _some(np.concatenate(pauses), most, chance)
    per_request = _slope(paused[:, 0], paused[:, 1])
    per_batch = float(np.median(paused[:, 1] - per_request * paused[:, 0]))
    came = _some(np.concatenate(late), most, chance)
    return np.array([per_batch, per_request, _slope(came[:, 0], came[:, 1] - per_request * came[:, 2])])


def _slope(x: Floats, y: Floats) -> float:
    """Return the median slope of all pairs (Theil and Sen); 0 where all lie at one place."""
    one, other = np.triu_indices(len(x), 1)
    run = x[other] - x[one]
    apart = run != 0
    return float(np.median((y[other] - y[one])[apart] / run[apart])) if apart.any() else 0.0


def _pauses(log: Log, cap: int, held: float) -> Floats:
    """Return of the pauses of a device between batches the size of the batch before, and ms beyond the rule's.

    Of those only that requests waited through, and whose next batch was not full: that is sent without being held.
    """
    begun, ended, sizes, first_sent, _ = batches_of(log)
    waited = (first_sent[1:] < ended[:-1] - _ON_THE_WAY_MS) & (sizes[1:] < cap)
    return np.column_stack([sizes[:-1], begun[1:] - ended[:-1] - held])[waited]


def _late(log: Log) -> Floats:
    """Return of the answers which of their batch they were, how many ms after its step they came, and its size.

    In the order of requests, as servers answer: that in which they came would take scatter for time between them.
    """
    _, ended, sizes, _, batch_of = batches_of(log)
    counts = sizes.astype(np.int64)
    places = np.empty(len(batch_of))
    places[np.argsort(batch_of, kind="stable")] = (
        1 + np.arange(len(batch_of)) - np.repeat(counts.cumsum() - counts, counts)
    )
    return np.column_stack([places, log.answered_ms - ended[batch_of], sizes[batch_of]])


def _some(points: Floats, most: int, chance: np.random.Generator) -> Floats:
    """Return as many of them, by chance, as pairs can be made of."""
    return points if len(points) <= most else chance.choice(points, most, replace=False)


def _blocks(points: Floats, chance: np.random.Generator) -> Floats:
    """Return a bootstrap sample of points in the order of time: stretches of them, with replacement."""
    stretches = np.array_split(points, min(_BLOCKS, max(1, len(points))))
    return np.concatenate([stretches[place] for place in chance.integers(len(stretches), size=len(stretches))])


_GROUPS: Final = 8
"""Of the requests of a log, as many in each: those that wait about as long by simulation."""


def by_latencies(bench: Bench, logs: Sequence[Log]) -> Found:
    """Return the overheads with which simulated latencies are those of the logs, of requests that wait about as long.

    Samples of them come from what parts of the logs tell by themselves: how these differ is by chance in the logs and
    in the simulation alike.
    """
    place = _matched(bench, logs, np.zeros(len(Estimate._fields)), _ROUNDS, no_less_than_0=True)
    split = [[log.cut(places) for places in np.array_split(np.arange(len(log.sent_ms)), _PARTS)] for log in logs]
    rounds = _ROUNDS_OF_PART
    parts = np.array([_matched(bench, part, place, rounds, no_less_than_0=False) for part in zip(*split, strict=True)])
    chance = np.random.default_rng(bench.seed)
    error = (parts - parts.mean(axis=0)) / sqrt(_PARTS * (_PARTS - 1))
    tails = np.sqrt((_PARTS - 1) / chance.chisquare(_PARTS - 1, (_DRAWS, 1)))  # few parts: of Student's distribution
    return Found(Estimate(*place.tolist()), place + chance.standard_normal((_DRAWS, _PARTS)) @ error * tails)


def _matched(bench: Bench, logs: Sequence[Log], place: Floats, rounds: int, *, no_less_than_0: bool) -> Floats:
    """Return the overheads that match logs, as numbers in the order of ``Estimate``, from a place on.

    Each request is simulated as it was sent, and how long it waits by that says which group it is in. Gauss and
    Newton's steps lead to the least squares between the mean latencies of groups: means, since scatter on the way would
    widen percentiles as queues do. The last steps are averaged.
    """
    start_ms = bench.service().mean_ms(1)
    free = [0, 1, 2, 3] if bench.server.batcher == "litserve" else [0, 1, 3]  # LitServe answers one by one
    reach = start_ms * np.array([0.04, 0.01, 0.02, 0.1])
    observed = np.concatenate([log.latency_ms for log in logs])
    groups = _groups(logs, _simulated(bench, logs, place, (rounds * _SEEDS,)))
    places = []
    for number in range(rounds):
        seeds = range(number * _SEEDS, (number + 1) * _SEEDS)
        simulated = _simulated(bench, logs, place, seeds)
        aside = {one: _simulated(bench, logs, place + reach * (np.arange(4) == one), seeds) for one in free}
        here, left, counts = _means(simulated, groups), observed - simulated, np.bincount(groups)
        # The standard errors of the means, were requests independent.
        variance = np.maximum(_means(left**2, groups) - _means(left, groups) ** 2, 0.0)
        known = np.sqrt(variance / counts) + 1e-9
        slopes = np.column_stack([(_means(there, groups) - here) / reach[one] for one, there in aside.items()])
        weighted = slopes / known[:, None]
        wanted = (_means(observed, groups) - here) / known + weighted @ place[free]
        nearest = place.copy()
        nearest[free] = _least_squares(weighted.T @ weighted, weighted.T @ wanted, no_less_than_0=no_less_than_0)
        place = np.minimum(np.maximum(nearest, place - start_ms / 2), place + start_ms / 2)
        places.append(place)
        # Not those of this place: who just misses a batch here does so in the next round too, but not in the log.
        groups = _groups(logs, aside[0])
    mean: Floats = np.mean(places[rounds // 2 :], axis=0)
    return mean


def _simulated(bench: Bench, logs: Sequence[Log], place: Floats, seeds: Sequence[int]) -> Floats:
    """Return the latencies of all logs with overheads, as numbers in the order of ``Estimate``."""
    estimate = Estimate(*map(float, place))
    return np.concatenate([bench.latencies_ms(log.sent_ms, estimate, seeds) for log in logs])


def _groups(logs: Sequence[Log], latency_ms: Floats) -> NDArray[np.int64]:
    """Return the number of the group of each request, by its log and its rank in it."""
    groups = list[NDArray[np.int64]]()
    for number, one in enumerate(np.split(latency_ms, np.cumsum([len(log.sent_ms) for log in logs])[:-1])):
        ranks = np.argsort(np.argsort(one, kind="stable"), kind="stable")
        groups.append(number * _GROUPS + ranks * _GROUPS // len(ranks))
    return np.concatenate(groups)


def _means(latency_ms: Floats, groups: NDArray[np.int64]) -> Floats:
    """Return the mean of each group."""
    means: Floats = np.bincount(groups, latency_ms) / np.bincount(groups)
    return means


def _least_squares(normal: Floats, right: Floats, *, no_less_than_0: bool) -> Floats:
    """Return the least squares by normal equations, with figures that would be below 0 held there if so wanted."""
    free = list(range(len(right)))
    figures = np.zeros(len(right))
    while free:
        figures[:] = 0
        figures[free] = np.linalg.lstsq(normal[np.ix_(free, free)], right[free], rcond=1e-9)[0]
        if not no_less_than_0 or figures.min() >= 0:
            break
        free.remove(int(figures.argmin()))
    return figures
