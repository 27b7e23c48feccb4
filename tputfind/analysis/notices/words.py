"""Names of rows in notices, and the maximum length of notices."""

from collections.abc import Sequence
from typing import Final

from tputfind.record.record import Row
from tputfind.units import format_sizes

MOST_SIGNS: Final = 150
"""Maximum length of a printed notice: two lines of a terminal of 80 columns."""
MOST_SIGNS_QUOTING: Final = 225
"""Maximum length of a notice that quotes a message: three lines of a terminal of 80 columns."""
_LISTED: Final = 3
_LEAST_QUOTED: Final = 60
"""Minimum characters of a quoted message that are kept, however long the rest of its notice is."""
_CUT: Final = " ... "


def sizes(rows: Sequence[Row]) -> tuple[int, ...]:
    return tuple(row.batch_size for row in rows)


def span(least: float, most: float, form: str = ".0%") -> str:
    """Format a range of fractions, as one figure if both ends read alike."""
    low, high = format(least, form), format(most, form)
    return low if low == high else f"{low} to {high}"


def batches(rows: Sequence[Row]) -> str:
    return few(sizes(rows))


def few(batch_sizes: Sequence[int]) -> str:
    """Name batch sizes in a sentence: up to three each, more by their number and both ends."""
    if len(batch_sizes) <= _LISTED:
        return f"batch {format_sizes(batch_sizes)}"
    return f"{len(batch_sizes)} batch sizes ({min(batch_sizes)} to {max(batch_sizes)})"


def brief(text: str, *beside: str) -> str:
    """Return a quoted message, shortened so that a notice has room for it and its other texts.

    The record has the full message. A longer message keeps its first sentences if they fill half the room; otherwise it
    is cut in the middle, because errors begin with their class, and often end with their cause.
    """
    room = max(_LEAST_QUOTED, MOST_SIGNS_QUOTING - sum(map(len, beside)) - len(": ; "))
    whole = text.rstrip(".")
    if len(whole) <= room:
        return whole
    sentences = whole[: room + len(".")].rpartition(". ")[0]
    return sentences if len(sentences) >= room / 2 else cut_in_the_middle(whole, room)


def cut_in_the_middle(text: str, most: int) -> str:
    """Return both ends of a text that is longer than ``most``, cut between words if these are short."""
    if len(text) <= most:
        return text
    kept = most - len(_CUT)
    head, tail = text[: kept // 2], text[-(kept - kept // 2) :]
    whole_words = head.rpartition(" ")[0], tail.partition(" ")[2]
    head, tail = (
        words if len(words) > len(end) / 2 else end for words, end in zip(whole_words, (head, tail), strict=True)
    )
    return f"{head}{_CUT}{tail}"
