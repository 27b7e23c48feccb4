"""Write the pages of this folder that follow from the program or from ``results/``: ``python docs/generate.py``.

``PAGES`` lists them. A test fails if a page differs from the text that this script writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from claims import CLAIMS, Claim

from tputfind.commands import COMMANDS
from tputfind.commands.options import command_options
from tputfind.declaration import Option
from tputfind.record.record import Record
from tputfind.report.columns import COLUMNS

_OPTIONS: Final = """\
# Options

`python docs/generate.py` writes this page. `tputfind --help` shows the first options and all commands, `tputfind
COMMAND --help` those of one command. Options come before or after a model; `--ray` without an address comes after.

| value | form |
|---|---|
| `N` | a whole number: `1000` or `1,000`; `--rate` also takes `0.5`, `5k`, `1M` and `5000/s` |
| `SIZE` | a number and a unit: `24GiB`, `512 MiB`, `24GB` (1 GiB is 2^30 bytes, 1 GB is 10^9; `24G` is refused) |
| `TIME` | a number and a unit: `250us`, `50ms`, `1.5 s`, `2min`, `1h` |
| `S` | seconds: `6`, `0.5`; a unit is also understood, such as `1min` |
| `SHARE` | a fraction: `5%` or `0.05` |
| `P` | a percentile: `99`, `99%` or `p99` |
| `LIST` | values, separated by commas: `1,8,32`, `16GiB,24GiB` |
| `SHAPE` | lengths, separated by `x`: `3x640x480` |

