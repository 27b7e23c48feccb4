"""How notices name rows."""

from __future__ import annotations

from collections.abc import Sequence

from tputfind.record.record import Row
from tputfind.units import format_sizes


def sizes(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the batch sizes of rows."""
    return tuple(row.batch_size for row in rows)


def span(least: float, most: float, form: str = ".0%") -> str:
    """Name a range of shares in a sentence, by one figure where both ends read alike."""
    low, high = format(least, form), format(most, form)
    return low if low == high else f"{low} to {high}"


def batches(rows: Sequence[Row]) -> str:
    """Name the batch sizes of rows in a sentence."""
    return f"batch {format_sizes(sizes(rows))}"
