"""Plans compared with a second simulator, written from the servers' sources without shared code.

``benchmarks/second.py`` compares all plans.
"""

import pytest
from support.second_plans import NEAR, PLANS, compared, planned


@pytest.mark.long
@pytest.mark.parametrize(("name", "options"), PLANS[::2])
def test_a_second_simulator_agrees_with_the_plan(name, options):
    both = compared(name, planned(name, options), requests=20_000, batches=40, streams=4)

    demand = both.plan.demand
    if demand.batcher == "triton" and demand.wait_ms > 0 and demand.routing != "shared":
        # The second simulator prepares no batches ahead, unlike Triton: its answers can only come sooner.
        assert both.apart <= NEAR + both.by_chance, f"{both.apart:+.1%}"
    else:
        assert both.agrees, f"{both.apart:+.1%}"
    assert both.holds
    assert both.fewer_fail
