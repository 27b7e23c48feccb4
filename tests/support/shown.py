"""Records in the forms that people and programs read."""

import io
from collections.abc import Sequence

import pandas
from rich.console import Console

from tputfind.record.record import Record
from tputfind.report.columns import COLUMNS
from tputfind.report.document import Document
from tputfind.report.renderers.csv import render_csv
from tputfind.report.renderers.html import render_html
from tputfind.report.renderers.markdown import render_markdown
from tputfind.report.renderers.terminal import print_document
from tputfind.report.views import page
from tputfind.report.views import records as view

KINDS = {column.name: column.kind for column in COLUMNS if column.in_csv}
"""The columns of the CSV in order, each with its pandas type, which allows empty cells."""


def print_report(records: Sequence[Record], console: Console) -> None:
    print_document(view.document(records), console)


def printed(document: Document, width: int = 100, encoding: str = "utf-8") -> str:
    """Return a document as a terminal of this width shows it; raise UnicodeError for a sign that it lacks."""
    paper = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_document(document, Console(file=paper, width=width, color_system=None))
    paper.seek(0)
    return "".join(f"{line.rstrip()}\n" for line in paper.read().splitlines())


def report_of(records: Sequence[Record], width: int = 100, encoding: str = "utf-8") -> str:
    return printed(view.document(records), width, encoding)


def markdown_of(records: Sequence[Record]) -> bytes:
    return render_markdown(view.document(records))


def page_of(records: Sequence[Record]) -> bytes:
    return render_html(page.document(records))


def csv_of(records: Sequence[Record]) -> bytes:
    return render_csv(view.data(records))


def frame(records: Sequence[Record]) -> pandas.DataFrame:
    return pandas.read_csv(io.BytesIO(csv_of(records)), dtype=KINDS)
