"""Where the names of the fastest, the knee and the largest batch stand: beside their points, and off the curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tputfind.report.charts.chart import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTER: Final = 0.58
_LINE: Final = 1.3
"""How wide a letter is, and how high a line, as a share of the font's size."""
_OFF_THE_RING: Final = 9.0


class Label(NamedTuple):
    """Text, and where its left end, its foot and its right end are, in points of 1/72 inch of the axes."""

    text: str
    left: float
    foot: float
    right: float


def label_marks(axes: Axes, chart: Chart, colour: str, font: float) -> None:
    """Write the name of every marked point beside it; points that are the same row share one."""
    kinds: dict[tuple[float, float, str], list[str]] = {}
    for mark in chart.marks:
        if mark.text:
            kinds.setdefault((mark.x, mark.y, mark.text), []).append(mark.kind)
    words: dict[str, Any] = {"textcoords": "offset points", "fontsize": font, "color": colour, "va": "bottom"}
    above: list[Label] = []
    # The fastest comes last, since nothing is above it.
    for (x, y, text), of in sorted(kinds.items(), key=lambda one: "fastest" in one[1]):
        label = _label(axes, (x, y), of, text, font)
        while any(_overlap(label, other, _LINE * font) for other in above):
            label = label._replace(foot=label.foot + 2)
        above.append(label)
        # Other fonts are narrower: a label that ends at its point still does.
        middle = "fastest" in of
        across = (label.left + label.right) / 2 if middle else label.right
        words["ha"] = "center" if middle else "right"
        axes.annotate(label.text, (0, 0), xycoords="axes fraction", xytext=(across, label.foot), **words)


def _label(axes: Axes, point: tuple[float, float], kinds: list[str], text: str, font: float) -> Label:
    """Place one name by itself.

    Left of the knee the curve lies lower, and so it does on both sides of the fastest; left of the largest it lies
    higher, where that is not the fastest.
    """
    across, up = _place(axes, point)
    width, _ = _size(axes)
    under = "largest" in kinds and "fastest" not in kinds
    # Two short lines under the largest batch keep off the curve's rise.
    words = f"{', '.join(kinds)}: {text}".replace(", ", ",\n" if under else ", ")
    wide = _LETTER * font * max(map(len, words.splitlines()))
    wanted = across - wide / 2 if "fastest" in kinds else across - wide - 0.8 * _OFF_THE_RING
    left = max(0.0, min(wanted, width - wide))
    if under:
        return Label(words, left, max(2.0, up - _OFF_THE_RING - 2 * _LINE * font), left + wide)
    higher = left > wanted or "fastest" in kinds
    return Label(words, left, up + _OFF_THE_RING * (1 if higher else 0.6), left + wide)


def _place(axes: Axes, point: tuple[float, float]) -> tuple[float, float]:
    """Return where a point lies from the lower left corner of the axes, in points of 1/72 inch."""
    width, height = _size(axes)
    across, up = axes.transAxes.inverted().transform(axes.transData.transform(point))
    return across * width, up * height


def _size(axes: Axes) -> tuple[float, float]:
    """Return how wide and how high the axes are, in points of 1/72 inch."""
    inches = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    return inches.width * 72, inches.height * 72


def _overlap(one: Label, other: Label, high: float) -> bool:
    return one.left < other.right and other.left < one.right and abs(one.foot - other.foot) < high
