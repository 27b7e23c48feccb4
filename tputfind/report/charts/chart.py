"""The content of a plot as plain data: axes, series of numbers, and the same in words."""

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from tputfind.analysis.answers import Best
from tputfind.record import identity
from tputfind.record.record import Record
from tputfind.report import text

Scale = Literal["from_zero", "log2", "log10"]
Look = Literal["line", "outline", "boxes", "bars", "fitted", "failed"]
_LONGEST_NAME: Final = 44
_TALLEST_BAR: Final = 1.25
"""Top of the plot, as a multiple of the highest throughput; longer intervals are cut to keep the points apart."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """An axis: its label, scale and unit; ``mib`` is printed in MiB and GiB. ``reads`` formats one value on it."""

    label: str
    scale: Scale
    unit: Literal["plain", "mib"] = "plain"
    reads: str = "{}"


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A point; ``low`` and ``high`` are the ends of its interval or whisker, ``q1`` and ``q3`` of its box.

    ``text`` is its value in words. The ``x`` of a bar is its place from the top.
    """

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None
    q1: float | None = None
    q3: float | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Points that belong together; ``number`` sets colour, marker and line. Without a name it is not in the legend."""

    name: str
    number: int
    look: Look = "line"
    points: tuple[Point, ...]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A marked point of the curve; ``text`` follows its kind in the legend, and is empty for several records."""

    kind: Best
    x: float
    y: float
    text: str


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A line across the plot, at a value of one axis."""

    axis: Literal["x", "y"]
    value: float
    text: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A plot, and the same in words, which a ``note`` replaces below a plot that shows them; bars have ``names``."""

    kind: Literal["throughput", "tradeoff", "memory", "latency", "clock", "power"]
    title: str
    about: str
    words: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    levels: tuple[Level, ...] = ()
    names: tuple[str, ...] = ()
    note: str = ""

    @property
    def empty(self) -> bool:
        return not self.series

    @property
    def top(self) -> float:
        """Return the value above which intervals are cut; infinite if the plot shows them whole."""
        highest = max((point.y for series in self.series for point in series.points), default=0.0)
        return _TALLEST_BAR * highest if self.kind == "throughput" and not self.names else math.inf


def title_of(records: Sequence[Record]) -> str:
    if len(records) == 1:
        return text.title(records[0])
    models = list(dict.fromkeys(record.spec.model for record in records))
    devices = list(dict.fromkeys(record.environment.device_name for record in records))
    return f"{_few(models, 'models')} on {_few(devices, 'devices')}: {len(records)} records"


def _few(names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} {what}"


def names_of(records: Sequence[Record]) -> list[str]:
    """Return a name for each record, made of the fields that distinguish it, with a number if names are equal."""
    told = identity.distinguishing_fields(records)
    names = [", ".join(identity.NAMES[name](record) for name in told) for record in records]
    if len(records) == 1:
        names = [records[0].spec.model]
    names = [shorten_name(name) for name in names]
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names, 1)]


def shorten_name(words: str, most: int = _LONGEST_NAME) -> str:
    """Return text as one printable line, with its middle left out if it is too long."""
    line = "".join(letter if letter.isprintable() else " " for letter in words)
    half = (most - 1) // 2
    return line if len(line) <= most else f"{line[:half]}…{line[-half:]}"
