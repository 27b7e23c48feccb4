"""Loads weights from a user's file."""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import is_zipfile

import torch
from torch import nn

from tputfind.errors import BadRequest
from tputfind.record.spec import Spec
from tputfind.worker.models.checked import HINT, refused_global, trusts_files
from tputfind.worker.models.pickles import pickled_in
from tputfind.worker.models.source import found


def file_of(spec: Spec) -> Path | None:
    """Return the file that the spec names for weights; None if the name is not a file."""
    path = Path(spec.weights or "")
    return path if found(path.is_file) else None


def load(module: nn.Module, file: Path, model: str) -> None:
    """Load a state dict, or a checkpoint that contains one, into a module.

    Args:
        module: the module.
        file: the file of weights.
        model: the model's name in messages.

    Raises:
        BadRequest: the file has no state dict, or one of another model, or could run code.
    """
    pickled = pickled_in(file)
    if pickled is not None and pickled.holds == "object":
        what = f"is a pickled object of the class {pickled.name} (torch.save of a whole module)"
        save = "torch.save(model.state_dict(), FILE) where the module was made writes weights"
        raise BadRequest(f"--weights: {file} {what}, not weights", save)
    try:
        held: Any = _read(file)
        module.load_state_dict(held.get("state_dict", held.get("model", held)))
    except BadRequest:
        raise
    except UnpicklingError as error:
        if "GLOBAL" not in f"{error}" and not is_zipfile(file):  # no checkpoint: nobody is advised to trust it
            raise BadRequest(f"--weights: {file} holds no weights of {model}: torch finds no tensors in it") from None
        what = f"holds more than tensors and plain values: {refused_global(error)}"
        raise BadRequest(f"--weights: {file} is not loaded: it {what}", HINT) from None
    except Exception as error:  # reading any other file can raise anything
        lines = f"{error}".strip().splitlines() or [type(error).__name__]
        reason = " ".join(line.strip() for line in lines[:2])
        raise BadRequest(f"--weights: {file} holds no weights of {model}: {reason}") from None


def _read(file: Path) -> Mapping[str, Any]:
    if file.suffix != ".safetensors":
        held: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=not trusts_files())
        return held
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError:
        raise BadRequest(f"--weights: {file} takes a package to read", "pip install safetensors") from None
    return load_file(file)
