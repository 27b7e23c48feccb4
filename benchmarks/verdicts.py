"""Count the verdicts of `tputfind compare` on repeated runs, and on runs made slower: every pair of records.

    python benchmarks/verdicts.py same --csv FILE
    python benchmarks/verdicts.py same slower --csv FILE

The arguments are folders with the records of several runs each, such as ten of

    tputfind tests/models/slower.py:model --dtype fp16 --batch-sizes 1,32,256 --max-seconds 4

and, with SLOWER_CYCLES=2300000 in the environment (1.2 ms of a GPU at 1980 MHz), five of the same into another.
"""

from __future__ import annotations

import argparse
from itertools import combinations, product
from pathlib import Path

import pandas as pd

import tputfind


def main() -> None:
    """Compare every pair, print the counts of verdicts, and write the pairs."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("old", help="a folder of records")
    asked.add_argument("new", nargs="?", help="another; without it each record is compared with those after it")
    asked.add_argument("--csv")
    given = asked.parse_args()
    old = _records(given.old)
    if not old or (given.new and not _records(given.new)):
        asked.error("a folder holds no records; see above how to make some")
    pairs = product(old, _records(given.new)) if given.new else combinations(old, 2)
    lines = [
        {
            "old_started": one.started,
            "new_started": other.started,
            "what": "fastest" if row is found.best else f"batch {row.new_batch}",
            **{name: getattr(row, name) for name in ("old_per_s", "new_per_s", "ratio", "low", "high", "verdict")},
        }
        for one, other in pairs
        for found in [tputfind.compare(one, other)]
        for row in (found.best, *found.rows)
        if row is not None
    ]
    table = pd.DataFrame(lines)
    print(table.groupby(["what", "verdict"]).size().unstack(fill_value=0))  # noqa: PD010  # a table of counts
    if given.csv:
        table.to_csv(given.csv, index=False, float_format="%.6g")


def _records(folder: str) -> list[tputfind.Record]:
    records = [tputfind.load_record(path) for path in Path(folder).glob("*.json")]
    return sorted(records, key=lambda record: record.started)


if __name__ == "__main__":
    main()
