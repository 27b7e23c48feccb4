"""Inverse questions: the highest rate, the tightest target, and the uncertainty of the number of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, exp, hypot, inf, log, sqrt
from typing import Final, NamedTuple, cast

import msgspec
import numpy as np

from tputfind.errors import NoPlan
from tputfind.record.record import Record
from tputfind.sizing.engine.replications import Outcome
from tputfind.sizing.engine.service_times import ServiceTimes, service_times_of, timed_rows
from tputfind.sizing.planner.question import Demand
from tputfind.sizing.planner.search import HALF_WIDTH, Search, Tell, alone_ms, count_devices, least_number, rounded_up
from tputfind.stats import t_quantile
from tputfind.units import format_figure

_COARSE: Final = 0.85
_STEP: Final = 1 / 50
_MARGIN: Final = 1.1
"""A pilot may exceed the target by this factor if a longer simulation may still meet it."""
_MOST_TRIED: Final = 8
_LEAST_SHARE: Final = 2.0**-20
_LOOSER, _LOOSEST = 1.01, 128
"""Factor to the next target if other streams miss one, and how often it is applied at most."""
_LONGEST_MS: Final = 1e9
_RANGE_QUANTILE: Final = 1.645
"""Standard errors to either side that hold 90 % of a normal distribution."""
_RESAMPLES: Final = 12
_FAR: Final = 4.0
"""Percentiles beyond this multiple of the plan's count as equal."""
_FARTHEST: Final = 2
"""The range of a plan has no end beyond this multiple of its devices."""
_PARTS: Final = 16
"""Resolution of an end of the range: its distance from the plan, which is itself uncertain, in so many parts."""
BESIDE: Final = 1.1
"""Factor on the allowed late requests, and on the target, of the varied demands."""
_HANGS: Final = 0.1
"""Fraction of the devices, at least two, by which the answer to a varied demand must differ to be reported."""


def solve_demand(record: Record, demand: Demand, tell: Tell | None = None) -> Demand:
    """Return the demand with the answer filled in; raise NoPlan if no rate or no target can be met."""
    serving = (demand.devices or 0) - demand.spare
    if demand.solve == "rate":
        return msgspec.structs.replace(demand, rate_per_s=_highest_rate(Search(record, demand, tell), serving))
    if demand.solve == "slo":
        return msgspec.structs.replace(demand, slo_ms=_tightest_target(Search(record, demand, tell), serving))
    return demand


def _highest_rate(search: Search, devices: int) -> float:
    """Return the highest rate at which the devices meet the target, to 2 %.

    The percentile need not rise with the rate: rates are tried from the highest down until one meets the target,
    and the interval up to the last failure is then bisected. Pilots skip rates far from the target.
    """
    search.check_lone_requests()
    most_per_s = search.most_share / min(search.fleet(devices, cap, 1.0).utilization for cap in search.caps)

    def holds(share: float) -> bool:
        tried = search.at(rate_per_s=share * most_per_s)
        if not tried.may_meet(devices, _MARGIN) or not tried.holds(tried.best(devices).outcome):
            return False
        return not search.demand.spare or tried.holds_with_spare(tried.outcome_with_room(devices))

    high = low = 1.0
    while not search.may_meet(devices, _MARGIN, low * most_per_s) and low > _LEAST_SHARE:
        high, low = low, _COARSE * low
    for _ in range(_MOST_TRIED):
        if holds(low):
            break
        high, low = low, _COARSE * low
    else:
        raise NoPlan(f"{count_devices(devices)} miss the target at every rate that was tried", "a longer --slo")
    while high - low > _STEP * low:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low * most_per_s


def _tightest_target(search: Search, devices: int) -> float:
    """Return the tightest target that the devices meet at the rate: the least percentile over all batch limits."""
    demand = search.demand
    open_search = search.at(slo_ms=demand.network_ms + _LONGEST_MS)
    fleets = {devices, devices + demand.spare}
    judged = [[open_search.judge(number, cap).outcome for number in fleets] for cap in open_search.tightest(devices)]
    tails = [
        max(outcomes, key=lambda one: one.tail_high_ms)
        for outcomes in judged
        if all(one.tail_high_ms < inf and one.verdict == "meets" for one in outcomes)
    ]
    if not tails:
        allowed = "" if demand.max_utilization == 1 else f" at a utilization of {demand.max_utilization:.0%} or less"
        if demand.max_queue is not None:
            allowed += f" and answer {demand.percentile:g} % of them"
        rate = format_figure(demand.rate_per_s)
        raise NoPlan(
            f"{count_devices(devices)} cannot serve {rate} requests/s{allowed}", "more --devices, or a lower --rate"
        )
    # Near saturation the interval is wide, and lower targets than its end are met.
    target_ms = rounded_up(min(min(one.tail_high_ms, (1 + HALF_WIDTH) * one.tail_ms) for one in tails))
    target_ms = max(target_ms, rounded_up(alone_ms(search.service, demand)))

    def looser_ms(steps: int) -> float:
        return demand.network_ms + rounded_up(_LOOSER**steps * target_ms)

    def meets(steps: int) -> bool:
        tried = search.at(slo_ms=looser_ms(steps))
        return tried.holds_with_spare(tried.outcome_with_room(devices))

    steps = least_number(meets, 0, 0, _LOOSEST)
    if steps is None:
        tried = f"{target_ms:.4g} to {looser_ms(_LOOSEST):.4g} ms"
        raise NoPlan(
            f"no target of {tried} is sure to be met by {count_devices(devices)}", "more --devices, or a lower --rate"
        )
    return looser_ms(steps)


