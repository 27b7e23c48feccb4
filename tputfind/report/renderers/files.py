"""A document in every form that a file can have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tputfind.record.untrusted import indented
from tputfind.report.charts import draw
from tputfind.report.charts.chart import Chart
from tputfind.report.document import Defect, Document
from tputfind.report.renderers.csv import to_csv
from tputfind.report.renderers.html import to_html
from tputfind.report.renderers.markdown import to_markdown


def forms(document: Document) -> dict[str, Callable[[], bytes]]:
    """Return what makes each form that a document has, by the ending of its file."""
    found: dict[str, Callable[[], bytes]] = {}
    if document.source is not None:
        found["json"] = partial(indented, document.source)
    if document.data is not None:
        data = document.data
        found["csv"] = lambda: to_csv(data())
    found["md"] = partial(to_markdown, document)
    found["html"] = lambda: to_html(document.page() if document.page else document)
    if document.chart is not None:
        found |= {ending: partial(_image, document.chart, ending) for ending in draw.ENDINGS}
    return found


def _image(chart: Chart | Defect, ending: str) -> bytes:
    if isinstance(chart, Defect):
        raise chart.to_error()
    return draw.image(chart, ending)
