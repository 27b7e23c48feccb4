"""Fleets of two kinds of devices: the simulation beside another one, and the search for the cheapest mix."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import example, row

from tputfind.record.record import Record, Timing
from tputfind.sizing.demand import Demand
from tputfind.sizing.mixed import Kind, _cell, greedy, load_of, simulate_mix, split
from tputfind.sizing.mixes import cheapest_mix
from tputfind.sizing.options import read_demand
from tputfind.sizing.plan import Mix, Price, plan
from tputfind.sizing.serve import Server
from tputfind.sizing.service import ServiceTimes
from tputfind.sizing.simulate import Fleet, simulate

FAST = ServiceTimes({size: [0.5 * size + 5] for size in (1, 2, 4, 8, 16, 32, 64)})
SLOW = ServiceTimes({size: [1.5 * size + 8] for size in (1, 2, 4, 8, 16)})


def stream(rate_per_s: float = 1000.0, slo_ms: float = 60.0, **more: object) -> Demand:
    return Demand(rate_per_s=rate_per_s, slo_ms=slo_ms, **more)  # type: ignore[arg-type]


def event_by_event(times, kind_of, caps, batch_ms):
    """Serve requests as a shared queue does, one event after the other; written apart from the tool's way.

    A device that ends its batch takes what waits, or joins the end of the line of idle devices. A request that comes
    goes to the head of that line.
    """
    events = [(came, 1, number, -1) for number, came in enumerate(times)]
    heapq.heapify(events)
    idle, queue = deque(range(len(kind_of))), deque()
    done, served_by = [0.0] * len(times), [-1] * len(times)

    def begin(device: int, now: float) -> None:
        kind = kind_of[device]
        batch = [queue.popleft() for _ in range(min(len(queue), caps[kind]))]
        end = now + batch_ms[kind](len(batch))
        for request in batch:
            done[request], served_by[request] = end, device
        heapq.heappush(events, (end, 0, device, device))

    while events:
        now, came, number, device = heapq.heappop(events)
        if came:
            queue.append(number)
            if idle:
                begin(idle.popleft(), now)
        elif queue:
            begin(device, now)
        else:
            idle.append(device)
    return done, served_by


gaps_ms = st.integers(0, 150).map(lambda tenths: tenths / 10 + math.sqrt(2) / 1000)
arrivals = st.lists(gaps_ms, min_size=1, max_size=80).map(lambda gaps: list(itertools.accumulate(gaps)))


@given(arrivals, st.lists(st.integers(0, 1), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 6))
def test_each_request_is_answered_as_an_independent_simulation_says(times, kind_of, fast_cap, slow_cap):
    servers = [Server(cap, service, stream()) for cap, service in ((fast_cap, FAST), (slow_cap, SLOW))]
    batch_ms = (lambda size: 0.5 * size + 5, lambda size: 1.5 * max(size, 1) + 8)

    dealt = greedy(np.array(times), [0.0] * len(kind_of), kind_of, servers, (0,))

    done, served_by = event_by_event(times, kind_of, (fast_cap, slow_cap), batch_ms)
    assert dealt.done_ms == pytest.approx(np.array(done))
    assert dealt.device.tolist() == served_by


def test_a_long_stream_comes_to_the_latencies_of_an_independent_simulation():
    kinds, demand = [Kind(3, 16, FAST), Kind(4, 8, SLOW)], stream(4800.0)

    outcome, shares = simulate_mix(kinds, 4800.0, demand, seeds=5)

    drawn = np.random.default_rng(12345)
    times = np.cumsum(drawn.exponential(1 / 4.8, 60_000)).tolist()
    done, served_by = event_by_event(times, [0] * 3 + [1] * 4, (16, 8), (lambda n: 0.5 * n + 5, lambda n: 1.5 * n + 8))
    latency_ms = np.array(done[6000:]) - np.array(times[6000:])
    for percent, ours_ms in ((50, outcome.p50_ms), (99, outcome.p99_ms)):
        assert ours_ms == pytest.approx(np.percentile(latency_ms, percent), rel=0.03)
    assert shares[0] == pytest.approx(np.mean(np.array(served_by) < 3), abs=0.01)
    assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize(("counts", "rate"), [((2, 3), 5500.0), ((60, 40), 110_000.0)])
def test_a_mix_of_two_equal_kinds_does_what_the_sum_of_them_does(counts, rate):
    demand = stream(rate)
    mixed = simulate_mix([Kind(count, 16, FAST) for count in counts], rate, demand, seeds=3).outcome

    alike = simulate(Fleet(sum(counts), 16, rate), FAST, demand, seeds=3)
    assert (mixed.load, mixed.devices, mixed.steady) == (pytest.approx(alike.load), alike.devices, alike.steady)
    for name in ("p50_ms", "p95_ms", "p99_ms", "mean_ms", "mean_batch", "utilisation"):
        assert getattr(mixed, name) == pytest.approx(getattr(alike, name), rel=0.01), name


def test_behind_a_random_split_each_device_waits_as_pollaczek_and_khinchine_say():
    """Batches of one are M/D/1 queues, each with the same load: a mean wait of load x time / (2 (1 - load))."""
    kinds, rate = [Kind(2, 1, FAST), Kind(3, 1, SLOW)], 500.0
    load = load_of(kinds, rate)
    mixed = simulate_mix(kinds, rate, stream(rate, routing="random"), seeds=5, effort=4)

    can = [2 / 5.5, 3 / 9.5]
    shares = [one / sum(can) for one in can]
    mean_ms = sum(share * ms * (1 + load / 2 / (1 - load)) for share, ms in zip(shares, (5.5, 9.5), strict=True))
    assert mixed.shares == pytest.approx(shares, abs=0.01)
    assert mixed.outcome.mean_ms == pytest.approx(mean_ms, rel=0.03)
    assert mixed.outcome.utilisation == pytest.approx(load, rel=0.02)


def test_a_random_split_is_by_what_each_device_can_do():
    servers = [Server(16, FAST, stream()), Server(4, SLOW, stream())]
    kind_of = [0, 1, 1]
    dealt = split(np.arange(30_000.0), [0.0] * 3, kind_of, servers, (0,))

    can = np.array([FAST.per_ms(16), SLOW.per_ms(4), SLOW.per_ms(4)])
    assert np.bincount(dealt.device) / 30_000 == pytest.approx(can / can.sum(), abs=0.01)


@given(st.lists(st.integers(1, 5000), min_size=2, max_size=3), st.integers(4, 64))
def test_the_part_of_a_large_fleet_that_is_simulated_has_its_proportions(counts, most):
    part = [kind.devices for kind in _cell([Kind(count, 1, FAST) for count in counts], most)]

    if sum(counts) <= most:
        assert part == counts
    else:
        assert sum(part) <= most + len(counts) - 1
        assert min(part) >= 1
        for devices, count in zip(part, counts, strict=True):
            assert abs(devices - count * most / sum(counts)) <= 1


def record(slope_ms: float, intercept_ms: float, largest: int, name: str) -> Record:
    """A record of a device on which batches take this long, give or take 5 %."""
    made, rows = example(), []
    for size in (2**power for power in range(largest.bit_length())):
        spans = tuple((intercept_ms + slope_ms * size) * (0.95 + 0.001 * number) for number in range(100))
        timing = Timing(device_ms=spans, latency_ms=spans)
        rows.append(msgspec.structs.replace(row(size, spans[0]), timings=(timing,)))
    environment = msgspec.structs.replace(made.environment, device_name=name)
    return msgspec.structs.replace(made, rows=tuple(rows), notices=(), environment=environment)


LARGE, SMALL = record(0.3, 3.0, 64, "Large"), record(1.0, 5.0, 32, "Small")
RATE, SLO = 7000.0, 60.0


def found(demand: Demand, per_hour: tuple[float, float] = (4.0, 1.3)) -> Mix | str:
    prices = [
        Price(device=name, price_per_hour=each, currency="EUR")
        for name, each in zip(("Large", "Small"), per_hour, strict=True)
    ]
    plans = [(one, plan(one, demand, price)) for one, price in zip((LARGE, SMALL), prices, strict=True)]
    return cheapest_mix(sorted(plans, key=lambda each: each[1].cost_per_hour or 0.0), demand)


def wanted(rate: float = RATE, **more: object) -> Demand:
    return read_demand({"rate": rate, "slo": SLO, **more})


def kinds_of(counts, caps):
    services = [ServiceTimes({r.batch_size: r.latency_ms for r in one.rows}) for one in (LARGE, SMALL)]
    return [Kind(*one) for one in zip(counts, caps, services, strict=True)]


@pytest.mark.long
@pytest.mark.parametrize("routing", ["shared", "random"])
def test_the_mix_that_is_found_meets_the_target_under_other_streams_and_is_the_cheapest_of_all(routing):
    mix = found(wanted(routing=routing))

    assert isinstance(mix, Mix)
    assert [part.device_name for part in mix.parts] in (["Large", "Small"], ["Small", "Large"])
    by_name = {part.device_name: part for part in mix.parts}
    counts = [by_name[name].devices for name in ("Large", "Small")]
    caps = [by_name[name].batch_cap for name in ("Large", "Small")]
    other = wanted(routing=routing, seed=77)
    assert simulate_mix(kinds_of(counts, caps), RATE, other, seeds=5).outcome.tail_ms <= 1.02 * SLO
    assert mix.cost_per_hour == pytest.approx(4.0 * counts[0] + 1.3 * counts[1])
    cheaper = [
        (large, small)
        for large, small in itertools.product(range(1, 5), range(1, 12))
        if 4.0 * large + 1.3 * small < mix.cost_per_hour
    ]
    for pair in cheaper:
        for tried in itertools.product((32, 64), (8, 16, 32)):
            kinds = kinds_of(pair, tried)
            if load_of(kinds, RATE) < 1:
                outcome = simulate_mix(kinds, RATE, other, seeds=3).outcome
                assert not (outcome.steady and outcome.tail_ms < 0.98 * SLO), (pair, tried)


@pytest.mark.long
def test_the_cost_of_the_best_never_falls_as_a_price_rises_and_what_costs_too_much_is_never_taken():
    costs = []
    for small in (0.9, 1.1, 1.3, 1.5, 3.0, 1e9):
        mix = found(wanted(), (4.0, small))
        alone = [plan(one, wanted()).outcome.devices for one in (LARGE, SMALL)]
        single = min(4.0 * alone[0], small * alone[1])
        costs.append(min(single, mix.cost_per_hour if isinstance(mix, Mix) else single))
        if isinstance(mix, Mix):
            assert mix.cost_per_hour < single

    assert costs == sorted(costs)
    assert found(wanted(), (4.0, 1e9)) == f"none is cheaper than {alone[0]} x Large"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batcher": "triton"}, "behind one queue of triton"),
        ({"batcher": "mosec"}, "behind one queue of mosec"),
        ({"batcher": "ray"}, "with --batcher ray"),
        ({"routing": "least-loaded"}, "with --routing least-loaded"),
        ({"overhead_per_answer": 0.01}, "with a time for each answer"),
        ({"spare": 1}, "with --spare"),
    ],
)
def test_what_no_mix_is_simulated_for_is_said_in_one_line(options, why):
    told = found(wanted(2000, **options))

    assert isinstance(told, str)
    assert why in told


@pytest.mark.long
def test_behind_a_random_split_a_mix_is_searched_for_other_batchers_too():
    told = found(wanted(batcher="triton", delay="2ms", routing="random"))

    assert isinstance(told, Mix) or told.startswith("none is cheaper")


@pytest.mark.long
@given(st.floats(1500, 9000), st.floats(0.7, 2.0))
@settings(max_examples=5)
def test_a_mix_is_cheaper_than_either_kind_and_takes_both(rate, small):
    mix = found(wanted(rate, percentile=95), (4.0, small))

    if isinstance(mix, Mix):
        assert len(mix.parts) == 2
        assert sum(part.share for part in mix.parts) == pytest.approx(1.0)
        assert mix.outcome.meets(SLO)
        for one, each in ((LARGE, 4.0), (SMALL, small)):
            assert mix.cost_per_hour < each * plan(one, wanted(rate, percentile=95)).outcome.devices
