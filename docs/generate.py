"""Write the pages of docs/ that say what a table of the code says.

    python docs/generate.py
"""

from __future__ import annotations

from pathlib import Path

from tputfind.commands import COMMANDS
from tputfind.report.columns import COLUMNS

UNITS = {
    "_per_s": "1/s",
    "_ms": "ms",
    "_mib": "MiB",
    "_mhz": "MHz",
    "_w": "W",
    "_s": "s",
    "_mj_per_sample": "mJ",
    "_c": "°C",
    "samples_per_s_ci_low": "1/s",
    "samples_per_s_ci_high": "1/s",
    "ms_mean": "ms",
    "ms_std": "ms",
    "ms_p50": "ms",
    "ms_p90": "ms",
    "ms_p95": "ms",
    "ms_p99": "ms",
    "p50_ci_low": "ms",
    "p50_ci_high": "ms",
}
"""The unit of a column whose name ends so."""
MEANINGS = {
    "model": "the model as it was named",
    "phase": "`infer` or `train`",
    "device": "the device as PyTorch names it",
    "device_name": "the product's name",
    "dtype": "the dtype that was asked for",
    "layout": "`nchw` or `nhwc`",
    "mode": "`eager`, `compile` or `cudagraph`",
    "input_shape": "the shape of one sample",
    "batch_size": "samples in a batch",
    "status": "`ok`, or the kind of failure",
    "batches": "batches timed for throughput, in all processes",
    "samples_per_s": "throughput",
    "samples_per_s_ci_low": "lower end of the throughput's 95 % confidence interval",
    "samples_per_s_ci_high": "upper end of that interval",
    "latency_batches": "single batches timed for latency",
    "latency_ms_mean": "mean latency",
    "latency_ms_std": "standard deviation of the latency",
    "latency_ms_p50": "median latency",
    "latency_ms_p90": "90th percentile of the latency",
    "latency_ms_p95": "95th percentile of the latency",
    "latency_ms_p99": "99th percentile of the latency",
    "device_ms_mean": "mean device time of a batch",
    "enqueue_ms_mean": "mean time in which the host submits a batch",
    "host_bound": "whether the host sets the pace",
    "peak_allocated_mib": "most memory in tensors",
    "peak_reserved_mib": "most memory that the allocator took from the device",
    "sm_clock_mhz": "mean SM clock while the row was timed",
    "power_w": "mean power of the device",
    "energy_mj_per_sample": "energy of the device for a sample",
    "throttled": "whether something held the clocks down",
    "notices": "kinds of notices that name the row, joined by `;`",
    "processes": "processes in which the row was timed",
    "latency_ms_p50_ci_low": "lower end of the median latency's 95 % confidence interval",
    "latency_ms_p50_ci_high": "upper end of that interval",
    "warmup_steps": "untimed steps before the windows",
    "warmup_s": "time of these steps",
    "first_step_ms": "first step of a process, median of the processes",
    "temperature_c": "temperature of the device",
    "throttle_reasons": "what held the clocks down, joined by `;`",
    "transfer": "the copies that the row counts",
    "copy_in_ms": "time to copy a batch's inputs by themselves",
    "copy_out_ms": "time to copy its outputs by themselves",
    "compile_s": "time of compiling, from the first call on",
    "graphs": "graphs that the compiled model has",
    "started": "when the run began",
    "torch": "version of PyTorch",
}
TYPES = {"string": "text", "Int64": "whole number", "Float64": "number", "boolean": "`True` or `False`"}


def csv() -> str:
    """Return the page on the columns of the CSV."""
    lines = [
        "# Columns of the CSV",
        "",
        "One row a model, recipe and batch size. An unknown figure is an empty cell, never 0.",
        "A failed row has its kind of failure in `status` and no figures. New columns come at the end.",
        "`docs/generate.py` writes this page.",
        "",
        "| column | unit | type | meaning |",
        "|---|---|---|---|",
    ]
    for column in COLUMNS:
        if column.in_csv:
            lines.append(f"| `{column.name}` | {unit(column.name)} | {TYPES[column.kind]} | {MEANINGS[column.name]} |")
    return "\n".join(lines) + "\n"


def unit(name: str) -> str:
    """Return the unit that a name ends in, '' where it has none."""
    return next((UNITS[end] for end in sorted(UNITS, key=len, reverse=True) if name.endswith(end)), "")


def options() -> str:
    """Return the page on the options of all commands."""
    lines = ["# Options", "", "A default stands in brackets. `docs/generate.py` writes this page."]
    for name, command in COMMANDS.items():
        if command.options:
            lines += ["", f"## tputfind {name}", "", "| option | meaning |", "|---|---|"]
            lines += [f"| `{option.flag}` {option.metavar or ''} | {option.help} |" for option in command.options]
    return "\n".join(lines) + "\n"


PAGES = {"csv.md": csv, "options.md": options}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page())


if __name__ == "__main__":
    main()
