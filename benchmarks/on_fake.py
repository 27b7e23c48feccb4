"""Compare forecasts from fake tensors with largest batches that were found by search on a device.

    python benchmarks/on_fake.py results/nvidia-h200/search/fp*.csv > results/nvidia-h200/search/on-fake.csv

The tables are those of ``search.py``. No device is needed. The summary goes to stderr.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

KEY = ["model", "dtype", "layout"]


def main() -> None:
    """Print a line for each model, recipe and memory, and the errors of the forecasts on stderr."""
    searched = pd.concat([pd.read_csv(path) for path in sys.argv[1:]], ignore_index=True)
    searched = searched[searched.memory != "all"]
    frames: list[pd.DataFrame] = [beside(list(map(str, key)), of) for key, of in searched.groupby(KEY, sort=False)]
    found = pd.concat(frames, ignore_index=True)
    found.to_csv(sys.stdout, index=False, float_format="%g")
    off = found.off_percent.abs()
    inside = (off <= found.stated_percent).sum()
    shares = f"{off.median():.1f} % at the median, {off.quantile(0.9):.1f} % at the 90th percentile, {off.max():.1f} %"
    print(f"{inside} of {len(found)} within what they state; off by {shares} at the most", file=sys.stderr)


def beside(key: list[str], searched: pd.DataFrame) -> pd.DataFrame:
    """Return the forecasts of one model in one recipe next to the largest batches that were found."""
    model, dtype, layout = key
    edges = searched.groupby("memory", sort=False)[["forecast_edge", "bisect_edge"]].max().max(axis=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "forecasts.csv"
        asked = [
            "--memory",
            ",".join(edges.index),
            "--dtype",
            dtype,
            "--layout",
            layout,
            "--on-fake",
            "--save",
            str(file),
        ]
        command = [sys.executable, "-m", "tputfind", "forecast", model, *asked, "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        told = pd.read_csv(file)
    frame = pd.DataFrame(dict(zip(KEY, key, strict=True)), index=range(len(edges)))
    frame["memory"], frame["largest_batch"] = edges.index, edges.astype(int).to_numpy()
    frame["forecast"], frame["stated_percent"] = told.largest_batch_forecast, told.error_percent
    frame["off_percent"] = 100 * (frame.forecast / frame.largest_batch - 1)
    return frame


if __name__ == "__main__":
    main()
