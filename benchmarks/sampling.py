"""Check whether reading the device's health affects a concurrent measurement. Prints; asserts nothing.

    python benchmarks/sampling.py

A separate process runs a model without pause, while this one reads NVML, as a run does, in every other slot of a
second, and does nothing in the slots between. Needs a CUDA device.
"""

from __future__ import annotations

import bisect
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median, stdev

from tputfind.processes.children import Children
from tputfind.processes.messages import ListDevices
from tputfind.record.environment import Environment
from tputfind.session.health import Watch

WORKLOADS = (("mobilenet_v3_large", 1, 80), ("mobilenet_v3_large", 256, 30), ("vit_b_16", 256, 30))
SLOT_S = 1.0
LOOP = """
import json, sys, time, torch, torchvision
model, size, seconds, path = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
module = torchvision.models.get_model(model, weights=None).eval().half().cuda()
inputs = torch.randn(size, 3, 224, 224, dtype=torch.float16, device="cuda")
ends = []
with torch.inference_mode():
    for _ in range(20):
        module(inputs)
    torch.cuda.synchronize()
    print("begins", flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        module(inputs)
        ends.append(time.monotonic())
json.dump(ends, open(path, "w"))
"""


def main() -> None:
    """Print a line for each workload."""
    with Children() as children:
        uuid = next(iter(children.ask(ListDevices(), Environment))).device_uuid
    for model, size, seconds in WORKLOADS:
        watched, alone = rates(model, size, seconds, uuid)
        pairs = min(len(watched), len(alone))
        ratios = [one / other for one, other in zip(watched[:pairs], alone[:pairs], strict=True)]
        error = stdev(ratios) / pairs**0.5
        print(
            f"{model} batch {size}: {median(alone):.1f} batches/s alone, {median(watched):.1f} watched; "
            f"ratio {fmean(ratios):.4f}, standard error {error:.4f}, of {pairs} pairs",
            flush=True,
        )


def rates(model: str, size: int, seconds: float, uuid: str | None) -> tuple[list[float], list[float]]:
    """Return the batches per second of the watched slots, and of the others."""
    slots: list[tuple[bool, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ends.json"
        command = [sys.executable, "-c", LOOP, model, str(size), str(seconds), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            stop = time.monotonic() + seconds - SLOT_S
            while time.monotonic() < stop:
                slots.append(slot(uuid, watched=len(slots) % 2 == 0))
        ends = json.loads(path.read_text())
    found: tuple[list[float], list[float]] = [], []
    for watched, begin, end in slots:
        first, last = bisect.bisect_left(ends, begin), bisect.bisect_left(ends, end) - 1
        found[0 if watched else 1].append((last - first) / (ends[last] - ends[first]))
    return found


def slot(uuid: str | None, *, watched: bool) -> tuple[bool, float, float]:
    """Wait for one slot, and return whether it was watched, and when it began and ended."""
    begin = time.monotonic()
    with Watch(uuid if watched else None) as watch:
        watch.begin()
        time.sleep(SLOT_S)
        watch.end()
    return watched, begin, time.monotonic()


if __name__ == "__main__":
    main()
