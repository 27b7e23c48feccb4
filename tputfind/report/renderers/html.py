"""Convert a document to a page: a single self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from tputfind.report.charts import draw
from tputfind.report.charts.draw import DARK, LIGHT
from tputfind.report.document import Document, attempt

if TYPE_CHECKING:
    from jinja2 import Template


def render_html(document: Document) -> bytes:
    """Return the page of a document, the same bytes for the same document.

    All text from a result is escaped. The only script is ours, named by its hash, so that a browser runs no other.
    """
    from markupsafe import Markup

    script = part("page.js")
    text = _template().render(
        page=document,
        kind_of=lambda section: type(section).__name__,
        draw=lambda chart: attempt("this plot", lambda: draw.inline(chart)),
        style=Markup(part("page.css")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        light=LIGHT,
        dark=DARK,
    )
    # UTF-8 cannot encode lone surrogates, which a file's name may hold.
    return text.encode(errors="replace")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(part("page.html.jinja"))


def part(name: str) -> str:
    return resources.files("tputfind.report.renderers").joinpath(name).read_text(encoding="utf-8")
