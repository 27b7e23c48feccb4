"""Many queues at once, in each of which a free device takes all that waits: a batch of every queue at a time.

Where there are many, this takes a tenth of the time of serving one after the other.
"""

from __future__ import annotations

from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tputfind.sizing.arrivals import Seed
from tputfind.sizing.service import ServiceTimes


class Queues(NamedTuple):
    """Queues that have nothing to do with each other.

    ``arrivals`` are the times of the requests of one after the other, rising in each; ``firsts`` is where each begins,
    and then the number of all; ``free_ms`` from when on devices are free, ``(queues, devices)``.
    """

    arrivals: NDArray[np.float64]
    firsts: NDArray[np.int64]
    free_ms: NDArray[np.float64]


class Answered(NamedTuple):
    """When each request is answered, how many there are in each batch, and the time that all batches take."""

    done_ms: NDArray[np.float64]
    sizes: NDArray[np.int64]
    busy_ms: float


def greedy_parts(
    arrivals: NDArray[np.float64],
    free_ms: NDArray[np.float64],
    cap: int,
    service: ServiceTimes,
    seed: Seed,
    *,
    dealt_out: bool,
) -> Answered:
    """Serve the parts of a stream, each by the same number of devices.

    Args:
        arrivals: when requests come, ``(parts, requests)``, rising in each part.
        free_ms: from when on devices are free, ``(parts, devices)``.
        cap: the largest batch.
        service: how long batches take.
        seed: of what they take, and of which request goes to which device.
        dealt_out: whether each device has a queue, and a request goes to any of them by chance; else all share one.

    Returns:
        What became of them; ``done_ms`` is ``(parts, requests)``.
    """
    parts, requests = arrivals.shape
    each = np.random.default_rng([*seed, 3]).integers(len(service.curve_ms(1)), size=arrivals.size, dtype=np.int16)
    firsts = np.arange(parts + 1) * requests
    if not dealt_out:
        answered = greedy_queues(Queues(arrivals.ravel(), firsts, free_ms), cap, service, each)
        return answered._replace(done_ms=answered.done_ms.reshape(arrivals.shape))
    devices = free_ms.shape[1]
    device_of = np.random.default_rng([*seed, 1]).integers(devices, size=arrivals.shape, dtype=np.int16)
    order = np.argsort(device_of, axis=1, kind="stable")
    lengths = np.stack([np.bincount(part, minlength=devices) for part in device_of])
    ends = np.cumsum(lengths.ravel())
    by_device = np.take_along_axis(arrivals, order, axis=1).ravel()
    queues = Queues(by_device, np.concatenate(([0], ends)), free_ms.reshape(-1, 1))
    answered = greedy_queues(queues, cap, service, each)
    done_ms = np.empty_like(arrivals)
    np.put_along_axis(done_ms, order, answered.done_ms.reshape(arrivals.shape), axis=1)
    return answered._replace(done_ms=done_ms)


def greedy_queues(queues: Queues, cap: int, service: ServiceTimes, numbers: NDArray[np.integer]) -> Answered:
    """Serve each queue as ``queues.greedy`` does.

    ``numbers`` says for each request which of the equally likely times a batch takes that begins with it.
    """
    arrivals, firsts, free = queues
    heads, ends, free = firsts[:-1], firsts[1:], free.copy()
    done_ms, busy_ms = np.full(len(arrivals), nan), 0.0
    while True:
        left = heads < ends
        if not left.all():
            heads, ends, free = heads[left], ends[left], free[left]
        if not len(heads):
            break
        each, device = np.arange(len(heads)), free.argmin(axis=1)
        start = np.maximum(free[each, device], arrivals[heads])
        tails = _tails(arrivals, start, heads, np.minimum(heads + cap, ends))
        taken = service.each_ms(tails - heads, numbers[heads])
        busy_ms += float(taken.sum())
        free[each, device] = done_ms[heads] = start + taken
        heads = tails
    begins = np.flatnonzero(np.isfinite(done_ms))
    sizes = np.diff(begins, append=len(arrivals))
    return Answered(np.repeat(done_ms[begins], sizes), sizes, busy_ms)


def _tails(
    arrivals: NDArray[np.float64], start: NDArray[np.float64], heads: NDArray[np.int64], most: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where each batch ends: before the first request behind its head that comes after its start, or at most."""
    tails: NDArray[np.int64] = heads + 1
    last = len(arrivals) - 1
    # Of most batches at a low load that is the next request, at which it is enough to look.
    several = np.flatnonzero((tails < most) & (arrivals[np.minimum(tails, last)] <= start))
    low, high, start = tails[several] + 1, most[several], start[several]
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        came = (middle < high) & (arrivals[np.minimum(middle, last)] <= start)
        low, high = np.where(came, middle + 1, low), np.where(came, high, middle)
    tails[several] = low
    return tails
