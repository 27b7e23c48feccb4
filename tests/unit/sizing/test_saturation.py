"""What a device answers at most: with Ray Serve's limit on the requests of a replica, as others ask for room."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.folders import RESULTS

import tputfind
from tputfind.sizing.demand import Demand
from tputfind.sizing.options import read_demand
from tputfind.sizing.saturation import most_per_ms
from tputfind.sizing.serve import Server, serve
from tputfind.sizing.service import ServiceTimes
from tputfind.sizing.simulate import Fleet, Outcome, simulate

LINE = ServiceTimes({size: [2 + 0.1 * size] for size in (1, 2, 4, 8, 16, 32)})
VIT = tputfind.load_record(RESULTS / "nvidia-h100/default/vit_b_16-fp16.json")


def ray(limit: int, handler: str = "blocking", **more: object) -> Demand:
    given = {"rate": 1, "slo": "1s", "batcher": "ray", "handler": handler, "max_ongoing": limit, **more}
    return read_demand(given)


def test_without_a_limit_a_device_does_what_full_batches_do():
    for demand in (read_demand({"rate": 1, "slo": "1s"}), ray(10_000)):
        assert most_per_ms(16, LINE, demand) == pytest.approx(16 / 3.6)


@pytest.mark.parametrize("handler", ["blocking", "threaded"])
@pytest.mark.parametrize(("limit", "cap"), [(5, 5), (5, 2), (16, 8), (40, 16)])
def test_while_requests_wait_a_replica_has_its_limit_anew_every_25_ms(limit, cap, handler):
    """It is done with all of them before: then nobody asks."""
    assert most_per_ms(cap, LINE, ray(limit, handler)) == pytest.approx(limit / 25, rel=0.01)


def test_what_waits_does_not_count_in_what_a_device_can_do():
    """Nor do the rate, the stream or the question."""
    demand = ray(5, rate=900, burstiness=3, max_queue=10, devices=4, spare=1, most_load=0.5, network="5ms", seed=3)

    assert most_per_ms(5, LINE, demand) == most_per_ms(5, LINE, ray(5))


@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 4),
    st.sampled_from([(5, 5), (5, 2), (12, 4), (16, 8), (32, 16)]),
    st.sampled_from(["blocking", "threaded"]),
    st.booleans(),
    st.integers(0, 100),
)
def test_a_fleet_recovers_from_a_pause_just_where_its_load_is_below_one(devices, limit_and_cap, handler, above, seed):
    """After half a second without a batch."""
    limit, cap = limit_and_cap
    demand = ray(limit, handler)
    rate_per_ms = (1.2 if above else 0.8) * devices * most_per_ms(cap, LINE, demand)
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_ms, int(8000 * rate_per_ms)))

    done_ms = serve(times, [500.0] * devices, Server(cap, LINE, demand), (seed,)).done_ms

    late_ms = (done_ms - times)[-len(times) // 10 :]
    assert np.median(late_ms) > 1000 if above else np.median(late_ms) < 150


@pytest.mark.parametrize("devices", [7, 19])
def test_devices_that_would_not_recover_do_not_hold(devices):
    """By their batches of five 3 devices would do; but 20 are needed for those that ask again after a pause."""
    (found,) = tputfind.size(VIT, devices=devices, rate=4000, slo="50ms", batcher="ray")

    assert not found.holds
    assert found.outcome.load == pytest.approx(20 / devices, rel=0.01)
    assert not found.outcome.steady
    assert (found.waiting_per_s, found.full_per_s) == (pytest.approx(200, rel=0.01), pytest.approx(1477, rel=0.01))


def test_a_plan_has_as_many_devices_as_recover():
    (found,) = tputfind.size(VIT, rate=1100, slo="50ms", batcher="ray")

    assert found.holds
    assert found.outcome.devices == 6
    assert found.fewer_fails
    assert found.outcome.load == pytest.approx(5.5 / 6, rel=0.03)


def test_with_a_queue_that_refuses_what_follows_a_full_one_counts():
    """At a load above one a full queue stays full: most requests find no room, though devices would do with them."""
    demand = ray(5, rate=1000, max_queue=100)

    found = simulate(Fleet(2, 5, 1000.0), LINE, demand, seeds=2)

    assert found.load == pytest.approx(2.5, rel=0.01)
    assert found.refused == pytest.approx(0.6, abs=0.02)


def test_the_load_of_batches_by_the_clock_is_the_time_that_they_take():
    """Bursty requests make larger batches than even ones: three devices do, which even requests would overload."""
    given = {"batcher": "ray", "handler": "threaded", "max_ongoing": 1000, "delay": "5ms", "routing": "least-loaded"}
    waits_for_python = ServiceTimes({size: [max(5.4, 0.13 * size)] for size in (1, 2, 4, 8, 16, 32, 64)})

    def with_burstiness(burstiness: float) -> Outcome:
        demand = read_demand({"rate": 9000, "slo": "60ms", "burstiness": burstiness, **given})
        return simulate(Fleet(3, 64, 9000.0), waits_for_python, demand, seeds=2)

    found, even = with_burstiness(3), with_burstiness(0)

    assert (found.meets(60.0), even.meets(60.0)) == (True, False)
    assert even.load > 1
    assert found.load == found.utilisation == pytest.approx(0.93, abs=0.02)
