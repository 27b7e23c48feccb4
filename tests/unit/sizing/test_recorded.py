"""Plans for recorded requests: the cost of pilots of long logs, and their verdicts."""

import numpy as np
from support.folders import ROOT

from tputfind import load_record
from tputfind.sizing.engine.replications import Effort, Fleet, Goal, simulate
from tputfind.sizing.engine.service_times import service_times_of
from tputfind.sizing.engine.serving import Kind
from tputfind.sizing.planner.plan import answers
from tputfind.sizing.planner.question import read_demand
from tputfind.sizing.traffic import Traffic

RECORD = load_record(ROOT / "results/nvidia-h200/default/vit_b_16-fp16.json")


def test_pilot_replays_a_long_log_once_and_decides_nothing():
    gaps = tuple(np.random.default_rng(0).standard_exponential(5000).tolist())
    kinds = [Kind(1, 64, service_times_of(RECORD))]
    fleet = Fleet(kinds, 300 * kinds[0].per_ms, traffic=Traffic(gaps=gaps))

    pilot = simulate(fleet, Goal(50.0, 99.0), Effort(100, 4000, is_pilot=True), (0,)).outcome
    judged = simulate(fleet, Goal(50.0, 99.0), Effort(100, 4000), (0,)).outcome

    assert (pilot.requests, pilot.verdict) == (5000, "undecided")
    assert judged.requests >= 3 * 5000
    assert judged.verdict == "meets"


def test_log_that_saturates_a_device_is_judged_by_its_replications():
    """A pilot finds p99 at 25 ms; all replications, at 34 ms."""
    times = service_times_of(RECORD)
    gaps = np.random.default_rng(3).standard_exponential(1500)
    demand = {"rate": 0.996 * 1000 * times.per_ms(256), "slo": 30.0, "devices": 1, "gaps": gaps}

    (plan,) = answers([RECORD], read_demand(demand)).plans

    assert not plan.holds
