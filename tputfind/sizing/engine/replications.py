"""Replications of a fleet under a stream of requests, as many as the fraction of late requests needs for a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import ceil, inf, log, sqrt
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tputfind.record.types import Amount, Count
from tputfind.sizing.engine.servers import Server
from tputfind.sizing.engine.serving import Kind, exact_times, is_by_batches, serve
from tputfind.sizing.traffic import Traffic
from tputfind.stats import t_quantile

Verdict = Literal["meets", "misses", "undecided"]
_FIRST, _FIRST_RECORDED = 2, 3
"""Minimum replications, of a drawn and of a recorded stream."""
_MORE: Final = 1.25
"""Factor from a number of replications to the next."""
_BATCHES: Final = 8
"""Minimum batch means for a standard error: parts of replications, if these are fewer."""
_WARM_UP, _MEASURED = 8.0, 60.0
"""Length of the two parts of a replication, in relaxation times of one queue."""
_SPANS: Final = 2.5
"""Minimum length of each part in usual batch times, times the number of batches that one long batch lengthens."""
_PHASES: Final = 40.0
"""Length of a replication in usual batch times, and half of that before it: by then, devices that ended their batches
together are out of step."""
CELL: Final = 256
"""Maximum devices behind a router, or one queue, that are simulated together."""
_GOLDEN: Final = (sqrt(5) - 1) / 2
"""The fractional parts of its multiples are spread evenly, however many there are (Weyl)."""
_BY_FAR: Final = 20.0
"""Standard errors above the allowed fraction of late requests at which the first replications are enough."""
_MISSES, _MEETS = 3.0, 8.0
"""Standard errors above and below the allowed fraction of late requests at which replications end. Late requests come
in clusters: if none was seen, the fraction and its error are both too low. With an error that is nearly trusted, the
first is enough below too."""
_LEAST_CHANCE: Final = 0.1
"""Minimum standard error of the late fraction, relative to the binomial one; rare bursts may be unseen."""
_ONE_SIDED: Final = 0.8
"""Confidence of an interval, each side of which is exceeded in 10 of 100 cases."""
_PRECISE, _SMALL, _IMPRECISE = 2.5, 0.03, 5.0
"""Limits up to which an error is trusted: a multiple of the wanted one, and a fraction of the allowed late fraction.
With a larger error, a fleet must meet the target by as many times more errors, up to the third: a few bursts may hide
its size."""
_STARTS, _APART, _LENGTHENED = 3.0, 0.02, 4
"""Standard errors, and fraction of the mean latency, by which replications that began with devices in step may differ
from those that did not; and the factor on the length of the next replications if they differ more: devices with nearly
constant batch times fall in step, or out of it, within hundreds of batches."""
_LEAST_CELL: Final = 16
"""Minimum devices behind a router that are simulated together."""
_IN_STEP: Final = 0.1
"""Fraction of a batch within which devices end their first batches in every other replication."""
_UNDECIDED, _CLOSE = 0.6, 0.02
"""Fraction of the maximum requests after which a fleet near its target stays undecided; and the relative distance of a
percentile from the target at which more requests are of little use."""
_QUICK, _PLAIN, _ITEM = (8.0, _UNDECIDED), (4.0, 0.3), 0.2
"""Batch by batch and request by request: the requests of one item that take as long to simulate as a batch, and the
fraction of the maximum requests after which a fleet close to its target stays undecided. Request by request, another
item of a request takes as long as the third; batch by batch, as long as a request."""
_ENOUGH, _EXCURSIONS = 100.0, 1.6
"""Minimum length of all replications, in relaxation times of one queue, for a fleet to meet a target, unless it is far
from it; and minimum of that length times the allowed late fraction: late requests come together, in rare excursions of
the queue, and a shorter run may show none."""
_RARE: Final = 10.0
"""Waits longer than the bound are rarer than the allowed late requests by this factor."""
_WANDERS, _EVEN = 20.0, 0.05
"""A queue with a limit relaxes within the square of the limit over the first; the dispersion of a stream counts as at
least the second."""
_LEAST_LEFT: Final = 0.02
"""Minimum of 1 minus the load that the size-dependent part of batch times causes."""
_ROUNDS: Final = 200
"""Maximum iterations to find a usual batch; near saturation each is hardly larger than the one before."""


class Goal(NamedTuple):
    """The target: ``percentile`` % of the requests are answered within ``target_ms``."""

    target_ms: float
    percentile: float

    @property
    def late(self) -> float:
        return 1 - self.percentile / 100

    def is_close(self, tail_ms: float) -> bool:
        """Whether a percentile is so close to the target that more replications are of little use."""
        return abs(tail_ms - self.target_ms) <= _CLOSE * self.target_ms

    @property
    def relaxations(self) -> float:
        """Minimum length of all replications, in relaxation times of a queue."""
        return max(_ENOUGH, _EXCURSIONS / self.late)


class Effort(NamedTuple):
    """The run length: minimum and maximum requests of all replications.

    ``near`` is the standard error of the late fraction, relative to the allowed one, below which further replications
    add little. ``half_width`` is the wanted relative half-width of the percentile's interval.
    ``phases`` is the length of a replication in usual batch times; its warm-up lasts half as long.
    Above ``cell`` devices behind one queue or a router, this many are simulated, as one of equal cells behind a random
    split. A pilot may be one replication of a long recorded stream; its verdict is then undecided.
    """

    least: float
    most: float
    near: float = inf
    half_width: float = inf
    cell: int = CELL
    phases: float = _PHASES
    is_pilot: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The performance of a fleet under a stream of requests. Latencies, in ms, last from arrival to answer.

    ``utilization`` is the rate over that of full batches on all devices; ``busy`` is the fraction of time in which
    devices compute. ``tail_ms`` is the percentile of the target with its 95 % interval. ``late`` is the fraction of
    requests above the target, with its standard error. The ``verdict`` is "undecided" if chance leaves open whether the
    target is met, or if the utilization is too near 1 for any replication to show it. Batch sizes are in samples.

    Refused requests count as late, with an infinite latency (null in JSON); mean and p50 to p99 leave them out.
    ``simulated`` devices, a cell of them or one of each kind, stand for all; 0 without a simulation.
    """

    devices: Count
    batch_cap: Count
    rate_per_s: Amount
    utilization: Amount
    verdict: Verdict
    late: Amount
    late_error: Amount
    mean_ms: Amount
    p50_ms: Amount
    p95_ms: Amount
    p99_ms: Amount
    tail_ms: Amount
    tail_low_ms: Amount
    tail_high_ms: Amount
    goodput_per_s: Amount
    busy: Amount
    mean_batch: Amount
    requests: Annotated[int, Meta(ge=0)]
    refused: Annotated[float, Meta(ge=0, le=1)] = 0.0
    simulated: Annotated[int, Meta(ge=0)] = 0

    @property
    def meets_target(self) -> bool:
        return self.verdict == "meets"

    @property
    def is_saturated(self) -> bool:
        """Whether the queue grows without bound."""
        return self.tail_ms == inf and self.refused == 0


