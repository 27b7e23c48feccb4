"""A table of values as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import Final

from tputfind.report.document import Cell, Table

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
