"""A model that is found but not built yet, and helpers for all sources of models."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from tputfind.errors import BadRequest, UnknownModel
from tputfind.record.environment import Capabilities
from tputfind.record.record import Notice
from tputfind.record.spec import Input, Spec
from tputfind.step import Step
from tputfind.worker.inputs import Call, Drawn, Inputs, shape_text

LONGEST_PATH: Final = 300
"""Maximum characters of a quoted path; the middle of a path says more than that of a name."""


def found(look: Callable[[], bool]) -> bool:
    """Return the result of a path's ``is_file`` or ``exists``; False if the path is too long for the file system."""
    try:
        return look()
    except OSError:
        return False


class Source(NamedTuple):
    """A model that is not built yet.

    ``build`` returns the module, in fp32 on the CPU, and its inputs; ``finish`` then changes the module's weights. The
    other fields are known before: the ``inputs``, if they are drawn, and the number of ``parameters``; the ``path`` of
    the user's file with the factory, model or weights; ``unfit``, which returns why a device with these capabilities
    cannot run the model as requested, or an empty string; ``caveats`` for every result of the model; ``made_of``, text
    of whatever else determines the built model; whether it is ``deferrable``, a library's with random weights, so that
    ``deferred`` can build it; and ``step``, which makes the user's own step, if this is a step instead of a model.
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


def import_package(package: str, extra: str) -> Any:
    """Import a package and return it; raise UnknownModel, with a command that installs it, if it is missing."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, but one that it needs is not
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
    """Return the inputs that ``--input``, ``--input-size`` or ``--image-size`` describe; None without these options."""
    if spec.inputs is not None:
        positional = tuple(_drawing_rule(each) for each in spec.inputs if not each.name)
        return positional, {each.name: _drawing_rule(each) for each in spec.inputs if each.name}
    shape = spec.input_size or ((3, spec.image_size, spec.image_size) if spec.image_size else None)
    return None if shape is None else ((Drawn(shape),), {})


def asked_shape(spec: Spec, own: tuple[int, ...], *, own_channels: bool = False) -> tuple[int, ...]:
    """Return the shape of a sample that the spec sets, by default the model's own; BadRequest if it does not suit."""
    if spec.inputs is not None:
        raise BadRequest(f"--input: {spec.model} knows what it takes; --input-size gives a sample another size")
    if spec.image_size is not None:
        return *own[:-2], spec.image_size, spec.image_size
    shape = spec.input_size or own
    if len(shape) != len(own) or (own_channels and shape[0] != own[0]):
        example = shape_text([own])
        raise BadRequest(f"--input-size: {spec.model} takes samples such as {example}, not {shape_text([shape])}")
    return shape


def _drawing_rule(asked: Input) -> Drawn:
    axis = asked.shape.index("B") if "B" in asked.shape else None
    shape = tuple(length for length in asked.shape if length != "B")
    return Drawn(shape, axis, _DTYPES[asked.dtype], asked.below)
