"""Prices of devices: read from the rows of a table, checked, and found by a device's name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tputfind import options
from tputfind.record.record import Record
from tputfind.sizing.plan import Price
from tputfind.units import echoed

COLUMNS: Final = ("device", "price_per_hour", "currency", "source", "date")
_NEEDED: Final = COLUMNS[:3]
_HIGHEST: Final = 1e12
_MOST_PRICES: Final = 10_000
_price = options.number_within(0, _HIGHEST)


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