class Simulated(NamedTuple):
    """An outcome, the batches of each kind of device by size, their device-ms, and each kind's part of the samples."""

    outcome: Outcome
    sizes: list[Counter[int]]
    lasts_ms: float
    shares: list[float]

    @property
    def largest_batch(self) -> int:
        return max((max(sizes) for sizes in self.sizes if sizes), default=0)


class _Part(NamedTuple):
    """Devices that are simulated together, the fraction of all requests that they get, and that they represent."""

    kinds: Sequence[Kind]
    share: float
    weight: float

    @property
    def devices(self) -> int:
        return sum(kind.devices for kind in self.kinds)


class _Plan(NamedTuple):
    """Requests of a replication of one part; ``shorter`` is the fraction of the wanted batches that it has room for."""

    warm_up: int
    measured: int
    after: int
    relaxation: float
    usual_ms: list[float]
    shorter: float = 1.0

    def lengthen_warm_up(self, most: float) -> _Plan:
        """Return a plan with a longer warm-up, up to half of ``most``; the same plan if that does not double it."""
        warm_up = min(_LENGTHENED * self.warm_up, int(most / 2))
        measured = min(max(self.measured, 2 * warm_up), ceil(most) - warm_up)
        return self._replace(warm_up=warm_up, measured=measured) if warm_up >= 2 * self.warm_up else self

    def is_as_long(self, other: _Plan) -> bool:
        return abs(self.warm_up + self.measured - other.warm_up - other.measured) <= _FIRST


