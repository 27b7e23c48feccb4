"""What a given number of devices bears: the highest rate within a target, or the tightest target at a rate."""

from __future__ import annotations

from typing import Final

import msgspec

from tputfind.errors import NoPlan
from tputfind.record.record import Record
from tputfind.sizing.demand import Demand
from tputfind.sizing.fleets import Search, Tell, alone_ms, rounded_up
from tputfind.sizing.service import service_of
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
_PATIENCE: Final = 8.0
"""Times that a request takes by itself: the first target that a fleet is asked to meet, and the factor to the next."""
_LONGEST_MS: Final = 1e9


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
    samples_per_s = 1000 * devices * max(search.service.per_ms(cap) for cap in search.caps)
    most_per_s = samples_per_s / demand.mean_samples * demand.most_load

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
        else:
            target_ms *= _PATIENCE
    if met_ms is None:
        allowed = "" if demand.most_load == 1 else f" with a load of {demand.most_load:.0%} or less"
        rate = format_figure(demand.rate_per_s)
        raise NoPlan(
            f"{_counted(devices)} cannot serve {rate} requests/s{allowed}", "more --devices, or a lower --rate"
        )
    return demand.network_ms + met_ms


def _counted(devices: int) -> str:
    return f"{devices} device{'s' * (devices > 1)}"
