"""Measure how a power limit slows a GPU after a rest and after pauses: samples/s of ViT-B/16, by tenths of a second.

    python benchmarks/power_limit.py > FILE

Each line is one stretch of work without a pause; below it are the means of its whole seconds. Needs a CUDA device.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import fmean

import torch
import torchvision

PAUSES_S = (0.05, 0.15, 0.3, 0.6, 1.2, 2.5)
_AHEAD = 6
"""Batches that are submitted ahead of the device."""


def main() -> None:
    """Work, pause, work again, and print."""
    module = torchvision.models.vit_b_16(weights=None).eval().half().cuda()
    with torch.inference_mode():
        for batch_size in (256, 1024):
            inputs = torch.randn(batch_size, 3, 224, 224, dtype=torch.float16, device="cuda")
            work(module, inputs, 0.5)
            time.sleep(8)
            tell(batch_size, "from rest", work(module, inputs, 20 if batch_size == 256 else 8))
            for pause_s in PAUSES_S:
                time.sleep(pause_s)
                tell(batch_size, f"pause {pause_s}", work(module, inputs, 4))


def work(module: torch.nn.Module, inputs: torch.Tensor, seconds: float) -> list[int]:
    """Work for some seconds, and return the samples per second of each tenth of a second on the device."""
    events = [mark()]
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        module(inputs)
        events.append(mark())
        events[-min(_AHEAD, len(events))].synchronize()
    torch.cuda.synchronize()
    tenths: dict[int, list[float]] = {}
    for one, following in pairwise(events):
        tenths.setdefault(int(events[0].elapsed_time(following) // 100), []).append(one.elapsed_time(following))
    return [round(1000 * len(inputs) / fmean(spans_ms)) for _, spans_ms in sorted(tenths.items())]


def mark() -> torch.cuda.Event:
    """Record an event after the work submitted so far, and return it."""
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def tell(batch_size: int, what: str, rates: list[int]) -> None:
    """Print the rates, and the means of whole seconds."""
    print(batch_size, what, rates, flush=True)
    print("  means of seconds", [round(fmean(rates[at : at + 10])) for at in range(0, len(rates) - 9, 10)], flush=True)


if __name__ == "__main__":
    main()