class Fleet(NamedTuple):
    """Devices, the requests per second for all of them, their server, and the shape of the stream."""

    kinds: Sequence[Kind]
    rate_per_s: float
    server: Server = Server()
    traffic: Traffic = Traffic()

    @property
    def devices(self) -> int:
        return sum(kind.devices for kind in self.kinds)

    @property
    def utilization(self) -> float:
        return self.rate_per_s / 1000 * self.traffic.mean_samples / sum(kind.per_ms for kind in self.kinds)


def simulate(fleet: Fleet, goal: Goal, effort: Effort, seed: Sequence[int]) -> Simulated:
    """Simulate a fleet: replications with new arrivals and phases, until the fraction of late requests is known.

    Random splits are independent, identical queues: one of each kind is simulated, with its thinned stream. Fleets with
    the same seed get the same arrivals.
    """
    kinds, _, server, traffic = fleet
    load = fleet.utilization
    if load >= 1 and server.limit == inf:
        return _saturated_outcome(fleet)
    parts = _parts(fleet, effort.cell)
    plans = [_plan(part, fleet, effort) for part in parts]
    if server.routing != "shared" and (shorter := min(plan.shorter for plan in plans)) < 1:
        # As many batches of fewer devices, instead of fewer batches: devices with large batches settle slowly.
        parts = _parts(fleet, max(_LEAST_CELL, int(shorter * parts[0].devices)))
        plans = [_plan(part, fleet, effort) for part in parts]
    weights = np.array([part.weight for part in parts])
    runs: list[list[_Run]] = []
    first = _FIRST if traffic.gaps is None else _FIRST_RECORDED
    # Replications of a whole log differ by the times of batches alone, and in a long one these even out.
    is_alone = effort.is_pilot and traffic.gaps is not None and parts[0].share == 1 and plans[0].measured >= effort.most
    wanted = 1 if traffic.gaps is None or is_alone else first
    batch, close = _QUICK if is_quick(server, traffic) else _PLAIN

    def is_late(latency_ms: NDArray[np.float64]) -> NDArray[np.bool_]:
        return latency_ms > goal.target_ms

    def is_far(measured: _Latencies) -> bool:
        return all(_longest_tail_ms(part, fleet, goal, measured.tail[2]) <= goal.target_ms for part in parts)

    while True:
        for number in range(len(runs), wanted):
            pairs = enumerate(zip(parts, plans, strict=True))
            runs.append([_run(part, plan, fleet, (*seed, number, place)) for place, (part, plan) in pairs])
        may_differ = traffic.gaps is None and any(part.devices > 1 for part in parts)
        means = _batch_means(runs if may_differ else [], weights)
        differ = _differ(means[::2], means[1::2])
        drift = _differ(*np.split(means, 2, axis=1))
        longer = [plan.lengthen_warm_up(effort.most / _FIRST) for plan in plans] if differ or drift else plans
        if longer != plans:
            cuts = [new.warm_up - old.warm_up for new, old in zip(longer, plans, strict=True)]
            is_same = all(map(_Plan.is_as_long, longer, plans))
            # Replications of the same length have the same requests: only the warm-up grows.
            runs = [
                [replace(one, latency_ms=one.latency_ms[cut:]) for one, cut in zip(run, cuts, strict=True)]
                for run in runs
                if is_same
            ]
            plans, wanted = longer, len(runs) or min(wanted, first)
            continue
        requests = sum(len(one.latency_ms) for run in runs for one in run)
        # Devices may take longer to fall out of step than any replication lasts.
        used = runs[::2] if differ else runs
        # Every replication has the same recorded requests: only whole replications differ by chance.
        cut = ceil(_BATCHES / len(used)) if traffic.gaps is None or is_alone else 1
        measured = _Latencies(used, weights, goal, cut)
        late, error = measured.share(is_late)
        error = 0.0 if is_alone else error  # parts of a log differ by more than chance
        error = max(error, _LEAST_CHANCE * sqrt(goal.late * (1 - goal.late) / requests))
        if differ and _differ(*np.split(means[::2], 2, axis=1)):
            in_step, _ = _Latencies(runs[1::2], weights, goal, _BATCHES).share(is_late)
            error = max(error, abs(in_step - late) / 2)
        is_spent = requests + sum(plan.warm_up + plan.after for plan in plans) * len(runs) >= effort.most
        excess = (late - goal.late) / error
        batches = sum(counted.total() for run in runs for one in run for counted in one.sizes)
        work = requests + batch * batches / work_of_request(server, traffic)
        is_near = (
            error <= effort.near * goal.late
            or work >= _UNDECIDED * effort.most
            or (work >= close * effort.most and goal.is_close(measured.tail[1]))
        )
        relaxed = [len(runs) * plan.measured / max(plan.relaxation, 1e-9) for plan in plans]
        relaxations = min(relaxed)
        is_long = (
            effort.near == inf
            or traffic.gaps is not None
            or (relaxations >= _ENOUGH and (relaxations >= goal.relaxations or is_far(measured)))
        )
        precise = max(_PRECISE * effort.near, _SMALL) * goal.late
        if excess < -_MEETS or (excess < -_MISSES and error <= 2 * precise and not is_near):
            is_known = measured.half_width <= effort.half_width
        else:
            is_known = is_near
        is_judged = requests >= effort.least and (excess > _MISSES or (is_long and is_known))
        if is_spent or (is_judged and len(runs) >= first) or (len(runs) <= first and excess > _BY_FAR):
            break
        wanted = ceil(_MORE * wanted)
    sizes = [Counter[int]() for _ in kinds]
    for run in runs:
        for counted, of_run in zip(sizes, chain.from_iterable(one.sizes for one in run), strict=True):
            counted.update(of_run)
    busy = float(np.mean([[one.busy for one in run] for run in runs], axis=0) @ weights)
    wander_ms = max(_wander_ms(part, fleet, goal, each) for part, each in zip(parts, relaxed, strict=True))
    figures = measured.figures(wander_ms)
    is_sure = relaxations >= goal.relaxations or is_far(measured) or traffic.gaps is not None
    errors = t_quantile(measured.means - 1, _ONE_SIDED)
    meets = late + min(_IMPRECISE, errors * max(1.0, error / precise)) * error <= goal.late
    verdict: Verdict = "misses" if late - errors * error > goal.late else "meets" if is_sure and meets else "undecided"
    verdict = "undecided" if is_alone else verdict
    samples = [sum(size * often for size, often in counted.items()) for counted in sizes]
    figures |= {"late": late, "late_error": error, "busy": min(1.0, busy)}
    figures["mean_batch"] = sum(samples) / max(1, sum(map(Counter.total, sizes)))
    simulated = sum(part.devices for part in parts)
    outcome = _outcome(fleet, verdict=verdict, requests=requests, simulated=simulated, **figures)
    lasts_ms = sum(one.lasts_ms for run in runs for one in run)
    shares = [each / max(1, sum(samples)) for each in samples] if len(parts) == 1 else weights.tolist()
    return Simulated(outcome, sizes, lasts_ms, shares)


