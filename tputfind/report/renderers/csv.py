"""A table of values as CSV, and for pandas."""

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


_FORMULA: Final = re.compile(r"[\s]*[=+\-@\t\r＝＋－＠]")  # spreadsheets take the wide forms too


def to_csv(table: Table) -> bytes:
    """Return one line for each row, figures with six significant digits; an infinite one is unknown."""
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
    """Return text of a CSV cell that no spreadsheet takes for a formula: with an apostrophe before what begins as one.

    OWASP, "CSV Injection": the signs that begin a formula.
    """
    return f"'{text}" if _FORMULA.match(text) else text


_BOOLEANS = {"True": True, "False": False}


def to_frame(table: Table) -> pd.DataFrame:
    """Return a line for each row, with the nullable types of pandas; an infinite figure is unknown, as in a CSV."""
    import pandas as pd  # here, because it takes a second

    cells = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
    columns = {column.heading: _typed(of) for column, of in zip(table.columns, cells, strict=True)}
    return pd.DataFrame({name: pd.Series(values, dtype=kind) for name, (values, kind) in columns.items()})


def _typed(cells: Sequence[Cell]) -> tuple[list[object], Any]:
    """Return the values of a column, None for the unknown, and the type that holds them: Float64 if none is known."""
    texts = {cell.text for cell in cells if cell.number is None and cell.text}
    if texts and texts <= _BOOLEANS.keys():
        return [_BOOLEANS.get(cell.text) for cell in cells], "boolean"
    if texts:
        return [cell.text or (None if cell.number is None else f"{cell.number}") for cell in cells], "string"
    numbers = [cell.number if cell.number is not None and isfinite(cell.number) else None for cell in cells]
    whole = any(number is not None for number in numbers) and not any(isinstance(one, float) for one in numbers)
    return [*numbers], "Int64" if whole else "Float64"
