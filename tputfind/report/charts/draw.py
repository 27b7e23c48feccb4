"""Draw charts by matplotlib: as SVG in a page's colours, or as a self-explanatory image."""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tputfind.analysis.answers import Best
from tputfind.errors import BadRequest
from tputfind.report.charts.chart import Axis, Chart, Point, Series, shorten_name
from tputfind.units import format_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = {
    "paper": ("#ffffff", "#12161b"),
    "ink": ("#1b1f24", "#e8ecf0"),
    "quiet": ("#59636e", "#a3adb8"),
    "grid": ("#d8dee4", "#343c45"),
    "shade": ("#f4f6f8", "#1b2128"),
    "warning": ("#8a4b00", "#ffb454"),
    "series-0": ("#0b5cad", "#6db3f2"),
    "series-1": ("#b84300", "#ff9d5c"),
    "series-2": ("#00734f", "#4fd1a5"),
    "series-3": ("#8d3a94", "#dc9fe3"),
    "series-4": ("#7a5c00", "#dfbd4b"),
    "series-5": ("#17708f", "#7fd6ee"),
    "series-6": ("#b3173f", "#ff8fa3"),
    "series-7": ("#555e66", "#b8c0c8"),
}
LIGHT: Final = {name: light for name, (light, _) in _COLOURS.items()}
DARK: Final = {name: dark for name, (_, dark) in _COLOURS.items()}
_SERIES: Final = sum(name.startswith("series-") for name in LIGHT)
"""Number of colours; further records repeat them and differ by marker."""
ENDINGS: Final = ("svg", "png")
_IN_PLACE_OF: Final = {name: f"#{0xABC000 + place:06x}" for place, name in enumerate(LIGHT)}
"""Placeholder colours, which no plot has otherwise; each is replaced by the page's own, which depend on the scheme."""
_LONGEST_TITLE: Final = 200
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tputfind",
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.sans-serif": ["DejaVu Sans"],
    "savefig.dpi": 200,
}
PLOT_MAKER: Final = "tputfind"
"""The program name in a plot's metadata, by which a later run recognizes a file that it may replace."""
_METADATA: Final[dict[str, dict[str, Any]]] = {
    "svg": {"Date": None, "Creator": PLOT_MAKER, "Format": None, "Type": None},
    "png": {"Software": PLOT_MAKER},
}
_PLAIN_INCHES: Final = (4.6, 2.9)
"""Width and height; as wide as a phone at one pixel a point, so that letters keep their size there."""
_TITLED_INCHES: Final = (7.5, 4.2)
_FONT: Final = 9.5
_MARKERS: Final = "os^DvPX*<>"
_DASHES: Final = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_RINGS: Final[dict[Best, tuple[str, float]]] = {"fastest": ("o", 11), "knee": ("D", 11), "largest": ("s", 14)}
_MOST_TICKS: Final = 9
_MOST_MARKERS: Final = 64
_MOST_POINTS: Final = 200
"""Above this number of points, only the line is drawn; keeps a page under 1 MB."""
_EDGE_INCHES: Final = 0.14
_TITLE_INCHES: Final = 0.55
_BAR_INCHES: Final = 0.4
_NEAR_THE_TOP: Final = 0.94
"""Fraction of the axes' height above which there is no room for a line's name above it."""


class Inline(NamedTuple):
    """A chart for a page: its ``<svg>`` element, and the data for the page's script.

    ``box`` is the position of the axes: left, top, width and height, in percent of the figure. ``stops`` are the text
    of each stop and the positions of its points, in the drawing's own unit.
    """

    svg: str
    box: list[float]
    stops: list[tuple[str, list[list[float]]]]


def require_matplotlib(what: str) -> None:
    """Raise BadRequest, which names the request, if matplotlib cannot be imported."""
    try:
        with _quiet():
            import matplotlib.figure  # noqa: F401  # checks that it can be imported
    except ImportError:
        raise BadRequest(f"{what} needs matplotlib", "pip install 'tputfind[plot]'") from None


def figure(chart: Chart) -> Figure:
    with _style():
        return figure_with_title(chart, LIGHT)


def image(chart: Chart, ending: str) -> bytes:
    """Return a chart as a file with one of ``ENDINGS``; the colours of an SVG follow the reader's scheme."""
    with _style():
        made = _encode(figure_with_title(chart, LIGHT), ending, _METADATA[ending])
    return _add_dark_colours(made, chart) if ending == "svg" else made


