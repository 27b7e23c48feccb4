"""Forecast largest batches on another device from the records of one, and compare them with its own records.

    python benchmarks/other_device.py FOLDER tests/records/nvidia-h100/default > FILE

Records of the same name in both folders are compared. No device is needed. Only the memory of the other device is used,
as in ``tputfind forecast --memory``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from tputfind import load_record
from tputfind.record.types import LARGEST_BATCH
from tputfind.search.forecast import Known, expected_batch


def main() -> None:
    """Print a line for each pair of records whose search ended at memory."""
    one, other = map(Path, sys.argv[1:])
    names = sorted(path.name for path in one.glob("*.json") if (other / path.name).exists())
    lines = [line for name in names if (line := beside(one / name, other / name))]
    pd.DataFrame(lines).to_csv(sys.stdout, index=False, float_format="%g")


def beside(one: Path, other: Path) -> dict[str, object]:
    """Return the forecast from one record and the largest batch in the other.

    Empty if the other search did not end at memory.
    """
    known, found = load_record(one), load_record(other)
    edge, memory_bytes = found.edge, found.environment.memory_total_bytes
    if edge is None or edge.limited_by != "memory" or memory_bytes is None:
        return {}
    trials = [trial for trial in known.trials if trial.memory_limit_bytes is None]
    told = expected_batch(Known(trials, {}, 1, LARGEST_BATCH, limit_bytes=memory_bytes), 0, None)
    return {
        "model": known.spec.model,
        "dtype": known.spec.dtype,
        "layout": known.spec.layout,
        "measured_on": known.environment.device_name,
        "forecast_for": found.environment.device_name,
        "memory_bytes": memory_bytes,
        "forecast": told,
        "largest_batch": edge.largest_batch,
        "off_percent": None if told is None else 100 * (told / edge.largest_batch - 1),
    }


if __name__ == "__main__":
    main()
