"""Fleets of two kinds of devices: the engine against another simulation, and the search for the cheapest mix."""

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.queues import arrival_lists, followed
from support.records import timed_record

from tputfind.record.record import Record
from tputfind.sizing.engine.replications import Effort, Fleet, Goal, Simulated, simulate
from tputfind.sizing.engine.servers import Server
from tputfind.sizing.engine.service_times import ServiceTimes, service_times_of
from tputfind.sizing.engine.serving import Kind, serve
from tputfind.sizing.planner.mixes import Mix, Offer, cheapest_mix
from tputfind.sizing.planner.plan import Plan, plan
from tputfind.sizing.planner.question import Demand, read_demand

FAST = ServiceTimes({size: [0.5 * size + 5] for size in (1, 2, 4, 8, 16, 32, 64)})
SLOW = ServiceTimes({size: [1.5 * size + 8] for size in (1, 2, 4, 8, 16)})


def simulated(kinds: list[Kind], rate_per_s: float, seed: int = 0, target_ms: float = 60.0, **server) -> Simulated:
    fleet = Fleet(kinds, rate_per_s, Server(**server))
    return simulate(fleet, Goal(target_ms, 99.0), Effort(100_000, 1_500_000, 0.02, 0.02), (seed,))


def parts(fast: int, fast_cap: int, slow: int, slow_cap: int):
    """Return the devices of a mix for the independent simulation."""
    return [(fast_cap, lambda size: 0.5 * size + 5)] * fast + [(slow_cap, lambda size: 1.5 * size + 8)] * slow


@given(arrival_lists, st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))
def test_mix_answers_requests_like_event_by_event_simulation(times, fast, slow, fast_cap, slow_cap):
    kinds = [Kind(fast, fast_cap, FAST), Kind(slow, slow_cap, SLOW)]

    served = serve(np.array(times), None, kinds, Server(), free_ms=[0.0] * (fast + slow), seed=(0,))

    done, _ = followed(times, [1] * len(times), parts(fast, fast_cap, slow, slow_cap), whole=True)
    assert served.done_ms == pytest.approx(np.array(done))


def test_a_long_stream_comes_to_the_latencies_of_an_independent_simulation():
    found = simulated([Kind(3, 16, FAST), Kind(4, 8, SLOW)], 4800.0)

    drawn = np.random.default_rng(12345)
    times = np.cumsum(drawn.exponential(1 / 4.8, 60_000)).tolist()
    done, served_by = followed(times, [1] * len(times), parts(3, 16, 4, 8), whole=True)
    latency_ms = np.array(done[6000:]) - np.array(times[6000:])
    for percent, ours_ms in ((50, found.outcome.p50_ms), (99, found.outcome.p99_ms)):
        assert ours_ms == pytest.approx(np.percentile(latency_ms, percent), rel=0.03)
    assert found.shares[0] == pytest.approx(np.mean(np.array(served_by) < 3), abs=0.01)
    assert sum(found.shares) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("counts", "rate", "server"),
    [
        ((2, 3), 5500.0, {"routing": "least-loaded"}),
        ((2, 3), 5500.0, {"batcher": "mosec", "delay_ms": 2.0}),
        ((60, 40), 110_000.0, {}),
    ],
)
def test_mix_of_two_equal_kinds_equals_their_sum(counts, rate, server):
    mixed = simulated([Kind(count, 16, FAST) for count in counts], rate, **server).outcome

    alike = simulated([Kind(sum(counts), 16, FAST)], rate, **server).outcome
    assert (mixed.utilization, mixed.devices) == (pytest.approx(alike.utilization), alike.devices)
    for name in ("p50_ms", "p95_ms", "p99_ms", "mean_ms", "mean_batch", "busy"):
        assert getattr(mixed, name) == pytest.approx(getattr(alike, name), rel=0.03), name


def test_random_split_of_mix_waits_by_pollaczek_khinchine():
    """Batches of one are M/D/1 queues of equal utilization ρ: the mean wait is ρ x time / (2 (1 - ρ))."""
    kinds, rate = [Kind(2, 1, FAST), Kind(3, 1, SLOW)], 500.0
    found = simulated(kinds, rate, routing="random")

    can = [2 / 5.5, 3 / 9.5]
    load = rate / 1000 / sum(can)
    shares = [one / sum(can) for one in can]
    mean_ms = sum(share * ms * (1 + load / 2 / (1 - load)) for share, ms in zip(shares, (5.5, 9.5), strict=True))
    assert found.shares == pytest.approx(shares, abs=0.01)
    assert found.outcome.mean_ms == pytest.approx(mean_ms, rel=0.03)
    assert found.outcome.utilization == pytest.approx(load)


def test_mix_above_256_devices_is_simulated_in_a_proportional_cell():
    whole = simulated([Kind(200, 16, FAST), Kind(100, 8, SLOW)], 400_000.0)
    half = simulated([Kind(100, 16, FAST), Kind(50, 8, SLOW)], 200_000.0)

    assert whole.outcome.devices == 300
    assert whole.shares == pytest.approx(half.shares, abs=0.01)
    assert whole.outcome.p99_ms == pytest.approx(half.outcome.p99_ms, rel=0.05)