Choices ignore case: `FP16` is `fp16`. A wrong value, option or command ends with exit code 2, and the message names the
nearest valid one. [First run](../start/first-run.md) explains the usual options.
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
"""The unit of a column by a part of its name; the first match counts."""
MEANINGS: Final = {
    "model": "the model's name",
    "phase": "`infer`, `train` or `step`",
    "device": "the device as PyTorch names it",
    "device_name": "the product's name",
    "dtype": "the requested dtype",
    "layout": "`nchw` or `nhwc`",
    "mode": "as in `--mode`",
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
    "enqueue_ms_mean": "mean time of submitting a batch",
    "host_bound": "whether the host limits the throughput",
    "peak_allocated_mib": "peak memory of tensors; on a CPU, resident memory beyond the idle process",
    "peak_reserved_mib": "peak memory of the allocator; on a CPU, address space beyond the idle process",
    "sm_clock_mhz": "mean SM clock while the row was timed",
    "power_w": "mean power of the device",
    "energy_mj_per_sample": "energy of the device per sample",
    "throttled": "whether the clocks were reduced",
    "notices": "kinds of notices of the row, joined by `;`",
    "processes": "processes in which the row was timed",
    "latency_ms_p50_ci_low": "lower end of the median latency's 95 % confidence interval; "
    "empty for one process of several",
    "latency_ms_p50_ci_high": "upper end of that interval",
    "warmup_steps": "untimed steps before the windows",
    "warmup_s": "time of these steps",
    "first_step_ms": "first step of a process, median of the processes",
    "temperature_c": "temperature of the device",
    "throttle_reasons": "causes of reduced clocks, joined by `;`",
    "transfer": "the copies that are counted",
    "copy_in_ms": "time of copying a batch's inputs alone",
    "copy_out_ms": "time of copying its outputs alone",
    "compile_s": "time of compiling, from the first call",
    "graphs": "graphs of the compiled model",
    "started": "start of the run",
    "torch": "version of PyTorch",
    "threads": "computing threads, on a CPU",
    "others_busy_cores": "cores busy with other processes while the row was timed, on a CPU",
    "load": "work of the host's other devices in this run: `solo` none, `queue` other jobs, `all busy` the same job",
    "busy_devices": "devices that worked at the same time, this one included",
    "all_busy_share": "fraction of the window in which all of them worked",
    "cores": "cores of the host on which the device's processes ran",
    "samples_per_step": "samples in a step, of all devices: each takes batch size times `--accumulate`, or `samples=`",
    "parallel": "how several devices share one model: `ddp` or `fsdp`",
    "ranks": "devices of the model; batch sizes are those of each, throughput is that of all",
    "scaling_efficiency": "throughput as a fraction of that many times one device, if measured",
    "instances": "copies of the model that ran at once; batch sizes are those of each, throughput is that of all",
    "optimizer": "of training; empty for inference and for a step of your own",
    "grad_checkpoint": "whether the backward pass computed activations again",
    "allocator": "the chosen CUDA allocator; empty for torch's default",
}
OTHER_FILES: Final = {
    "plans": {
        "slo_ms percentile batcher delay_ms routing burstiness network_ms spare max_utilization max_queue max_ongoing "
        "overhead_per_batch_ms overhead_per_request_ms overhead_per_answer_ms samples_per_request solve": (
            "the demand; `solve` names the answer, or is `nothing` if rate, SLO and devices were given"
        ),
        "devices devices_fewest devices_most batch_cap": "devices, their 90 % range, and the maximum batch size",
        "verdict one_fewer_verdict one_fewer_fails one_fewer_ms_tail more_traffic_ms_tail": (
            "`meets`, `misses` or `undecided`, and the percentile, also of one device fewer and at 20 % more traffic; "
            "`fails` is whether fewer certainly miss"
        ),
        "rate_per_s samples_per_s goodput_per_s refused utilization busy mean_batch": (
            "requests, samples, and requests in time; fraction refused; rate over that of full batches; fraction of "
            "time computing; mean batch size"
        ),
        "latency_ms_p50 latency_ms_p95 latency_ms_p99 latency_ms_tail latency_ms_tail_low latency_ms_tail_high": (
            "percentiles; `tail` is that of the target, with its 95 % interval"
        ),
        "devices_full_batches devices_naive devices_nexus devices_mean": (
            "rules of thumb: throughput of full batches; batches as long as the target; half as long; mean latency"
        ),
        "cost_per_hour cost_per_million cost_per_million_samples currency mix mix_cost_per_hour mix_latency_ms_tail": (
            "cost of all devices, of a million requests or samples; the cheapest mix of kinds, if cheaper"
        ),
        "computing_share computing_w power_w_low power_w_high kwh_per_million_low kwh_per_million_high "
        "best_batch_by_energy best_batch_by_rate": (
            "a device's fraction of time computing, and its power then; bounds of the fleet's power and of the energy "
            "of a million samples; the best full batches of the record"
        ),
    },
    "forecasts": {
        "memory_gib largest_batch_forecast error_percent forecast_from batches_tried optimizer grad_checkpoint "
        "weights_gib gradients_gib optimizer_gib activations_gib overhead_gib": (
            "the device's memory, the largest batch, and its error either way; the device and batch sizes of the "
            "trials; the memory of the largest batch at its peak"
        ),
    },
    "races": {
        "recipe outcome against ratio low high seconds reason of_winner": (
            "the variant, and its outcome; the leader that it was timed with, the ratio to it and its interval; the "
            "seconds that it took; why it failed or was not tried; its throughput over the winner's"
        ),
    },
    "timings of `clocks`": {
        "way condition stage mean_ms median_ms std_ms timings": (
            "how a batch was timed, under which condition or of which stage; mean, median and standard deviation; "
            "number of timings"
        ),
    },
    "comparisons": {
        "recipe old_batch new_batch old_per_s new_per_s old_share new_share ratio low high verdict "
        "host_bound lost reason": (
            "batch sizes, throughputs, their half-widths as fractions of them; NEW over OLD, its interval, and "
            "the verdict; whether Python limits one, and NEW does not run; a remark"
        ),
    },
}
"""Columns of other CSV files and their meanings, by file."""
TYPES: Final = {"string": "text", "Int64": "whole number", "Float64": "number", "boolean": "`True` or `False`"}