def _outcome(fleet: Fleet, *, verdict: Verdict, requests: int, simulated: int, **figures: float) -> Outcome:
    return Outcome(
        devices=fleet.devices,
        batch_cap=max(kind.cap for kind in fleet.kinds),
        rate_per_s=fleet.rate_per_s,
        utilization=fleet.utilization,
        verdict=verdict,
        requests=requests,
        simulated=simulated,
        goodput_per_s=fleet.rate_per_s * (1 - figures["late"]),
        **figures,
    )


def can_tell(fleet: Fleet, goal: Goal, most: float, tail_ms: float) -> bool:
    """Whether this many requests can show that a fleet with about this percentile meets a target."""
    if (fleet.utilization >= 1 and fleet.server.limit == inf) or fleet.traffic.gaps is not None:
        return True
    for part in _parts(fleet, CELL):
        is_long = goal.relaxations * _relaxation(part, fleet) * (1 + _WARM_UP / _MEASURED) <= most
        if not is_long and _longest_tail_ms(part, fleet, goal, tail_ms) > goal.target_ms:
            return False
    return True


def _longest_tail_ms(part: _Part, fleet: Fleet, goal: Goal, tail_ms: float) -> float:
    """Return an upper bound on a percentile, measured as ``tail_ms``, when the queue is as long as it gets.

    In heavy traffic the wait is exponential. Batches are then full, and a request waits for one and is in another.
    """
    full_ms = max(kind.service.mean_ms(kind.cap) for kind in part.kinds)
    return max(tail_ms, 2 * full_ms) + log(_RARE / goal.late) * _wait_ms(part, fleet)


