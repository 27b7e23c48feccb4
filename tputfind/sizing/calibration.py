"""Calibration with logs of a server: its overheads, by batch starts or latencies alone, and errors of predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tputfind.errors import BadRequest
from tputfind.record.record import Notice, Record
from tputfind.record.types import Amount, Count
from tputfind.sizing.engine.servers import Server
from tputfind.sizing.engine.service_times import Overheads, ServiceTimes, service_times_of
from tputfind.sizing.engine.serving import Kind, serve
from tputfind.units import format_figure, printable

Floats = NDArray[np.float64]

_FEWEST: Final = 100
_MOST_REQUESTS: Final = 10_000
"""Requests of a log that are used, from its beginning; more would take long for little gain."""
_HEAVY: Final = 0.65
_MIDDLING: Final = 0.25
"""Least utilization of the busiest log; light load alone does not separate costs per batch from costs per request."""
_UNSURE: Final = 0.2
_OFF: Final = 0.1
"""Relative error of a predicted p95 or p99 above which the logs contradict the simulated server."""
_INTERVAL: Final = 0.025, 0.975
_LIKELY: Final = 0.05, 0.95
_SHARES: Final = 0.5, 0.95, 0.99
_SEEDS: Final = 3
_CLOCKS_MS: Final = 0.5
_LIMIT: Final = "--max-batch-size is the largest batch of the server, or --max-ongoing of a replica"
COLUMNS: Final = "sent", "answered", "begun", "ended"
"""Columns of a log; the last two go together, and may be missing."""

_DRAWS: Final = 200
_BLOCKS: Final = 40
"""Blocks of each log for the bootstrap, long against a busy period, so that they are independent."""
_MOST_POINTS: Final = 3000
_MOST_DRAWN_POINTS: Final = 400
"""Maximum points for a slope, in a log and in each bootstrap sample; all their pairs are computed."""
_FEWEST_POINTS: Final = 30
_ON_THE_WAY_MS: Final = 2.0
"""A request sent this many ms ago has reached the queue."""
_ROUNDS, _ROUNDS_OF_PART = 8, 4
"""Iterations of the fit to latencies, each with streams of its own: for whole logs, and for parts of them."""
_PARTS: Final = 6
_SEEDS_OF_FIT: Final = 2
_STREAM: Final = 7
"""Separates these random streams from those of plans."""
_WARM_UP_SHARE: Final = 0.1


class Log(NamedTuple):
    """Requests to a server with one device, in the order in which they were sent; times in ms.

    ``begun_ms`` and ``ended_ms`` are of the model's step on the batch of a request, and equal for the whole batch; None
    if the server does not log them.
    """

    name: str
    sent_ms: Floats
    answered_ms: Floats
    begun_ms: Floats | None = None
    ended_ms: Floats | None = None

    @property
    def latency_ms(self) -> Floats:
        return self.answered_ms - self.sent_ms

    def cut(self, places: slice | NDArray[np.int64]) -> Log:
        return Log._make([self.name, *(None if one is None else one[places] for one in self[1:])])

    @property
    def rate_per_s(self) -> float:
        return float(1000 * (len(self.sent_ms) - 1) / (self.sent_ms[-1] - self.sent_ms[0]))


class Estimate(NamedTuple):
    """Overheads in ms: per batch, per request in it, per answer, and ``beside`` the queue, in transit."""

    per_batch: float = 0.0
    per_request: float = 0.0
    per_answer: float = 0.0
    beside: float = 0.0

    @property
    def overheads(self) -> Overheads:
        return Overheads(self.per_batch, self.per_request, self.per_answer)


class Found(NamedTuple):
    """An estimate, and bootstrap samples of it: a row each, in the same order; those may be below 0."""

    estimate: Estimate
    draws: Floats


class Batches(NamedTuple):
    """The start, end, size and first sending of each batch, in ms, and the batch number of each request."""

    begun: Floats
    ended: Floats
    sizes: Floats
    first_sent: Floats
    batch_of: NDArray[np.int64]


def batches_of(log: Log) -> Batches:
    """Return the batches of a log, in order; raise ValueError if it lacks their start and end."""
    if log.begun_ms is None or log.ended_ms is None:
        raise ValueError("the log does not show when batches began and ended")
    begun, first, batch_of, sizes = np.unique(log.begun_ms, return_index=True, return_inverse=True, return_counts=True)
    first_sent = np.full(len(begun), np.inf)
    np.minimum.at(first_sent, batch_of, log.sent_ms)
    return Batches(begun, log.ended_ms[first], sizes.astype(np.float64), first_sent, batch_of)


class Bench(NamedTuple):
    """The simulated counterpart of a log: one device without overheads, its server, and its largest batch."""

    service: ServiceTimes
    server: Server
    cap: int
    seed: int = 0

    def latencies_ms(self, sent_ms: Floats, estimate: Estimate, seeds: Sequence[int]) -> Floats:
        """Return the latency of each request, sent at these times, on average over simulations with these seeds."""
        kinds = [Kind(1, self.cap, self.service.replace_overheads(estimate.overheads))]
        server = self.server._replace(per_answer_ms=estimate.per_answer)
        first = [float(sent_ms[0])]
        runs = [
            serve(sent_ms, None, kinds, server, free_ms=first, seed=(_STREAM, seed)).done_ms - sent_ms for seed in seeds
        ]
        mean_ms: Floats = np.mean(runs, axis=0) + estimate.beside
        return mean_ms


def steady(latency_ms: Floats) -> Floats:
    """Return the latencies without those of the first requests, which met a cold server."""
    return latency_ms[int(_WARM_UP_SHARE * len(latency_ms)) :]


def fit_to_batches(bench: Bench, logs: Sequence[Log]) -> Found | None:
    """Return the overheads of a server with one device, from the start of its batches and the times of its answers.

    If requests waited when a batch ended, the device then idled for the time that the server's rule holds a batch back,
    plus the overheads per batch and per request. The answers of a batch follow one by one. The rest of the median
    latency is time in transit. None if the logs hold too few such batches, or batches of one size only.
    """
    pauses = [_pauses(log, bench.cap, bench.server) for log in logs]
    late = [_late(log) for log in logs]
    chance = np.random.default_rng(bench.seed)
    if sum(map(len, pauses)) < _FEWEST_POINTS or len(np.unique(np.concatenate(pauses)[:, 0])) == 1:
        return None
    first = _estimate_from_points(pauses, late, _MOST_POINTS, chance)
    estimate = Estimate(*(max(0.0, float(one)) for one in first))
    pairs = [(log.latency_ms, bench.latencies_ms(log.sent_ms, estimate, range(_SEEDS_OF_FIT))) for log in logs]
    draws = np.zeros((_DRAWS, len(Estimate._fields)))
    for draw in draws:
        drawn_pauses, drawn_late = ([_blocks(one, chance) for one in points] for points in (pauses, late))
        draw[:3] = _estimate_from_points(drawn_pauses, drawn_late, _MOST_DRAWN_POINTS, chance)
        draw[3] = _rest([_blocks(np.column_stack(pair), chance) for pair in pairs])
    return Found(estimate._replace(beside=max(0.0, _rest([np.column_stack(pair) for pair in pairs]))), draws)


def _rest(pairs: Sequence[Floats]) -> float:
    """Return the median latency that remains: observed in the first column, simulated in the second."""
    medians = [np.median(steady(pair), axis=0) for pair in pairs]
    return float(np.mean([observed - simulated for observed, simulated in medians]))


def _estimate_from_points(
    pauses: Sequence[Floats], late: Sequence[Floats], most: int, chance: np.random.Generator
) -> Floats:
    paused = _some(np.concatenate(pauses), most, chance)
    per_request = _slope(paused[:, 0], paused[:, 1])
    per_batch = float(np.median(paused[:, 1] - per_request * paused[:, 0]))
    came = _some(np.concatenate(late), most, chance)
    return np.array([per_batch, per_request, _slope(came[:, 0], came[:, 1] - per_request * came[:, 2])])


def _slope(x: Floats, y: Floats) -> float:
    """Return the median slope of all pairs (Theil and Sen); 0 if all points have the same x."""
    one, other = np.triu_indices(len(x), 1)
    run = x[other] - x[one]
    apart = run != 0
    return float(np.median((y[other] - y[one])[apart] / run[apart])) if apart.any() else 0.0


def _pauses(log: Log, cap: int, server: Server) -> Floats:
    """Return for pauses between batches the size of the batch before, and the ms beyond the delay of the rule.

    Only pauses during which requests waited and after which the batch was not full count; a full one is sent at once.
    Triton's delay begins when a request comes, so that of a request that has waited for it nothing is left.
    """
    begun, ended, sizes, first_sent, _ = batches_of(log)
    left_ms, waits_ms = (0.0, server.held_ms) if server.batcher == "triton" else (server.held_ms, 0.0)
    waited = (first_sent[1:] < ended[:-1] - waits_ms - _ON_THE_WAY_MS) & (sizes[1:] < cap)
    return np.column_stack([sizes[:-1], begun[1:] - ended[:-1] - left_ms])[waited]


def _late(log: Log) -> Floats:
    """Return for each answer its place in the batch, its delay after the step in ms, and the size of the batch.

    Places are in the order of requests, as servers answer. The order of the answers' times would turn scatter into time
    between answers.
    """
    _, ended, sizes, _, batch_of = batches_of(log)
    counts = sizes.astype(np.int64)
    places = np.empty(len(batch_of))
    places[np.argsort(batch_of, kind="stable")] = (
        1 + np.arange(len(batch_of)) - np.repeat(counts.cumsum() - counts, counts)
    )
    return np.column_stack([places, log.answered_ms - ended[batch_of], sizes[batch_of]])


def _some(points: Floats, most: int, chance: np.random.Generator) -> Floats:
    """Return at most this many points, chosen at random, because all their pairs are computed."""
    return points if len(points) <= most else chance.choice(points, most, replace=False)


def _blocks(points: Floats, chance: np.random.Generator) -> Floats:
    """Return a bootstrap sample of points in the order of time: blocks of them, with replacement."""
    stretches = np.array_split(points, min(_BLOCKS, max(1, len(points))))
    return np.concatenate([stretches[place] for place in chance.integers(len(stretches), size=len(stretches))])


_GROUPS: Final = 8
"""Groups of equal size of the requests of a log, by their simulated latency."""


def fit_to_latencies(bench: Bench, logs: Sequence[Log]) -> Found:
    """Return the overheads with which simulated latencies match those of the logs, within groups of similar latency.

    Their samples come from separate fits to parts of the logs: the variation between these includes the chance in the
    logs and in the simulation.
    """
    place = _fit(bench, logs, np.zeros(len(Estimate._fields)), _ROUNDS, no_less_than_0=True)
    split = [[log.cut(places) for places in np.array_split(np.arange(len(log.sent_ms)), _PARTS)] for log in logs]
    rounds = _ROUNDS_OF_PART
    parts = np.array([_fit(bench, part, place, rounds, no_less_than_0=False) for part in zip(*split, strict=True)])
    chance = np.random.default_rng(bench.seed)
    error = (parts - parts.mean(axis=0)) / sqrt(_PARTS * (_PARTS - 1))
    tails = np.sqrt((_PARTS - 1) / chance.chisquare(_PARTS - 1, (_DRAWS, 1)))  # Student's t, because parts are few
    return Found(Estimate(*place.tolist()), place + chance.standard_normal((_DRAWS, _PARTS)) @ error * tails)


def _fit(bench: Bench, logs: Sequence[Log], place: Floats, rounds: int, *, no_less_than_0: bool) -> Floats:
    """Return the overheads that fit the logs, as numbers in the order of ``Estimate``, from a starting point.

    Each request is simulated with its time of sending, and its simulated latency determines its group. Gauss-Newton
    steps minimise the squared differences between the mean latencies of groups; means, because scatter in transit would
    widen percentiles as queues do. The last steps are averaged.
    """
    start_ms = bench.service.mean_ms(1)
    free = [0, 1, 2, 3] if bench.server.batcher == "litserve" else [0, 1, 3]  # LitServe answers one by one
    reach = start_ms * np.array([0.04, 0.01, 0.02, 0.1])
    observed = np.concatenate([log.latency_ms for log in logs])
    groups = _groups(logs, _simulate_latencies(bench, logs, place, (rounds * _SEEDS_OF_FIT,)))
    places = []
    for number in range(rounds):
        seeds = range(number * _SEEDS_OF_FIT, (number + 1) * _SEEDS_OF_FIT)
        simulated = _simulate_latencies(bench, logs, place, seeds)
        aside = {one: _simulate_latencies(bench, logs, place + reach * (np.arange(4) == one), seeds) for one in free}
        here, left, counts = _means(simulated, groups), observed - simulated, np.bincount(groups)
        # The standard errors of the means, if requests were independent.
        variance = np.maximum(_means(left**2, groups) - _means(left, groups) ** 2, 0.0)
        known = np.sqrt(variance / counts) + 1e-9
        slopes = np.column_stack([(_means(there, groups) - here) / reach[one] for one, there in aside.items()])
        weighted = slopes / known[:, None]
        wanted = (_means(observed, groups) - here) / known + weighted @ place[free]
        nearest = place.copy()
        nearest[free] = _least_squares(weighted.T @ weighted, weighted.T @ wanted, no_less_than_0=no_less_than_0)
        place = np.minimum(np.maximum(nearest, place - start_ms / 2), place + start_ms / 2)
        places.append(place)
        # Not the latencies at this place: a request that just misses a batch here does so in the next round too, but
        # not in the log.
        groups = _groups(logs, aside[0])
    mean: Floats = np.mean(places[rounds // 2 :], axis=0)
    return mean


def _simulate_latencies(bench: Bench, logs: Sequence[Log], place: Floats, seeds: Sequence[int]) -> Floats:
    """Return the latencies of all logs with overheads, as numbers in the order of ``Estimate``."""
    estimate = Estimate(*map(float, place))
    return np.concatenate([bench.latencies_ms(log.sent_ms, estimate, seeds) for log in logs])


def _groups(logs: Sequence[Log], latency_ms: Floats) -> NDArray[np.int64]:
    """Return the group number of each request, by its log and the rank of its latency."""
    groups = list[NDArray[np.int64]]()
    for number, one in enumerate(np.split(latency_ms, np.cumsum([len(log.sent_ms) for log in logs])[:-1])):
        ranks = np.argsort(np.argsort(one, kind="stable"), kind="stable")
        groups.append(number * _GROUPS + ranks * _GROUPS // len(ranks))
    return np.concatenate(groups)


def _means(latency_ms: Floats, groups: NDArray[np.int64]) -> Floats:
    means: Floats = np.bincount(groups, latency_ms) / np.bincount(groups)
    return means


def _least_squares(normal: Floats, right: Floats, *, no_less_than_0: bool) -> Floats:
    """Return the least squares solution of normal equations, with negative components held at 0 if requested."""
    free = list(range(len(right)))
    figures = np.zeros(len(right))
    while free:
        found = np.linalg.lstsq(normal[np.ix_(free, free)], right[free], rcond=1e-9)[0]
        if not no_less_than_0 or found.min() >= 0:
            figures[free] = found
            break
        del free[int(found.argmin())]
    return figures


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """One overhead of a server, in ms, with its 95 % confidence interval."""

    value_ms: Amount
    low_ms: Amount
    high_ms: Amount


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of latencies, in ms."""

    p50_ms: Amount
    p95_ms: Amount
    p99_ms: Amount


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One log: observed latencies, and those predicted with the estimated overheads.

    ``load`` is its rate over that of the device with full batches. Overheads are estimated from the logs that are
    ``fitted``; the others have a heavier load, and show the error of the prediction.
    """

    name: str
    requests: Count
    rate_per_s: Amount
    load: Amount
    fitted: bool
    observed: Percentiles
    predicted: Percentiles

    @property
    def off(self) -> tuple[float, float, float]:
        """The relative errors of the predicted p50, p95 and p99; positive if predictions are too high."""
        pairs = zip(msgspec.structs.astuple(self.predicted), msgspec.structs.astuple(self.observed), strict=True)
        p50, p95, p99 = (predicted / observed - 1 for predicted, observed in pairs)
        return p50, p95, p99

    @property
    def error(self) -> float:
        """The larger relative error of p95 and p99, with its sign; the median says little about late requests."""
        return max(self.off[1:], key=abs)


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The overheads of a real server, estimated from its logs.

    ``beside`` is the time in transit, during which neither the queue nor the device is held up. ``found_by`` is whether
    the estimate rests on the start and end of batches, or on latencies alone.
    """

    per_batch: Overhead
    per_request: Overhead
    per_answer: Overhead
    beside: Overhead
    found_by: Literal["batches", "latencies"]
    runs: tuple[Run, ...]

    @property
    def worst(self) -> Run | None:
        """The log with the largest error of prediction; None if even that is small."""
        worst = max(self.runs, key=lambda run: abs(run.error))
        return worst if abs(worst.error) > _OFF else None