def _add_dark_colours(svg: bytes, chart: Chart) -> bytes:
    """Return an SVG file with dark colours for readers who prefer them, and with text for screen readers."""
    rules = [
        f'[style*="{part}: {LIGHT[name]}"]{{{part}:{DARK[name]}!important}}'
        for name in LIGHT
        for part in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    told = f"<title>{escape(shorten_name(chart.about, _LONGEST_TITLE))}</title><desc>{escape(chart.words)}</desc>"
    text = svg.decode().replace("</metadata>", f"</metadata>{told}{style}", 1)
    return text.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'").encode()


def inline(chart: Chart) -> Inline:
    """Return a chart for a page that defines the colours; its ids begin with its kind, as plots must share none."""
    with _style():
        figure = plain(chart, _IN_PLACE_OF)
        drawn = _encode(figure, "svg", _METADATA["svg"] | {"Creator": None}).decode()
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
    told = f'<title id="{chart.kind}-title">{escape(chart.title)}</title>'
    told += f'<desc id="{chart.kind}-desc">{escape(chart.words)}</desc>'
    svg = f'<svg role="img" {labels} {box[0]}>{told}{drawn[drawn.index(">") + 1 :]}'
    places = [(stop.text, [place(chart, figure, point) for point in stop.points]) for stop in stops(chart)]
    return Inline(svg, axes_box(figure), places)


def _encode(figure: Figure, ending: str, metadata: dict[str, Any]) -> bytes:
    paper = io.BytesIO()
    figure.savefig(paper, format=ending, metadata=metadata)
    return paper.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress matplotlib's messages about its cache and about missing glyphs."""
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
    """Reset matplotlib's settings to ours, so that plots are the same everywhere."""
    with _quiet():
        import matplotlib as mpl

        with mpl.rc_context():
            mpl.rcdefaults()
            settings: dict[str, Any] = mpl.rcParams  # type: ignore[assignment]  # newer versions list every name
            settings.update(_STYLE)
            yield


class Stop(NamedTuple):
    """A place on the plot's axis: its text, with a line for each record, and its points."""

    text: str
    points: tuple[Point, ...]


def stops(chart: Chart) -> list[Stop]:
    """Return every place of a plot, from left to right; bars from the top."""
    named = {series.number: series.name for series in chart.series if series.name}
    several = len(named) > 1
    there: dict[float, list[tuple[Series, Point]]] = {}
    for series in chart.series:
        for point in series.points:
            there.setdefault(point.x, []).append((series, point))
    return [
        Stop(
            "\n".join([_heading(chart, x), *_lines(there[x], named if several else {})]),
            tuple(point for _, point in there[x]),
        )
        for x in sorted(there)
    ]


def _heading(chart: Chart, x: float) -> str:
    if chart.names:
        return chart.names[int(x)]
    return chart.x.reads.format(int(x) if x == int(x) else format_figure(x))


def _lines(there: list[tuple[Series, Point]], named: dict[int, str]) -> Iterator[str]:
    of_record: dict[int, list[str]] = {}
    for series, point in there:
        of_record.setdefault(series.number, []).append(point.text)
    for number, texts in of_record.items():
        name = named.get(number)
        yield f"{name}: {', '.join(texts)}" if name else ", ".join(texts)


def plain(chart: Chart, colours: dict[str, str]) -> Figure:
    """Return the drawing for a page, which adds its own heading and background."""
    figure, axes = _figure(chart, colours, _PLAIN_INCHES)
    figure.set_facecolor("none")
    axes.set_title(chart.y.label, loc="left", fontsize=_FONT, color=colours["quiet"])
    return figure


def figure_with_title(chart: Chart, colours: dict[str, str]) -> Figure:
    """Return the drawing for an image, with the measured work as its title."""
    figure, _ = _figure(chart, colours, _TITLED_INCHES)
    figure.set_facecolor(colours["paper"])
    banded = any(point.low is not None for series in chart.series for point in series.points)
    interval = ", with 95 % confidence intervals" if banded else ""
    what = f"{chart.title}{interval}" if chart.names else f"{chart.y.label} against {chart.x.label}{interval}"
    width, height = figure.get_size_inches()
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, 0, 1, 1 - _TITLE_INCHES / height), w_pad=_EDGE_INCHES, h_pad=_EDGE_INCHES)
    title: dict[str, Any] = {"fontsize": 11.5, "fontweight": "bold", "color": colours["ink"]}
    under: dict[str, Any] = {"fontsize": _FONT + 0.5, "color": colours["quiet"]}
    for text, inches, look in ((shorten_name(chart.about, 76), 0.0, title), (what, 0.25, under)):
        top = 1 - (_EDGE_INCHES + inches) / height
        figure.text(_EDGE_INCHES / width, top, text, va="top", **look).set_in_layout(False)
    return figure


def axes_box(figure: Figure) -> list[float]:
    """Return the position of the axes in a drawn figure: left, top, width and height, in percent of it."""
    box = figure.axes[0].get_position()
    return [round(100 * share, 2) for share in (box.x0, 1 - box.y1, box.width, box.height)]


def place(chart: Chart, figure: Figure, point: Point) -> list[float]:
    """Return the position of a point in a drawn figure, from its left and its top, in points of 1/72 inch."""
    at = (point.y, point.x) if chart.names else (point.x, point.y)
    across, up = figure.transFigure.inverted().transform(figure.axes[0].transData.transform(at))
    width, height = figure.get_size_inches() * 72
    return [round(float(across * width), 1), round(float((1 - up) * height), 1)]


def _figure(chart: Chart, colours: dict[str, str], inches: tuple[float, float]) -> tuple[Figure, Axes]:
    """Return the drawing, with a legend below it if there is more than one thing to distinguish."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained", figsize=inches)
    axes = figure.add_subplot()
    _dress(axes, chart, colours)
    if chart.names:
        _bars(axes, chart, colours)
        figure.set_size_inches(inches[0], 0.75 + _BAR_INCHES * len(chart.names) + (inches[0] > _PLAIN_INCHES[0]) * 0.4)
        return figure, axes
    handles: dict[str, Artist] = {}
    for series in chart.series:
        handle = _draw(axes, series, colours)
        if series.name:
            handles[series.name] = handle
    if len(handles) == 1 and all(mark.text for mark in chart.marks):
        handles.clear()  # the title describes the only curve
    ring: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markeredgecolor": colours["ink"]}
    for mark in chart.marks:
        marker, size = _RINGS[mark.kind]
        drawn = axes.plot(mark.x, mark.y, marker=marker, markersize=size, zorder=4, **ring)[0]
        kinds = ", ".join(each.kind for each in chart.marks if (each.x, each.y) == (mark.x, mark.y))
        handles.setdefault(f"{kinds}: {mark.text}" if mark.text else mark.kind, drawn)
    _limit(axes, chart)
    for level in chart.levels:
        _level(axes, level.axis, level.value, level.text, colours)
    _explain(figure, handles, colours, inches)
    return figure, axes


def _level(axes: Axes, which: str, value: float, text: str, colours: dict[str, str]) -> None:
    """Draw a line across the plot, with its name at its left or upper end."""
    look: dict[str, Any] = {"color": colours["warning"], "linewidth": 1.3, "linestyle": (0, (6, 3))}
    words: dict[str, Any] = {"color": colours["warning"], "fontsize": _FONT - 0.5, "textcoords": "offset points"}
    if which == "x":
        axes.axvline(value, **look)
        right = _share(axes, (value, 1.0))[0] > 0.5
        where: dict[str, Any] = {"xytext": (-4 if right else 4, -2), "ha": "right" if right else "left", "va": "top"}
        axes.annotate(text, (value, 1), xycoords=("data", "axes fraction"), **where, **words)
    else:
        axes.axhline(value, **look)
        below = _share(axes, (1.0, value))[1] > _NEAR_THE_TOP
        where = {"xytext": (4, -3 if below else 3), "va": "top" if below else "bottom"}
        axes.annotate(text, (0, value), xycoords=("axes fraction", "data"), **where, **words)


def _share(axes: Axes, point: tuple[float, float]) -> tuple[float, float]:
    across, up = axes.transAxes.inverted().transform(axes.transData.transform(point))
    return float(across), float(up)


def _explain(figure: Figure, handles: dict[str, Artist], colours: dict[str, str], inches: tuple[float, float]) -> None:
    from matplotlib.lines import Line2D

    longest = max(map(len, handles), default=0)
    columns = 1 if len(handles) < 3 or longest >= 30 else 2 if longest > 18 else 3
    figure.set_size_inches(inches[0], inches[1] + 0.19 * math.ceil(len(handles) / columns))
    if handles:
        # Legends leave out labels that begin with _.
        texts = [f" {shorten_name(text, 58)}" for text in handles]
        how: dict[str, Any] = {"ncols": columns, "handlelength": 2.5, "frameon": False, "fontsize": _FONT - 0.5}
        legend = figure.legend(
            list(handles.values()), texts, loc="outside lower left", labelcolor=colours["ink"], **how
        )
        for handle in legend.legend_handles:
            if isinstance(handle, Line2D):
                handle.set_markersize(min(handle.get_markersize(), 8))  # larger markers would overlap


def _dress(axes: Axes, chart: Chart, colours: dict[str, str]) -> None:
    axes.set_facecolor("none")
    axes.set_xlabel(chart.x.label, color=colours["quiet"], fontsize=_FONT)
    axes.tick_params(colors=colours["quiet"], labelcolor=colours["quiet"], labelsize=_FONT - 0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=colours["grid"], linewidth=0.7)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_color(colours["quiet"])
        spine.set_linewidth(0.8)
        spine.set_visible(name == "bottom")
    if chart.empty:
        axes.text(0.5, 0.5, "nothing was timed", color=colours["ink"], ha="center", transform=axes.transAxes)


def _bars(axes: Axes, chart: Chart, colours: dict[str, str]) -> None:
    points = chart.series[0].points
    most = max([*(point.y for point in points), *(point.high or 0.0 for point in points)]) or 1.0
    axes.barh(range(len(points)), [point.y for point in points], height=0.3, color=colours["series-0"])
    spans = [(point.x, point.low, point.high) for point in points if point.low is not None and point.high is not None]
    where: dict[str, Any] = {"textcoords": "offset points", "fontsize": _FONT, "color": colours["ink"]}
    if spans:
        places, lows, highs = zip(*spans, strict=True)
        axes.hlines(places, lows, highs, colors=colours["ink"], linewidth=1.2)
        for ends in (lows, highs):
            axes.plot(ends, places, linestyle="none", marker="|", markersize=7, color=colours["ink"])
    for point, name in zip(points, chart.names, strict=True):
        axes.annotate(shorten_name(name, 36), (0, point.x - 0.24), xytext=(0, 0), va="bottom", **where)
        axes.annotate(point.text, (most, point.x - 0.24), xytext=(0, 0), va="bottom", ha="right", **where)
    axes.set_ylim(len(points) - 0.6, -0.9)
    axes.set_xlim(0, most)
    axes.grid(visible=False)
    axes.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_visible(True)


def _draw(axes: Axes, series: Series, colours: dict[str, str]) -> Artist:
    colour = colours[f"series-{series.number % _SERIES}"]
    x, y = [point.x for point in series.points], [point.y for point in series.points]
    if series.look in ("fitted", "failed"):
        ink = colours["ink"] if series.look == "fitted" else colours["warning"]
        marker = "_" if series.look == "fitted" else "x"
        return axes.plot(x, y, linestyle="none", marker=marker, markersize=9, markeredgewidth=1.8, color=ink)[0]
    lows = [point.y if point.low is None else min(point.low, point.y) for point in series.points]
    highs = [point.y if point.high is None else max(point.high, point.y) for point in series.points]
    if series.look == "boxes":
        axes.vlines(x, lows, highs, colors=colour, linewidth=1.2)
        # Boxes are thick lines, which have the same width on every scale, with a bar for the median.
        boxes = [point for point in series.points if point.q1 is not None and point.q3 is not None]
        ends = [point.q1 or 0.0 for point in boxes], [point.q3 or 0.0 for point in boxes]
        axes.vlines([point.x for point in boxes], *ends, colors=colour, linewidth=8, alpha=0.55)
        return axes.plot(x, y, linestyle="none", marker="_", markersize=10, markeredgewidth=2.2, color=colour)[0]
    if highs != lows:
        axes.fill_between(x, lows, highs, color=colour, alpha=0.2, linewidth=0)
        axes.vlines(x, lows, highs, colors=colour, linewidth=0.7, alpha=0.6)
    outline = series.look == "outline"
    return axes.plot(
        x,
        y,
        color=colour,
        linestyle=_DASHES[series.number % len(_DASHES)],
        linewidth=0.8 if outline else 1.6,
        marker="none" if len(x) > _MOST_POINTS else _MARKERS[series.number % len(_MARKERS)],
        markersize=4.5 if len(x) <= _MOST_MARKERS else 2.5,
        markerfacecolor="none" if outline else colour,
    )[0]


def _limit(axes: Axes, chart: Chart) -> None:
    points = [point for series in chart.series for point in series.points]
    x = [point.x for point in points] + [level.value for level in chart.levels if level.axis == "x"]
    y = [point.y for point in points] + [level.value for level in chart.levels if level.axis == "y"]
    y += [end for point in points for end in (point.low, point.high) if end is not None]
    _scale(axes, "x", chart.x, x)
    _scale(axes, "y", chart.y, y)
    if points and math.isfinite(chart.top) and chart.top > 0:
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
        places = ticks(low / reach, high * reach, 2 if axis.scale == "log2" else 10)
        is_batch = which == "x" and axis.scale == "log2"
        side.set_ticks([place for place in places if place == round(place) or not is_batch])
        side.set_minor_locator(NullLocator())
    side.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, axis)))


def ticks(low: float, high: float, base: int) -> list[float]:
    """Return at most nine labelled places on a logarithmic axis: powers, or even steps if the range has few of them."""
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
        return f"{value / 1024:.3g} GiB" if value >= 1024 else f"{value:.4g} MiB"
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value / 1e6:g} M"
