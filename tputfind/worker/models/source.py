"""A model that has been found and not built yet, and what all sources of models need."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from tputfind.errors import UnknownModel
from tputfind.record.environment import Capabilities
from tputfind.record.record import Notice
from tputfind.record.spec import Input, Spec
from tputfind.step import Step
from tputfind.worker.inputs import Call, Drawn, Inputs

LONGEST_PATH: Final = 300
"""Characters of a path that are quoted: its middle says more than that of a name."""


def found(look: Callable[[], bool]) -> bool:
    """Return what a path's ``is_file`` or ``exists`` says; of one that no file system takes, being too long, False."""
    try:
        return look()
    except OSError:
        return False


class Source(NamedTuple):
    """``build`` returns the module, in fp32 on the CPU, and its inputs; ``finish`` then changes the module's weights.

    What is known beforehand: ``inputs``, where they are to be drawn; the number of ``parameters``; ``path``, the file
    that a user's factory lies in; ``unfit``, which says why a device with these capabilities cannot run the model as
    asked, or nothing; ``caveats``, what must be known to use any number of it; ``made_of``, what else decides what is
    built, as text; ``deferrable``, whether the module is a library's with random weights, which ``deferred`` can build;
    ``step``, which makes the step of the user's own that it is instead of a model.
    """

    build: Callable[[], tuple[nn.Module, Inputs]]
    inputs: Call | None = None
    parameters: int | None = None
    path: Path | None = None
    unfit: Callable[[Capabilities], str] = lambda _: ""
    caveats: tuple[Notice, ...] = ()
    made_of: str = ""
    deferrable: bool = False
    finish: Callable[[nn.Module], None] = lambda _: None
    step: Callable[[], Step] | None = None


def imported(package: str, extra: str) -> Any:
    """Return a package.

    Raises:
        UnknownModel: it is not installed; the hint says what installs it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is there, and something that it needs is not
        raise UnknownModel(f"{package} is not installed", f"pip install 'tputfind[{extra}]'") from None


_DTYPES: Final = {
    "float": None,
    "fp32": torch.float32,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def given_inputs(spec: Spec) -> Call | None:
    """Return what ``--input``, ``--input-size`` or ``--image-size`` ask for; None where none of them was given."""
    if spec.inputs is not None:
        positional = tuple(_drawn(each) for each in spec.inputs if not each.name)
        return positional, {each.name: _drawn(each) for each in spec.inputs if each.name}
    shape = spec.input_size or ((3, spec.image_size, spec.image_size) if spec.image_size else None)
    return None if shape is None else ((Drawn(shape),), {})


def _drawn(asked: Input) -> Drawn:
    axis = asked.shape.index("B") if "B" in asked.shape else None
    shape = tuple(length for length in asked.shape if length != "B")
    return Drawn(shape, axis, _DTYPES[asked.dtype], asked.below)