def record(slope_ms: float, intercept_ms: float, largest: int, name: str) -> Record:
    """Return a record of a device with these batch times, within 5 %."""
    sizes, steps = (2**power for power in range(largest.bit_length())), [0.95 + 0.001 * number for number in range(100)]
    batches_ms = {size: [(intercept_ms + slope_ms * size) * step for step in steps] for size in sizes}
    return timed_record(batches_ms, device_name=name)


LARGE, SMALL = record(0.3, 3.0, 64, "Large"), record(1.0, 5.0, 32, "Small")
RATE, SLO = 7000.0, 60.0


@cache
def plans_of_one_kind(demand: Demand) -> list[Plan]:
    return [plan(one, demand) for one in (LARGE, SMALL)]


def found(demand: Demand, per_hour: tuple[float, float] = (4.0, 1.3)) -> Mix | str:
    offers = [
        Offer(one, each.recipe, each.device_name, each.outcome, price)
        for one, each, price in zip((LARGE, SMALL), plans_of_one_kind(demand), per_hour, strict=True)
    ]
    return cheapest_mix(sorted(offers, key=lambda offer: offer.cost), demand)


def wanted(rate: float = RATE, **more: object) -> Demand:
    return read_demand({"rate": rate, "slo": SLO, **more})


def kinds_of(counts, caps):
    services = [service_times_of(one) for one in (LARGE, SMALL)]
    return [Kind(*one) for one in zip(counts, caps, services, strict=True)]


@pytest.mark.long
@pytest.mark.parametrize("routing", ["shared", "random"])
def test_mix_meets_target_under_other_streams_and_is_cheapest(routing):
    mix = found(wanted(routing=routing))

    assert isinstance(mix, Mix)
    by_name = {part.device_name: part for part in mix.parts}
    counts = [by_name[name].devices for name in ("Large", "Small")]
    caps = [by_name[name].batch_cap for name in ("Large", "Small")]
    again = simulated(kinds_of(counts, caps), RATE, 77, SLO, routing=routing).outcome
    assert again.tail_ms <= 1.02 * SLO
    assert mix.cost_per_hour == pytest.approx(4.0 * counts[0] + 1.3 * counts[1])
    cheaper = [
        (large, small)
        for large, small in itertools.product(range(1, 5), range(1, 12))
        if 4.0 * large + 1.3 * small < mix.cost_per_hour
    ]
    for pair in cheaper:
        for tried in itertools.product((32, 64), (8, 16, 32)):
            outcome = simulated(kinds_of(pair, tried), RATE, 77, SLO, routing=routing).outcome
            assert not (outcome.meets_target and outcome.tail_ms < 0.98 * SLO), (pair, tried)


@pytest.mark.long
def test_best_cost_never_falls_as_a_price_rises():
    alone = [each.outcome.devices for each in plans_of_one_kind(wanted())]
    costs = []
    for small in (0.9, 1.3, 1.5, 1e9):
        mix = found(wanted(), (4.0, small))
        single = min(4.0 * alone[0], small * alone[1])
        costs.append(min(single, mix.cost_per_hour if isinstance(mix, Mix) else single))

    assert costs == sorted(costs)
    assert found(wanted(), (4.0, 1e9)) == f"none is cheaper than {alone[0]} x Large"


def test_mix_behind_one_triton_queue_has_one_batch_limit():
    """Triton makes batches before a device is free, so one limit is for all devices."""
    mix = found(wanted(2800, percentile=90, batcher="triton", delay="2ms"), (4.0, 1.6))

    assert isinstance(mix, Mix)
    assert {part.batch_cap for part in mix.parts} == {32}


def test_requests_that_a_mix_refuses_do_not_share_its_cost():
    rate = 3600
    mix = found(wanted(rate, percentile=90, max_queue=40), (4.0, 1.6))

    assert isinstance(mix, Mix)
    assert mix.outcome.refused > 0.05
    assert mix.cost_per_million == pytest.approx(mix.cost_per_hour / (3600 * mix.outcome.goodput_per_s) * 1e6, rel=0.01)


def test_with_spare_devices_no_mix_is_searched():
    assert found(wanted(2000, spare=1)) == "a mix is not searched with --spare"


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"batcher": "triton", "delay": "2ms", "routing": "random", "samples_per_request": 2},
        {"batcher": "mosec", "delay": "2ms", "routing": "least-loaded", "max_queue": 500},
        {"batcher": "ray", "max_ongoing": 200, "delay": "2ms"},
    ],
)
def test_a_mix_is_searched_for_any_server_and_routing(options):
    mix = found(wanted(2000, percentile=95, **options))

    assert mix.outcome.meets_target if isinstance(mix, Mix) else mix.startswith("none is cheaper")


@pytest.mark.long
@given(st.floats(1500, 9000), st.floats(0.7, 2.0))
@settings(max_examples=5)
def test_a_mix_is_cheaper_than_either_kind_and_takes_both(rate, small):
    mix = found(wanted(rate, percentile=95), (4.0, small))

    if isinstance(mix, Mix):
        assert len(mix.parts) == 2
        assert sum(part.share for part in mix.parts) == pytest.approx(1.0)
        assert mix.outcome.meets_target
        for one, price in zip(plans_of_one_kind(wanted(rate, percentile=95)), (4.0, small), strict=True):
            assert mix.cost_per_hour < price * one.outcome.devices
