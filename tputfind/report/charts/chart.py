"""What a plot draws, as plain data: axes, series of numbers, and the same in words."""

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
"""An interval that reaches over the highest throughput by more than this is cut: the points must stay apart."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """What one axis shows, in which unit; ``mib`` is printed in MiB and GiB. ``reads`` names one value on it."""

    label: str
    scale: Scale
    unit: Literal["plain", "mib"] = "plain"
    reads: str = "{}"


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A point; ``low`` and ``high`` are the ends of its interval or whisker, ``q1`` and ``q3`` of its box.

    ``text`` is its value in words. Of a bar, ``x`` is its place from the top.
    """

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None
    q1: float | None = None
    q3: float | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Points that belong together. ``number`` is the record's, which decides colour, marker and line.

    A series without a name is not in the legend: its look is told by the axis.
    """

    name: str
    number: int
    look: Look = "line"
    points: tuple[Point, ...]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A point that a reader looks for; ``text`` follows its kind in the legend, and is empty for several records."""

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
    """One plot: what its axes are, what is drawn, and the same in words.

    Bars have ``names``. Where the plot itself shows what the words say, a ``note`` stands below it instead.
    """

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
        """Whether there is nothing to draw."""
        return not self.series

    @property
    def top(self) -> float:
        """The value above which nothing is drawn; infinite where everything is."""
        highest = max((point.y for series in self.series for point in series.points), default=0.0)
        return _TALLEST_BAR * highest if self.kind == "throughput" and not self.names else math.inf


def title_of(records: Sequence[Record]) -> str:
    """Return what a page or a plot of records is about."""
    if len(records) == 1:
        return text.title(records[0])
    models = list(dict.fromkeys(record.spec.model for record in records))
    devices = list(dict.fromkeys(record.environment.device_name for record in records))
    return f"{_few(models, 'models')} on {_few(devices, 'devices')}: {len(records)} records"


def _few(names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} {what}"


def names_of(records: Sequence[Record]) -> list[str]:
    """Name each record by what sets it apart: its model, recipe or device, else its time, else a number."""
    told = identity.distinguishing_fields(records)
    names = [", ".join(identity.NAMES[name](record) for name in told) for record in records]
    if len(records) == 1:
        names = [records[0].spec.model]
    return _distinct([shortened(name) for name in names])


def _distinct(names: Sequence[str]) -> list[str]:
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names, 1)]


def shortened(words: str, most: int = _LONGEST_NAME) -> str:
    """Return text on one line that can be shown, with its middle left out where it is too long."""
    line = "".join(letter if letter.isprintable() else " " for letter in words)
    half = (most - 1) // 2
    return line if len(line) <= most else f"{line[:half]}…{line[-half:]}"
