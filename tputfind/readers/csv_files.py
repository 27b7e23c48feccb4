"""Read CSV files from users, plain or compressed by gzip: recorded requests, server logs, prices."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tputfind import options as values
from tputfind import units
from tputfind.errors import BadRequest
from tputfind.sizing import calibration
from tputfind.sizing.calibration import Log
from tputfind.sizing.planner import costs
from tputfind.sizing.planner.costs import Price
from tputfind.sizing.traffic import gaps_of

_MOST_BYTES: Final = 2**27
_GZIP: Final = b"\x1f\x8b"
_NO_SECONDS: Final = 1e11
"""As seconds since 1970 this is the year 5138; any time since 1973 is more in milliseconds."""
_MILLISECONDS: Final = re.compile("[0-9]{3}(?![0-9])")
"""The rest of a time with a decimal comma, which separates the cells of a CSV file."""
_ZONE: Final = re.compile("[0-9]+(Z|[+-][0-9]{2})")
_HOURS: Final = re.compile("[0-9]{1,2}:[0-9]{2}")
_OTHER_UNIT: Final = re.compile(
    "(?<![a-z])(ms|msecs?|millis[a-z]*|[uµμ]s|usecs?|micros[a-z]*|ns|nanos[a-z]*|"  # two letters that look alike
    "(?<!of_)(?<!in_)(?:mins?|minutes?|h|hrs?|hours?|days?)$)(?![a-z])"
)
Kind = Literal["number", "date"]


def rows_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-empty rows of a CSV file with their line numbers; raise ValueError if the file cannot be read."""
    data = _read(path)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line}: the byte 0x{data[error.start]:02x} is not UTF-8 text") from None
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline=""))
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num + 1}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if data.startswith(_GZIP) and len(data) <= _MOST_BYTES:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = packed.read(_MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise ValueError("is cut short or broken: gzip cannot unpack it") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise ValueError(f"is larger than {units.format_bytes(_MOST_BYTES)}")
    return data


class Recorded(NamedTuple):
    """The recorded interarrival times in seconds and the samples of each request; None if not recorded."""

    gaps: tuple[float, ...] | None
    samples: tuple[int, ...] | None


def arrivals_of(path: Path) -> Recorded:
    """Return the requests whose times are in the first column of a file, with or without a header.

    Times are seconds, or dates and times in ISO 8601; without a time zone they are UTC. Lines may be in any order. A
    column with the header ``samples`` holds the samples of each request. BadRequest names the line that is wrong.
    """
    times: list[float] = []
    names: list[str] = []
    samples: list[int] = []
    rests: list[str] = []
    has_header = False
    kind: Kind | None = None
    place: int | None = None
    unit: re.Match[str] | None = None
    try:
        for row, (line, cells) in enumerate(rows_of(path)):
            try:
                kind, time = _time_of(cells[0], kind)
                if place is not None:
                    samples.append(_samples(cells, place))
            except ValueError as problem:
                if row == 0 and not _is_number(cells[0]):
                    if not cells[0]:
                        raise ValueError("its first column has no name, as an index: put the times first") from None
                    header = [cell.lower() for cell in cells]
                    place = header.index("samples") if "samples" in header[1:] else None
                    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", cells[0])  # of a name such as sentMs
                    has_header, unit = True, _OTHER_UNIT.search(words.lower())
                    continue
                raise ValueError(f"line {line}: {problem}") from None
            times.append(time)
            names.append(f"line {line}")
            if kind == "date" and len(cells) > 1:
                rests.append(cells[1])
        times = _add_fractions(times, rests, has_samples=place is not None)
        if has_header and kind == "number":
            _check_column(times, unit)
        order = sorted(range(len(times)), key=times.__getitem__)  # logs are written when requests end
        times, names = [times[at] for at in order], [names[at] for at in order]
        return Recorded(gaps_of(times, names), None if place is None else tuple(samples[at] for at in order))
    except ValueError as error:
        raise BadRequest(
            f"--arrivals {path}: {error}", "its first column holds the times of requests: seconds, or ISO 8601"
        ) from None


def _add_fractions(times: list[float], rests: list[str], *, has_samples: bool) -> list[float]:
    """Return times with the milliseconds that a decimal comma has put into the second cells, if it has in all lines.

    Fractions of a second begin with 0 in a tenth of the lines; other numbers with three digits never do.
    """
    found = [rest[0] for cell in rests if (rest := _MILLISECONDS.match(cell))]
    are_fractions = len(found) == len(times) and any(rest.startswith("0") for rest in found)
    if rests and all(map(_HOURS.match, rests)):
        raise ValueError("its dates and times are in two columns: put them in one")
    if any(map(_ZONE.match, rests)) or (are_fractions and has_samples):
        raise ValueError("its times have a decimal comma: put them in quotes")
    return [time + int(rest) / 1000 for time, rest in zip(times, found, strict=True)] if are_fractions else times


def _check_column(times: list[float], unit: re.Match[str] | None) -> None:
    """Check the numbers under a header; ``unit`` is the match of a unit other than the second in it."""
    if unit:
        raise ValueError(f"its first column is in {unit[1]}: convert it to seconds")
    rising = sorted(times)
    if len(times) > 2 and rising == [rising[0] // 1 + number for number in range(len(times))]:
        raise ValueError("its first column counts the lines: put the times first")


def _samples(cells: list[str], place: int) -> int:
    try:
        return values.whole(cells[place] if place < len(cells) else "")
    except ValueError as problem:
        raise ValueError(f"samples: {problem}") from None


def log_of(path: Path) -> Log:
    """Return the log in a CSV file: ``sent`` and ``answered``, and ``begun`` and ``ended`` if it has both.

    Times are seconds, or dates and times in ISO 8601, all of one clock. BadRequest names the line that is wrong.
    """
    try:
        rows = rows_of(path)
        _, header = next(rows, (1, []))
        places = _columns_of(header)
        columns: dict[str, list[float]] = {word: [] for word in places}
        lines: list[str] = []
        kind: Kind | None = None
        for line, cells in rows:
            for word, place in places.items():
                cell = cells[place] if place < len(cells) else ""
                if not cell:
                    raise ValueError(f"line {line}: {word} is empty: leave out requests that failed")  # noqa: TRY301  # it gets the name of the file
                try:
                    kind, time = _time_of(cell, kind)
                except ValueError as problem:
                    raise ValueError(f"line {line}: {word}: {problem}") from None
                columns[word].append(time)
            lines.append(f"line {line}")
        return calibration.log_of(path.name, columns, lines)
    except ValueError as error:
        raise BadRequest(
            f"--observed {path}: {error}", "a CSV with the columns sent and answered, in seconds; begun and ended too"
        ) from None


def _columns_of(header: list[str]) -> dict[str, int]:
    words = [word.lower() for word in header]
    missing = [word for word in calibration.COLUMNS[:2] if word not in words]
    if missing:
        raise ValueError(f"its header lacks {' and '.join(missing)}: {units.echo(','.join(header))}")
    twice = [word for word in calibration.COLUMNS if words.count(word) > 1]
    if twice:
        raise ValueError(f"two columns are named {twice[0]}")
    known = calibration.COLUMNS if set(calibration.COLUMNS) <= set(words) else calibration.COLUMNS[:2]
    return {word: words.index(word) for word in known}


def prices_of(path: Path) -> list[Price]:
    """Return the prices in a CSV file; raise BadRequest, which names the line, if there are none."""
    try:
        return costs.read_prices(rows_of(path))
    except ValueError as error:
        raise BadRequest(
            f"--price {path}: {error}", f"its columns, apart by commas, are {','.join(costs.COLUMNS)}"
        ) from None


def _time_of(cell: str, before: Kind | None) -> tuple[Kind, float]:
    """Return the kind of time in a cell and the time: a number as it stands, or a date in seconds."""
    kind: Kind = "number"
    try:
        time = values.number(cell)
    except ValueError:
        date = _date(cell)
        if date is None:
            raise
        kind, time = "date", date.timestamp()
    if kind == "number" and time >= _NO_SECONDS:
        raise ValueError(f"{units.echo(cell)} is too large for seconds: divide milliseconds by 1000")
    if before not in (None, kind):
        raise ValueError(f"{units.echo(cell)} is a {kind}, and those before it are {before}s")
    return kind, time


def _date(cell: str) -> datetime | None:
    try:
        date = datetime.fromisoformat(cell)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _is_number(cell: str) -> bool:
    """Whether float reads the cell; that includes ``nan`` and ``inf``, which are not column names."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
