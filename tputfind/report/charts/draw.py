"""Charts drawn: as SVG for a page, in its colours, or as an image. The only module that knows matplotlib."""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tputfind.analysis.answers import Best
from tputfind.errors import BadRequest
from tputfind.report.charts.chart import Axis, Chart, Series, shortened
from tputfind.report.charts.colours import LIGHT, SERIES
from tputfind.report.kinds import PLOT_MAKER

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS: Final = ("png", "svg", "pdf")
_IN_PLACE_OF: Final = {name: f"#{0xABC000 + place:06x}" for place, name in enumerate(LIGHT)}
"""Colours that no plot has otherwise: each is exchanged for the page's own, which differ in the dark."""
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tputfind",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "savefig.dpi": 200,
}
_NO_DATE: Final[dict[str, dict[str, Any]]] = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
_MAKER: Final[dict[str, dict[str, Any]]] = {
    "svg": {"Creator": PLOT_MAKER},
    "pdf": {"Creator": PLOT_MAKER},
    "png": {"Software": PLOT_MAKER},
}
"""By which a later run knows a plot that it may replace."""
_MARKERS: Final = "os^DvPX*<>"
_DASHES: Final = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_RINGS: Final[dict[Best, tuple[str, float]]] = {"fastest": ("o", 12), "knee": ("D", 13), "largest": ("s", 17)}
_MOST_TICKS: Final = 9
_MOST_MARKERS: Final = 64
"""Of more points than this, markers are small, and intervals have no ends."""
_MOST_POINTS: Final = 400
"""Of more than this, there is the line alone: a page is to stay under a megabyte."""


def check_installed(option: str) -> None:
    """Refuse an option that draws where matplotlib cannot be imported."""
    try:
        with _quiet():
            import matplotlib.figure  # noqa: F401  # to see whether it can be
    except ImportError:
        raise BadRequest(f"{option} needs matplotlib", "pip install 'tputfind[plot]'") from None


def image(chart: Chart, ending: str) -> bytes:
    """Return a chart by itself, as a file with one of ``ENDINGS``, on white."""
    return _saved(chart, LIGHT, ending, _NO_DATE[ending] | _MAKER[ending])


def inline(chart: Chart) -> str:
    """Return a chart as an ``<svg>`` element for a page that defines the colours as custom properties.

    Its ids begin with the chart's kind, so that plots on one page do not share any; what a screen reader says of it
    stands in ``<title>`` and ``<desc>``.
    """
    drawn = _saved(chart, _IN_PLACE_OF, "svg", _NO_DATE["svg"]).decode()
    drawn = re.sub(
        r"<!--.*?-->|<defs>\s*<style.*?</style>\s*</defs>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL
    )
    drawn = re.sub(r">\s+<", "><", re.sub(r' transform="rotate\(-0 [^"]*"', "", drawn)).replace("\n", "")
    drawn = re.sub(r' id="', f' id="{chart.kind}-', drawn)
    drawn = re.sub(r'xlink:href="#', f'href="#{chart.kind}-', drawn)
    drawn = re.sub(r"url\(#", f"url(#{chart.kind}-", drawn)
    for name, colour in _IN_PLACE_OF.items():
        drawn = drawn.replace(f": {colour}", f": var(--{name})")
    box = re.search(r'viewBox="[^"]*"', drawn)
    assert box is not None
    labels = f'aria-labelledby="{chart.kind}-title {chart.kind}-desc"'
    told = f'<title id="{chart.kind}-title">{_escaped(chart.title)}</title>'
    told += f'<desc id="{chart.kind}-desc">{_escaped(chart.words)}</desc>'
    return f'<svg role="img" {labels} {box[0]}>{told}{drawn[drawn.index(">") + 1 :]}'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _saved(chart: Chart, colours: dict[str, str], ending: str, metadata: dict[str, Any]) -> bytes:
    with _style():
        figure = _figure(chart, colours)
        paper = io.BytesIO()
        figure.savefig(paper, format=ending, metadata=metadata)
    return paper.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what matplotlib says of its cache and of glyphs that no font has to itself."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _style() -> Iterator[None]:
    """Draw the same everywhere, whatever the user's own settings."""
    with _quiet():
        import matplotlib as mpl

        with mpl.rc_context():
            mpl.rcdefaults()
            settings: dict[str, Any] = mpl.rcParams  # type: ignore[assignment]  # newer versions list every name
            settings.update(_STYLE)
            yield


