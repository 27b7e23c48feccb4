"""What a given number of devices bears: the highest rate within a target, or the tightest target at a rate."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tputfind.errors import NoPlan
from tputfind.record.record import Record
from tputfind.sizing.demand import Demand
from tputfind.sizing.fleets import Search, Tell, rounded_up
from tputfind.sizing.service import service_of
from tputfind.units import format_figure

_STEP: Final = 1 / 128
"""Shares of what the throughput allows, in which the highest rate is looked for."""
_LEAST_SHARE: Final = 2.0**-20
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
    """Return the highest rate at which the devices meet the target, to a hundredth of it or less.

    Short simulations say where it lies; full ones go down from there until one meets the target.
    """
    devices = _holding(demand)
    search = Search(record, demand, tell)
    most_per_s = 1000 * devices * max(search.service.per_ms(cap) for cap in search.caps) * demand.most_load

    def at(share: float) -> Search:
        return Search(record, msgspec.structs.replace(demand, rate_per_s=share * most_per_s), tell)

    share = 1 - _STEP
    while not at(share).may_meet(devices):
        share /= 2
        if share < _LEAST_SHARE:
            raise NoPlan(
                f"{devices} devices meet the target at no rate: a batch with what waits for it takes too long",
                "a longer --slo",
            )
    low, high = share, min(2 * share, 1.0)
    while high - low > _STEP * low:
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle).may_meet(devices) else (low, middle)
    while not at(low).best(devices).meets(demand.target_ms):
        low *= 1 - _STEP
    return low * most_per_s


def _tightest_target(record: Record, demand: Demand, tell: Tell | None) -> float:
    """Return the tightest latency target that the devices meet at the rate, with the cap that answers first."""
    devices = _holding(demand)
    service = service_of(record, demand)
    alone_ms = float(np.quantile(service.curve_ms(1), demand.percentile / 100)) + demand.wait_ms
    target_ms = _PATIENCE * (alone_ms + demand.overhead_per_get_ms + demand.overhead_per_answer_ms)
    while target_ms < _LONGEST_MS:
        asked = msgspec.structs.replace(demand, slo_ms=demand.network_ms + target_ms)
        best = Search(record, asked, tell).best(devices)
        if best.load >= 1:
            break
        if best.meets(target_ms):
            return demand.network_ms + rounded_up(best.tail_high_ms)
        target_ms *= _PATIENCE
    raise NoPlan(
        f"{devices} devices do not keep up with {format_figure(demand.rate_per_s)} requests/s",
        "more --devices, or a lower --rate",
    )
