"""What is asked for beside the devices: the highest rate within a target, the tightest target at a rate, the delay."""

from __future__ import annotations

from math import inf, sqrt
from typing import Final

import msgspec
import numpy as np

from tputfind.errors import NoPlan
from tputfind.record.record import Record
from tputfind.sizing.demand import SHORTEST_DELAY_MS, Demand
from tputfind.sizing.fleets import MOST_TAIL_REQUESTS, Search, Tell, alone_ms, rounded_up
from tputfind.sizing.service import service_of
from tputfind.sizing.simulate import Fleet
from tputfind.units import format_figure

_COARSE: Final = 0.85
"""Factor from one rate that is tried to the next lower one."""
_STEP: Final = 1 / 50
"""The share to which the highest rate is told."""
_MARGIN: Final = 1.1
"""Times the target that a short simulation may take and a full one still meet it."""
_MOST_IN_FULL: Final = 8
_LEAST_SHARE: Final = 2.0**-20
_MOST_TARGETS: Final = 20
_ERRORS: Final = 2.0
_PATIENCE: Final = 8.0
"""Times that a request takes by itself: the first target that a fleet is asked to meet, and the factor to the next."""
_LONGEST_MS: Final = 1e9
_PARTS: Final = 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2
"""Of the target, which are tried as delays."""


def solved(record: Record, demand: Demand, tell: Tell | None = None) -> Demand:
    """Return the demand with what was asked for in the place of what was not given.

    Raises:
        BadRequest: the record has no rows that could tell.
        NoPlan: the devices meet the target at no rate, or keep up with the rate at no target.
    """
    if demand.solve == "rate":
        return msgspec.structs.replace(demand, rate_per_s=_highest_rate(record, demand, tell))
    if demand.solve == "slo":
        return msgspec.structs.replace(demand, slo_ms=_tightest_target(record, demand, tell))
    if demand.search_delay:
        return msgspec.structs.replace(demand, delay_ms=_best_delay(record, demand, tell))
    return demand


def _holding(demand: Demand) -> int:
    """Return how many devices must hold the target: all but the spare ones."""
    assert demand.devices is not None
    return demand.devices - demand.spare


def _highest_rate(record: Record, demand: Demand, tell: Tell | None) -> float:
    """Return the highest rate at which the devices meet the target, to a fiftieth of it.

    The percentile need not rise with the rate, so that rates are tried from the highest down, until one holds, and then
    those between it and the last that did not. Short simulations leave out what is far from the target.

    Raises:
        NoPlan: they meet it at none of the rates that were tried.
    """
    devices = _holding(demand)
    search = Search(record, demand, tell)
    if _is_just_met(search, demand):
        raise NoPlan(
            f"{_counted(devices)} met the target at no rate: no more than {demand.percentile:g} % of the requests that "
            f"are alone are answered within {demand.target_ms:g} ms",
            "a longer --slo",
        )
    most_per_s = search.most_share / min(Fleet(devices, cap, 1.0).load(search.service, demand) for cap in search.caps)

    def at(share: float) -> Search:
        return Search(record, msgspec.structs.replace(demand, rate_per_s=share * most_per_s), tell)

    def holds(share: float) -> bool:
        search = at(share)
        return search.may_meet(devices, _MARGIN) and search.holds(search.best(devices))

    high = low = 1.0
    while not at(low).may_meet(devices, _MARGIN) and low > _LEAST_SHARE:
        high, low = low, _COARSE * low
    for _ in range(_MOST_IN_FULL):
        if holds(low):
            break
        high, low = low, _COARSE * low
    else:
        raise NoPlan(f"{_counted(devices)} met the target at none of the rates that were tried", "a longer --slo")
    while high - low > _STEP * low:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low * most_per_s


def _is_just_met(search: Search, demand: Demand) -> bool:
    """Whether requests that are alone are in time as often as is asked for, and no more often than chance explains.

    Then no simulation, however long, could say that the target is met. At any rate a request takes as long as its
    batch, which takes no less than one of a single request.
    """
    if demand.whole:  # the least that a request takes is by its samples
        return False
    share = demand.percentile / 100
    others_ms = demand.overhead_per_get_ms + demand.overhead_per_answer_ms
    in_time = float(np.mean(search.service.curve_ms(1) + others_ms <= demand.target_ms))
    return in_time - share <= _ERRORS * sqrt(share * (1 - share) / MOST_TAIL_REQUESTS * (1 - share))


def _tightest_target(record: Record, demand: Demand, tell: Tell | None) -> float:
    """Return the tightest latency target that the devices were found to meet at the rate.

    Each target that is met is followed by the percentile with which it was, until nothing is gained.

    Raises:
        NoPlan: they do not keep up, or not within the load that is allowed.
    """
    devices = _holding(demand)
    service = service_of(record, demand)
    target_ms = _PATIENCE * (alone_ms(service, demand) + demand.wait_ms)
    met_ms = None
    for _ in range(_MOST_TARGETS):
        search = Search(record, msgspec.structs.replace(demand, slo_ms=demand.network_ms + target_ms), tell)
        best = search.best(devices)
        if search.holds(best):
            met_ms, tighter_ms = target_ms, rounded_up(best.tail_high_ms)
            if tighter_ms >= target_ms:
                break
            target_ms = tighter_ms
        elif met_ms is not None or target_ms > _LONGEST_MS:
            break
        elif best.tail_ms == inf and target_ms > service.mean_ms(search.most):
            break  # with all the caps too many are refused, however long the others may take
        else:
            target_ms *= _PATIENCE
    if met_ms is None:
        allowed = "" if demand.most_load == 1 else f" with a load of {demand.most_load:.0%} or less"
        if demand.max_queue is not None:
            allowed += f" and answer {demand.percentile:g} % of them"
        rate = format_figure(demand.rate_per_s)
        raise NoPlan(
            f"{_counted(devices)} cannot serve {rate} requests/s{allowed}", "more --devices, or a lower --rate"
        )
    return demand.network_ms + met_ms


def delays_ms(demand: Demand) -> list[float]:
    """Return the delays that are tried, the shortest first: none, the server's own, and parts of the target."""
    own_ms = demand.server.delay_ms
    parts = [float(f"{part * demand.target_ms:.2g}") for part in _PARTS]
    if demand.server.whole_ms:
        return sorted({max(1.0, float(round(delay))) for delay in (1.0, own_ms, *parts)})
    return sorted({0.0, own_ms, *(delay for delay in parts if delay >= SHORTEST_DELAY_MS)})


def _best_delay(record: Record, demand: Demand, tell: Tell | None) -> float:
    """Return the shortest of some delays with which the fewest devices meet the target.

    Raises:
        BadRequest: the record has no rows that could tell.
        NoPlan: no number of devices does, whichever the delay.
    """
    best_ms, fewest = None, 0
    refused: NoPlan | None = None
    for delay_ms in delays_ms(demand):
        search = Search(record, msgspec.structs.replace(demand, delay_ms=delay_ms), _telling(tell, delay_ms))
        if best_ms is not None and (fewest == 1 or not search.may_meet(fewest - 1)):
            continue
        try:
            devices = search.least().outcome.devices
        except NoPlan as error:
            refused = refused or error
            continue
        if best_ms is None or devices < fewest:
            best_ms, fewest = delay_ms, devices
    if best_ms is None:
        assert refused is not None
        raise refused
    return best_ms


def _telling(tell: Tell | None, delay_ms: float) -> Tell | None:
    return None if tell is None else lambda what: tell(f"{what}, waiting {delay_ms:g} ms for more")


def _counted(devices: int) -> str:
    return f"{devices} device{'s' * (devices > 1)}"