def _wait_ms(part: _Part, fleet: Fleet) -> float:
    """Return the mean wait in heavy traffic: dispersion / (2 (1 - load)) in interarrival times (Kingman)."""
    load = fleet.utilization
    if load >= 1:
        return inf
    return fleet.traffic.dispersion(part.share) / (2 * (1 - load)) * 1000 / fleet.rate_per_s / part.share


def _wander_ms(part: _Part, fleet: Fleet, goal: Goal, relaxations: float) -> float:
    """Return the standard error of a percentile because a nearly saturated queue grows and shrinks slowly.

    It follows from the asymptotic variance of the fraction of time that a reflected Brownian motion spends above its
    percentile (Whitt, "Planning Queueing Simulations", 1989). Batch means show less if the run is short.
    """
    if fleet.server.limit < inf or fleet.traffic.gaps is not None:
        return 0.0
    wait_ms = fleet.utilization**2 * _wait_ms(part, fleet)
    return wait_ms * sqrt(2 * ((1 - goal.late) / goal.late + log(goal.late)) / relaxations)


def _saturated_outcome(fleet: Fleet) -> Simulated:
    figures = dict.fromkeys(("mean_ms", "p50_ms", "p95_ms", "p99_ms", "tail_ms", "tail_low_ms", "tail_high_ms"), inf)
    figures |= {"late": 1.0, "late_error": 0.0, "busy": 1.0, "mean_batch": max(kind.cap for kind in fleet.kinds)}
    outcome = _outcome(fleet, verdict="misses", requests=0, simulated=0, **figures)
    return Simulated(outcome, [Counter({kind.cap: 1}) for kind in fleet.kinds], inf, [0.0 for _ in fleet.kinds])


def _parts(fleet: Fleet, cell: int) -> list[_Part]:
    """Return the simulated parts of a fleet: all of it, a cell, or one queue of each kind behind a random split."""
    kinds, devices = fleet.kinds, fleet.devices
    capacity = sum(kind.per_ms for kind in kinds)
    if fleet.server.routing == "random":
        shares = [kind.service.per_ms(kind.cap) / capacity for kind in kinds]
        return [
            _Part([kind._replace(devices=1)], share, kind.devices * share)
            for kind, share in zip(kinds, shares, strict=True)
        ]
    if devices <= cell:
        return [_Part(kinds, 1.0, 1.0)]
    exact = [kind.devices * cell / devices for kind in kinds]
    counts = [max(1, int(share)) for share in exact]
    for number in sorted(range(len(kinds)), key=lambda number: counts[number] - exact[number]):
        if sum(counts) < cell:
            counts[number] += 1
    part = [kind._replace(devices=count) for kind, count in zip(kinds, counts, strict=True)]
    return [_Part(part, sum(kind.per_ms for kind in part) / capacity, 1.0)]


