"""Run every model type that transformers builds from a default configuration; report which run, and why others do not.

    python benchmarks/hf_types.py --csv results/cpu/hf-types.csv

A type is built from its default configuration with few layers, few experts and a small vocabulary, and runs at batch 1
and 2 on the CPU. The weights of models above ``--most-parameters`` stay zeros. Each type has its own process.

Statuses: ``runs``; ``refused``, the tool names the option that is needed; ``failed``, the forward raises; ``not
built``, transformers itself builds no model from the default configuration.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from transformers import generation, initialization, modeling_utils

from tputfind.errors import BadRequest, TputfindError, UnknownModel
from tputfind.record.spec import read_spec
from tputfind.worker.models import huggingface
from tputfind.worker.workload import Workload, inference

LAYERS = (
    *("num_layers", "hidden_layers", "encoder_layers", "decoder_layers", "n_layer", "n_layers", "depth", "e_layers"),
    *("global_layers", "spatial_layers", "temporal_layers"),
)
"""Endings of attributes that count layers; counts of stages and convolutions are tied to the lengths of other lists."""
COUNTS = {
    "experts": 16,
    "expert_num": 16,
    "intermediate_size": 1024,
    "ffn_dim": 1024,
    "num_frames": 8,
    "frames_per_clip": 8,
}
"""Attributes with these endings are lowered to this number."""
MOST_PIXELS = 1024
"""Maximum height and width of an image; a larger one gets ``FEW_PATCHES`` along a side."""
FEW_PATCHES = 32
OF_LAYERS = ("hook_ids", "feature_layer", "feature_layers", "layers_indices")
"""Endings of lists of layer indices; an index beyond the last layer becomes that of the last."""
DERIVED = ("stage_names", "out_features", "out_indices", "_out_features", "_out_indices")
"""Attributes that a configuration derives from the number of its layers."""


@dataclass(frozen=True)
class Attempt:
    """How far a configuration is lowered.

    Without ``layers`` it stays as it is. Lists with an item per layer are dropped, so that the configuration derives
    them again, or are ``cut``; the vocabulary then stays whole.
    """

    layers: int | None
    few_tokens: bool = False
    cut: bool = False


ATTEMPTS = (
    Attempt(2, few_tokens=True),
    Attempt(10, few_tokens=True),
    Attempt(10, few_tokens=True, cut=True),
    Attempt(None, few_tokens=True),
    Attempt(None),
)
"""A model that fails at one attempt is tried at the next: some models need more layers, or other sizes."""
MOST_PARAMETERS = 3e10
"""Maximum parameters for the address space of a common machine."""
TOO_LARGE = "billion parameters do not fit here"
FEW_TOKENS = 16
"""Tokens of a sample for models with zero weights, if an attempt has ``few_tokens``."""
VOCABULARY = 4096
"""Maximum tokens of the vocabulary; the last few are those that configurations name by number."""
IMPORTED_ONCE = (generation, modeling_utils)
"""Modules that all types need; the processes are forks of this one and inherit them."""


def main() -> None:
    """Try every type, print every line, write the table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--types", default="*", help="patterns, with commas between")
    asked.add_argument("--at-once", type=int, default=1, help="types")
    asked.add_argument("--seconds", type=float, default=600, help="time limit of a type")
    asked.add_argument("--memory-gib", type=float, default=300, help="address space of a type")
    asked.add_argument("--most-parameters", type=float, default=5e7, help="larger models keep weights of zeros")
    asked.add_argument("--csv", help="the table")
    options = asked.parse_args()
    patterns = options.types.split(",")
    names = [model.name.removeprefix(huggingface.PREFIX) for model in huggingface.named_models()]
    chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    lines: list[dict[str, str]] = []
    with ThreadPoolExecutor(options.at_once) as pool:
        for line in pool.map(lambda name: in_process(name, options), chosen):
            lines.append(line)
            print(*line.values(), sep=" | ", flush=True)
    table = pd.DataFrame(lines)
    if options.csv:
        table.to_csv(options.csv, index=False)
    counts = table["status"].value_counts()
    built = len(table) - counts.get("not built", 0)
    shares = ", ".join(f"{count} {status}" for status, count in counts.items())
    print(
        f"{len(table)} types: {shares}; {counts.get('runs', 0) / max(1, built):.1%} of the {built} that are built run"
    )


def in_process(name: str, options: argparse.Namespace) -> dict[str, str]:
    """Return the line of a type from its own process, which is killed at the time limit."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=send_line, args=(name, options, theirs))
    child.start()
    theirs.close()
    line = {"type": name, "class": "", "weights": "", "input": "", "status": "failed", "reason": ""}
    end = time.monotonic() + options.seconds
    try:
        while ours.poll(max(0, end - time.monotonic())):
            part = ours.recv()
            if not part:
                break
            line |= part
        else:
            line["reason"] = line["reason"] or f"not done in {options.seconds:g} s"
    except EOFError:
        line["reason"] = line["reason"] or "the process died"
    child.kill()
    child.join()
    return line


def send_line(name: str, options: argparse.Namespace, to: Connection) -> None:
    """Send the parts of a type's line, then an empty part."""
    limit = int(options.memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for part in tried(name, folder, options.most_parameters):
            to.send(part)
    to.send({})


def tried(name: str, folder: str, most_parameters: float) -> Iterator[dict[str, str]]:
    """Yield parts of a type's line: class, weights, input, status and reason; later parts replace earlier ones."""
    try:
        config = transformers.AutoConfig.for_model(name)
        kind = huggingface.class_of(transformers, config)
        yield {"class": kind.__name__}
        parameters_of(kind, config)
    except UnknownModel as error:
        yield {"status": "refused", "reason": one_line(error)}
        return
    except Exception as error:
        yield {"status": "not built", "reason": one_line(error)}
        return
    reason = ""
    for attempt in ATTEMPTS:
        config = json.loads(transformers.AutoConfig.for_model(name).to_json_string(use_diff=False))
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(lowered(config, attempt)))
        line = run(name, kind, folder, most_parameters, few_tokens=attempt.few_tokens)
        if TOO_LARGE not in line["reason"] or not reason:
            reason = line["reason"]
        yield line | {"reason": reason}
        if line["status"] != "failed":
            return


