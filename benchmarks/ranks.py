"""Train a torchvision model on several devices in a bare loop, as a reference for tputfind's rows.

Run it by torch's own launcher, once for each batch size, so that every one has fresh processes::

    python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/ranks.py resnet50 ddp 256

A fourth argument is the number of steps, of which half are warm-up, but at most 20. With 10, the timed steps are among
the first ten of DDP, in which it times itself and waits for the device.

It prints the step time, the samples/s of all devices and the maximum memory that rank 0 reserved, or which rank ran out
of memory.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter
from typing import Any

import torch
import torchvision
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WARM_UP, STEPS = 20, 40


def spread(model: Any, kind: str, device: torch.device) -> Any:
    """Return a model in ``ddp`` or ``fsdp``, or unchanged for ``single``."""
    if kind == "ddp":
        return DistributedDataParallel(model, device_ids=[device])
    if kind == "fsdp":
        blocks = (
            list(model.encoder.layers)
            if hasattr(model, "encoder")
            else [block for name in ("layer1", "layer2", "layer3", "layer4") for block in getattr(model, name)]
        )
        for block in blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def main(name: str, kind: str, batch_size: int, steps: int) -> None:
    """Train, and print the step time."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    if kind != "single":
        distributed.init_process_group("nccl")
    torch.manual_seed(0)
    model = spread(torchvision.models.get_model(name).to(device), kind, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.rand(batch_size, 3, 224, 224, device=device)
    labels = torch.arange(batch_size, device=device) % 1000

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            output = model(images)
        loss = nn.functional.cross_entropy(output.float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    warm_up = min(WARM_UP, steps // 2)
    try:
        for _ in range(warm_up):
            loss = step()
        torch.cuda.synchronize()
        begin_s = perf_counter()
        for _ in range(steps - warm_up):
            loss = step()
        torch.cuda.synchronize()
        seconds = (perf_counter() - begin_s) / (steps - warm_up)
        del loss
    except torch.OutOfMemoryError:
        print(f"{name} {kind} batch {batch_size}: rank {rank} is out of memory", flush=True)
        os._exit(3)
    mib = torch.cuda.max_memory_reserved() / 2**20
    if rank == 0:
        rate = batch_size * size / seconds
        print(f"{name} {kind} batch {batch_size}: {1000 * seconds:.3f} ms, {rate:.1f} samples/s, {mib:.0f} MiB")
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else WARM_UP + STEPS)