def _figure(chart: Chart, colours: dict[str, str]) -> Figure:
    """Return the drawing, with its legend below it."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained", facecolor="none" if colours is _IN_PLACE_OF else colours["paper"])
    axes = figure.add_subplot()
    _dress(axes, chart, colours)
    handles: dict[str, Artist] = {}
    for series in chart.series:
        handle = _draw(axes, series, colours)
        if series.name:
            handles[series.name] = handle
    ring: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markeredgecolor": colours["ink"]}
    for mark in chart.marks:
        marker, size = _RINGS[mark.kind]
        drawn = axes.plot(mark.x, mark.y, marker=marker, markersize=size, zorder=4, **ring)[0]
        handles.setdefault(mark.text, drawn)
    for number, level in enumerate(chart.levels):
        line = axes.axvline if level.axis == "x" else axes.axhline
        dashes = 0, (8, 3, *(1, 3) * number)
        handles[level.text] = line(level.value, color=colours["warning"], linewidth=1.5, linestyle=dashes)
    _limit(axes, chart)
    # The only thing that is drawn is what the title says.
    _explain(figure, {} if len(handles) == 1 else handles, colours)
    return figure


def _explain(figure: Figure, handles: dict[str, Artist], colours: dict[str, str]) -> None:
    """Give the figure a legend, and the height that it needs with it."""
    columns = 2 if len(handles) > 2 and all(len(text) < 30 for text in handles) else 1
    figure.set_size_inches(6, 3.5 + 0.21 * math.ceil(len(handles) / columns))
    if handles:
        # A label that begins with _ would be left out of a legend.
        texts = [f" {shortened(text, 70)}" for text in handles]
        how: dict[str, Any] = {"ncols": columns, "handlelength": 3.5, "frameon": False, "fontsize": 9}
        legend = figure.legend(
            list(handles.values()), texts, loc="outside lower left", labelcolor=colours["ink"], **how
        )
        _shrink(legend.legend_handles)


def _shrink(handles: Sequence[Artist | None]) -> None:
    """Keep the markers of a legend out of the lines beside them."""
    from matplotlib.lines import Line2D

    for handle in handles:
        if isinstance(handle, Line2D):
            handle.set_markersize(min(handle.get_markersize(), 9))


def _dress(axes: Axes, chart: Chart, colours: dict[str, str]) -> None:
    """Give the axes their labels and colours."""
    axes.set_facecolor("none")
    axes.set_xlabel(chart.x.label, color=colours["ink"])
    axes.set_ylabel(chart.y.label, color=colours["ink"])
    axes.tick_params(colors=colours["quiet"], labelcolor=colours["ink"], labelsize=9)
    axes.grid(color=colours["grid"], linewidth=0.6)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_color(colours["quiet"])
        spine.set_visible(name in ("left", "bottom"))
    if chart.empty:
        axes.text(0.5, 0.5, "nothing was timed", color=colours["ink"], ha="center", transform=axes.transAxes)


def _draw(axes: Axes, series: Series, colours: dict[str, str]) -> Artist:
    """Draw a series and return what stands for it in the legend."""
    colour = colours[f"series-{series.number % SERIES}"]
    x, y = [point.x for point in series.points], [point.y for point in series.points]
    if series.look in ("fitted", "failed"):
        ink = colours["ink"] if series.look == "fitted" else colours["warning"]
        marker = "_" if series.look == "fitted" else "x"
        return axes.plot(x, y, linestyle="none", marker=marker, markersize=9, markeredgewidth=1.8, color=ink)[0]
    lows = [point.y if point.low is None else min(point.low, point.y) for point in series.points]
    highs = [point.y if point.high is None else max(point.high, point.y) for point in series.points]
    if series.look == "boxes":
        axes.vlines(x, lows, highs, colors=colour, linewidth=1.2)
        return _boxes(axes, series, colour)
    few, very_many = len(x) <= _MOST_MARKERS, len(x) > _MOST_POINTS
    if highs != lows:
        spans = [
            [at - low for at, low in zip(y, lows, strict=True)],
            [high - at for at, high in zip(y, highs, strict=True)],
        ]
        axes.errorbar(x, y, yerr=spans, fmt="none", ecolor=colour, capsize=3 if few else 0, linewidth=1.2)
    outline = series.look == "outline"
    return axes.plot(
        x,
        y,
        color=colour,
        linestyle=_DASHES[series.number % len(_DASHES)],
        linewidth=0.8 if outline else 1.6,
        marker="none" if very_many else _MARKERS[series.number % len(_MARKERS)],
        markersize=5 if few else 2.5,
        markerfacecolor="none" if outline else colour,
    )[0]


def _boxes(axes: Axes, series: Series, colour: str) -> Artist:
    """Draw boxes as thick lines, which are as wide on every scale, with a bar for the median."""
    boxes = [point for point in series.points if point.q1 is not None and point.q3 is not None]
    ends = [point.q1 or 0.0 for point in boxes], [point.q3 or 0.0 for point in boxes]
    axes.vlines([point.x for point in boxes], *ends, colors=colour, linewidth=9, alpha=0.55)
    x, y = [point.x for point in series.points], [point.y for point in series.points]
    return axes.plot(x, y, linestyle="none", marker="_", markersize=12, markeredgewidth=2.2, color=colour)[0]


def _limit(axes: Axes, chart: Chart) -> None:
    """Set scales, ends and ticks of both axes by everything that is drawn."""
    points = [point for series in chart.series for point in series.points]
    x = [point.x for point in points] + [level.value for level in chart.levels if level.axis == "x"]
    y = [point.y for point in points] + [level.value for level in chart.levels if level.axis == "y"]
    y += [end for point in points for end in (point.low, point.high) if end is not None]
    _scale(axes, "x", chart.x, x)
    _scale(axes, "y", chart.y, y)
    if chart.cut:
        axes.set_ylim(top=chart.top)


def _scale(axes: Axes, which: str, axis: Axis, values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    side = axes.xaxis if which == "x" else axes.yaxis
    limit = axes.set_xlim if which == "x" else axes.set_ylim
    low, high = (min(values), max(values)) if values else (1.0, 1.0)
    if axis.scale == "from_zero":
        limit(0, high * 1.08 or 1)
        side.set_major_locator(MaxNLocator(nbins=7, integer=which == "x"))
    else:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        reach = 2.0 if low == high else max(1.1, (high / low) ** 0.04)
        limit(low / reach, high * reach)
        side.set_ticks(ticks(low / reach, high * reach, 2 if axis.scale == "log2" else 10))
        side.set_minor_locator(NullLocator())
    side.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, axis)))


def ticks(low: float, high: float, base: int) -> list[float]:
    """Return at most nine places to label between two ends of a logarithmic axis.

    Powers of 2, or of 10 with what lies between them where there is room; over less than that, even steps.
    """
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    for steps in ((1, 2, 5), (1, 3), (1,)) if base == 10 else ((1,),):
        every = [step * float(base) ** power for power in range(first, last + 1) for step in steps]
        inside = [place for place in every if low <= place <= high]
        if len(inside) <= _MOST_TICKS:
            break
    if len(inside) < 3:
        step = 10 ** math.floor(math.log10(high - low))
        step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if (high - low) / (step * part) <= 6)
        return [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1) if count]
    return inside[:: math.ceil(len(inside) / _MOST_TICKS)]


def _tick(value: float, axis: Axis) -> str:
    if axis.unit == "mib":
        return f"{value / 1024:.3g} GiB" if value >= 1024 else f"{value:.3g} MiB"
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value / 1e6:g} M"
