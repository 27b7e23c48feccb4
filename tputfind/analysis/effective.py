"""A wanted effective batch: which batch size, and how often accumulated, comes to it the fastest."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tputfind.analysis.answers import fastest
from tputfind.record.record import Record, Row
from tputfind.record.spec import Spec

_TIMED_BESIDE: Final = 2
"""Divisors that a run times in addition to the powers of two."""


class Reached(NamedTuple):
    """How an effective batch is reached: by a row's batch size, accumulated so many times on each of the devices.

    ``repeats`` is how many steps of the row it takes. Each of them has a step of the optimizer, of which one is needed:
    if there are several, ``step_ms`` is at most and the row's throughput at least what accumulation comes to.
    """

    row: Row
    accumulate: int
    devices: int
    repeats: int

    @property
    def step_ms(self) -> float:
        """Milliseconds from one step of the optimizer to the next."""
        spans_ms = self.row.device_ms
        return self.repeats * sum(spans_ms) / len(spans_ms)


def reach(record: Record, size: int) -> Reached | None:
    """Return the fastest way to an effective batch among the rows; None if no batch size that was timed divides it."""
    row = fastest(rows_that_reach(record.spec, record.rows, size, _capacity_bytes(record)))
    if row is None:
        return None
    devices = record.spec.device_count
    accumulate = size // (row.batch_size * devices)
    return Reached(row, accumulate, devices, accumulate // record.spec.accumulate)


def rows_that_reach(spec: Spec, rows: Sequence[Row], size: int, capacity_bytes: int | None = None) -> list[Row]:
    """Return the timed rows whose steps come to an effective batch, once or repeated.

    Accumulation keeps gradients while it computes the next batch, which the steps of a row need not have done: a row
    that is to be repeated must leave room for them.
    """
    found = []
    for row in rows:
        repeats, rest = divmod(size, row.batch_size * spec.accumulate * spec.device_count)
        if repeats and not rest and row.samples_per_s is not None:
            held = spec.accumulate > 1 or repeats == 1 or capacity_bytes is None
            if held or (_peak_bytes(row) + sum(row.parameter_bytes.values()) <= (capacity_bytes or 0)):
                found.append(row)
    return found


def sizes_that_divide(spec: Spec, largest: int) -> list[int]:
    """Return the largest batch sizes, in multiples of the granularity, that divide the effective batch of a spec."""
    each, rest = divmod(spec.effective_batch or 0, spec.device_count * spec.accumulate)
    if rest or not each:
        return []
    within = range(spec.granularity, min(largest, each) + 1, spec.granularity)
    return [size for size in within if each % size == 0][-_TIMED_BESIDE:]


def _capacity_bytes(record: Record) -> int | None:
    return record.spec.memory_limit_bytes or record.environment.memory_total_bytes


def _peak_bytes(row: Row) -> int:
    return row.peak_reserved_bytes or row.peak_allocated_bytes or 0
