"""Convert a document to a page: a single self-contained HTML file."""

import base64
import hashlib
from importlib import resources

from tputfind.report.charts import draw
from tputfind.report.charts.draw import DARK, LIGHT
from tputfind.report.document import Document, attempt


def render_html(document: Document) -> bytes:
    """Return the page of a document, the same bytes for the same document.

    All text from a result is escaped. The only script is ours, named by its hash, so that a browser runs no other.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    script = part("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(part("page.html.jinja")).render(
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


def part(name: str) -> str:
    """Return the text of a file that pages are made of."""
    return resources.files("tputfind.report.renderers").joinpath(name).read_text(encoding="utf-8")
