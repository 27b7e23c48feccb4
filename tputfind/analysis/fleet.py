"""Devices of one kind side by side: which are slow, and how much they slow each other. Pure functions of records."""

from __future__ import annotations

from collections.abc import Sequence


def all_busy_share(window_s: tuple[float, float], others: Sequence[tuple[float, float] | None]) -> float:
    """Return the share of a window during which all others worked; None stands for one that never did."""
    begin, end = window_s
    if None in others or end <= begin:
        return 0.0
    spans = [span for span in others if span is not None]
    low = max([begin, *(span[0] for span in spans)])
    high = min([end, *(span[1] for span in spans)])
    return max(0.0, high - low) / (end - begin)
