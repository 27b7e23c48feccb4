"""Queues in closed form, and batches of simulated ones."""

import itertools
import math
from math import factorial

import numpy as np
from hypothesis import strategies as st

from tputfind.sizing.engine.serving import Served

# No request arrives exactly at another event: the order is then random in a server too.
_gaps_ms = st.integers(0, 200).map(lambda tenths: tenths / 10 + math.sqrt(2) / 1000)
arrival_lists = st.lists(_gaps_ms, min_size=1, max_size=60).map(lambda gaps: list(itertools.accumulate(gaps)))


def refused_of_constant(load: float, places: int) -> float:
    """Return the refused fraction of M/D/1/K from the states at departures (Gross and Harris, section 5.1.7)."""
    states = places + 1  # a served request leaves 0 to ``places`` requests in the system
    come = [math.exp(-load) * load**number / factorial(number) for number in range(states)]
    matrix = np.zeros((states, states))
    for before, after in itertools.product(range(states), repeat=2):
        number = after - max(before - 1, 0)
        if after == states - 1:
            matrix[before, after] = 1 - sum(come[: max(number, 0)])
        elif number >= 0:
            matrix[before, after] = come[number]
    balance = np.vstack([matrix.T - np.eye(states), np.ones(states)])
    left = np.linalg.lstsq(balance, [0.0] * states + [1.0], rcond=None)[0]
    return 1 - 1 / (left[0] + load)


def busy_ms(served: Served) -> float:
    return float(served.batches[:, 3].sum())


def batches_by_size(served: Served) -> list[int]:
    return np.bincount(served.batches[:, 1].astype(np.int64)).tolist()


def followed(times, counts, devices, *, whole):
    """Simulate a shared queue event by event, independently of the engine.

    ``devices`` are the largest batch of each device, and a function from a batch size to its time in ms. The queue is a
    plain list of items: requests that stay ``whole``, or samples. At each event every idle device takes the first items
    that fit; the device that has been idle for longest goes first.

    Returns the answer time of each request, and the device that answered it.
    """
    queue, idle = [], list(range(len(devices)))
    free, running = [0.0] * len(devices), [None] * len(devices)
    left, done, served_by = list(counts), [0.0] * len(times), [-1] * len(times)
    came, now = 0, 0.0
    while came < len(times) or queue or any(running):
        for device in sorted(range(len(devices)), key=free.__getitem__):
            if running[device] is not None and free[device] <= now:
                for request, samples in running[device]:
                    left[request] -= samples
                    if left[request] == 0:
                        done[request], served_by[request] = free[device], device
                running[device] = None
                idle.append(device)
        while came < len(times) and times[came] <= now:
            queue.extend([(came, counts[came])] if whole else [(came, 1)] * counts[came])
            came += 1
        while idle and queue:
            device, fitting = idle.pop(0), 0
            cap, batch_ms = devices[device]
            while fitting < len(queue) and sum(samples for _, samples in queue[: fitting + 1]) <= cap:
                fitting += 1
            running[device] = queue[:fitting]
            free[device] = now + batch_ms(sum(samples for _, samples in queue[:fitting]))
            del queue[:fitting]
        events = [end for end, batch in zip(free, running, strict=True) if batch is not None]
        events += [times[came]] if came < len(times) else []
        now = min((event for event in events if event > now), default=now)
    return done, served_by