def range_of(search: Search, found: Outcome) -> tuple[int, int | None]:
    """Return the 90 % range of the number of devices, by chance in streams and record and by undecided fleets.

    Its ends are the devices for a looser and for a tighter target. The factor between the targets is the uncertainty of
    the percentile, from the streams and from bootstrap samples of the record. If throughput decides, it is that of a
    device's throughput; if refused requests do, their fraction. The upper end is None if no number of devices is sure
    to meet the target.
    """
    demand, chance = search.demand, np.random.default_rng([search.demand.seed, _RESAMPLES])
    drawn = [
        service_times_of(search.record, demand.overheads, demand.traffic, is_whole=demand.is_whole, draw=chance)
        for _ in range(_RESAMPLES)
    ]
    pilot = search.pilot(found.devices, found.batch_cap).outcome
    half = log(found.tail_high_ms / found.tail_low_ms) / 2 / t_quantile(7)
    width = _RANGE_QUANTILE * hypot(half, _error_of_record(search, found, drawn)) if half < inf else 0.0
    fewest: int | None = found.devices
    most: int | None = found.devices

    def least(meets: Callable[[int, float], bool], margin: float) -> int | None:
        return least_number(lambda one: meets(one, margin), found.devices, 1, _FARTHEST * found.devices, _PARTS)

    def least_within(margin: float) -> int | None:
        return None if alone_ms(search.service, demand) > margin * demand.target_ms else least(search.may_meet, margin)

    # Pilots are short: their outcome of the plan itself is the reference.
    if half == inf:  # the percentile may be that of refused requests, so their fraction decides
        scale, doubt = pilot.late / found.late, _RANGE_QUANTILE * found.late_error / demand.goal.late
        fewest, most = (least(search.may_have_late, scale * (1 + error)) for error in (doubt, -doubt))
    elif width > 0 and pilot.tail_ms < inf:
        scale = pilot.tail_ms / found.tail_ms
        fewest, most = least_within(scale * exp(width)), least_within(scale * exp(-width))
    error = _scatter(search, np.log([max(map(times.per_ms, search.caps)) for times in drawn]))
    slower = exp(_RANGE_QUANTILE * error)
    fewest = min(fewest or found.devices, search.undecided_below(found.devices))
    if fewest > 1 and not any(search.keeps_up(fewest - 1, cap, demand.rate_per_s) for cap in search.caps):
        fewest = _least_if_faster(search, fewest, slower)
    least_load = search.keeping_up(slower)
    return fewest, None if most is None else max(most, found.devices, least_load)


class Edge(NamedTuple):
    """Devices if 10 % more or fewer requests may be late, or the target is 10 % longer; None above twice the plan's."""

    more_late: int
    fewer_late: int | None
    longer: int | None


def edge_of(search: Search, found: Outcome, fewer: Outcome | None) -> Edge | None:
    """Return the devices for slightly varied demands, if the number is sensitive to the late fraction; else None.

    It is if more devices hardly change that fraction, which then meets the allowed one by chance. ``fewer`` is the
    outcome of the next smaller number, as for a plan.
    """
    late, devices = search.demand.goal.late, found.devices
    apart = max(2, ceil(_HANGS * devices))
    below, above = devices - apart, devices + apart
    more_late, fewer_late = devices, cast("int | None", devices)
    if below > 0 and fewer is not None and fewer.late <= BESIDE * late and search.may_have_late(below, BESIDE):
        more_late = least_number(lambda one: search.may_have_late(one, BESIDE), below, 1, parts=_PARTS) or below
    if found.late > late / BESIDE and not search.may_have_late(above, 1 / BESIDE):
        most = _FARTHEST * devices
        fewer_late = least_number(lambda one: search.may_have_late(one, 1 / BESIDE), above, devices, most, _PARTS)
    if more_late == fewer_late:
        return None
    longer = least_number(lambda one: search.may_meet(one, BESIDE), devices, 1, _FARTHEST * devices, _PARTS)
    return Edge(more_late, fewer_late, longer)


def _least_if_faster(search: Search, fewest: int, faster: float) -> int:
    """Return the least number if batches are faster by a factor: as at a lower rate, with all times shorter."""
    rate_per_s = search.demand.rate_per_s / faster
    lowest = min(fewest, search.keeping_up(1 / faster))

    def meets(devices: int) -> bool:
        return devices >= fewest or search.may_meet(devices, faster, rate_per_s)

    return least_number(meets, fewest, lowest, parts=_PARTS) or fewest


def _error_of_record(search: Search, found: Outcome, drawn: Sequence[ServiceTimes]) -> float:
    tails = [
        Search(search.record, search.demand, None, times).pilot(found.devices, found.batch_cap).outcome.tail_ms
        for times in drawn
    ]
    # Samples with which the queue grows are clipped: their percentile has no meaning.
    return _scatter(search, np.clip(np.log(tails), None, log(_FAR * found.tail_ms)))


def _scatter(search: Search, by_sample: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Return the standard error from values of bootstrap samples of the record.

    If n processes are drawn with replacement, the variance is (n - 1) / n of that of new processes (Davison and
    Hinkley, section 2.3).
    """
    processes = [sum(bool(timing.latency_ms) for timing in row.timings) for row in timed_rows(search.record)]
    few = min((number for number in processes if number > 1), default=inf)
    return float(np.std(by_sample, ddof=1)) * (sqrt(few / (few - 1)) if few < inf else 1.0)
