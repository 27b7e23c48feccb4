"""Writes the pages of this folder that follow from tables of the program: ``python docs/generate.py``.

A page stands in ``PAGES``. A test says when a page is not what this writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tputfind.commands import COMMANDS, Command
from tputfind.commands.options import in_sections, of_command
from tputfind.declaration import Option
from tputfind.report.columns import COLUMNS

_OPTIONS: Final = """\
# Options

`python docs/generate.py` writes this page. `tputfind --help` shows the first options and all commands,
`tputfind COMMAND --help` those of one command. Options may stand before or after a model.

| value | how it is written |
|---|---|
| `N` | a whole number: `1000` or `1,000`; `--rate` also takes `0.5`, `5k`, `1M` and `5000/s` |
| `SIZE` | a number and a unit: `24GiB`, `512 MiB`, `24GB` (1 GiB is 2^30 bytes, 1 GB is 10^9; `24G` is refused) |
| `TIME` | a number and a unit: `250us`, `50ms`, `1.5 s`, `2min`, `1h` |
| `S` | seconds: `6`, `0.5`; a unit is also understood, such as `1min` |
| `SHARE` | `5%` or `0.05` |
| `P` | a percentile: `99`, `99%` or `p99` |
| `LIST` | values with commas between them: `1,8,32`, `16GiB,24GiB` |
| `SHAPE` | lengths with an `x` between them: `3x640x480` |

Upper and lower case are the same in choices: `FP16` is `fp16`. A wrong value, option or command ends the command with
exit code 2, and the message names the nearest right one.

## Completion

One of these lines makes Tab complete commands, models, options and choices:

| shell | line | file |
|---|---|---|
| bash 4.4 or later | `eval "$(_TPUTFIND_COMPLETE=bash_source tputfind)"` | `~/.bashrc` |
| zsh | `eval "$(_TPUTFIND_COMPLETE=zsh_source tputfind)"` | `~/.zshrc`, after `compinit` |
| fish | `_TPUTFIND_COMPLETE=fish_source tputfind \\| source` | `~/.config/fish/config.fish` |
"""

UNITS: Final = {
    "_mj_per_sample": "mJ",
    "samples_per_s": "1/s",
    "_ms": "ms",
    "_mib": "MiB",
    "_mhz": "MHz",
    "_s": "s",
    "_w": "W",
    "_c": "°C",
}
"""The unit of a column, by what its name holds; the first that is found counts."""
MEANINGS: Final = {
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
    "samples_per_s_ci_low": "lower end of the throughput's 95 % confidence interval; empty for one process of several",
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
    "peak_allocated_mib": "most memory in tensors; on a CPU, resident memory beyond the idle process",
    "peak_reserved_mib": "most memory that the allocator took; on a CPU, address space beyond the idle process",
    "sm_clock_mhz": "mean SM clock while the row was timed",
    "power_w": "mean power of the device",
    "energy_mj_per_sample": "energy of the device for a sample",
    "throttled": "whether something held the clocks down",
    "notices": "kinds of notices that name the row, joined by `;`",
    "processes": "processes in which the row was timed",
    "latency_ms_p50_ci_low": "lower end of the median latency's 95 % confidence interval; "
    "empty for one process of several",
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
    "threads": "threads that compute, on a CPU",
    "others_busy_cores": "cores that other processes kept busy while the row was timed, on a CPU",
    "load": "what the host's other devices did in this run: `solo` nothing, `queue` jobs, `all busy` the same job",
    "busy_devices": "devices that worked at the same time, this one among them",
    "all_busy_share": "share of the window during which all of them worked, where all were to",
    "cores": "cores of the host that the device's processes were kept to",
    "samples_per_step": "samples in a step: the batch size, times `--accumulate` or as a step of your own says",
    "parallel": "how several devices share one model: `ddp` or `fsdp`",
    "ranks": "devices that it runs on; batch sizes are those of each, throughput is that of all",
    "scaling_efficiency": "throughput as a share of so many times that of one device, where that was measured",
}
TYPES: Final = {"string": "text", "Int64": "whole number", "Float64": "number", "boolean": "`True` or `False`"}


def options_page() -> str:
    """Return the page of all options: a section for each command, and in it a table for each section of its help."""
    return "\n".join([_OPTIONS, *(line for name, command in COMMANDS.items() for line in _command(name, command))])


def _command(name: str, command: Command) -> Iterator[str]:
    yield f"## tputfind {name}\n"
    yield f"{command.help}\n"
    yield "\n".join(("```sh", *command.examples, "```", ""))
    for section, options in in_sections(of_command(command.options)):
        yield f"### {section}\n"
        yield f"{_table(('option', 'values', 'default', 'meaning'), map(_cells, options))}\n"


def _cells(option: Option) -> tuple[str, ...]:
    if isinstance(option.takes, tuple):
        several = ", or several with commas between them" if option.lists else ""
        values = ", ".join(f"`{choice}`" for choice in option.takes) + several
    else:
        values = "" if option.takes is None else f"`{option.takes}`"
    return f"`{option.flag}`", values, option.default, option.help


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(header), ["---"] * len(header), *lines])


def columns_page() -> str:
    """Return the page of the columns of the CSV."""
    columns = [column for column in COLUMNS if column.in_csv]
    lines = [
        "# Columns of the CSV",
        "",
        "One row a model, recipe and batch size. An unknown figure is an empty cell, never 0.",
        "A failed row has its kind of failure in `status` and no figures. New columns come at the end.",
        "`python docs/generate.py` writes this page.",
        "",
        _table(
            ("column", "unit", "type", "meaning"),
            ((f"`{one.name}`", _unit(one.name), TYPES[one.kind], MEANINGS[one.name]) for one in columns),
        ),
    ]
    return "\n".join(lines)


def _unit(name: str) -> str:
    """Return the unit that a column's name holds, '' where it holds none."""
    return next((unit for part, unit in UNITS.items() if f"{part}_" in f"{name}_"), "")


PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/columns.md": columns_page,
    "reference/options.md": options_page,
}
"""The function that returns the text of each page, by the path of the page."""


def main() -> None:
    """Write every page into the folder of this file, or another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    folder = parser.parse_args().to
    for name, make in PAGES.items():
        (folder / name).write_text(f"{make().rstrip()}\n")


if __name__ == "__main__":
    main()
