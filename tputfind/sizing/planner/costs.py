"""Prices of devices, and the power and energy of a fleet at its utilization."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from tputfind import options
from tputfind.record.record import Record
from tputfind.record.types import Above0, Amount, Count
from tputfind.sizing.engine.replications import Simulated
from tputfind.sizing.engine.service_times import pads_batches
from tputfind.units import echo

COLUMNS: Final = ("device", "price_per_hour", "currency", "source", "date")
_NEEDED: Final = COLUMNS[:3]
_HIGHEST: Final = 1e12
_MOST_PRICES: Final = 10_000
_price = options.number_within(1e-12, _HIGHEST)
_J_PER_KWH: Final = 3.6e6
_MILLION: Final = 1e6


class Batch(NamedTuple):
    """The energy of one batch, and its duration among batches of the same size."""

    energy_j: float
    span_ms: float

    @property
    def power_w(self) -> float:
        return 1000 * self.energy_j / self.span_ms


class Computing(msgspec.Struct, frozen=True, kw_only=True):
    """The fraction of time in which each device of a fleet computes, and its mean power meanwhile."""

    share: Amount
    power_w: Amount


class Power:
    """The energy and duration of a batch of any size up to the largest metered, interpolated as batch times are."""

    def __init__(self, measured: Mapping[int, Batch], *, padded: bool = False) -> None:
        """Take those of each metered size, at least one; ``padded`` batches are as the next larger of these."""
        self.measured = dict(sorted(measured.items()))
        self._padded = padded

    @property
    def least_w(self) -> float:
        """The least power of any size, an upper bound on that of an idle device."""
        return min(batch.power_w for batch in self.measured.values())

    def of(self, batch_size: int) -> Batch:
        """Return the energy and duration of a batch; those of the largest metered if it is larger."""
        if self._padded:
            return self.measured[next((size for size in self.measured if size >= batch_size), max(self.measured))]
        columns = zip(*self.measured.values(), strict=True)
        return Batch(*(float(np.interp(batch_size, list(self.measured), column)) for column in columns))

    def computing(self, sizes: Mapping[int, int], lasts_ms: float) -> Computing | None:
        """Return how busy a device is, and its power, with batches counted by size in ``lasts_ms``; None if unknown."""
        if not sizes or max(sizes) > max(self.measured):
            return None
        taken = [(often, self.of(size)) for size, often in sizes.items()]
        energy_j = sum(often * one.energy_j for often, one in taken)
        span_ms = sum(often * one.span_ms for often, one in taken)
        return Computing(share=min(1.0, span_ms / lasts_ms), power_w=1000 * energy_j / span_ms)


def power_of(record: Record) -> Power | None:
    """Return the energy of batches from the windows of a record with known power; None if there are none."""
    measured = dict[int, Batch]()
    for row in record.rows:
        windows = [(one.health.power_w, one.device_ms) for one in row.timings if one.health is not None]
        known = [(power_w, device_ms) for power_w, device_ms in windows if power_w and device_ms]
        if row.failure is None and known:
            batches = sum(len(device_ms) for _, device_ms in known)
            energy_j = sum(power_w * sum(device_ms) / 1000 for power_w, device_ms in known)
            span_ms = sum(sum(device_ms) for _, device_ms in known)
            measured[row.batch_size] = Batch(energy_j / batches, span_ms / batches)
    return Power(measured, padded=pads_batches(record)) if measured else None


class Full(msgspec.Struct, frozen=True, kw_only=True):
    """A batch size, and the energy of a million samples in full batches of it, one after the other."""

    batch_size: Count
    kwh_per_million: Amount


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """The power and energy of the devices alone: no hosts, no network, no cooling.

    ``low_w`` and ``high_w`` bound the power of the fleet, and ``kwh_per_million_low`` and ``kwh_per_million_high`` the
    energy of a million samples: the power of an idle device is between 0 and the least power of a row.
    ``best_by_energy`` and ``best_by_rate`` are of the record's rows.
    """

    computing: Computing
    low_w: Amount
    high_w: Amount
    kwh_per_million_low: Amount
    kwh_per_million_high: Amount
    best_by_energy: Full
    best_by_rate: Full


def energy_of(power: Power | None, simulated: Simulated, samples: float) -> Energy | None:
    outcome = simulated.outcome
    if power is None or outcome.is_saturated:
        return None
    computing = power.computing(sum(simulated.sizes, Counter()), simulated.lasts_ms)
    if computing is None:
        return None
    devices = outcome.devices
    low_w, high_w = (
        devices * (computing.share * computing.power_w + (1 - computing.share) * idle_w)
        for idle_w in (0.0, power.least_w)
    )
    full = {size: batch.energy_j / size * _MILLION / _J_PER_KWH for size, batch in power.measured.items()}
    by_energy = min(full, key=full.__getitem__)
    by_rate = max(full, key=lambda size: size / power.measured[size].span_ms)
    answered_per_s = outcome.rate_per_s * (1 - outcome.refused) * samples
    return Energy(
        computing=computing,
        low_w=low_w,
        high_w=high_w,
        kwh_per_million_low=low_w / answered_per_s * _MILLION / _J_PER_KWH,
        kwh_per_million_high=high_w / answered_per_s * _MILLION / _J_PER_KWH,
        best_by_energy=Full(batch_size=by_energy, kwh_per_million=full[by_energy]),
        best_by_rate=Full(batch_size=by_rate, kwh_per_million=full[by_rate]),
    )


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The price of an hour of a device, with its source and date."""

    device: Annotated[str, Meta(min_length=1)]
    price_per_hour: Above0
    currency: str
    source: str = ""
    date: str = ""

    def check(self) -> None:
        """Raise ValueError if a field is invalid: Python code can make prices too."""
        for name in ("device", "currency", "source", "date"):
            text = getattr(self, name)
            if not (isinstance(text, str) and text.isprintable()):
                raise ValueError(f"{name}: {echo(text)} cannot be shown as text")
        if not words_of(self.device).strip():
            raise ValueError(f"device: {echo(self.device)} is not a name")
        if not self.currency:
            raise ValueError("currency: it is empty")
        try:
            _price(self.price_per_hour)
        except ValueError as problem:
            raise ValueError(f"price_per_hour: {problem}") from None


