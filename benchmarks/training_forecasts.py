"""Compare forecasts of training from fake tensors with largest batches that were found by search on a device.

    python benchmarks/training_forecasts.py --measure results/nvidia-h200/training/edges
    python benchmarks/training_forecasts.py results/nvidia-h200/training/edges/*.json \
        > results/nvidia-h200/training/forecasts.csv

The first command searches a CUDA device for the largest batches of ten models with SGD and AdamW under a memory limit,
and of some with other dtypes, limits and checkpointing, and keeps the records. No row is timed. The second command
needs no device. It writes a line for each record; the summary goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import pandas as pd
from search import searched

import tputfind
from tputfind.errors import TputfindError
from tputfind.processes.children import Children
from tputfind.record.record import Record
from tputfind.session.forecast import cards_on_fake
from tputfind.units import GIB

MODELS = (
    *("resnet50", "vit_b_16", "hf:bert", "swin_t", "convnext_tiny"),
    *("efficientnet_b0", "mobilenet_v3_large", "hf:gpt2", "timm:mixer_b16_224", "densenet121"),
)
RUNS = (
    *((model, optimizer, "amp-bf16", "24GiB", False) for model in MODELS for optimizer in ("sgd", "adamw")),
    *((model, "adamw", "fp32", "24GiB", False) for model in ("resnet50", "vit_b_16", "hf:gpt2")),
    *((model, "adamw", "amp-bf16", "24GiB", True) for model in ("hf:gpt2", "timm:mixer_b16_224", "hf:bert")),
    *((model, "adamw", "amp-bf16", "80GiB", False) for model in ("resnet50", "hf:bert", "convnext_tiny")),
)
COLUMNS = (
    *("model", "optimizer", "dtype", "grad_checkpoint", "memory_gib"),
    *("largest_batch", "forecast", "stated_percent", "off_percent"),
)


def main() -> None:
    """Measure, or print a line for each record, and the errors of the forecasts on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="search the device here, and keep the records")
    parser.add_argument("records", nargs="*", help="records of trainings with a largest batch")
    asked = parser.parse_args()
    with Children() as children:
        if asked.measure is not None:
            asked.measure.mkdir(parents=True, exist_ok=True)
            for run in RUNS:
                measure(children, run, asked.measure)
            return
        print(*COLUMNS, sep=",", flush=True)
        found = pd.DataFrame([line(children, path) for path in asked.records])
    off = found.off_percent
    figures = f"{off.abs().median():.2f} % at the median, {off.abs().max():.2f} % at the most"
    too_high = f"too high in {(off > 0).sum()}, by {off.max():.2f} % at the most"
    print(f"{len(found)} forecasts, off by {figures}; {too_high}", file=sys.stderr)


def measure(children: Children, run: tuple[str, str, str, str, bool], folder: Path) -> None:
    """Search the device for one largest batch, and keep the record."""
    model, optimizer, dtype, memory, checkpoint = run
    given: dict[str, str | bool | None] = {"device": "cuda", "dtype": dtype, "phase": "train", "optimizer": optimizer}
    given |= {"memory_limit": memory, "search": "forecast", "grad_checkpoint": checkpoint}
    try:
        edge, session = searched(children, model, given)
    except TputfindError as error:
        print(*run, error, flush=True)
        return
    record = msgspec.structs.replace(session.record, edge=edge)
    name = f"{model.replace(':', '-')}-{dtype}-{optimizer}-{memory}{'-checkpoint' if checkpoint else ''}.json"
    (folder / name).write_bytes(record.to_json())
    print(*run, edge.largest_batch, edge.fails_at, flush=True)


def line(children: Children, path: str) -> dict[str, object]:
    """Print and return the line of a record."""
    record = tputfind.load_record(path)
    spec, largest_batch = record.spec, record.largest_batch
    assert largest_batch is not None
    memory_bytes = spec.memory_limit_bytes or memory_of(record)
    (card,) = cards_on_fake(spec, [memory_bytes], children)
    off_percent = 100 * (card.largest_batch / largest_batch - 1)
    asked = (spec.model, spec.optimizer or "sgd", spec.dtype, spec.grad_checkpoint, f"{memory_bytes / GIB:.4g}")
    found = (largest_batch, card.largest_batch, f"{100 * card.error:g}", round(off_percent, 3))
    values: dict[str, object] = dict(zip(COLUMNS, (*asked, *found), strict=True))
    print(*values.values(), sep=",", flush=True)
    return values


def memory_of(record: Record) -> int:
    """Return the memory of the device of a record in bytes."""
    memory_bytes = record.environment.memory_total_bytes
    assert memory_bytes is not None
    return memory_bytes


if __name__ == "__main__":
    main()
