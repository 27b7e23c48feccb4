"""Results of ``tputfind forecast`` as frozen values: the largest batch on devices that are not available here."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.types import LARGEST_BATCH, Amount, Bytes, Count, Dtype

SCHEMA: Final = 1
_Batch = Annotated[int, Meta(ge=0, le=LARGEST_BATCH)]


class MemorySplit(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory by use, at the moment of a step at which most is allocated.

    ``gradients_bytes`` counts the gradients that exist at that moment. ``overhead_bytes`` is the memory of the device's
    context and libraries, and the memory that the allocator reserves unused.
    """

    weights_bytes: Bytes
    gradients_bytes: Bytes
    optimizer_bytes: Bytes
    activations_bytes: Bytes
    overhead_bytes: Bytes


class CardForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast largest batch for a device with this much memory, and its relative ``error``.

    ``largest_batch`` is 0 if no batch is expected to fit, and ``LARGEST_BATCH`` if no limit was found. ``split`` is the
    memory of the largest batch, or of batch 1 if no batch fits. It is None if no limit was found or the
    forecast comes from a device.
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
    """Forecasts for one model, the device they come from (None: fake tensors), and the batch sizes tried there.

    ``method`` is that of the trials. ``started`` is ISO 8601, UTC. ``own_optimizers`` says whether the model is trained
    by optimizers of its own, which ``spec`` does not name.
    """

    KIND = "forecast"
    schema: int = SCHEMA
    method: int
    tputfind: str
    command: str
    started: str
    spec: Spec
    own_optimizers: bool = False
    device_name: str | None
    tried: tuple[Count, ...]
    cards: tuple[CardForecast, ...]
    variants: tuple[VariantForecast, ...] = ()
