"""Warm-up and the two windows of a row. What is timed is one step on a batch that already lies on the device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final, NamedTuple

from tputfind.measure.devices.protocol import Device, Stopwatch

LEAST_BATCHES: Final = 10
"""No window is cut shorter than this."""
Announce = Callable[[float], None]
"""Takes about how many seconds the next stage will take, so that a silence can be told from a hang."""


class Windows(NamedTuple):
    """The samples of one row, in milliseconds a batch."""

    device_ms: tuple[float, ...]
    latency_ms: tuple[float, ...]
    enqueue_ms: tuple[float, ...]


def try_steps(device: Device, step: Callable[[], object], steps: int, announce: Announce) -> float:
    """Take a trial's steps, each output alive while the next is made; return the fastest after the first, in ms.

    The boundary is the host clock from the call to the synchronised output. A single step stands for itself.
    """
    spans_ms: list[float] = []
    output: object = None
    for _ in range(steps):
        start_ns = perf_counter_ns()
        output = step()
        device.synchronize()
        spans_ms.append((perf_counter_ns() - start_ns) / 1e6)
        if len(spans_ms) == 1:
            announce(steps * spans_ms[0] / 1000)
    del output
    return min(spans_ms[1:] or spans_ms)


def time_windows(
    device: Device,
    step: Callable[[], object],
    stopwatch: Stopwatch,
    *,
    warmup: int,
    batches: int,
    latency_batches: int,
    max_seconds: float,
    announce: Announce,
) -> Windows:
    """Warm up, then time the throughput window and the latency window.

    Args:
        device: where the step runs.
        step: one batch.
        stopwatch: good for one mark more than ``batches``.
        warmup: untimed steps before the windows.
        batches: batches of the throughput window.
        latency_batches: batches of the latency window.
        max_seconds: what both windows together may take before they are cut short, but not under LEAST_BATCHES each.
        announce: told what warm-up and windows will take.
    """
    gc.collect()
    gc.freeze()  # collections during the windows then look at what the steps make, not at all of torch
    step_ms = _warm_up(device, step, warmup, announce)
    affordable = _affordable(batches, step_ms, max_seconds)
    announce((affordable + _affordable(latency_batches, step_ms, max_seconds)) * step_ms / 1000)
    device_ms = _throughput_window(step, stopwatch, affordable)
    left_s = max_seconds - sum(device_ms) / 1000
    latency_ms, enqueue_ms = _latency_window(device, step, latency_batches, left_s)
    return Windows(tuple(device_ms), tuple(latency_ms), tuple(enqueue_ms))


def _warm_up(device: Device, step: Callable[[], object], steps: int, announce: Announce) -> float:
    """Take untimed steps; return about how many milliseconds one takes when several are under way."""
    start_ns = perf_counter_ns()
    output = step()  # the first one loads kernels and says nothing about the next
    device.synchronize()
    rest = max(1, steps - 1)
    announce(rest * (perf_counter_ns() - start_ns) / 1e9)
    start_ns = perf_counter_ns()
    for _ in range(rest):
        output = step()
    device.synchronize()
    del output
    return (perf_counter_ns() - start_ns) / 1e6 / rest


def _affordable(batches: int, step_ms: float, max_seconds: float) -> int:
    return min(batches, max(LEAST_BATCHES, int(max_seconds * 1000 / max(step_ms, 1e-6))))


def _throughput_window(step: Callable[[], object], stopwatch: Stopwatch, batches: int) -> list[float]:
    """Submit batches back to back and return the span of each between marks in the device's own order of work.

    The host never waits in between. One step leads in, so that the first mark falls into steady running and not onto
    an idle device that waits for its first kernel.
    """
    output = step()
    stopwatch.mark()
    for _ in range(batches):
        output = step()
        stopwatch.mark()
    spans_ms = stopwatch.spans_ms()
    del output
    return spans_ms


def _latency_window(
    device: Device, step: Callable[[], object], batches: int, max_seconds: float
) -> tuple[list[float], list[float]]:
    """Send single batches to the idle device; return the time to synchronised output and to the call's return.

    The time to the return is the host's own work: in the throughput window it would also hold the waiting for room in
    the launch queue.
    """
    latency_ms: list[float] = []
    enqueue_ms: list[float] = []
    deadline_ns = perf_counter_ns() + max_seconds * 1e9
    output: object = None
    for count in range(batches):
        if count >= LEAST_BATCHES and perf_counter_ns() > deadline_ns:
            break
        start_ns = perf_counter_ns()
        output = step()
        submitted_ns = perf_counter_ns()
        device.synchronize()
        latency_ms.append((perf_counter_ns() - start_ns) / 1e6)
        enqueue_ms.append((submitted_ns - start_ns) / 1e6)
    del output
    return latency_ms, enqueue_ms
