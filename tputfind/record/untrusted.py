"""Reads JSON from other writers: makes its text printable, and turns decoding errors into ``BadRecord``."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from tputfind.errors import BadRecord
from tputfind.record.types import Count
from tputfind.units import printable

_SUSPECT: Final = re.compile(rb"\\[^\"\\/]|[\x7f-\xff]")
"""Escapes and bytes beyond ASCII, which may stand for unprintable characters; JSON has no others."""
_KEEP_LINES: Final = "traceback"


def printable_json(data: bytes) -> bytes:
    """Return JSON with only printable text, and line ends in tracebacks alone; the same bytes if it is so already.

    A part that is not JSON raises msgspec.DecodeError even if no field reads it; RecursionError if it nests too deep.
    """
    if not _SUSPECT.search(data):
        return data
    try:
        return msgspec.json.encode(_printable(msgspec.json.decode(data)))
    except UnicodeError as error:
        raise msgspec.DecodeError(str(error)) from None


def _printable(value: Any, *, lines: bool = False) -> Any:
    if isinstance(value, str):
        return printable(value, lines=lines)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): _printable(item, lines=name == _KEEP_LINES) for name, item in value.items()}
    return value


def wrong_json(error: Exception) -> str:
    """Return the place in the JSON at which msgspec found an error, and msgspec's message."""
    if isinstance(error, RecursionError):
        return "it nests too deep"
    if not isinstance(error, msgspec.ValidationError):
        return "it is not JSON, or cut short"
    words, _, place = f"{error}".replace("`", "").partition(" - at $")
    return f"{place.removeprefix('.')}: {words}".removeprefix(": ")


def indent_json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


class _Header(msgspec.Struct):
    schema: Count


_OF_ANOTHER_COMMAND: Final = re.compile(
    rb'\s*\{\s*"(?:kind"\s*:\s*"(methods|pipeline|forecast|race)"|(model|plans)"\s*:)'
)
_COMMANDS: Final = {b"forecast": "forecast", b"race": "tune", b"model": "compare", b"plans": "size"}
"""The command of a result, by the kind or the first field of its JSON; ``clocks`` for others."""


def command_of(data: bytes) -> str | None:
    """Return the command, such as ``clocks`` or ``forecast``, that wrote the JSON; None for the record of a run."""
    found = _OF_ANOTHER_COMMAND.match(data)
    return None if found is None else _COMMANDS.get(found[1] or found[2], "clocks")


def check_schema(data: bytes, name: str, newest: int) -> None:
    """Raise BadRecord if the schema of JSON is newer than this version reads, msgspec.DecodeError if it has none."""
    schema = msgspec.json.decode(data, type=_Header).schema
    if schema > newest:
        raise BadRecord(
            f"{name} has schema {schema}, and this version reads up to {newest}",
            "it was written by a newer tputfind: pip install --upgrade tputfind",
        )


_T = TypeVar("_T")


def decode_json(data: bytes, name: str, kind: type[_T], newest: int) -> _T:
    """Return a value from JSON; raise BadRecord, with this name, if it is malformed or of a newer schema."""
    with told_as_bad_record(name):
        data = printable_json(data)
        check_schema(data, name, newest)
        return msgspec.json.decode(data, type=kind)


@contextmanager
def told_as_bad_record(name: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"{name} is not a tputfind record: {wrong_json(error)}") from None
