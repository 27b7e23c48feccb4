"""A page of records: one HTML file that needs nothing else. The only module that knows jinja2."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.report.charts import draw
from tputfind.report.charts.colours import DARK, LIGHT
from tputfind.report.page.contents import contents
from tputfind.report.renderers.html import part


def to_html(records: Sequence[Record], asked: Sequence[Spec] | None = None) -> bytes:
    """Return the page of one or several records, the same bytes for the same records.

    ``asked`` are the specs that they were measured with, where their own were changed to answer another question.
    Everything in it that comes from a record is escaped; its only script is ours, named by its hash, so that a browser
    runs no other.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    held = contents(records, asked)
    script = part("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(_part("page.html.jinja")).render(
        page=held,
        drawings=[(chart, draw.inline(chart)) for chart in held.charts],
        style=Markup(part("page.css")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        light=LIGHT,
        dark=DARK,
    )
    # Lone surrogates, which a file's name may hold, have no place in UTF-8.
    return text.encode(errors="replace")


def _part(name: str) -> str:
    return resources.files("tputfind.report.page").joinpath(name).read_text(encoding="utf-8")
