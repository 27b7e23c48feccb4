"""The power of a fleet at its load, the energy of a million samples, and the racks that the devices fill."""

from __future__ import annotations

from math import ceil

import msgspec

from tputfind.errors import BadRequest
from tputfind.record.types import Amount, Count
from tputfind.sizing.demand import Demand
from tputfind.sizing.power import Computing, Power
from tputfind.sizing.simulate import Outcome

_J_PER_KWH = 3.6e6
_MILLION = 1e6


class Full(msgspec.Struct, frozen=True, kw_only=True):
    """A batch size, and the energy of a million samples in full batches of it, one after the other."""

    batch_size: Count
    kwh_per_million: Amount


class Racks(msgspec.Struct, frozen=True, kw_only=True):
    """How many devices a rack holds by its power, each at the most that batches up to the cap take, and the racks."""

    rack_w: Amount
    device_w: Amount
    devices_each: Count
    racks: Count


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """What the devices take, and nothing else: no hosts, no network, no cooling.

    ``low_w`` and ``high_w`` bound the power of the fleet, and ``kwh_per_million_low`` and ``kwh_per_million_high`` the
    energy of a million samples. They are equal where the power of an idle device, ``idle_w``, is known; else it is
    between 0 and the least power of a row. ``best_by_energy`` and ``best_by_rate`` are of the record's rows.
    """

    computing: Computing
    idle_w: Amount | None
    low_w: Amount
    high_w: Amount
    kwh_per_million_low: Amount
    kwh_per_million_high: Amount
    best_by_energy: Full
    best_by_rate: Full
    racks: Racks | None = None


def energy_of(power: Power | None, outcome: Outcome, demand: Demand) -> Energy | None:
    """Return what a fleet takes; None where its rows do not tell, or the queue grows.

    Raises:
        BadRequest: a rack holds not even one device.
    """
    if power is None or outcome.computing is None or not outcome.steady:
        return None
    computing, devices = outcome.computing, outcome.devices
    bounds = (0.0, power.least_w) if demand.idle_w is None else (demand.idle_w, demand.idle_w)
    low_w, high_w = (
        devices * (computing.share * computing.power_w + (1 - computing.share) * idle_w) for idle_w in bounds
    )
    by_energy, by_rate = _best(power)
    answered_per_s = outcome.rate_per_s * (1 - outcome.refused)
    return Energy(
        computing=computing,
        idle_w=demand.idle_w,
        low_w=low_w,
        high_w=high_w,
        kwh_per_million_low=low_w / answered_per_s * _MILLION / _J_PER_KWH,
        kwh_per_million_high=high_w / answered_per_s * _MILLION / _J_PER_KWH,
        best_by_energy=by_energy,
        best_by_rate=by_rate,
        racks=_racks(power, outcome, demand.rack_w),
    )


def _best(power: Power) -> tuple[Full, Full]:
    """Return the metered batch size whose samples take the least energy, and the fastest."""
    by_energy = min(power.measured, key=lambda size: power.measured[size].energy_j / size)
    by_rate = max(power.measured, key=lambda size: size / power.measured[size].span_ms)
    return _full(power, by_energy), _full(power, by_rate)


def _full(power: Power, size: int) -> Full:
    return Full(batch_size=size, kwh_per_million=power.measured[size].energy_j / size * _MILLION / _J_PER_KWH)


def check_rack(power: Power | None, demand: Demand) -> None:
    """Raise BadRequest where a rack holds no device, however small its batches: then nothing need be simulated."""
    if power is not None and demand.rack_w is not None:
        _devices_each(demand.rack_w, power.most_w(1))


def _devices_each(rack_w: float, device_w: float) -> int:
    each = int(rack_w // device_w)
    if each == 0:
        raise BadRequest(f"--rack {rack_w:g}W holds no device: one takes up to {device_w:.4g} W", "a larger --rack")
    return each


def _racks(power: Power, outcome: Outcome, rack_w: float | None) -> Racks | None:
    """Return the racks; None where none was asked for, or batches up to the cap were not metered."""
    if rack_w is None or outcome.batch_cap > power.largest:
        return None
    device_w = power.most_w(outcome.batch_cap)
    each = _devices_each(rack_w, device_w)
    return Racks(rack_w=rack_w, device_w=device_w, devices_each=each, racks=ceil(outcome.devices / each))
