"""How notices name rows, and how long they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tputfind.record.record import Row
from tputfind.units import format_sizes

MOST_SIGNS: Final = 150
"""Of a notice that is printed: two lines of a terminal of 80 columns."""
_MOST_WITH_BRIEF: Final = 138
"""What somebody else wrote has long words, between which lines are broken early."""
_LISTED: Final = 3
_MOST_WITH_LONG_WORDS: Final = 128
_LONGEST_WORD: Final = 28
"""That leaves room for the rest of a notice on the line on which it stands."""
_LEAST_SIGNS: Final = 20


def sizes(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the batch sizes of rows."""
    return tuple(row.batch_size for row in rows)


def span(least: float, most: float, form: str = ".0%") -> str:
    """Name a range of shares in a sentence, by one figure where both ends read alike."""
    low, high = format(least, form), format(most, form)
    return low if low == high else f"{low} to {high}"


def batches(rows: Sequence[Row]) -> str:
    """Name the batch sizes of rows in a sentence."""
    return few(sizes(rows))


def few(batch_sizes: Sequence[int]) -> str:
    """Name batch sizes in a sentence: up to three each, more by their number and both ends."""
    if len(batch_sizes) <= _LISTED:
        return f"batch {format_sizes(batch_sizes)}"
    return f"{len(batch_sizes)} batch sizes ({min(batch_sizes)} to {max(batch_sizes)})"


def brief(text: str, *beside: str) -> str:
    """Return the first sentence of what somebody else wrote, cut where a notice with what is beside it would be long.

    The whole is in the record.
    """
    sentence = text.partition(". ")[0].rstrip(".")
    whole = _MOST_WITH_BRIEF if max(map(len, sentence.split()), default=0) <= _LONGEST_WORD else _MOST_WITH_LONG_WORDS
    room = max(_LEAST_SIGNS, whole - sum(map(len, beside)) - len(": ; "))
    if whole == _MOST_WITH_LONG_WORDS:
        room = min(room, _LONGEST_WORD)
    return sentence if len(sentence) <= room else f"{sentence[: room - 3].rstrip()}..."