def _plan(part: _Part, fleet: Fleet, effort: Effort) -> _Plan:
    server, traffic = fleet.server, fleet.traffic
    rate_per_ms = fleet.rate_per_s / 1000 * part.share
    capacity = sum(kind.per_ms for kind in part.kinds)
    each_per_ms = [rate_per_ms * kind.service.per_ms(kind.cap) / capacity for kind in part.kinds]
    kinds = list(zip(part.kinds, each_per_ms, strict=True))
    sizes = [_usual_size(kind, each, fleet) for kind, each in kinds]
    usual_ms = [kind.service.mean_ms(size) for kind, size in zip(part.kinds, sizes, strict=True)]
    relaxation = _relaxation(part, fleet)
    span = rate_per_ms * max(
        # A batch that fills up before the end of its delay waits no longer.
        min(batch_ms + server.held_ms, max(batch_ms, size / (each * traffic.mean_samples)))
        for each, size, batch_ms in zip(each_per_ms, sizes, usual_ms, strict=True)
    )
    memory = span * max(_memory_in_batches(kind, each * traffic.mean_samples) for kind, each in kinds)
    memory *= 1 + server.station.ahead
    if traffic.gaps is not None:
        turn = ceil(part.share * len(traffic.gaps))
        return _Plan(0, max(turn, ceil(effort.least / _FIRST_RECORDED)), 0, relaxation, usual_ms)
    warm_up = max(_WARM_UP * relaxation, _SPANS * memory, effort.phases / 2 * span, 20.0)
    measured = max(_MEASURED * relaxation, _SPANS * memory, effort.phases * span, effort.least / _FIRST)
    most = effort.most / _FIRST
    if warm_up + measured > most:  # near saturation, or with large batches on many devices
        warm_up, measured = most / 5, 4 * most / 5
    shorter = min(1.0, most / (1.5 * effort.phases * span))
    return _Plan(ceil(warm_up), ceil(measured), min(ceil(span) + 20, ceil(measured)), relaxation, usual_ms, shorter)


def _usual_size(kind: Kind, each_per_ms: float, fleet: Fleet) -> int:
    """Return the usual size of a batch: the requests that arrive while one like it runs, and during the delay."""
    size, larger = 0, 1
    for _ in range(_ROUNDS):
        if larger == size:
            break
        size, batch_ms = larger, kind.service.mean_ms(larger) + fleet.server.held_ms
        larger = ceil(min(kind.cap, fleet.traffic.mean_samples * (1 + each_per_ms * batch_ms)))
    return size


def _memory_in_batches(kind: Kind, samples_per_ms: float) -> float:
    """Return how many later batches, in usual batch times, one long batch makes longer."""
    slope_ms = (kind.service.mean_ms(kind.cap) - kind.service.mean_ms(1)) / kind.cap
    return 1 / max(_LEAST_LEFT, 1 - samples_per_ms * slope_ms)


def _relaxation(part: _Part, fleet: Fleet) -> float:
    """Return the relaxation time of a queue, in requests: the dispersion over the square of 1 - load.

    For a queue with a limit it is at most the time to drift from empty to full; above saturation the queue fills up
    first.
    """
    dispersion, load, server = fleet.traffic.dispersion(part.share), fleet.utilization, fleet.server
    gap = abs(1 - load)
    by_load = inf if gap == 0 else dispersion / gap**2
    if server.limit == inf:
        return by_load
    places = server.limit * (1 if server.routing == "shared" else part.devices)
    wanders = places**2 / (_WANDERS * max(dispersion, _EVEN))
    fills = min(places / gap, wanders) / _WARM_UP if load > 1 else 0.0
    return max(min(by_load, wanders), fills)


@dataclass(frozen=True)
class _Run:
    """Measured latencies of one replication of one part, and its batches that began in ``lasts_ms`` of all devices."""

    latency_ms: NDArray[np.float64]
    busy: float
    sizes: list[Counter[int]]
    lasts_ms: float

    @cached_property
    def means_ms(self) -> list[float]:
        """Mean latencies of batches of the answered requests; none if these are too few."""
        answered = self.latency_ms[np.isfinite(self.latency_ms)]
        return (
            [float(batch.mean()) for batch in np.array_split(answered, _BATCHES)] if len(answered) >= _BATCHES else []
        )


