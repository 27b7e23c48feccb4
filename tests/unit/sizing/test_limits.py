"""Sizing at the limits of rates, targets, gaps and fleets: it ends, and its figures are right to the digits shown."""

import warnings

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import example, row

import tputfind
from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record, Timing
from tputfind.sizing.engine.replications import Effort, Fleet, simulate
from tputfind.sizing.engine.service_times import ServiceTimes
from tputfind.sizing.engine.serving import Kind
from tputfind.sizing.planner.plan import answers
from tputfind.sizing.planner.question import BATCHERS, Demand, read_demand
from tputfind.sizing.traffic import without_idle


def record(*latencies_ms: float) -> Record:
    """Return a record with batches of 1, 2, 4 and so on with these times, within 1 %."""
    rows = []
    for power, latency_ms in enumerate(latencies_ms):
        spans = tuple(latency_ms * (1 + 0.0001 * number) for number in range(100))
        rows.append(msgspec.structs.replace(row(2**power, 1.0), timings=(Timing(device_ms=spans, latency_ms=spans),)))
    return msgspec.structs.replace(example(), rows=tuple(rows), notices=())


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


def test_plan_beyond_most_devices_is_refused_with_their_number():
    with pytest.raises(NoPlan, match=r"take 50247500 devices or more by their throughput alone") as refused:
        tputfind.size(record(5.0), rate=1e10, slo=50.0)

    assert refused.value.hint == "a lower --rate"
    assert "a plan has at most 10000000" in refused.value.message


def test_search_reaching_most_devices_is_refused_with_advice():
    """By their throughput alone 9.95 million devices would suffice. The target is too short for so busy a fleet."""
    with pytest.raises(NoPlan, match="not even 10000000 devices, the maximum of a plan") as refused:
        tputfind.size(record(5.0), rate=1.98e9, slo=5.06, percentile=90)

    assert refused.value.hint == "a lower --rate, or a longer --slo"


def test_unmeetable_target_is_refused_before_any_simulation():
    """One batch in a hundred takes 100 ms: exactly the allowed late fraction, so the estimate cannot exclude more."""
    spans = (5.0,) * 198 + (100.0,) * 2
    odd = msgspec.structs.replace(row(1, 5.0), timings=(Timing(device_ms=spans, latency_ms=spans),))
    told: list[str] = []

    found = answers(
        [msgspec.structs.replace(record(), rows=(odd,))], read_demand({"rate": 100, "slo": 6.0}), tell=told.append
    )

    ((_, refused),) = found.without
    assert refused.message == (
        "no number of devices is sure to meet the target: at most 99 % of lone requests are answered within 6 ms"
    )
    assert refused.hint == "a longer --slo"
    assert told == []


def test_each_fleet_is_announced_before_its_simulation():
    told: list[str] = []

    answers([record(5.0, 6.0)], read_demand({"rate": 300, "slo": 50.0}), tell=told.append)

    assert told[0].startswith("resnet50: simulating 1 device with batches of up to")
    assert any("simulating 2 devices" in line for line in told)


@pytest.mark.parametrize("latency_ms", [0.0, 1e-300, 5e-5])
def test_batches_that_take_no_time_are_refused(latency_ms):
    with pytest.raises(BadRequest, match="no step is that fast"):
        tputfind.size(record(latency_ms, latency_ms), rate=100, slo=50.0)


def test_gaps_of_any_length_between_recorded_requests_make_a_plan():
    gaps = [1e15] * 100 + [5e-324] * 300 + [0.0] * 100

    (found,) = tputfind.size(record(5.0, 6.0, 8.0), rate=100, slo=500.0, gaps=gaps)

    assert found.holds
    assert 5.0 <= found.outcome.p50_ms <= 500.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gaps": [0.0] * 200}, "--gaps: the times of requests must rise"),
        ({"gaps": [1.0] * 150 + [float("nan")]}, "--gaps: number 150: nan is not a finite number"),
        ({"gaps": [1.0] * 150 + [-1.0]}, "--gaps: number 150: -1.0 is not from 0 to 1e+15"),
        ({"gaps": [1.0] * 150 + [1e16]}, "--gaps: number 150: 1e+16 is not from 0 to 1e+15"),
        ({"gaps": [1.0] * 5}, "--gaps: 6 requests are not from 100"),
        ({"gaps": "1,2"}, "--gaps: '1,2' is not a list"),
        ({"rate": 1e-10}, "--rate: 1e-10 is not from 1e-09 to 1e+12"),
        ({"rate": 10**400}, "is not a finite number"),
        ({"slo": "99999999h"}, "--slo: '99999999h' is more than 100h"),
        ({"delay": "101h", "batcher": "triton"}, "--delay: '101h' is more than 100h"),
        ({"percentile": "0.99"}, "in percent: did you mean 99?"),
        ({"burstiness": "-1"}, "--burstiness: '-1' is not from 0 to 20"),
        ({"network": "-1"}, "--network: '-1' is not a duration"),
    ],
)
def test_value_out_of_bounds_is_refused_with_option_and_accepted_values(options, message):
    with pytest.raises(BadRequest) as refused:
        read_demand({"rate": 5, "slo": "50ms"} | options)

    assert message in refused.value.message


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
