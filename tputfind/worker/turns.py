"""The short windows of a process that takes turns with other processes."""

import gc
import math
from collections.abc import Callable
from typing import Final

from tputfind.record.record import LEAST_SPAN_MS
from tputfind.worker.devices.protocol import Device, Stopwatch
from tputfind.worker.loops import MOST_MARKED, Announce, Work, back_to_back
from tputfind.worker.warm_up import warm_up

_WARM_S: Final = 0.1
"""Base time of the warm-up in seconds: it takes from half of it to four times as long."""
_LONGEST_WARM_UP_S: Final = 10.0
_LEADS_IN_MS: Final = 100.0
"""Longer steps have no lead-in step.

The device's previous work matters little to them, and a lead-in would take as long as the window.
"""


def turns(
    device: Device, work: Work, stopwatch: Stopwatch, announce: Announce, window_s: float
) -> Callable[[], list[float]]:
    """Warm up; return a function that takes one window of ``window_s`` seconds and returns the time of each step in ms.

    Short steps have a lead-in, since other processes have used the caches since the last window.
    """
    gc.collect()
    gc.freeze()  # as for the windows of a row
    warm = warm_up(device, work.fresh_step, announce, steps=2, window_s=_WARM_S, max_seconds=_LONGEST_WARM_UP_S)
    step_ms = max(warm.fastest_ms, LEAST_SPAN_MS)
    steps = max(1, min(math.ceil(1000 * window_s / step_ms), MOST_MARKED // 2))
    lead_in = work.lead_in if step_ms < _LEADS_IN_MS else 0

    def take() -> list[float]:
        announce((steps + lead_in) * step_ms / 1000)
        spans_ms = back_to_back(work.step, stopwatch, steps, lead_in, work.restore())
        return [max(span_ms, LEAST_SPAN_MS) for span_ms in spans_ms]

    return take
