"""Queues in closed form, and batches of simulated ones."""

import itertools
import math
from math import factorial

import numpy as np

from tputfind.sizing.engine.serving import Served


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
    """Return the total computing time of the devices in milliseconds."""
    return float(served.batches[:, 3].sum())


def batches_by_size(served: Served) -> list[int]:
    """Return the number of batches of each size."""
    return np.bincount(served.batches[:, 1].astype(np.int64)).tolist()
