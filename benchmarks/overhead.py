"""Measure the cost of the tool itself: start-up, trials, time outside the timed windows. Prints; asserts nothing.

    python benchmarks/overhead.py

Every figure is printed with the command that made it. Run it on a quiet machine.
"""

from __future__ import annotations

import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

import tputfind
from tputfind.processes.children import Children
from tputfind.processes.messages import ListDevices, TryBatch
from tputfind.record.environment import Environment
from tputfind.record.record import Record, Trial
from tputfind.record.spec import read_spec

TPUTFIND = shutil.which("tputfind", path=Path(sys.executable).parent)
COMMAND = [TPUTFIND] if TPUTFIND else [sys.executable, "-m", "tputfind"]


def main() -> None:
    """Print every figure."""
    help_times()
    process_start()
    gpu = subprocess.run([*COMMAND, "devices"], capture_output=True, text=True, check=True).stdout.count("cuda:") > 0
    if gpu:
        run("resnet50 --dtype fp16 --layout nhwc --max-batch 256")
    else:
        run("resnet18 --image-size 64 --max-batch 32 --batches 20")


def help_times() -> None:
    """Print the duration of ``--help``."""
    seconds = []
    for _ in range(15):
        start = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - start)
    print(f"tputfind --help: median of {len(seconds)} {statistics.median(seconds):.3f} s, worst {max(seconds):.3f} s")


def process_start() -> None:
    """Print the cost of isolation: a whole trial of a model that does nothing, on every device here."""
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        path = Path(folder) / "nothing.py"
        path.write_text("from torch import nn\ndef make():\n    return nn.Identity()\n")
        start = time.perf_counter()
        children.preload("torchvision")
        print(f"a server that has imported torch and torchvision: {time.perf_counter() - start:.2f} s, once a run")
        for device in list(children.ask(ListDevices(), Environment)):
            spec = read_spec(f"{path}:make", {"device": device.device, "input_size": "1"})
            seconds = []
            for _ in range(9):
                start = time.perf_counter()
                children.ask_one(TryBatch(spec, 1), Trial)
                seconds.append(time.perf_counter() - start)
            print(f"a trial of a model that does nothing, {device.device}: median {statistics.median(seconds):.3f} s")


def run(arguments: str) -> None:
    """Measure once and print the parts of the duration."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        process = subprocess.Popen(
            [*COMMAND, *shlex.split(arguments), "--output", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        parent, first_trial_s, peak_bytes = psutil.Process(process.pid), 0.0, 0
        assert process.stderr is not None
        for line in process.stderr:
            if "does batch" in line and not first_trial_s:
                first_trial_s = time.perf_counter() - start
            peak_bytes = max(peak_bytes, parent.memory_info().rss)
        process.wait()
        wall_s = time.perf_counter() - start
        (path,) = Path(folder).glob("*.json")
        record = tputfind.load_record(path)
    windows_s = sum(sum(row.device_ms) + sum(row.latency_ms) for row in record.rows) / 1000
    trials_s = [trial.seconds for trial in record.trials]
    rows_s = sum(row.seconds for row in record.rows)
    print(f"tputfind {arguments}, on {record.environment.device_name}, torch {record.environment.torch}:")
    print(f"  start to first trial         {first_trial_s:6.2f} s")
    print(f"  trials                       {len(trials_s)}, median {statistics.median(trials_s):.2f} s each")
    print(f"  rows                         {len(record.rows)}, {rows_s:.2f} s in their processes")
    print(f"  timed windows                {windows_s:6.2f} s")
    print(f"  whole command                {wall_s:6.2f} s")
    print(f"  outside the timed windows    {wall_s - windows_s:6.2f} s")
    print(f"  parent's resident memory     {peak_bytes / 2**20:6.0f} MiB at the most, as far as seen")
    print(f"  {edge(record)}")


def edge(record: Record) -> str:
    """Return the largest batch and its limit in words."""
    return f"largest batch {record.edge.largest_batch}, by {record.edge.limited_by}" if record.edge else "no search"


if __name__ == "__main__":
    main()