def options_page() -> str:
    """Return the page of all options: a table of the commands, and a table of the options."""
    examples = ((f"`tputfind {name}`", command.help, f"`{command.examples[0]}`") for name, command in COMMANDS.items())
    header = ("option", "values", "default", "meaning", "commands")
    lines = [_OPTIONS, "## Commands", "", _table(("command", "task", "example"), examples), "", "## Options", ""]
    return "\n".join([*lines, _table(header, _options())])


def _options() -> list[tuple[str, ...]]:
    """Return a row for each option, by name, with the commands that take it."""
    commands: dict[tuple[str, ...], list[str]] = {}
    for name, command in COMMANDS.items():
        for option in command_options(command.options):
            commands.setdefault(_cells(option), []).append(name)
    return sorted((*cells, _names(names)) for cells, names in commands.items())


def _names(commands: Sequence[str]) -> str:
    """Return the names of commands, or `all`."""
    return "all" if len(commands) == len(COMMANDS) else ", ".join(commands)


def _cells(option: Option) -> tuple[str, ...]:
    takes = (option.takes,) if isinstance(option.takes, str) else option.takes or ()
    several = ", or several, separated by commas" if option.lists else ""
    return f"`{option.flag}`", ", ".join(f"`{choice}`" for choice in takes) + several, option.default, option.help


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(header), ["---"] * len(header), *lines])


def columns_page() -> str:
    """Return the page of the columns of the CSV."""
    columns = [column for column in COLUMNS if column.in_csv]
    lines = [
        "# Columns of the CSV",
        "",
        "A row for each model, recipe and batch size. An unknown figure is an empty cell, never 0.",
        "A failed row has its kind of failure in `status`. `python docs/generate.py` writes this page.",
        "",
        _table(
            ("column", "unit", "type", "meaning"),
            ((f"`{one.name}`", _unit(one.name), TYPES[one.kind], MEANINGS[one.name]) for one in columns),
        ),
        "",
        "Other files, without the columns that they share with this table:",
        "",
        _table(
            ("file", "columns", "meaning"),
            (
                (file, ", ".join(f"`{name}`" for name in names.split()), meaning)
                for file, meanings in OTHER_FILES.items()
                for names, meaning in meanings.items()
            ),
        ),
    ]
    return "\n".join(lines)


def _unit(name: str) -> str:
    """Return the unit in a column's name, or an empty string."""
    return next((unit for part, unit in UNITS.items() if f"{part}_" in f"{name}_"), "")


def evidence_page() -> str:
    """Return the page of evidence: a table with a row for each claim."""
    lines = [
        "# Evidence",
        "",
        "`python docs/generate.py` computes the figures. Records (`.json`) are of this version, some tables older.",
        "",
        _table(("claim", "figure", "command", "hardware", "files"), map(_evidence, CLAIMS)),
    ]
    return "\n".join(lines)


def _evidence(claim: Claim) -> tuple[str, ...]:
    files = ", ".join(f"[{number}](../results/{file})" for number, file in enumerate(claim.files, 1))
    return claim.claim, claim.figure.format(*claim.compute()), f"`{claim.command}`", claim.hardware, files


def record_page() -> str:
    """Return the page of the parts of a record."""
    _, parts = msgspec.json.schema_components([Record])
    rows = ((f"`{name}`", ", ".join(f"`{field}`" for field in part["properties"])) for name, part in parts.items())
    lines = [
        "# Record",
        "",
        "A record is a JSON file. `tputfind schema` prints its JSON Schema, with a description of every part, and",
        "`tputfind.load_record(path)` reads it in Python. Times are ISO 8601 in UTC. The fields of each part:",
        "",
        _table(("part", "fields"), rows),
    ]
    return "\n".join(lines)


PAGES: Final[dict[str, Callable[[], str]]] = {
    "evidence.md": evidence_page,
    "reference/columns.md": columns_page,
    "reference/options.md": options_page,
    "reference/record.md": record_page,
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
