"""Plans beside a second simulator, which was written from the servers' sources and shares no code with the first."""

from __future__ import annotations

import pytest
from support.second_plans import PLANS, compared, planned


@pytest.mark.long
@pytest.mark.parametrize(("name", "options"), PLANS)
def test_a_second_simulator_agrees_with_the_plan(name, options):
    both = compared(name, planned(name, options), requests=20_000, batches=40, streams=4)

    assert both.agrees, f"{both.apart:+.1%}"
    assert both.holds
    assert both.fewer_fail
