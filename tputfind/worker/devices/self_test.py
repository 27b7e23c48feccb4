"""Tests the clocks and the memory counters of a device; only those that pass are used.

A known load is timed by events, and by the host clock up to the end of ``synchronize``. The host clock is the
reference: it is right if ``synchronize`` waits, which reading a result back shows.
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Final, NamedTuple, Protocol

import torch

from tputfind.record.environment import ClockTest
from tputfind.worker.devices.protocol import Device, Stopwatch

_MIB: Final = 2**20
_LOAD_BYTES: Final = 8 * _MIB
_LOAD_MS: Final = 1.4
"""Longer than the launch of a kernel, much shorter than a run: the test takes 17 loads of 1.4 to 2.8 ms each."""
_MOST_STEPS: Final = 2**14
_WARMING: Final = 8
_ROUNDS: Final = 3
_AGREE: Final = 0.85, 1.02
"""Bounds on the events' span as a fraction of the host's. The host's span includes the first launch, the end of the
wait and pauses of the host, so one agreeing round for each of two loads is enough."""
_SLACK_MS: Final = 0.05
_EARLY: Final = 2.0
"""If a load and the reading back of its result take this many times as long as the load and ``synchronize``, then
``synchronize`` did not wait."""
_EMPTY_MARKS: Final = 20


class Tested(Device, Protocol):
    """A device with the parts that are tested besides."""

    def event_stopwatch(self, marks: int) -> Stopwatch:
        """Return a stopwatch of events; raise the backend's own error if it has no events."""

    def peak_bytes(self) -> int | None:
        """Return the peak of the bytes of live tensors."""


class Found(NamedTuple):
    """The result of the test.

    ``events`` and ``counters`` say which of them can be used. ``waits`` is False if ``synchronize`` returns early: then
    no host clock can time the device, and it cannot be measured.
    """

    events: bool
    counters: bool
    waits: bool
    test: ClockTest


def self_test(device: Tested) -> Found:
    """Test the clocks and memory counters of a device, which must be current and idle."""
    findings: list[str] = []
    tensor = torch.ones(_LOAD_BYTES // 4, device=device.torch_device)

    def load(steps: int) -> None:
        for _ in range(steps):
            tensor.add_(1)

    steps = _steps(device, load)
    waits = _waits(device, tensor, load, steps)
    if not waits:
        findings.append("synchronize returns before the device has done its work")
    events_ms, host_ms, finding = _compare_clocks(device, load, steps)
    if finding:
        findings.append(finding)
    mark_ms = None if finding else _mark_ms(device)
    counters, finding = _counters(device)
    if finding:
        findings.append(finding)
    test = ClockTest(host_ms=host_ms, events_ms=events_ms, mark_ms=mark_ms, findings=tuple(findings))
    return Found(mark_ms is not None, counters, waits, test)


def _host_ms(device: Tested, work: Callable[[], None]) -> float:
    device.synchronize()
    start_ns = perf_counter_ns()
    work()
    device.synchronize()
    return (perf_counter_ns() - start_ns) / 1e6


def _steps(device: Tested, load: Callable[[int], None]) -> int:
    """Return the number of steps that make a load long enough; the first steps load kernels, and the host may pause."""
    load(_WARMING)
    steps = 1
    while steps < _MOST_STEPS and min(_host_ms(device, partial(load, steps)) for _ in range(3)) < _LOAD_MS:
        steps *= 2
    return steps


def _waits(device: Tested, tensor: torch.Tensor, load: Callable[[int], None], steps: int) -> bool:
    """Return whether ``synchronize`` waits: reading a result back afterwards must be quick."""
    for _ in range(3):  # one success is enough: a pause of the host can only hide that it waits
        tensor[:1].cpu()
        start_ns = perf_counter_ns()
        load(steps)
        device.synchronize()
        synchronised_ns = perf_counter_ns()
        tensor[:1].cpu()
        read_ns = perf_counter_ns()
        if read_ns - start_ns <= _EARLY * (synchronised_ns - start_ns) + 1e6 * _SLACK_MS:
            return True
    return False


def _compare_clocks(device: Tested, load: Callable[[int], None], steps: int) -> tuple[float | None, float, str]:
    """Return the times of a load by events (None without events) and by the host clock, and the events' fault."""
    host_ms = _host_ms(device, partial(load, steps))
    try:
        pairs = [_event_and_host_ms(device, load, count) for count in (steps, 2 * steps) for _ in range(_ROUNDS)]
    except Exception as error:  # whatever a backend raises if its events are missing or have no times
        return None, host_ms, f"it has no events with times ({type(error).__name__})"
    if any(span_ms < 0 for span_ms, _ in pairs):
        return pairs[0][0], host_ms, "spans between its events are negative"
    best = [max(pairs[of : of + _ROUNDS], key=lambda pair: pair[0] / pair[1]) for of in (0, _ROUNDS)]
    for span_ms, whole_ms in best:
        if not _AGREE[0] * whole_ms - _SLACK_MS <= span_ms <= _AGREE[1] * whole_ms + _SLACK_MS:
            return span_ms, whole_ms, f"its events read {span_ms:.3g} ms of what takes {whole_ms:.3g} ms"
    return *best[0], ""


def _event_and_host_ms(device: Tested, load: Callable[[int], None], steps: int) -> tuple[float, float]:
    """Return the time of one run of a load by events and by the host clock, in ms."""
    stopwatch = device.event_stopwatch(2)

    def work() -> None:
        stopwatch.mark()
        load(steps)
        stopwatch.mark()

    host_ms = _host_ms(device, work)
    (span_ms,) = stopwatch.spans_ms()
    return span_ms, host_ms


def _mark_ms(device: Tested) -> float:
    """Return the median time of an event itself in the device's order of work, in ms."""
    stopwatch = device.event_stopwatch(_EMPTY_MARKS)
    for _ in range(_EMPTY_MARKS):
        stopwatch.mark()
    return max(0.0, median(stopwatch.spans_ms()))


def _counters(device: Tested) -> tuple[bool, str]:
    """Return whether the allocator's counters follow a tensor that comes and goes, and their fault if not."""
    before = device.allocated_bytes()
    if before is None or device.peak_bytes() is None:
        return False, ""
    held = torch.ones(_LOAD_BYTES // 4, device=device.torch_device)
    during, peak = device.allocated_bytes(), device.peak_bytes()
    size = held.nbytes
    del held
    device.synchronize()
    after = device.allocated_bytes()
    if during is None or peak is None or during < before + size or peak < during:
        return False, "its allocator does not count a tensor that is there"
    if after is None or after > during - size:
        return False, "its allocator goes on counting a tensor that is gone"
    return True, ""
