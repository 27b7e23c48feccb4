"""The energy that a batch takes, by its size: from the power that the rows of a record hold, and never beyond them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tputfind.record.record import Record, Row
from tputfind.record.types import Amount


class Batch(NamedTuple):
    """What one batch takes of its device: energy, and time by itself among others of its size."""

    energy_j: float
    span_ms: float

    @property
    def power_w(self) -> float:
        """The mean power meanwhile."""
        return 1000 * self.energy_j / self.span_ms


class Computing(msgspec.Struct, frozen=True, kw_only=True):
    """Of each device of a fleet: the share of the time in which it computes, and its mean power meanwhile."""

    share: Amount
    power_w: Amount


class Power:
    """What a batch of any size up to the largest metered takes.

    Between two sizes energy and time lie on the line between them, as batch times do. Batches below the smallest take
    as much as that one.
    """

    def __init__(self, measured: Mapping[int, Batch]) -> None:
        """Take what a batch of each metered size takes; there is one at the least."""
        self.measured = dict(sorted(measured.items()))
        self._sizes = list(self.measured)

    @property
    def largest(self) -> int:
        """The largest batch size that was metered."""
        return self._sizes[-1]

    @property
    def least_w(self) -> float:
        """The least power of any size: an idle device takes no more."""
        return min(batch.power_w for batch in self.measured.values())

    def most_w(self, cap: int) -> float:
        """Return the most power of a device with batches up to a cap."""
        return max(self.of(size).power_w for size in (*(size for size in self._sizes if size < cap), cap))

    def of(self, batch_size: int) -> Batch:
        """Return what a batch takes.

        Raises:
            ValueError: it is larger than any metered.
        """
        if batch_size > self.largest:
            raise ValueError(f"batch {batch_size} was not metered, nor any larger one")
        above = bisect_left(self._sizes, batch_size)
        upper = self.measured[self._sizes[above]]
        if above == 0 or self._sizes[above] == batch_size:
            return upper
        low, high = self._sizes[above - 1], self._sizes[above]
        share = (batch_size - low) / (high - low)
        pairs = zip(self.measured[low], upper, strict=True)
        return Batch(*(before + (after - before) * share for before, after in pairs))

    def computing(self, batch_sizes: NDArray[np.int64], lasts_ms: float) -> Computing | None:
        """Return how a device computes that serves batches of these sizes in that time.

        None where a batch is larger than any metered.
        """
        counts = np.bincount(batch_sizes)
        sizes = np.flatnonzero(counts[1:]) + 1
        if sizes[-1] > self.largest:
            return None
        taken = [(int(counts[size]), self.of(size)) for size in sizes.tolist()]
        energy_j = sum(count * one.energy_j for count, one in taken)
        span_ms = sum(count * one.span_ms for count, one in taken)
        return Computing(share=min(1.0, span_ms / lasts_ms), power_w=1000 * energy_j / span_ms)


def mean_of(computing: list[Computing | None]) -> Computing | None:
    """Return the mean over streams; None where one is not known."""
    known = [one for one in computing if one is not None]
    if not known or len(known) < len(computing):
        return None
    share = sum(one.share for one in known)
    return Computing(share=share / len(known), power_w=sum(one.share * one.power_w for one in known) / share)


def power_of(record: Record) -> Power | None:
    """Return what batches take by a record; None where none of its rows holds a device's power."""
    metered = {row.batch_size: batch for row in record.rows if (batch := _metered(row)) is not None}
    return Power(metered) if metered else None


def _metered(row: Row) -> Batch | None:
    """Return what a batch of a row takes by the windows whose power is known."""
    windows = [(timing.health.power_w, timing.device_ms) for timing in row.timings if timing.health is not None]
    known = [(power_w, device_ms) for power_w, device_ms in windows if power_w and device_ms]
    if row.failure is not None or not known:
        return None
    batches = sum(len(device_ms) for _, device_ms in known)
    energy_j = sum(power_w * sum(device_ms) / 1000 for power_w, device_ms in known)
    return Batch(energy_j / batches, sum(sum(device_ms) for _, device_ms in known) / batches)
