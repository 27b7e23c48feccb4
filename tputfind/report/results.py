"""Results for Python code: files, a pandas table, a plot and text, all from the result's document."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tputfind.errors import BadRequest
from tputfind.record.identity import question_of
from tputfind.report.document import Defect, Document
from tputfind.report.outputs import MEASURED, Places, check_places

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from tputfind.report.progress import DeviceProgress

_WIDTH = 100


_VIEWS = {
    "record": "records",
    "clocks": "clocks",
    "forecast": "forecast",
    "comparison": "compare",
    "race": "tune",
    "plans": "size",
}


def document_of(result: Any) -> Document:
    """Return the document of a result; the view and its dependencies are imported by this call."""
    view: Any = import_module(f"tputfind.report.views.{_VIEWS[result.KIND]}")
    one_of_several = result.KIND in ("record", "comparison") and not isinstance(result, list)
    document: Document = view.document([result] if one_of_several else getattr(result, "answers", result))
    return document


def save(result: Any, names: Sequence[str | os.PathLike[str]], *, overwrite: bool) -> None:
    """Write a result to files; the ending of each sets its form. Raise the BadRequest of the first that fails."""
    from tputfind.report.outputs import forms

    made = forms(document_of(result))
    question = question_of(result) if result.KIND in MEASURED and "json" in made else None
    places = Places(None, tuple(names), overwrite, "save")
    outputs = check_places(places, json=result.KIND, question=question, forms=made)
    outputs.write(made)
    if outputs.problems:
        raise outputs.problems[0]


def frame(result: Any) -> pd.DataFrame:
    from tputfind.report.renderers.csv import data_frame

    data = document_of(result).data
    assert data is not None  # every single result has a table
    return data_frame(data())


def plot(result: Any) -> Figure:
    from tputfind.report.charts import draw

    chart = document_of(result).chart
    if chart is None:
        raise BadRequest(
            f"there is no plot of this {result.KIND}", "plots are of records with timed rows, and of races"
        )
    if isinstance(chart, Defect):
        raise chart.make_error()
    draw.require_matplotlib("plot()")
    return draw.figure(chart)


def progress() -> AbstractContextManager[DeviceProgress]:

    from tputfind.report.progress import StderrConsole, show_progress

    return show_progress(StderrConsole())


def text(result: Any) -> str:
    from rich.console import Console

    from tputfind.report.renderers.terminal import print_document

    paper = io.StringIO()
    print_document(document_of(result), Console(file=paper, width=_WIDTH, color_system=None, force_jupyter=False))
    return paper.getvalue().rstrip("\n")
