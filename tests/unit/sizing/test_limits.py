"""Sizing at the limits of rates, targets, gaps and fleets: it ends, and its figures are right to the digits shown."""

import warnings

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import steady_record, timed_record

import tputfind
from tputfind.errors import BadRequest, NoPlan
from tputfind.sizing.engine.replications import Effort, Fleet, simulate
from tputfind.sizing.engine.service_times import ServiceTimes
from tputfind.sizing.engine.serving import Kind
from tputfind.sizing.planner.plan import answers
from tputfind.sizing.planner.question import BATCHERS, Demand, read_demand
from tputfind.sizing.traffic import without_idle


@pytest.mark.parametrize("rate", [1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize(("batcher", "routing"), [("greedy", "shared"), ("mosec", "shared"), ("ray", "two-choices")])
def test_lone_requests_take_a_batch_of_one_at_any_low_rate(rate, batcher, routing):
    demand = read_demand({"rate": rate, "slo": 100.0, "batcher": batcher, "routing": routing})
    waits_ms = demand.wait_ms + (1 if batcher == "mosec" else 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kinds = [Kind(2, 8, ServiceTimes({1: [6.0, 6.1], 8: [9.0, 9.1]}))]
        fleet = Fleet(kinds, rate, demand.server)
        done = simulate(fleet, demand.goal, Effort(20_000, 40_000), (0,)).outcome

    assert done.p50_ms == pytest.approx(waits_ms + 6.05, abs=0.051)
    assert done.p99_ms == pytest.approx(waits_ms + 6.1, rel=1e-4)
    assert done.busy == pytest.approx(rate / 1000 * 6.05 / 2, rel=0.1)


def test_idle_time_is_cut_to_time_of_earlier_requests():
    times = without_idle(np.cumsum([1e15, 1.0, 1e15, 1e15]), 10.0, 0.0)

    assert times[-1] < 200
    assert np.diff(times)[0] == pytest.approx(1.0)


def test_search_reaching_most_devices_is_refused_with_advice():
    """By their throughput alone 9.95 million devices would suffice. The target is too short for so busy a fleet."""
    with pytest.raises(NoPlan, match="not even 10000000 devices, the maximum of a plan") as refused:
        tputfind.size(steady_record(5.0), rate=1.98e9, slo=5.06, percentile=90)

    assert refused.value.hint == "a lower --rate, or a longer --slo"


@pytest.mark.parametrize("given", [{"rate": 100}, {"devices": 2}])
def test_unmeetable_target_is_refused_before_any_simulation(given):
    """One batch in a hundred takes 100 ms: exactly the allowed late fraction, so the estimate cannot exclude more."""
    told: list[str] = []

    found = answers([timed_record({1: [5.0] * 198 + [100.0] * 2})], read_demand({"slo": 6.0} | given), tell=told.append)

    ((_, refused),) = found.without
    assert refused.message == (
        "no number of devices is sure to meet the target: at most 99 % of lone requests are answered within 6 ms"
    )
    assert refused.hint == "a longer --slo"
    assert told == []


def test_gaps_of_any_length_between_recorded_requests_make_a_plan():
    gaps = [1e15] * 100 + [5e-324] * 300 + [0.0] * 100

    (found,) = tputfind.size(steady_record(5.0, 6.0, 8.0), rate=100, slo=500.0, gaps=gaps)

    assert found.holds
    assert 5.0 <= found.outcome.p50_ms <= 500.0


numbers = st.floats() | st.integers(-(2**70), 2**70) | st.sampled_from([5e-324, 1e-3, 50, 99.99, 1e12, 1e15, 0])
texts = st.builds("{}{}".format, numbers, st.sampled_from(["", "us", "ms", "s", "h", "%"]))
OPTIONS = (
    "slo", "percentile", "burstiness", "delay", "overhead", "network", "max_batch_size", "max_queue", "max_ongoing",
    "max_utilization", "seed",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(("rate", *OPTIONS)), numbers | texts), st.sampled_from(BATCHERS))
def test_a_demand_that_is_read_survives_a_file(options, batcher):
    try:
        demand = read_demand({"rate": 5, "slo": 50, "batcher": batcher} | options)
    except BadRequest as refused:
        assert "Expected" not in refused.message
    else:
        assert msgspec.json.decode(msgspec.json.encode(demand), type=Demand) == demand