def run(name: str, kind: Any, folder: str, most_parameters: float, *, few_tokens: bool) -> dict[str, str]:
    """Run a model at batch 1 and 2, and return its weights, input, status and reason."""
    line = {"status": "runs", "reason": ""}
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        parameters = parameters_of(kind, config)
        if parameters > MOST_PARAMETERS:
            return {"status": "failed", "reason": f"{parameters / 1e9:.0f} {TOO_LARGE}"}
        drawn = parameters <= most_parameters
        line["weights"] = "random" if drawn else "zeros"
        with nullcontext() if drawn else initialization.no_init_weights():
            workload = shortened(f"hf:{folder}") if few_tokens and not drawn else None
            workload = workload or Workload(read_spec(f"hf:{folder}", {}), torch.device("cpu"))
        line["input"] = workload.input_shape()
        with inference():
            for size in (1, 2):
                batch = workload.batch(size)
                batch()
                workload.check_samples(batch)
    except BadRequest as error:
        line |= {"status": "refused", "reason": one_line(error).replace(f"hf:{folder}", f"hf:{name}")}
    except Exception as error:
        line |= {"status": "failed", "reason": one_line(error)}
    return line


def parameters_of(kind: Any, config: Any) -> int:
    """Return the number of parameters of a model, which is built on the meta device."""
    with torch.device("meta"), initialization.no_init_weights():
        return sum(each.numel() for each in kind._from_config(config).parameters())  # noqa: SLF001  # as the tool does


def shortened(model: str) -> Workload | None:
    """Return a large model with fewer tokens; None if its inputs have no tokens."""
    try:
        return Workload(read_spec(model, {"sequence_length": FEW_TOKENS}), torch.device("cpu"))
    except BadRequest:
        return None


def new_ids(config: dict[str, Any]) -> dict[int, int]:
    """Map each larger token id of a configuration and its nested ones to a number below ``VOCABULARY``."""
    ids = sorted({value for name, value in numbers(config) if name.endswith(("_id", "_index")) and value >= 1000})
    return {value: VOCABULARY - len(ids) + place for place, value in enumerate(ids)}


def numbers(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the names and values of whole numbers in a configuration and its nested ones."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def lowered(config: dict[str, Any], attempt: Attempt) -> dict[str, Any]:
    """Return a configuration as lowered by an attempt."""
    if attempt.layers is None:
        return config
    if attempt.cut:
        return shrunk(config, attempt.layers, {}, cut=True)
    return shrunk(config, attempt.layers, new_ids(config))


def shrunk(config: dict[str, Any], layers: int, ids: dict[int, int], *, cut: bool = False) -> dict[str, Any]:
    """Return a configuration, and its nested ones, with fewer layers, fewer experts and a smaller vocabulary."""
    less: dict[str, Any] = {}
    lengths = {value for name, value in config.items() if name.endswith(LAYERS) and isinstance(value, int)}
    for name, value in config.items():
        if isinstance(value, dict):
            inner = value if name != "per_layer_config" else {key: value[key] for key in value if int(key) < layers}
            less[name] = shrunk(inner, layers, ids, cut=cut)
        elif name.endswith(OF_LAYERS) and isinstance(value, list):
            less[name] = [max(-layers, min(place, layers - 1)) for place in value]
        elif isinstance(value, list) and len(value) in lengths and len(value) > layers and cut:
            less[name] = value[:layers]
        elif (name in DERIVED and lengths) or (
            isinstance(value, list) and len(value) in lengths and len(value) > layers
        ):
            continue
        elif isinstance(value, bool) or not isinstance(value, int):
            less[name] = value
        elif name == "vocab_size":
            less[name] = value if cut else min(value, VOCABULARY)
        elif name.endswith(("_id", "_index")):
            less[name] = ids.get(value, value)
        elif name.endswith("kv_shared_layers"):
            less[name] = min(value, layers // 2)
        elif (name.endswith(LAYERS) and "conv" not in name and "extract" not in name) or (
            name == "num_blocks" and value in lengths
        ):
            less[name] = min(value, layers)
        elif name == "image_size" and isinstance(config.get("patch_size"), int):
            less[name] = value if value <= MOST_PIXELS else FEW_PATCHES * config["patch_size"]
        else:
            less[name] = min([value, *(most for ending, most in COUNTS.items() if name.endswith(ending))])
    if less.get("architecture", "").startswith("vit_") and not less.get("model_args"):
        less["model_args"] = {"depth": layers}
    return less


def one_line(error: BaseException) -> str:
    """Return an error as one line of up to 300 characters."""
    if isinstance(error, TputfindError):
        return " ".join(f"{error}".split())[:300]
    text = f"{type(error).__name__}: {error}".replace(f"{Path(transformers.__file__).parents[1]}/", "")
    return " ".join(text.split())[:300]


if __name__ == "__main__":
    main()
