"""Convert a table of values to CSV, and to pandas."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from tputfind.report.document import Cell, Table

if TYPE_CHECKING:
    import pandas as pd


_FORMULA: Final = re.compile(r"[\s]*[=+\-@\t\r＝＋－＠]")  # spreadsheets accept the wide forms too


def render_csv(table: Table) -> bytes:
    """Return one line for each row, with six significant digits; infinite figures are empty."""
    paper = io.StringIO()
    writer = csv.writer(paper, lineterminator="\n")
    writer.writerow([column.heading for column in table.columns])
    writer.writerows([_written(cell) for cell in row] for row in table.rows)
    return paper.getvalue().encode()


def _written(cell: Cell) -> object:
    if isinstance(cell.number, float):
        return f"{cell.number:.6g}" if math.isfinite(cell.number) else ""
    return spreadsheet_text(cell.text) if cell.number is None else cell.number


def spreadsheet_text(text: str) -> str:
    """Return a cell's text, with an apostrophe if a spreadsheet would read a formula (OWASP, "CSV Injection")."""
    return f"'{text}" if _FORMULA.match(text) else text


_BOOLEANS = {"True": True, "False": False}


def data_frame(table: Table) -> pd.DataFrame:
    """Return a line for each row, with the nullable types of pandas; infinite figures are unknown, as in a CSV."""
    import pandas as pd  # imported here because it takes a second

    cells = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
    series = {}
    for column, of in zip(table.columns, cells, strict=True):
        dtype: Any = column.dtype or _dtype_of(of)
        series[column.heading] = pd.Series([_value(cell, dtype) for cell in of], dtype=dtype)
    return pd.DataFrame(series)


def _dtype_of(cells: Sequence[Cell]) -> str:
    """Return the type of a column: Float64 if no value is known."""
    texts = {cell.text for cell in cells if cell.number is None and cell.text}
    if texts:
        return "boolean" if texts <= _BOOLEANS.keys() else "string"
    numbers = [cell.number for cell in cells if cell.number is not None and isfinite(cell.number)]
    return "Float64" if not numbers or any(isinstance(number, float) for number in numbers) else "Int64"


def _value(cell: Cell, dtype: str) -> object:
    if dtype == "boolean":
        return _BOOLEANS.get(cell.text)
    if dtype == "string":
        return cell.text or (None if cell.number is None else f"{cell.number}")
    return cell.number if cell.number is not None and isfinite(cell.number) else None
