"""The largest batch on devices that are not here: values, all of them forecast and none measured."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.types import LARGEST_BATCH, Amount, Bytes, Count, Dtype

SCHEMA: Final = 2
"""Raised when a field is added or changes its meaning."""
_Batch = Annotated[int, Meta(ge=0, le=LARGEST_BATCH)]


class MemorySplit(msgspec.Struct, frozen=True, kw_only=True):
    """What memory is taken for, at the moment of a step at which most is allocated.

    Gradients are those that are there at that moment. The overhead is what the device's context and libraries take, and
    what the allocator holds without a use.
    """

    weights_bytes: Bytes
    gradients_bytes: Bytes
    optimizer_bytes: Bytes
    activations_bytes: Bytes
    overhead_bytes: Bytes


class CardForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch that is forecast for a device with this much memory, give or take ``error``, a share of it.

    ``largest_batch`` is 0 where nothing is expected to fit, and ``LARGEST_BATCH`` where no end is in sight. ``split``
    is that of the largest batch, or of batch 1 where nothing fits. Only fake tensors tell it.
    """

    memory_bytes: Bytes
    largest_batch: _Batch
    error: Amount
    split: MemorySplit | None = None


class VariantForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batches of the same training in another dtype or with checkpointing, one for each card."""

    dtype: Dtype
    grad_checkpoint: bool
    largest_batches: tuple[_Batch, ...]


class Forecasts(Result, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="forecast"):
    """Forecasts for one model, the device that they come from (None: fake tensors), and the batch sizes tried there.

    ``method`` is that of the trials. ``started`` is ISO 8601, UTC.
    """

    KIND = "forecast"
    schema: int = SCHEMA
    method: int
    tputfind: str
    command: str
    started: str
    spec: Spec
    device_name: str | None
    tried: tuple[Count, ...]
    cards: tuple[CardForecast, ...]
    variants: tuple[VariantForecast, ...] = ()