def _run(part: _Part, plan: _Plan, fleet: Fleet, seed: Sequence[int]) -> _Run:
    *before, number, place = seed
    server, traffic = fleet.server, fleet.traffic
    stream_seed = (*before, number) if place == 0 else tuple(seed)
    first = plan.warm_up
    stream = traffic.draw(first + plan.measured + plan.after, part.share, stream_seed)
    each_ms = 1000 / fleet.rate_per_s / part.share
    arrivals = exact_times(stream.times * each_ms, part.kinds, server, traffic.sizes[-1][0])
    chance = np.random.default_rng([*stream_seed, 4])
    free_ms = [0.0] * part.devices
    if traffic.gaps is None:  # a recorded stream begins with idle devices
        usual = np.repeat(plan.usual_ms, [kind.devices for kind in part.kinds])
        free_ms = (chance.uniform(0.0, _IN_STEP if number % 2 else 1.0, len(usual)) * usual).tolist()
    served = serve(arrivals, stream.sizes, part.kinds, server, free_ms=free_ms, seed=seed)
    last = first + plan.measured - 1 if traffic.gaps is None else len(arrivals) - 1
    lasts_ms = part.devices * (last + 1 - first) * each_ms
    starts_ms, samples, items, took_ms, kinds = served.batches.T
    width = max(kind.cap for kind in part.kinds) + 1
    shapes, shape_of = _index_distinct((kinds * width + samples).astype(np.int64))
    if server.is_whole:  # the overhead of a batch then depends on its requests
        shapes, shape_of = np.unique((kinds * width + samples) * width + items, return_inverse=True)
    within = (starts_ms >= arrivals[first]) & (starts_ms <= arrivals[last])
    sizes, curves = [Counter[int]() for _ in part.kinds], list[NDArray[np.float64]]()
    for shape, often in zip(
        shapes.tolist(), np.bincount(shape_of[within], minlength=len(shapes)).tolist(), strict=True
    ):
        of_kind, its_items = map(int, divmod(shape, width)) if server.is_whole else (shape, None)
        kind, its_samples = divmod(of_kind, width)
        curves.append(part.kinds[kind].service.curve_ms(its_samples, its_items))
        if often:
            sizes[kind][its_samples] += often
    measured = slice(first, last + 1)
    latency_ms = (served.done_ms - arrivals)[measured]
    if served.batch_of is not None:
        batch_of = served.batch_of[measured]
        latency_ms += _stratified_times(curves, shape_of, batch_of, chance.uniform())
        latency_ms -= took_ms[batch_of]
    return _Run(latency_ms, float(took_ms[within].sum()) / lasts_ms, sizes, lasts_ms)


