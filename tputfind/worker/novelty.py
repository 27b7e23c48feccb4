"""Whether a model answers faster for inputs that it has seen: a loop over one input would then time its cache."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from tputfind.worker.batch import Batch
from tputfind.worker.devices.protocol import Device

_DRAWS: Final = 3
_FIRST_DRAW: Final = 1000
"""Draws up to here are those of a row's processes."""
_MOST_MAKING_S: Final = 0.5
"""Inputs that take longer to make are not drawn again; smaller batches tell the same."""
_FASTER: Final = 2.0


def remembers_inputs(device: Device, timed: Batch, make_batch: Callable[[int], Batch]) -> bool:
    """Return whether every new input takes more than twice as long as any input does the second time.

    Nothing is said of inputs that differ in shape from draw to draw.

    Args:
        device: idle when this is called.
        timed: a batch that many steps were taken of.
        make_batch: makes a batch of a draw, whose inputs no step has seen.

    Raises:
        Exception: whatever the model raises, or want of memory.
    """
    # What disturbs the host may do so three times in a row, and hardly six times.
    rounds = (range(first, first + _DRAWS) for first in (_FIRST_DRAW, _FIRST_DRAW + _DRAWS))
    return all(_is_slower_for_new(device, timed, make_batch, draws) for draws in rounds)


def _is_slower_for_new(device: Device, timed: Batch, make_batch: Callable[[int], Batch], draws: range) -> bool:
    new_ms, seen_ms, begin_s = list[float](), list[float](), perf_counter()
    for draw in draws:
        batch = make_batch(draw).again()  # which does not undo what a step writes: that would take time
        if batch.shapes != timed.shapes or (not new_ms and perf_counter() - begin_s > _MOST_MAKING_S):
            return False
        _step_ms(device, timed.again())  # the allocator gets back what the new inputs took of its free blocks
        new_ms.append(_step_ms(device, batch))
        seen_ms.append(_step_ms(device, batch.again()))
    return min(new_ms) > _FASTER * max(seen_ms)


def _step_ms(device: Device, batch: Batch) -> float:
    device.synchronize()
    start_s = perf_counter()
    output = batch()
    device.synchronize()
    seconds = perf_counter() - start_s
    del output
    return seconds * 1000
