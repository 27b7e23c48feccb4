"""The power and the energy of a plan's devices: in words, and as cells of a CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tputfind.sizing.planner.costs import Energy
from tputfind.sizing.planner.plan import Plan
from tputfind.units import format_share

_SMALL_KWH: Final = 0.001
COLUMNS: Final = (
    "computing_share",
    "computing_w",
    "power_w_low",
    "power_w_high",
    "kwh_per_million_low",
    "kwh_per_million_high",
    "best_batch_by_energy",
    "best_batch_by_rate",
)


def told(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what a plan says of power and energy, each a label and a text; nothing where power is not known."""
    energy = plan.energy
    if energy is None:
        return
    computing = f"computing takes {_watts(energy.computing.power_w)} a device, {format_share(energy.computing.share)}"
    watts = _span(energy.low_w, energy.high_w, _watts)
    yield "Power", f"{watts} for all devices; {computing} of the time"
    kwh = _span(energy.kwh_per_million_low, energy.kwh_per_million_high, _kwh)
    yield "Energy", f"{kwh} a million samples; {_best(energy)}"


def cells(plan: Plan) -> dict[str, object]:
    """Return the same as cells, by column; empty where power is not known."""
    energy = plan.energy
    if energy is None:
        return {}
    values = (
        energy.computing.share,
        energy.computing.power_w,
        energy.low_w,
        energy.high_w,
        energy.kwh_per_million_low,
        energy.kwh_per_million_high,
        energy.best_by_energy.batch_size,
        energy.best_by_rate.batch_size,
    )
    return dict(zip(COLUMNS, values, strict=True))


def _best(energy: Energy) -> str:
    """Name the full batches that take the least energy, and the fastest."""
    saving, fast = energy.best_by_energy, energy.best_by_rate
    least = f"{_kwh(saving.kwh_per_million)} in full batches of {saving.batch_size}"
    if saving.batch_size == fast.batch_size:
        return f"{least}, the best by energy and by rate"
    return f"{least}, the best by energy; {_kwh(fast.kwh_per_million)} of {fast.batch_size}, the best by rate"


def _span(low: float, high: float, shown: Callable[[float], str]) -> str:
    """Print what lies between two bounds: ``1.2 to 1.4 kW``, ``980 W to 1.1 kW``, or the one figure that both are."""
    least, most = shown(low), shown(high)
    if least == most:
        return most
    number, _, unit = least.partition(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def _watts(power_w: float) -> str:
    """Print watts with three digits: ``612 W``, ``4.52 kW``, ``1240 kW``."""
    shown_w = float(f"{power_w:.3g}")
    return f"{_three_digits(shown_w / 1000)} kW" if shown_w >= 1000 else f"{_three_digits(shown_w)} W"


def _kwh(energy_kwh: float) -> str:
    """Print an energy with three digits: ``0.0139 kWh``, ``0.280 Wh``."""
    small = energy_kwh < _SMALL_KWH
    return f"{_three_digits(1000 * energy_kwh)} Wh" if small else f"{_three_digits(energy_kwh)} kWh"


def _three_digits(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return f"{rounded:.0f}" if rounded >= 100 else f"{rounded:#.3g}"
