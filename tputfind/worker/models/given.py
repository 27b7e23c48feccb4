"""The inputs that a user describes, for models that do not say what they take."""

from __future__ import annotations

from typing import Final

import torch

from tputfind.record.spec import Input, Spec
from tputfind.worker.inputs import Call, Drawn

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
