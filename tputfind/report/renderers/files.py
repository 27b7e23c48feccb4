"""A document in every form that a file can have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tputfind.record.untrusted import indented
from tputfind.report.document import Document
from tputfind.report.renderers.csv import to_csv
from tputfind.report.renderers.html import to_html
from tputfind.report.renderers.markdown import to_markdown


def forms(document: Document) -> dict[str, Callable[[], bytes]]:
    """Return what makes each form of a document, by the option that asks for it."""
    found: dict[str, Callable[[], bytes]] = {}
    if document.data is not None:
        found["csv"] = partial(to_csv, document.data)
    if document.source is not None:
        found["json"] = partial(indented, document.source)
    return found | {"md": partial(to_markdown, document), "html": partial(to_html, document)}
