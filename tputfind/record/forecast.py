"""The largest batch on devices that are not here: values, all of them forecast and none measured."""

from __future__ import annotations

from typing import NamedTuple

from tputfind.record.spec import Spec


class CardForecast(NamedTuple):
    """The largest batch that is forecast for a device with so much memory, give or take ``error``, a share of it.

    ``largest_batch`` is 0 where nothing is expected to fit, and ``LARGEST_BATCH`` where no end is in sight.
    """

    memory_bytes: int
    largest_batch: int
    error: float


class Forecasts(NamedTuple):
    """Forecasts for one model, the device that they come from (None: fake tensors), and the batch sizes tried there."""

    spec: Spec
    device_name: str | None
    tried: tuple[int, ...]
    cards: tuple[CardForecast, ...]
