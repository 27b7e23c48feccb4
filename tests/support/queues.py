"""Queues in closed form, and what batches tell of simulated ones."""

import itertools
import math
from math import factorial

import numpy as np

from tputfind.sizing.engine.serving import Served


def refused_of_constant(load: float, places: int) -> float:
    """Return what M/D/1/K refuses, from its states as seen by who departs (Gross and Harris, section 5.1.7)."""
    states = places + 1  # an own request that is served leaves behind 0 to ``places`` others
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
    """Return how long devices computed, all together."""
    return float(served.batches[:, 3].sum())


def batches_by_size(served: Served) -> list[int]:
    """Return how many batches of each size were run."""
    return np.bincount(served.batches[:, 1].astype(np.int64)).tolist()
