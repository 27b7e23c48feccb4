"""Values of options, as a command line writes them (text) or as Python code does: read, or refused by ValueError."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import inf, isfinite
from numbers import Real
from operator import index
from typing import Final

from tputfind import units
from tputfind.units import echoed

LARGEST_WHOLE: Final = 2**31 - 1
LARGEST_SIZE: Final = 2**60
LONGEST_MS: Final = 100 * 3600e3
"""No duration is longer: a wait for a process may take some times as long, and the system's waits end at 24 days."""
SHORTEST_MS: Final = 1e-3
_LONGEST: Final = "100h"
_WHOLE: Final = re.compile(r"(-?)([0-9]+)")
_MOST_DIGITS: Final = 20
Reader = Callable[[object], object]


def fields_of(
    options: Mapping[str, object], readers: Mapping[str, tuple[str, Reader]]
) -> tuple[dict[str, object], list[str]]:
    """Return the fields that options stand for, and what is wrong with the others; None means: not given.

    Args:
        options: values by the option's name, with underscores.
        readers: by that name, the field and what reads it.
    """
    fields: dict[str, object] = {}
    problems: list[str] = []
    for name, value in options.items():
        if name not in readers:
            problems.append(f"there is no option {echoed(name)}")
        elif value is not None:
            field, read = readers[name]
            try:
                fields[field] = read(value)
            except (ValueError, TypeError) as error:
                problems.append(f"--{name.replace('_', '-')}: {error}")
    return fields, problems


def text(value: object) -> str:
    """Return text that can be shown as it is."""
    if not isinstance(value, str) or not value.isprintable() or not value:
        raise ValueError(f"{echoed(value)} is no name or file")
    return value


def whole(value: object, least: int = 1, most: int = LARGEST_WHOLE) -> int:
    """Return a whole number within bounds."""
    if isinstance(value, str):
        match = _WHOLE.fullmatch(value.strip())
        number = None if match is None else int(match[1] + (match[2].lstrip("0") or "0")[:_MOST_DIGITS])
        shown = value.strip() if len(value) <= _MOST_DIGITS else echoed(value)
    else:
        number, shown = _index_of(value), echoed(value)
    if number is None:
        raise ValueError(f"{echoed(value)} is not a whole number")
    if not least <= number <= most:
        raise ValueError(f"{shown} is not between {least} and {most}")
    return number


def _index_of(value: object) -> int | None:
    """Return the whole number that a value of Python is, NumPy's included; None where it is none."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]  # what has none raises TypeError
    except TypeError:
        return None


def count_from_zero(value: object) -> int:
    """Return a whole number, 0 or more."""
    return whole(value, least=0)


def wholes(value: object, separator: str, most: int = 1000) -> tuple[int, ...]:
    """Return whole numbers from 1 on, at most ``most`` of them, from text with a separator or from a sequence."""
    parts = value.split(separator) if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = (parts,)
    if not isinstance(parts, (list, tuple, range)) or not parts:
        raise ValueError(f"{echoed(value)} is not a list of whole numbers")
    if len(parts) > most:
        raise ValueError(f"{len(parts)} numbers are more than {most}")
    return tuple(whole(part) for part in parts)


def size(value: object) -> int:
    """Return bytes, from 1 to 1 EiB."""
    count = units.parse_bytes(value) if isinstance(value, str) else whole(value, most=LARGEST_SIZE)
    if count < 1:
        raise ValueError(f"{echoed(value)} is not a size of memory")
    if count > LARGEST_SIZE:
        raise ValueError(f"{echoed(value)} is more than 1 EiB")
    return count


def share(value: object) -> float:
    """Return a share between 0 and 1, of text such as ``5%`` or of a number."""
    percent = isinstance(value, str) and value.strip().endswith("%")
    share = number(str(value).strip()[:-1]) / 100 if percent else number(value)
    if not 0 < share < 1:
        raise ValueError(f"{echoed(value)} is not between 0 and 100 %")
    return share


def number(value: object) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, (Real, str)):
        raise ValueError(f"{echoed(value)} is not a number")  # noqa: TRY004  # one kind for all wrong values
    try:
        number = float(value)
    except (ValueError, TypeError):
        raise ValueError(f"{echoed(value)} is not a number") from None
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise ValueError(f"{echoed(value)} is not a finite number")
    return number


def number_within(least: float, most: float) -> Callable[[object], float]:
    """Return what reads a number within bounds, which are among those allowed."""

    def read(value: object) -> float:
        read = number(value)
        if not least <= read <= most:
            raise ValueError(f"{echoed(value)} is not from {least:g} to {most:g}")
        return read

    return read


def seconds(value: object) -> float:
    """Return seconds, which may be 0, up to the longest duration."""
    number_s = number(value)
    if number_s < 0:
        raise ValueError(f"{echoed(value)} is below zero")
    if number_s > LONGEST_MS / 1000:
        raise ValueError(f"{echoed(value)} is more than {LONGEST_MS / 1000:.0f} seconds, which are {_LONGEST}")
    return number_s


def positive_seconds(value: object) -> float:
    """Return seconds above zero, 1 us or more."""
    number_s = seconds(value)
    _check_positive(value, number_s * 1000)
    return number_s


def ms(value: object) -> float:
    """Return milliseconds, of text such as ``50ms`` or ``0`` or of a number, up to the longest duration."""
    span = units.parse_ms(value) if isinstance(value, str) and value.strip() != "0" else number(value)
    if span < 0:
        raise ValueError(f"{echoed(value)} is below zero")
    if span > LONGEST_MS:
        raise ValueError(f"{echoed(value)} is more than {_LONGEST}")
    return span


def positive_ms(value: object) -> float:
    """Return milliseconds above zero, 1 us or more, of text such as ``50ms`` or of a number."""
    if isinstance(value, str):
        units.parse_ms(value)  # a 0 without a unit is no duration here
    elif number(value) <= 0:
        raise ValueError(f"{echoed(value)} is not above zero")
    span = ms(value)
    _check_positive(value, span)
    return span


def _check_positive(value: object, span_ms: float) -> None:
    if span_ms <= 0:
        raise ValueError(f"{echoed(value)} is not above zero")
    if span_ms < SHORTEST_MS:
        raise ValueError(f"{echoed(value)} is less than 1us")


def flag(value: object) -> bool:
    """Return a truth value that is one already."""
    if not isinstance(value, bool):
        raise ValueError(f"{echoed(value)} is neither True nor False")  # noqa: TRY004  # one kind for all wrong values
    return value


def one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    """Return what reads one of several words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{echoed(value)} is none of {', '.join(choices)}")
        return value

    return read
