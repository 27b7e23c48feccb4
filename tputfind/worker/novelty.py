"""Whether a model answers faster for inputs that it has seen: a loop over one input would then time its cache."""

import math
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


def remembers_inputs(device: Device, timed: Batch, make_batch: Callable[[int], Batch], seen_ms: float) -> bool:
    """Return whether every new input takes more than twice as long as any input does the second time.

    Nothing is said of inputs that differ in shape from draw to draw, or that take long to make.

    Args:
        device: idle when this is called.
        timed: a batch that many steps were taken of.
        make_batch: makes a batch of a draw, whose inputs no step has seen.
        seen_ms: the least that a step of the timed batch took. A new input that is not slower than that ends the test.

    Raises:
        Exception: whatever the model raises, or want of memory.
    """
    begin_s = perf_counter()
    first = make_batch(_FIRST_DRAW).again()  # which does not undo what a step writes: that would take time
    if first.shapes != timed.shapes or perf_counter() - begin_s > _MOST_MAKING_S:
        return False
    if _step_ms(device, first) <= _FASTER * seen_ms:
        return False
    del first
    # What disturbs the host may do so three times in a row, and hardly six times.
    rounds = (range(draw, draw + _DRAWS) for draw in (_FIRST_DRAW + 1, _FIRST_DRAW + 1 + _DRAWS))
    return all(_is_slower_for_new(device, timed, make_batch, draws) for draws in rounds)


def _is_slower_for_new(device: Device, timed: Batch, make_batch: Callable[[int], Batch], draws: range) -> bool:
    """Return whether every new input of some draws is slower; the first that is not decides, and is the last step."""
    fastest_new_ms, slowest_seen_ms = math.inf, 0.0
    for draw in draws:
        batch = make_batch(draw).again()
        if batch.shapes != timed.shapes:
            return False
        _step_ms(device, timed.again())  # the allocator gets back what the new inputs took of its free blocks
        fastest_new_ms = min(fastest_new_ms, _step_ms(device, batch))
        slowest_seen_ms = max(slowest_seen_ms, _step_ms(device, batch.again()))
        if fastest_new_ms <= _FASTER * slowest_seen_ms:
            return False
    return True


def _step_ms(device: Device, batch: Batch) -> float:
    device.synchronize()
    start_s = perf_counter()
    output = batch()
    device.synchronize()
    seconds = perf_counter() - start_s
    del output
    return seconds * 1000
