"""Records as one table: a pandas DataFrame, and its CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd

from tputfind.record.record import Record
from tputfind.report import columns
from tputfind.report.escaping import spreadsheet_text

COLUMNS: Final[dict[str, str]] = {column.name: column.kind for column in columns.COLUMNS if column.in_csv}
"""The columns in order, each with its pandas type. All of them take empty cells: unknown is empty, never 0."""


def frame(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per record and batch size, with the columns of ``COLUMNS``."""
    rows = [(record, row) for record in records for row in record.rows]
    in_csv = [column for column in columns.COLUMNS if column.in_csv]
    return pd.DataFrame(
        {column.name: pd.Series([column.value(*row) for row in rows], dtype=column.kind) for column in in_csv}
    )


def to_csv(records: Sequence[Record]) -> bytes:
    """Return the table as CSV, figures with six significant digits."""
    table = frame(records)
    for name, kind in COLUMNS.items():
        if kind == "string":
            table[name] = table[name].map(spreadsheet_text, na_action="ignore")
    text: str = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text.encode()