class Calibration(NamedTuple):
    """Overheads of a server: the likeliest estimate, those of a fast and a slow server, and the evidence of logs."""

    estimate: Estimate
    faster: Estimate
    slower: Estimate
    observed: Observed


def log_of(name: str, columns: Mapping[str, Sequence[float]], lines: Sequence[str]) -> Log:
    """Return the log from its columns, in seconds; raise ValueError, with one of ``lines``, if it is wrong."""
    if len(lines) < _FEWEST:
        raise ValueError(f"{len(lines)} requests are too few: at least {_FEWEST} are needed")
    order = np.argsort(np.array(columns["sent"]), kind="stable")
    start = columns["sent"][int(order[0])]
    times = {word: (np.array(told)[order] - start) * 1000 for word, told in columns.items()}
    words = [word for word in ("sent", "begun", "ended", "answered") if word in times]
    for before, after in pairwise(words):
        early = np.flatnonzero(times[after] < times[before] - (_CLOCKS_MS if len(words) > len(COLUMNS[:2]) else 0))
        if len(early):
            raise ValueError(f"{lines[int(order[early[0]])]}: {after} before it was {before}")
    if times["sent"][-1] <= 0:
        raise ValueError("all requests were sent at the same time")
    if times["answered"].min() <= 0:
        raise ValueError("answers take no time")
    return Log(name, times["sent"], times["answered"], times.get("begun"), times.get("ended"))


