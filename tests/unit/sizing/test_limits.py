"""Sizing at the limits of rates, targets, gaps and fleets: it ends, and what it tells is right to the digits shown."""

from __future__ import annotations

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
from tputfind.sizing.arrivals import without_idle_ms
from tputfind.sizing.batchers import SERVERS
from tputfind.sizing.demand import BATCHERS, Demand
from tputfind.sizing.options import read_demand
from tputfind.sizing.serve import Server, serve
from tputfind.sizing.service import ServiceTimes
from tputfind.sizing.simulate import Fleet, simulate
from tputfind.sizing.size import answers


def record(*latencies_ms: float) -> Record:
    """Batches of 1, 2, 4 and so on that take so long, give or take 1 %."""
    rows = []
    for power, latency_ms in enumerate(latencies_ms):
        spans = tuple(latency_ms * (1 + 0.0001 * number) for number in range(100))
        rows.append(msgspec.structs.replace(row(2**power, 1.0), timings=(Timing(device_ms=spans, latency_ms=spans),)))
    return msgspec.structs.replace(example(), rows=tuple(rows), notices=())


LINE = ServiceTimes({size: [5 + 0.5 * size] for size in (1, 2, 4, 8)})


@pytest.mark.parametrize("rate", [1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize(("batcher", "routing"), [("greedy", "shared"), ("mosec", "shared"), ("ray", "two-choices")])
def test_requests_that_are_alone_take_as_long_as_a_batch_of_one_however_rarely_they_come(rate, batcher, routing):
    demand = read_demand({"rate": rate, "slo": 100.0, "batcher": batcher, "routing": routing})
    waits_ms = demand.wait_ms + (1 if batcher == "mosec" else 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = simulate(Fleet(2, 8, rate), ServiceTimes({1: [6.0, 6.1], 8: [9.0, 9.1]}), demand, seeds=2)

    assert done.p50_ms == pytest.approx(waits_ms + 6.05, abs=0.051)
    assert done.p99_ms == pytest.approx(waits_ms + 6.1, rel=1e-4)
    assert done.utilisation == pytest.approx(rate / 1000 * 6.05 / 2, rel=0.1)


RULED = [batcher for batcher in BATCHERS if SERVERS[batcher].rule]
"""BentoML goes by what it has learned lately, and so by how long nothing came."""
long_gaps = st.lists(st.sampled_from([0.0, 0.3, 2.0, 7.7, 40.1, 333.3, 5000.7]), min_size=1, max_size=40)


@given(long_gaps, st.integers(1, 3), st.integers(1, 8), st.sampled_from(RULED), st.sampled_from(["shared", "random"]))
def test_idle_time_that_is_cut_changes_no_latency(gaps, devices, cap, batcher, routing):
    if batcher == "ray":
        routing = "least-loaded"
    demand = Demand(
        rate_per_s=1.0, slo_ms=1e3, batcher=batcher, routing=routing, delay_ms=0.0 if batcher == "greedy" else 4.0
    )
    server = Server(cap, LINE, demand)
    # A thousandth of a ms keeps requests off the very moment at which a window ends.
    spaced = np.array(gaps) + np.sqrt(2) / 1000
    times = np.cumsum(spaced)

    shorter = without_idle_ms(spaced, *server.request_and_window_ms())

    told = serve(times, [0.0] * devices, server, (0,)).done_ms - times
    assert serve(shorter, [0.0] * devices, server, (0,)).done_ms - shorter == pytest.approx(told, abs=1e-6)
    assert shorter[-1] <= times[-1]


def test_idle_time_is_cut_to_what_the_requests_before_can_take():
    times = without_idle_ms(np.array([1e15, 1.0, 1e15, 1e15]), 10.0, 0.0)

    assert times[-1] < 200
    assert np.diff(times)[0] == pytest.approx(1.0)


@pytest.mark.parametrize("slo_ms", [600e3, 3600e3, 360e6])
def test_a_target_that_nothing_comes_near_asks_for_no_longer_stream(slo_ms):
    service = ServiceTimes({1: [5.0], 64: [20.0]})
    near, far = (
        simulate(Fleet(1, 64, 100.0), service, read_demand({"rate": 100, "slo": target}), seeds=1)
        for target in (1000.0, slo_ms)
    )

    assert far.requests <= 6 * near.requests
    assert far.p99_ms == pytest.approx(near.p99_ms, rel=0.05)


def test_more_devices_than_are_planned_with_are_told_as_what_stopped_the_plan():
    with pytest.raises(NoPlan, match=r"take 50247500 devices or more by their throughput alone") as refused:
        tputfind.size(record(5.0), rate=1e10, slo=50.0)

    assert refused.value.hint == "a lower --rate"
    assert "10000000 are planned with" in refused.value.message


def test_a_search_that_comes_to_the_most_devices_says_so():
    """By their throughput alone 9.95 million would do. The target is too short for so busy a fleet."""
    with pytest.raises(NoPlan, match="not even 10000000 devices, the most that are planned with") as refused:
        tputfind.size(record(5.0), rate=1.98e9, slo=5.06, percentile=90)

    assert refused.value.hint == "a lower --rate, or a longer --slo"


def test_where_no_number_of_devices_does_that_is_found_out_at_once():
    """One batch in a hundred takes 100 ms: just as many as may be late, and nobody can say that no more are."""
    spans = (5.0,) * 198 + (100.0,) * 2
    odd = msgspec.structs.replace(row(1, 5.0), timings=(Timing(device_ms=spans, latency_ms=spans),))
    told: list[str] = []

    found = answers(
        [msgspec.structs.replace(record(), rows=(odd,))], read_demand({"rate": 100, "slo": 6.0}), tell=told.append
    )

    ((_, refused),) = found.without
    assert refused.message.startswith("not even 10000000 devices, the most that are planned with")
    assert refused.hint == "a longer --slo"
    assert len(told) <= 30


def test_each_fleet_is_told_before_it_is_simulated():
    told: list[str] = []

    answers([record(5.0, 6.0)], read_demand({"rate": 300, "slo": 50.0}), tell=told.append)

    assert told[0] == "resnet50: simulating 1 device with batches of up to 2"
    assert any("simulating 2 devices" in line for line in told)


@pytest.mark.parametrize("latency_ms", [0.0, 1e-300, 5e-5])
def test_batches_that_take_no_time_are_refused(latency_ms):
    with pytest.raises(BadRequest, match="no step is that fast"):
        tputfind.size(record(latency_ms, latency_ms), rate=100, slo=50.0)


def test_gaps_of_any_length_between_recorded_requests_make_a_plan():
    gaps = [1e15] * 100 + [5e-324] * 300 + [0.0] * 100

    (found,) = tputfind.size(record(5.0, 6.0, 8.0), rate=100, slo=500.0, gaps=gaps)

    assert found.outcome.steady
    assert 5.0 <= found.outcome.p50_ms <= 500.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gaps": [0.0] * 200}, "--gaps: the times of requests must rise"),
        ({"gaps": [1.0] * 150 + [float("nan")]}, "--gaps: number 150: nan is not a finite number"),
        ({"gaps": [1.0] * 150 + [-1.0]}, "--gaps: number 150: -1.0 is not from 0 to 1e+15"),
        ({"gaps": [1.0] * 150 + [1e16]}, "--gaps: number 150: 1e+16 is not from 0 to 1e+15"),
        ({"gaps": [1.0] * 5}, "--gaps: 5 times between requests are not from 99"),
        ({"gaps": "1,2"}, "--gaps: '1,2' is no list"),
        ({"rate": 1e-10}, "--rate: 1e-10 is not from 1e-09 to 1e+12"),
        ({"rate": 10**400}, "is not a finite number"),
        ({"slo": "99999999h"}, "--slo: '99999999h' is more than 100h"),
        ({"delay": "101h", "batcher": "triton"}, "--delay: '101h' is more than 100h"),
        ({"percentile": "0.99"}, "in percent: did you mean 99?"),
        ({"burstiness": "-1"}, "--burstiness: '-1' is not from 0 to 20"),
        ({"network": "-1"}, "--network: '-1' is not a duration"),
    ],
)
def test_a_value_out_of_bounds_is_told_by_its_option_and_with_what_is_accepted(options, message):
    with pytest.raises(BadRequest) as refused:
        read_demand({"rate": 5, "slo": "50ms"} | options)

    assert message in refused.value.message


numbers = st.floats() | st.integers(-(2**70), 2**70) | st.sampled_from([5e-324, 1e-3, 50, 99.99, 1e12, 1e15, 0])
texts = st.builds("{}{}".format, numbers, st.sampled_from(["", "us", "ms", "s", "h", "%"]))
OPTIONS = (
    "slo", "percentile", "burstiness", "delay", "overhead_per_batch", "overhead_per_request", "overhead_per_answer",
    "network", "max_batch", "seed",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(("rate", *OPTIONS)), numbers | texts), st.sampled_from(BATCHERS))
def test_a_demand_that_is_read_survives_a_file(options, batcher):
    try:
        demand = read_demand({"rate": 5, "slo": 50, "batcher": batcher} | options)
    except BadRequest as refused:
        assert "Expected" not in refused.message
    else:
        assert msgspec.json.decode(msgspec.json.encode(demand), type=Demand) == demand