def read_prices(rows: Iterable[tuple[int, Sequence[str]]]) -> list[Price]:
    """Return the prices in a table of lines with their numbers, the first a header; raise ValueError if it is wrong."""
    names: Sequence[str] = ()
    prices = dict[str, Price]()
    for line, cells in rows:
        if not names:
            names = cells
            if set(names) - set(COLUMNS) or len(set(names)) < len(names) or not set(_NEEDED) <= set(names):
                raise ValueError(
                    f"line {line}: the header is {echo(','.join(names))}; it has {', '.join(_NEEDED)} once, and may "
                    f"have {' and '.join(COLUMNS[len(_NEEDED) :])}"
                )
            continue
        if len(cells) != len(names):
            raise ValueError(f"line {line}: {len(cells)} cells, and the header has {len(names)}: {','.join(names)}")
        row: dict[str, Any] = dict(zip(names, cells, strict=True))
        with suppress(ValueError):
            row["price_per_hour"] = _price(row["price_per_hour"])
        prices[f"line {line}"] = Price(**row)
        if len(prices) > _MOST_PRICES:
            raise ValueError(f"there are more than {_MOST_PRICES} prices")
    if not prices:
        raise ValueError("it holds no price: a header and a line for each device are needed")
    check_prices(prices)
    return list(prices.values())


def check_prices(prices: Mapping[str, Price]) -> None:
    """Raise ValueError if a price is invalid or two are of the same device; the keys name them in errors."""
    places = dict[str, str]()
    for place, price in prices.items():
        try:
            price.check()
        except ValueError as problem:
            raise ValueError(f"{place}: {problem}") from None
        before = places.setdefault(words_of(price.device), place)
        if before != place:
            raise ValueError(f"{place}: {echo(price.device)} has a price already: {before}")


def price_of(record: Record, prices: Sequence[Price]) -> Price | None:
    """Return the price of a record's device, by its name or some words of it; the name with the most words counts.

    For a part of a host's cores, the price must name the part too, such as ``EPYC 9554 cpu:0-3``.
    """
    environment = record.environment
    part = set() if environment.devices_per_host else set(words_of(environment.device).split())
    words = set(words_of(environment.device_name).split()) | part
    fitting = [price for price in prices if part <= set(words_of(price.device).split()) <= words]
    return max(fitting, key=lambda price: (len(words_of(price.device).split()), len(price.device)), default=None)


def words_of(text: str) -> str:
    """Return the words of a name between blanks, so that only whole words match: L4 does not match L40."""
    return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "
