"""Charts as files: SVG for a page, in its colours, or an image that explains itself."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tputfind.errors import BadRequest
from tputfind.report.charts import figure as drawing
from tputfind.report.charts.chart import Chart, shortened
from tputfind.report.charts.colours import DARK, LIGHT
from tputfind.report.kinds import PLOT_MAKER

if TYPE_CHECKING:
    from matplotlib.figure import Figure
import msgspec

from tputfind.report.charts.chart import Point, Series
from tputfind.units import format_figure

ENDINGS: Final = ("svg", "png")
_IN_PLACE_OF: Final = {name: f"#{0xABC000 + place:06x}" for place, name in enumerate(LIGHT)}
"""Colours that no plot has otherwise: each is exchanged for the page's own, which differ in the dark."""
_LONGEST_TITLE: Final = 200
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tputfind",
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.sans-serif": ["DejaVu Sans"],
    "savefig.dpi": 200,
}
_NO_DATE: Final[dict[str, dict[str, Any]]] = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {},
}
_MAKER: Final[dict[str, dict[str, Any]]] = {
    "svg": {"Creator": PLOT_MAKER},
    "png": {"Software": PLOT_MAKER},
}
"""By which a later run knows a plot that it may replace."""


class Inline(NamedTuple):
    """A chart for a page: its ``<svg>`` element, and what its script reads.

    ``box`` is where the axes lie: left, top, width and height, in percent of the drawing. Of every ``stop`` it has the
    text, and the places of its points, in the drawing's own unit.
    """

    svg: str
    box: list[float]
    stops: list[tuple[str, list[list[float]]]]


def check_installed(what: str) -> None:
    """Refuse what is to be drawn if matplotlib cannot be imported."""
    try:
        with _quiet():
            import matplotlib.figure  # noqa: F401  # to see whether it can be
    except ImportError:
        raise BadRequest(f"{what} needs matplotlib", "pip install 'tputfind[plot]'") from None


def figure(chart: Chart) -> Figure:
    """Return a chart by itself, to be shown or changed."""
    with _style():
        return drawing.titled(chart, LIGHT)


def image(chart: Chart, ending: str) -> bytes:
    """Return a chart by itself, as a file with one of ``ENDINGS``; as SVG its colours follow the reader's scheme."""
    with _style():
        made = _saved(drawing.titled(chart, LIGHT), ending, _NO_DATE[ending] | _MAKER[ending])
    return _with_dark_colours(made, chart) if ending == "svg" else made


def _with_dark_colours(svg: bytes, chart: Chart) -> bytes:
    """Return an SVG file with the dark colours for readers who prefer them, and with what a screen reader says.

    A style sheet in the file exchanges each light colour by itself: a program that knows no media queries shows those.
    """
    rules = [
        f'[style*="{part}: {LIGHT[name]}"]{{{part}:{DARK[name]}!important}}'
        for name in LIGHT
        for part in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    told = f"<title>{_escaped(shortened(chart.about, _LONGEST_TITLE))}</title><desc>{_escaped(chart.words)}</desc>"
    text = svg.decode().replace("</metadata>", f"</metadata>{told}{style}", 1)
    return text.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'").encode()


def inline(chart: Chart) -> Inline:
    """Return a chart for a page that defines the colours as custom properties.

    Its ids begin with the chart's kind, so that plots on one page do not share any; what a screen reader says of it
    stands in ``<title>`` and ``<desc>``.
    """
    with _style():
        figure = drawing.plain(chart, _IN_PLACE_OF)
        drawn = _saved(figure, "svg", _NO_DATE["svg"]).decode()
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
    svg = f'<svg role="img" {labels} {box[0]}>{told}{drawn[drawn.index(">") + 1 :]}'
    return Inline(svg, drawing.axes_box(figure), _places(chart, figure))


def _places(chart: Chart, figure: Figure) -> list[tuple[str, list[list[float]]]]:
    return [(stop.text, [drawing.place(chart, figure, point) for point in stop.points]) for stop in stops(chart)]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _saved(figure: Figure, ending: str, metadata: dict[str, Any]) -> bytes:
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


class Stop(msgspec.Struct, frozen=True):
    """A place on the plot's axis: what is read there, a line for each value, and the points where they are drawn."""

    text: str
    points: tuple[Point, ...]


def stops(chart: Chart) -> list[Stop]:
    """Return every place of a plot, from left to right; of bars from the top."""
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
    """Yield the values at one place, those of one record on one line."""
    of_record: dict[int, list[str]] = {}
    for series, point in there:
        of_record.setdefault(series.number, []).append(point.text)
    for number, texts in of_record.items():
        name = named.get(number)
        yield f"{name}: {', '.join(texts)}" if name else ", ".join(texts)
