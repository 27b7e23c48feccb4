"""Prices of devices, and the power and energy that a fleet takes at its utilization."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from tputfind import options
from tputfind.record.record import Record, Row
from tputfind.record.types import Above0, Amount, Count
from tputfind.sizing.engine.replications import Simulated
from tputfind.units import echoed

COLUMNS: Final = ("device", "price_per_hour", "currency", "source", "date")
_NEEDED: Final = COLUMNS[:3]
_HIGHEST: Final = 1e12
_MOST_PRICES: Final = 10_000
_price = options.number_within(0, _HIGHEST)
_J_PER_KWH: Final = 3.6e6
_MILLION: Final = 1e6


class Batch(NamedTuple):
    """What one batch takes of its device: energy, and time by itself among others of its size."""

    energy_j: float
    span_ms: float

    @property
    def power_w(self) -> float:
        """The mean power meanwhile."""
        return 1000 * self.energy_j / self.span_ms


class Computing(msgspec.Struct, frozen=True, kw_only=True):
    """Of each device of a fleet: the share of the time in which it computes, and its mean power meanwhile."""

    share: Amount
    power_w: Amount


class Power:
    """What a batch of any size up to the largest metered takes.

    Between two sizes energy and time lie on the line between them, as batch times do. Batches below the smallest take
    as much as that one.
    """

    def __init__(self, measured: Mapping[int, Batch]) -> None:
        """Take what a batch of each metered size takes; there is one at the least."""
        self.measured = dict(sorted(measured.items()))
        self._sizes = list(self.measured)

    @property
    def largest(self) -> int:
        """The largest batch size that was metered."""
        return self._sizes[-1]

    @property
    def least_w(self) -> float:
        """The least power of any size: an idle device takes no more."""
        return min(batch.power_w for batch in self.measured.values())

    def of(self, batch_size: int) -> Batch:
        """Return what a batch takes.

        Raises:
            ValueError: it is larger than any metered.
        """
        if batch_size > self.largest:
            raise ValueError(f"batch {batch_size} was not metered, nor any larger one")
        above = bisect_left(self._sizes, batch_size)
        upper = self.measured[self._sizes[above]]
        if above == 0 or self._sizes[above] == batch_size:
            return upper
        low, high = self._sizes[above - 1], self._sizes[above]
        share = (batch_size - low) / (high - low)
        pairs = zip(self.measured[low], upper, strict=True)
        return Batch(*(before + (after - before) * share for before, after in pairs))

    def computing(self, sizes: Mapping[int, int], lasts_ms: float) -> Computing | None:
        """Return how a device computes that serves batches, counted by size, in that time.

        None if a batch is larger than any metered, or there is none.
        """
        if not sizes or max(sizes) > self.largest:
            return None
        taken = [(often, self.of(size)) for size, often in sizes.items()]
        energy_j = sum(often * one.energy_j for often, one in taken)
        span_ms = sum(often * one.span_ms for often, one in taken)
        return Computing(share=min(1.0, span_ms / lasts_ms), power_w=1000 * energy_j / span_ms)


def power_of(record: Record) -> Power | None:
    """Return what batches take by a record; None where none of its rows holds a device's power."""
    metered = {row.batch_size: batch for row in record.rows if (batch := _metered(row)) is not None}
    return Power(metered) if metered else None


def _metered(row: Row) -> Batch | None:
    """Return what a batch of a row takes by the windows whose power is known."""
    windows = [(timing.health.power_w, timing.device_ms) for timing in row.timings if timing.health is not None]
    known = [(power_w, device_ms) for power_w, device_ms in windows if power_w and device_ms]
    if row.failure is not None or not known:
        return None
    batches = sum(len(device_ms) for _, device_ms in known)
    energy_j = sum(power_w * sum(device_ms) / 1000 for power_w, device_ms in known)
    return Batch(energy_j / batches, sum(sum(device_ms) for _, device_ms in known) / batches)