def calibrate(record: Record, server: Server, cap: int, logs: Sequence[Log], seed: int) -> Calibration:
    """Return the overheads of a server from its logs, each of one device like that of the record.

    ``server`` has no overheads and no limit on its queue, because all requests of a log were answered. BadRequest says
    that the logs are too few or too light, or do not fit the record.
    """
    logs = [log.cut(slice(_MOST_REQUESTS)) for log in logs]
    bench = Bench(service_times_of(record), server, cap, seed)
    most_per_s = 1000 * bench.service.per_ms(cap)
    light = [log for log in logs if log.rate_per_s <= _HEAVY * most_per_s]
    _check(bench, logs, light, most_per_s)
    direct = all(log.begun_ms is not None for log in light)
    by_their_batches = fit_to_batches(bench, light) if direct else None
    found = by_their_batches or fit_to_latencies(bench, light)
    lows, highs = np.maximum(np.quantile(found.draws, _INTERVAL, axis=0), 0).tolist()
    each = zip(Estimate._fields, found.estimate, lows, highs, strict=True)
    observed = Observed(
        **{name: Overhead(value_ms=value, low_ms=low, high_ms=high) for name, value, low, high in each},
        found_by="batches" if by_their_batches else "latencies",
        runs=tuple(
            Run(
                name=printable(log.name),
                requests=len(log.sent_ms),
                rate_per_s=log.rate_per_s,
                load=log.rate_per_s / most_per_s,
                fitted=log.rate_per_s <= _HEAVY * most_per_s,
                observed=_percentiles([log.latency_ms]),
                predicted=_percentiles(
                    [bench.latencies_ms(log.sent_ms, found.estimate, (seed,)) for seed in range(_SEEDS)]
                ),
            )
            for log in logs
        ),
    )
    faster, slower = _extremes(bench, found)
    return Calibration(found.estimate, faster, slower, observed)


