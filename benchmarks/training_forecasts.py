"""Compare forecasts of training from fake tensors with largest batches that were found by search on a device.

    python benchmarks/training_forecasts.py --measure > edges.csv
    python benchmarks/training_forecasts.py edges.csv > forecasts.csv

The first command searches a CUDA device for the largest batches of ten models with SGD and AdamW under a memory limit,
and of some with other dtypes, limits and checkpointing. No row is timed. The second command needs no device. It adds a
forecast to each line, also to those of an earlier ``forecasts.csv``; the summary goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

import pandas as pd
from search import searched

from tputfind.errors import TputfindError
from tputfind.processes.children import Children
from tputfind.record.spec import read_spec
from tputfind.session.forecast import card_on_fake, trace_on_fake
from tputfind.units import GIB

MODELS = (
    *("resnet50", "vit_b_16", "hf:bert", "swin_t", "convnext_tiny"),
    *("efficientnet_b0", "mobilenet_v3_large", "hf:gpt2", "timm:mixer_b16_224", "densenet121"),
)
RUNS = (
    *((model, optimizer, "amp-bf16", False, 24) for model in MODELS for optimizer in ("sgd", "adamw")),
    *((model, "adamw", "fp32", False, 24) for model in ("resnet50", "vit_b_16", "hf:gpt2")),
    *((model, "adamw", "amp-bf16", True, 24) for model in ("hf:gpt2", "timm:mixer_b16_224", "hf:bert")),
    *((model, "adamw", "amp-bf16", False, 80) for model in ("resnet50", "hf:bert", "convnext_tiny")),
)
ASKED = ("model", "optimizer", "dtype", "grad_checkpoint", "memory_gib")
EDGE = (*ASKED, "largest_batch")
FORECAST = ("forecast", "stated_percent", "off_percent")


def main() -> None:
    """Measure, or print a line for each edge, and the errors of the forecasts on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="search the device here, and print its largest batches")
    parser.add_argument("edges", nargs="?", help="a CSV of largest batches")
    asked = parser.parse_args()
    with Children() as children:
        if asked.measure:
            print_line(EDGE)
            for run in RUNS:
                measure(children, run)
            return
        print_line((*EDGE, *FORECAST))
        edges: Any = pd.read_csv(asked.edges)[[*EDGE]].to_dict("records")
        off: Any = pd.Series([forecast(children, edge) for edge in edges])
    figures = f"{off.abs().median():.2f} % at the median, {off.abs().max():.2f} % at the most"
    too_high = f"too high in {(off > 0).sum()}, by {off.max():.2f} % at the most"
    print(f"{len(off)} forecasts, off by {figures}; {too_high}", file=sys.stderr)


def print_line(values: Iterable[object]) -> None:
    """Print a line of the CSV."""
    print(*values, sep=",", flush=True)


def options_of(run: dict[str, object]) -> dict[str, str | bool | None]:
    """Return the options of a training."""
    options: dict[str, str | bool | None] = {name: str(run[name]) for name in ("dtype", "optimizer")}
    return options | {
        "phase": "train",
        "memory_limit": f"{run['memory_gib']}GiB",
        "grad_checkpoint": bool(run["grad_checkpoint"]),
    }


def measure(children: Children, run: tuple[str, str, str, bool, int]) -> None:
    """Search the device for one largest batch, and print its line."""
    asked = dict(zip(ASKED, run, strict=True))
    try:
        edge, _ = searched(children, run[0], options_of(asked) | {"device": "cuda", "search": "forecast"})
    except TputfindError as error:
        print(*run, error, file=sys.stderr, flush=True)
        return
    print_line((*run, edge.largest_batch))


def forecast(children: Children, edge: dict[str, object]) -> float:
    """Print the line of an edge with its forecast, and return by how many percent the forecast is off."""
    spec = read_spec(str(edge["model"]), options_of(edge))
    card = card_on_fake(spec, trace_on_fake(spec, children), int(float(str(edge["memory_gib"])) * GIB))
    off_percent = 100 * (card.largest_batch / int(str(edge["largest_batch"])) - 1)
    print_line((*edge.values(), card.largest_batch, f"{100 * card.error:g}", round(off_percent, 3)))
    return off_percent


if __name__ == "__main__":
    main()
