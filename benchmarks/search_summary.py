"""Summarize tables of ``search.py``: medians for each dtype and memory, and the worst in brackets.

    python benchmarks/search_summary.py results/nvidia-h200/search/fp*.csv

Prints Markdown, and below it the exceptions.
"""

from __future__ import annotations

import sys

import pandas as pd

MEMORIES = ["8GiB", "24GiB", "80GiB", "all"]


def main() -> None:
    """Print the summary as Markdown, and the quality of the forecasts for single devices."""
    searches = pd.concat([pd.read_csv(path) for path in sys.argv[1:]], ignore_index=True)
    searches["over_proving"] = searches.forecast_s / searches.forecast_proving_s
    searches["faster"] = searches.bisect_s / searches.forecast_s
    print("| dtype | memory | searches | same edge as bisection | trials | by bisection | seconds", end=" ")
    print("| over the two proving trials | faster than bisection |")
    print("|---" * 9 + "|")
    for dtype, of_dtype in searches.groupby("dtype"):
        for memory in MEMORIES:
            print(line(f"{dtype}", memory, of_dtype[of_dtype.memory == memory]))
    print(line("both", "each", searches))
    for told in exceptions(searches):
        print(told)


def line(dtype: str, memory: str, of: pd.DataFrame) -> str:
    """Return one line of the table."""
    cells = [
        dtype,
        memory.replace("GiB", " GiB").replace("all", "whole card"),
        f"{len(of)}",
        f"{(of.forecast_edge == of.bisect_edge).sum()}",
        f"{of.forecast_trials.median():.0f} ({of.forecast_trials.max()})",
        f"{of.bisect_trials.median():.0f} ({of.bisect_trials.max()})",
        f"{of.forecast_s.median():.0f}",
        f"{of.over_proving.median():.1f} ({of.over_proving.max():.1f}) times",
        f"{of.faster.median():.1f} ({of.faster.min():.1f}) times",
    ]
    return f"| {' | '.join(cells)} |"


def exceptions(searches: pd.DataFrame) -> list[str]:
    """Return the searches that miss expectations, and the accuracy of the forecasts for single devices."""

    def named(of: pd.DataFrame) -> list[str]:
        return [" ".join(key) for key in of[["model", "dtype", "layout", "memory"]].itertuples(index=False)]

    forecast = searches[searches.command_forecast.notna()]
    edge = forecast[["forecast_edge", "bisect_edge"]].max(axis=1)
    off = forecast.command_off_percent.abs()
    covered = 100 * (edge / forecast.command_forecast - 1).abs() <= forecast.command_stated_percent
    whole = searches[searches.memory == "all"].faster
    lines = [
        f"other edges: {named(searches[searches.forecast_edge != searches.bisect_edge])}",
        f"more than 2.5 times the proving trials: {named(searches[searches.over_proving > 2.5])}",
        f"whole card, faster: median {whole.median():.1f}, worst {whole.min():.1f}",
        f"tputfind forecast: {len(off)}, {(off == 0).sum()} exact, {covered.sum()} covered",
        f"tputfind forecast, median: {off.median():.3g} % off",
        f"off by more than 1 %: {named(forecast[off > 1])}",
        f"not covered: {named(forecast[~covered])}",
    ]
    for name, expected in (("gap_fails", True), ("again_fails", False)):
        if name in searches:
            tried = searches[searches[name].notna()]
            wrong = tried[tried[name].astype(bool) != expected]
            lines.append(f"{name.removesuffix('_fails')}: {len(tried)} tried, not as forecast: {named(wrong)}")
    return lines


if __name__ == "__main__":
    main()