def _check(bench: Bench, logs: Sequence[Log], light: Sequence[Log], most_per_s: float) -> None:
    middling = f"log about {format_figure(most_per_s / 2)} requests/s too: half of what the device can do"
    for log in logs:
        name = f"--observed {printable(log.name)}"
        if log.rate_per_s >= most_per_s:
            raise BadRequest(
                f"{name}: {log.rate_per_s / most_per_s:.0%} of what one device can do by the record",
                f"log one device; {_LIMIT}",
            )
        if log.begun_ms is not None and (largest := int(batches_of(log).sizes.max())) > bench.cap:
            raise BadRequest(
                f"{name}: has batches of {largest}, and {bench.cap} is the largest here", f"{_LIMIT}; measure it too"
            )
    if not light:
        raise BadRequest(f"--observed: no log has {_HEAVY:.0%} or less of what the device can do", middling)
    heaviest = max(log.rate_per_s for log in light) / most_per_s
    if heaviest < _MIDDLING:
        raise BadRequest(
            f"--observed: {heaviest:.0%} of what the device can do is too light a load to separate the overhead "
            "of a batch from that of a request",
            f"{middling}; times are in seconds",
        )


def _extremes(bench: Bench, found: Found) -> list[Estimate]:
    """Return the overheads of a fast and of a slow server, which bound the time of full batches with 90 %."""
    full_ms = found.draws[:, 0] + bench.cap * found.draws[:, 1]
    low_ms, high_ms = np.quantile(full_ms, _LIKELY)
    if (high_ms - low_ms) / 2 > _UNSURE * bench.service.mean_ms(bench.cap):
        raise BadRequest(
            f"--observed: what the server adds to a batch of {bench.cap} lies anywhere from {max(0.0, low_ms):.3g} to "
            f"{high_ms:.3g} ms",
            "log more requests, or a load at which batches are larger; or plan with a smaller --max-batch-size",
        )
    order = np.argsort(full_ms)
    picked = [found.draws[order[int(share * len(order))]] for share in _LIKELY]
    return [Estimate(*np.maximum(draw, 0).tolist()) for draw in picked]


def _percentiles(latencies: Sequence[Floats]) -> Percentiles:
    p50, p95, p99 = np.mean([np.quantile(steady(one), _SHARES) for one in latencies], axis=0).tolist()
    return Percentiles(p50_ms=p50, p95_ms=p95, p99_ms=p99)


def notices_of_logs(observed: Observed) -> Iterator[Notice]:
    if (worst := observed.worst) is not None:
        yield Notice(
            kind="observed_off",
            seen=f"p{99 if worst.error == worst.off[2] else 95} of {worst.name} is predicted {worst.error:+.0%} off",
            cause="the server batches by another rule than simulated, or its model is slower than the record's",
            advice="check --batcher, --delay and --max-batch-size",
        )
