"""Stopwatches of any accelerator: event marks, or the host clock around a synchronised device."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns

import torch


class AcceleratorEvents:
    """Marks recorded as events on the current stream: recording one makes neither host nor device wait."""

    def __init__(self, device: torch.device, marks: int) -> None:
        self._events = [torch.Event(device, enable_timing=True) for _ in range(marks)]
        self._marked = 0
        for event in self._events:  # torch makes an event at its first record, and that may take device memory
            event.record()

    def mark(self) -> None:
        """Record the next event."""
        self._events[self._marked].record()
        self._marked += 1

    def spans_ms(self) -> list[float]:
        """Wait for the last event, return the milliseconds between consecutive ones, and begin anew."""
        events = self._events[: self._marked]
        self._marked = 0
        events[-1].synchronize()
        return [early.elapsed_time(late) for early, late in pairwise(events)]


class SynchronisedHostClock:
    """Marks taken with the host clock, each when the device has done all that was submitted."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._marks_ns: list[int] = []

    def mark(self) -> None:
        """Wait for the device, and mark this moment."""
        self._synchronize()
        self._marks_ns.append(perf_counter_ns())

    def spans_ms(self) -> list[float]:
        """Return the milliseconds between consecutive marks, and begin anew."""
        marks_ns, self._marks_ns = self._marks_ns, []
        return [(late - early) / 1e6 for early, late in pairwise(marks_ns)]
