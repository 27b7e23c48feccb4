"""The largest batch on devices that are not here: values, all of them forecast and none measured, and their JSON."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.types import LARGEST_BATCH, Amount, Bytes, Count
from tputfind.record.untrusted import decoded, indented

SCHEMA: Final = 1
"""Raised when a field is added or changes its meaning."""


class CardForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch that is forecast for a device with this much memory, give or take ``error``, a share of it.

    ``largest_batch`` is 0 where nothing is expected to fit, and ``LARGEST_BATCH`` where no end is in sight.
    """

    memory_bytes: Bytes
    largest_batch: Annotated[int, Meta(ge=0, le=LARGEST_BATCH)]
    error: Amount


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

    def to_json(self) -> bytes:
        """Return all of it as indented JSON, for a file."""
        return indented(self)


def from_json(data: bytes, name: str) -> Forecasts:
    """Return what ``to_json`` wrote; ``name`` says in errors whose bytes they are.

    Raises:
        BadRecord: the bytes are cut short, edited out of shape, or of a schema that this version does not read.
    """
    return decoded(data, name, Forecasts, SCHEMA)
