"""What a record is told from others by, and whether two are of the same work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tputfind.record.record import Record
from tputfind.record.spec import Spec


def name_of(spec: Spec) -> str:
    """Name the recipe of a spec: ``fp16 nhwc compile``."""
    return " ".join([spec.dtype, spec.layout, spec.mode, *(["train"] if spec.phase == "train" else [])])


def work_of(record: Record) -> tuple[object, ...]:
    """Return what recipes must have in common to be set side by side: the work, the device and the way of measuring.

    The shape of the input is as it was asked for: of a recipe that could not be run no other is known.
    """
    spec, environment = record.spec, record.environment
    return (
        spec.model, spec.image_size, spec.input_size, spec.sequence_length, spec.inputs,
        spec.phase, spec.optimizer, spec.transfer, spec.weights,
        environment.device_name, environment.allocator_conf, record.method,
    )  # fmt: skip


NAMES: Final[dict[str, Callable[[Record], str]]] = {
    "model": lambda record: record.spec.model,
    "recipe": lambda record: name_of(record.spec),
    "device": lambda record: record.environment.device_name,
    "begun": lambda record: record.started,
}
"""What a record can be told from others by."""


def told_apart_by(records: Sequence[Record]) -> list[str]:
    """Return what tells records apart: model, recipe and device where they differ, and else when they were begun."""
    differing = [name for name in ("model", "recipe", "device") if len(set(map(NAMES[name], records))) > 1]
    apart = len({tuple(NAMES[name](record) for name in differing) for record in records}) == len(records)
    return differing if apart else [*differing, "begun"]
