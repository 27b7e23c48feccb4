"""Break down the time of saved runs, and show how much of it contributed to no figure.

    python benchmarks/time_spent.py results/nvidia-h200/default/*.json

The last column is the whole duration divided by the seconds of search and timed windows; 1 is the minimum.
"""

from __future__ import annotations

import argparse

from tputfind.record.files import load_record
from tputfind.report.text import seconds_spent


def main() -> None:
    """Print a line for each record."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("records", nargs="+")
    for path in asked.parse_args().records:
        record = load_record(path)
        spent = seconds_spent(record)
        counted_s = spent.get("search", 0.0) + spent.get("timing", 0.0)
        parts = ", ".join(f"{what} {seconds:.1f}" for what, seconds in spent.items())
        ratio = f"{record.wall_s / counted_s:.2f}" if counted_s else "-"
        print(f"{path}: method {record.method}, {record.wall_s:.1f} s: {parts}; {ratio}")


if __name__ == "__main__":
    main()
