"""Values of options, as a command line writes them (text) or as Python code does: read, or refused by ValueError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tputfind import units

LARGEST_WHOLE: Final = 2**31 - 1
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
            problems.append(f"there is no option {name!r}")
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
        raise ValueError(f"{value!r} is no name or file")
    return value


def whole(value: object, least: int = 1, most: int = LARGEST_WHOLE) -> int:
    """Return a whole number within bounds."""
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.lstrip("-").isdigit()):
        raise ValueError(f"{value!r} is not a whole number")
    if not least <= int(text) <= most:
        raise ValueError(f"{text} is not between {least} and {most}")
    return int(text)


def count_from_zero(value: object) -> int:
    """Return a whole number, 0 or more."""
    return whole(value, least=0)


def wholes(value: object, separator: str) -> tuple[int, ...]:
    """Return whole numbers from 1 on, from text with a separator or from a sequence."""
    parts = value.split(separator) if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = (parts,)
    if not isinstance(parts, (list, tuple, range)) or not parts:
        raise ValueError(f"{value!r} is not a list of whole numbers")
    return tuple(whole(part) for part in parts)


def size(value: object) -> int:
    """Return bytes, of which there is at least one."""
    count = units.parse_bytes(value) if isinstance(value, str) else whole(value, most=2**63 - 1)
    if count < 1:
        raise ValueError(f"{value!r} is no memory at all")
    return count


def share(value: object) -> float:
    """Return a share between 0 and 1, of text such as ``5%`` or of a number."""
    percent = isinstance(value, str) and value.strip().endswith("%")
    share = number(str(value).strip()[:-1]) / 100 if percent else number(value)
    if not 0 < share < 1:
        raise ValueError(f"{value!r} is not between 0 and 100 %")
    return share


def number(value: object) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a number")  # noqa: TRY004  # one kind for all wrong values
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None
    if not abs(number) < float("inf"):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def positive_ms(value: object) -> float:
    """Return milliseconds above zero, of text such as ``50ms`` or of a number."""
    span = units.parse_ms(value) if isinstance(value, str) else number(value)
    if span <= 0:
        raise ValueError(f"{value!r} is not above zero")
    return span


def flag(value: object) -> bool:
    """Return a truth value that is one already."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither True nor False")  # noqa: TRY004  # one kind for all wrong values
    return value


def one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    """Return what reads one of several words."""

    def read(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return str(value)

    return read