class Full(msgspec.Struct, frozen=True, kw_only=True):
    """A batch size, and the energy of a million samples in full batches of it, one after the other."""

    batch_size: Count
    kwh_per_million: Amount


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """What the devices take, and nothing else: no hosts, no network, no cooling.

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
    """Return what a fleet takes whose requests have so many samples; None if that is not known, or the queue grows."""
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
    by_energy = min(power.measured, key=lambda size: power.measured[size].energy_j / size)
    by_rate = max(power.measured, key=lambda size: size / power.measured[size].span_ms)
    answered_per_s = outcome.rate_per_s * (1 - outcome.refused) * samples
    return Energy(
        computing=computing,
        low_w=low_w,
        high_w=high_w,
        kwh_per_million_low=low_w / answered_per_s * _MILLION / _J_PER_KWH,
        kwh_per_million_high=high_w / answered_per_s * _MILLION / _J_PER_KWH,
        best_by_energy=_full(power, by_energy),
        best_by_rate=_full(power, by_rate),
    )


def _full(power: Power, size: int) -> Full:
    return Full(batch_size=size, kwh_per_million=power.measured[size].energy_j / size * _MILLION / _J_PER_KWH)


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour of a device costs, by whom and when."""

    device: Annotated[str, Meta(min_length=1)]
    price_per_hour: Above0
    currency: str
    source: str = ""
    date: str = ""


def read_prices(rows: Iterable[tuple[int, Sequence[str]]]) -> list[Price]:
    """Return the prices in a table. Each row comes with the number of its line; the first is the header.

    Raises:
        ValueError: what is wrong, and on which line.
    """
    names: Sequence[str] = ()
    prices: dict[str, Price] = {}
    for line, cells in rows:
        try:
            if not names:
                names = _header(cells)
                continue
            if len(cells) != len(names):
                raise ValueError(f"{len(cells)} cells, and the header has {len(names)}: {','.join(names)}")  # noqa: TRY301
            prices[f"line {line}"] = read_price(dict(zip(names, cells, strict=True)))
        except ValueError as problem:
            raise ValueError(f"line {line}: {problem}") from None
        if len(prices) > _MOST_PRICES:
            raise ValueError(f"there are more than {_MOST_PRICES} prices")
    if not prices:
        raise ValueError("it holds no price: a header and a line for each device are needed")
    check_apart(prices)
    return list(prices.values())


def _header(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"the header has {echoed(name)}, which is no column")
        if names.count(name) > 1:
            raise ValueError(f"the header has {name} twice")
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise ValueError(f"the header has no {', '.join(missing)}")
    return names


def read_price(cells: Mapping[str, object]) -> Price:
    """Return the price that cells hold, by the names of their columns; ValueError where one is wrong."""
    for name, cell in cells.items():
        if name != "price_per_hour" and not (isinstance(cell, str) and cell.isprintable()):
            raise ValueError(f"{name}: {echoed(cell)} is no text that can be shown")
    device, currency = str(cells["device"]), str(cells["currency"])
    if not words_of(device).strip():
        raise ValueError(f"device: {echoed(device)} is no name")
    if not currency:
        raise ValueError("currency: it is empty")
    try:
        per_hour = _price(cells["price_per_hour"])
    except ValueError:
        per_hour = 0.0
    if per_hour == 0:
        cell = echoed(cells["price_per_hour"])
        raise ValueError(f"price_per_hour: {cell} is no number above 0 and up to {_HIGHEST:g}")
    source, date = str(cells.get("source", "")), str(cells.get("date", ""))
    return Price(device=device, price_per_hour=per_hour, currency=currency, source=source, date=date)


def check_apart(prices: Mapping[str, Price]) -> None:
    """Raise ValueError where two prices, each under a name for errors, are of the same device."""
    places: dict[str, str] = {}
    for place, price in prices.items():
        before = places.setdefault(words_of(price.device), place)
        if before != place:
            raise ValueError(f"{place}: {echoed(price.device)} has a price already: {before}")


def price_of(record: Record, prices: Sequence[Price]) -> Price | None:
    """Return the price of a record's device, by its name or some words of it; the longest name counts."""
    name = words_of(record.environment.device_name)
    fitting = [price for price in prices if words_of(price.device) in name]
    return max(fitting, key=lambda price: len(price.device), default=None)


def words_of(text: str) -> str:
    """Return the words of a name between blanks, so that one is part of another only as whole words: not L4 of L40."""
    return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "
