"""The driver places allocations at the addresses that its model predicts."""

import json
import random
import subprocess
import sys

import pytest
from support import driver

from tputfind.search.allocator import Addresses

MOST_MIB = 20_000
SMALL = [2, 20, 20, 24, 30, 32, 34, 40, 64, 66, 100]
LARGE = [588, 1176, 1802, 3528]


def at_random(rng: random.Random, sizes: list[int]) -> list[int]:
    """Return 150 random steps: MiB to allocate, or the negative number of an allocation to free."""
    steps: list[int] = []
    held: dict[int, int] = {}
    for _ in range(150):
        size = rng.choice(sizes)
        if held and (rng.random() < 0.45 or sum(held.values()) + size > MOST_MIB):
            number = rng.choice(sorted(held))
            del held[number]
            steps.append(-number)
        else:
            steps.append(size)
            held[sum(step > 0 for step in steps)] = size
    return steps


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", [SMALL, LARGE, SMALL + LARGE], ids=["small", "large", "both"])
def test_driver_addresses_match_the_model(sizes, seed):
    steps = at_random(random.Random(seed), sizes)
    asked = [sys.executable, driver.__file__]
    ran = subprocess.run(asked, check=False, input=json.dumps(steps), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr

    addresses = Addresses()
    expected = driver.addresses_mib(steps, addresses.take, addresses.give_back)
    put = json.loads(ran.stdout)
    assert [address - put[0] for address in put] == [address - expected[0] for address in expected]
