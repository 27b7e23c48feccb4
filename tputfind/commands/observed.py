"""Logs of real servers, as load generators write them."""

from __future__ import annotations

from pathlib import Path

from tputfind.commands.arrivals import Kind, rows_of, time_of
from tputfind.errors import BadRequest
from tputfind.sizing.calibration.logs import COLUMNS, log_of
from tputfind.sizing.calibration.overheads import Log
from tputfind.units import echoed

_NEEDED = COLUMNS[:2]


def read_log(path: Path) -> Log:
    """Return the log that a CSV holds: ``sent`` and ``answered``, and ``begun`` and ``ended`` if it has both.

    Times are seconds, or dates and times as ISO 8601 writes them, all of one clock.

    Raises:
        BadRequest: the file cannot be read, or holds no such times; its message names the line.
    """
    try:
        rows = rows_of(path)
        _, header = next(rows, (1, []))
        places = _places(header)
        columns: dict[str, list[float]] = {word: [] for word in places}
        lines: list[str] = []
        kind: Kind | None = None
        for line, cells in rows:
            for word, place in places.items():
                cell = cells[place] if place < len(cells) else ""
                kind, time = _time(cell, kind, f"line {line}: {word}")
                columns[word].append(time)
            lines.append(f"line {line}")
        return log_of(path.name, columns, lines)
    except ValueError as error:
        raise BadRequest(
            f"--observed {path}: {error}", "a CSV with the columns sent and answered, in seconds; begun and ended too"
        ) from None


def _time(cell: str, before: Kind | None, name: str) -> tuple[Kind, float]:
    if not cell:
        raise ValueError(f"{name} is empty: leave out requests that failed")
    try:
        return time_of(cell, before)
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from None


def _places(header: list[str]) -> dict[str, int]:
    """Return where the columns are."""
    words = [word.lower() for word in header]
    missing = [word for word in _NEEDED if word not in words]
    if missing:
        raise ValueError(f"its header lacks {' and '.join(missing)}: {echoed(','.join(header))}")
    twice = [word for word in COLUMNS if words.count(word) > 1]
    if twice:
        raise ValueError(f"two columns are named {twice[0]}")
    known = COLUMNS if set(COLUMNS) <= set(words) else _NEEDED
    return {word: words.index(word) for word in known}