def _batch_means(runs: Sequence[Sequence[_Run]], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mean latencies, a row per replication and a column per batch; no rows if too few requests are answered."""
    each = [[one.means_ms for one in run] for run in runs]
    if not runs or not all(map(all, each)):
        return np.zeros((0, _BATCHES))
    means: NDArray[np.float64] = np.einsum("rpb,p->rb", np.array(each), weights)
    return means


def _differ(means: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    if min(means.size, others.size) < 2:
        return False
    error = sqrt(sum(float(each.var(ddof=1)) / each.size for each in (means, others)))
    return abs(float(means.mean() - others.mean())) > max(_STARTS * error, _APART * float(means.mean()))


def _index_distinct(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values of small whole numbers, rising, and the index of each number among them."""
    are_there = np.bincount(values) > 0
    places: NDArray[np.int64] = np.cumsum(are_there) - 1
    return np.flatnonzero(are_there), places[values]


def _stratified_times(
    curves: Sequence[NDArray[np.float64]], curve_of: NDArray[np.int64], batch_of: NDArray[np.int64], first: float
) -> NDArray[np.float64]:
    """Return a service time for each request, from the curve of its batch, such that all quantiles come equally often.

    The time of a batch does not depend on how long its requests waited. So each request may take any time of the curve,
    and a replication that happened to draw more slow batches than the record has does not count more requests as late
    (conditional Monte Carlo, with a Weyl sequence instead of the integral).
    """
    lengths = np.array([len(curve) for curve in curves])
    places = np.arange(len(batch_of)) * _GOLDEN
    places += first
    places -= np.floor(places)
    places *= lengths[curve_of][batch_of] if lengths.min() < lengths.max() else lengths[0]
    which = (np.cumsum(lengths) - lengths)[curve_of][batch_of]
    which += places.astype(np.int64)
    times: NDArray[np.float64] = np.concatenate(curves)[which]
    return times


class _Latencies:
    """Latencies of replications, each of which is cut into batches (batch means)."""

    def __init__(self, runs: Sequence[Sequence[_Run]], parts: NDArray[np.float64], goal: Goal, batches: int) -> None:
        """Take the replications by part, the weight of each part, the target, and the batches per replication."""
        self._runs, self._parts, self._goal, self._batches = runs, parts, goal, batches
        self.means = len(runs) * batches

    def share(self, is_in: Callable[[NDArray[np.float64]], NDArray[np.bool_]]) -> tuple[float, float]:
        """Return the fraction of requests for which ``is_in`` is true, and its standard error."""
        each = [
            [np.count_nonzero(batch) / len(batch) for batch in np.array_split(is_in(one.latency_ms), self._batches)]
            for run in self._runs
            for one in run
        ]
        of_parts = np.reshape(each, (len(self._runs), len(self._parts), self._batches))
        means = np.einsum("rpb,p->rb", of_parts, self._parts)
        return float(means.mean()), float(means.std(ddof=1)) / sqrt(self.means)

    @property
    def half_width(self) -> float:
        low, tail, high = self.tail
        return (high - low) / 2 / tail if high < inf else inf if tail < inf else 0.0

    @cached_property
    def _together(self) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """All latencies, and the weight of each; rising latencies and None if all weights are equal."""
        latencies = [one.latency_ms for run in self._runs for one in run]
        shares = np.tile(self._parts, len(self._runs)) / list(map(len, latencies))
        together = np.concatenate(latencies)
        if shares.min() < shares.max():
            return together, np.repeat(shares, list(map(len, latencies)))
        together.sort()
        return together, None

    @cached_property
    def tail(self) -> tuple[float, float, float]:
        """The percentile between the ends of its interval, which follow from the error of the fraction below it."""
        latencies, each = self._together
        share = self._goal.percentile / 100
        (tail,) = _quantiles(latencies, each, [share])
        _, error = self.share(lambda latency_ms: latency_ms <= tail)
        error = t_quantile(self.means - 1) * error if tail < inf else 0.0
        low, high = _quantiles(latencies, each, [max(0.0, share - error), min(1.0, share + error)])
        return low, tail, high

    def figures(self, least_error_ms: float) -> dict[str, float]:
        """Return the latency fields of an outcome, and ``refused``; the error of its percentile is at least a bound."""
        latencies, each = self._together
        low, tail, high = self.tail
        if least_error_ms > 0:
            factor = 1 + t_quantile(self.means - 1) * least_error_ms / tail
            low, high = min(low, tail / factor), max(high, tail * factor)
        answered = np.isfinite(latencies)
        if not answered.all():
            latencies, each = latencies[answered], None if each is None else each[answered]
        figures = {"tail_low_ms": low, "tail_ms": tail, "tail_high_ms": high, "refused": 1 - float(answered.mean())}
        if not len(latencies):
            return figures | dict.fromkeys(("mean_ms", "p50_ms", "p95_ms", "p99_ms"), inf)
        p50, p95, p99 = _quantiles(latencies, each, [0.5, 0.95, 0.99])
        mean = float(np.average(latencies, weights=each))
        return figures | {"mean_ms": mean, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}


def _quantiles(
    latencies: NDArray[np.float64], weights: NDArray[np.float64] | None, shares: Sequence[float]
) -> list[float]:
    """Return quantiles, by the inverse of the distribution; latencies without weights rise."""
    if weights is None:
        return [float(latencies[max(0, ceil(len(latencies) * share - 1))]) for share in shares]
    found: NDArray[np.float64] = np.quantile(latencies, shares, method="inverted_cdf", weights=weights)
    return list(map(float, found))


def is_quick(server: Server, traffic: Traffic) -> bool:
    """Whether fleets can be simulated batch by batch instead of request by request."""
    devices = 1 if server.routing == "random" else 2
    is_simple = is_by_batches(server, devices, has_several_samples=traffic.has_several_samples)
    return is_simple and server.routing in ("shared", "random")


def work_of_request(server: Server, traffic: Traffic) -> float:
    """Return the mean time to simulate a request, relative to one with one item."""
    more = 0.0 if server.is_whole else traffic.mean_samples - 1
    return 1 + more * (1.0 if is_quick(server, traffic) else _ITEM)
