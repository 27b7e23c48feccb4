"""Requests through batchers and devices: what any server keeps to, and what is known in closed form."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tputfind.sizing import formulas
from tputfind.sizing.arrivals import arrivals_ms
from tputfind.sizing.batchers import SERVERS, rule_of
from tputfind.sizing.demand import BATCHERS, Demand
from tputfind.sizing.queues import Ends, Getters, Spans, Workers, by_rule, greedy
from tputfind.sizing.replicas import ByRule, Router
from tputfind.sizing.serve import Server, _pairs, serve
from tputfind.sizing.service import ServiceTimes
from tputfind.sizing.simulate import Fleet, simulate

SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
LINE = ServiceTimes({size: [0.5 * size + 5] for size in SIZES})
"""A device on which a batch takes 5 ms and half a ms a sample, always."""


def spans(cap: int) -> Spans:
    return Spans(LINE, cap, (0,))


def stream(rate_per_s: float, **more: object) -> Demand:
    return Demand(rate_per_s=rate_per_s, slo_ms=1000.0, **more)  # type: ignore[arg-type]


# None at the very moment at which a window ends: who is first then is a matter of chance in a server too.
gaps_ms = st.integers(0, 200).map(lambda tenths: tenths / 10 + math.sqrt(2) / 1000)
arrivals = st.lists(gaps_ms, min_size=1, max_size=60).map(lambda gaps: list(itertools.accumulate(gaps)))
devices, caps = st.integers(1, 4), st.integers(1, 8)
waits = st.integers(1, 30).map(lambda halves: halves / 2)
ruled = [batcher for batcher in BATCHERS if SERVERS[batcher].rule]
servers = st.sampled_from([batcher for batcher in ruled if batcher != "ray"])


def routed(times, device_count, cap, rule, among=None):
    ends = Ends(len(times))
    return Router([ByRule(0.0, cap, spans(cap), rule, ends) for _ in range(device_count)], ends, among).serve(times)


def every_way(times, device_count, cap, batcher, wait_ms):
    rule = rule_of(batcher, wait_ms)
    yield routed(times, device_count, cap, rule)
    if batcher == "mosec":
        yield Workers([0.0] * device_count, cap, spans(cap), wait_ms).serve(times)
    elif batcher == "litserve":
        yield Getters([0.0] * device_count, cap, spans(cap), wait_ms, 0.0).serve(times)
    else:
        yield by_rule(times, [0.0] * device_count, cap, spans(cap), rule)


@given(arrivals, devices, caps, st.sampled_from(ruled), waits)
def test_every_request_is_answered_once_and_no_sooner_than_its_batch_takes(times, device_count, cap, batcher, wait_ms):
    for served in every_way(times, device_count, cap, batcher, wait_ms):
        latency_ms = served.done_ms - np.array(times)
        answered = {
            done: int(count) for done, count in zip(*np.unique(served.done_ms, return_counts=True), strict=True)
        }
        assert len(served.done_ms) == len(times)
        assert latency_ms.min() >= 5.5 - 1e-9
        assert math.ceil(len(times) / cap) <= served.batches <= len(times)
        assert all(count <= cap * device_count for count in answered.values())
        assert served.busy_ms == pytest.approx(5 * served.batches + 0.5 * len(times))
        assert served.busy_ms <= device_count * served.done_ms.max() + 1e-9


@given(arrivals, caps, servers, waits)
def test_of_one_device_all_the_ways_to_queue_are_one(times, cap, batcher, wait_ms):
    ways = [served.done_ms for served in every_way(times, 1, cap, batcher, wait_ms)]
    ways.append(by_rule(times, [0.0], cap, spans(cap), rule_of(batcher, wait_ms)).done_ms)

    assert all(way == pytest.approx(ways[0]) for way in ways)


@given(arrivals, devices, caps)
def test_the_fast_way_of_the_greedy_batcher_is_its_rule(times, device_count, cap):
    fast = greedy(times, [0.0] * device_count, cap, spans(cap))
    plain = by_rule(times, [0.0] * device_count, cap, spans(cap), rule_of("greedy", 0.0))

    assert fast.done_ms == pytest.approx(plain.done_ms)
    assert fast.batches == plain.batches


@pytest.mark.parametrize(
    ("batcher", "closes_ms"),
    [("greedy", 30.0), ("triton", 31.0), ("mosec", 40.0), ("litserve", 40.0), ("ray", 37.0)],
)
def test_behind_a_busy_device_each_server_closes_a_batch_at_its_own_time(batcher, closes_ms):
    """Free at 30 ms, the batch before was closed at 27, one request waits since 21, and no other comes."""
    assert rule_of(batcher, 10.0)(30.0, 27.0, 21.0, math.inf) == closes_ms


@pytest.mark.parametrize(
    ("batcher", "closes_ms"),
    [("greedy", 50.0), ("triton", 60.0), ("mosec", 60.0), ("litserve", 60.0), ("ray", 60.0)],
)
def test_on_an_idle_device_a_batch_waits_as_its_server_has_it(batcher, closes_ms):
    """Free since 10 ms, the first request comes at 50; LitServe's window is the one from 50 to 60."""
    assert rule_of(batcher, 10.0)(10.0, 5.0, 50.0, math.inf) == closes_ms


def test_a_window_of_litserve_goes_by_the_clock_and_not_by_the_request():
    assert rule_of("litserve", 10.0)(10.0, 5.0, 57.0, math.inf) == 60.0
    assert rule_of("mosec", 10.0)(10.0, 5.0, 57.0, math.inf) == 67.0


@pytest.mark.parametrize("batcher", ["triton", "mosec", "litserve", "ray"])
def test_a_full_batch_waits_for_nothing(batcher):
    assert rule_of(batcher, 10.0)(10.0, 5.0, 50.0, 52.0) == 52.0


def test_requests_that_are_got_one_by_one_are_a_batch_when_the_window_has_ended():
    """Ten wait; the fourth is being got as the first window ends."""
    served = Getters([0.0], 8, spans(8), wait_ms=10.0, get_ms=3.0).serve([0.0] * 10)

    assert served.done_ms.tolist() == [12 + 7.0] * 4 + [19 + 12 + 7.0] * 4 + [38 + 10 + 6.0] * 2


def test_without_a_window_all_that_waits_is_got_one_by_one():
    served = Getters([0.0], 8, spans(8), wait_ms=0.0, get_ms=3.0).serve([0.0] * 10 + [38.0])

    assert served.done_ms.tolist() == [24 + 9.0] * 8 + [33 + 9 + 6.5] * 3


@given(arrivals, devices, caps, st.integers(0, 30).map(lambda halves: halves / 2), st.integers(1, 40))
def test_no_more_requests_are_got_than_there_is_time_for(times, device_count, cap, wait_ms, tenths):
    get_ms = tenths / 10
    served = Getters([0.0] * device_count, cap, spans(cap), wait_ms, get_ms).serve(times)

    most = min(cap, math.ceil(wait_ms / get_ms)) if wait_ms else cap
    sizes = np.unique(served.done_ms, return_counts=True)[1]
    assert served.batches >= math.ceil(len(times) / most)
    assert sizes.max() <= most * device_count
    assert (served.done_ms - times).min() >= get_ms + 5.5 - 1e-9
    assert served.busy_ms == pytest.approx(5 * served.batches + 0.5 * len(times))
    assert served.busy_ms + get_ms * len(times) <= device_count * served.done_ms.max() + 1e-9


def test_what_a_device_does_at_most_counts_the_time_in_which_requests_are_got():
    service = ServiceTimes({1: [5.5], 64: [37.0]}, per_get_ms=0.25)
    demand = stream(1.0, batcher="litserve", delay_ms=5.0, overhead_per_get_ms=0.25)

    served = Getters([0.0], 64, spans(64), wait_ms=5.0, get_ms=0.25).serve([0.0] * 20_000)

    assert demand.most_in_window == 20
    assert 20_000 / served.done_ms[-1] == pytest.approx(service.per_ms(20))


@pytest.mark.parametrize("routing", ["shared", "random", "least-loaded"])
def test_answers_that_go_out_one_by_one_are_late_by_their_place_in_the_batch(routing):
    demand = stream(500, routing=routing)
    times = arrivals_ms(demand, 2000, 500.0, 1.0, seed=(3,))
    together, one_by_one = (
        serve(
            times,
            [0.0] * 2,
            Server(8, LINE, msgspec.structs.replace(demand, overhead_per_answer_ms=late_ms)),
            seed=(1,),
        )
        for late_ms in (0.0, 0.25)
    )

    late = (one_by_one.done_ms - together.done_ms) / 0.25
    for done_ms in np.unique(together.done_ms):
        its_own = late[together.done_ms == done_ms]
        assert its_own == pytest.approx(np.arange(1, len(its_own) + 1))
    assert (one_by_one.batches, one_by_one.busy_ms) == (together.batches, together.busy_ms)


def test_answers_wait_for_those_of_the_batches_before_on_the_line_of_a_device():
    """Each batch of 8 takes 9 ms, and its answers 16."""
    demand = stream(1000, overhead_per_answer_ms=2.0)

    served = serve(np.zeros(24), [0.0], Server(8, LINE, demand), seed=(1,))

    assert served.done_ms.tolist() == [9.0 + 2.0 * place for place in range(1, 25)]


def test_batches_that_end_at_one_time_are_two():
    demand = stream(1000, overhead_per_answer_ms=0.5)

    served = serve(np.zeros(16), [0.0] * 2, Server(8, LINE, demand), seed=(1,))

    assert sorted(served.done_ms) == [9.0 + 0.5 * place for place in range(1, 9) for _ in range(2)]


def test_a_window_shorter_than_what_a_clock_tells_ends():
    assert Getters([0.0], 8, spans(8), wait_ms=0.001, get_ms=0.001).serve([2e13]).batches == 1


def test_a_wait_of_mosec_is_longer_by_the_ticks_of_its_timer():
    demand = stream(1.0, batcher="mosec", delay_ms=5.0)

    served = serve(np.array([100.0]), [0.0], Server(8, LINE, demand), seed=(0,))

    assert served.done_ms.tolist() == [106.0 + 5.5]


@pytest.mark.parametrize("load", [0.02, 0.1, 0.3, 0.5, 0.7])
def test_the_mean_latency_is_that_of_the_closed_form(load):
    rate_per_s = load / 0.5 * 1000

    outcome = simulate(Fleet(1, 512, rate_per_s), LINE, stream(rate_per_s), seeds=8, effort=6)

    assert outcome.mean_ms == pytest.approx(formulas.mean_ms_of_one_device(rate_per_s / 1000, 0.5, 5.0), rel=0.01)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_one_request_at_a_time_is_the_queue_of_pollaczek_and_khinchine(load):
    rate_per_s = load / 5 * 1000

    outcome = simulate(Fleet(1, 1, rate_per_s), ServiceTimes({1: [5.0]}), stream(rate_per_s), seeds=8, effort=6)

    assert outcome.mean_ms == pytest.approx(5.0 + load * 5.0 / (2 * (1 - load)), rel=0.02)


@pytest.mark.parametrize("load", [0.9, 0.95, 0.97])
def test_near_its_limit_the_percentile_of_a_queue_is_not_told_too_low(load):
    """Against Lindley's recursion over so many requests that it has forgotten how it began."""
    rate_per_s = load / 5 * 1000
    gaps_ms = np.random.default_rng(5).exponential(1000 / rate_per_s, 12_000_000)
    walk = np.cumsum(5.0 - gaps_ms[1:])
    waits_ms = walk - np.minimum.accumulate(np.minimum(walk, 0.0))
    truth_ms = 5.0 + float(np.quantile(waits_ms[100_000:], 0.99))

    fleet, service = Fleet(1, 1, rate_per_s), ServiceTimes({1: [5.0]})
    outcomes = [simulate(fleet, service, stream(rate_per_s, seed=seed), seeds=5) for seed in range(6)]

    assert all(outcome.steady for outcome in outcomes)
    assert np.mean([outcome.p99_ms for outcome in outcomes]) == pytest.approx(truth_ms, rel=0.08)
    assert sum(outcome.tail_high_ms >= 0.97 * truth_ms for outcome in outcomes) >= 5


@pytest.mark.parametrize("routing", ["shared", "random", "least-loaded", "two-choices"])
@pytest.mark.parametrize("load", [0.999, 1.0, 1.05])
def test_a_fleet_at_its_limit_meets_no_target_however_long(load, routing):
    rate_per_s = load * 2 * 1000 * LINE.per_ms(64)
    demand = msgspec.structs.replace(stream(rate_per_s, routing=routing), slo_ms=1e7)

    outcome = simulate(Fleet(2, 64, rate_per_s), LINE, demand, seeds=3)

    assert not outcome.steady
    assert not outcome.meets(1e9)
    assert outcome.misses(1e9) == (load >= 1)


@pytest.mark.parametrize(
    ("batcher", "wait_ms", "rate_per_s", "p99_ms"),
    [
        ("greedy", 0.0, 300, 13.7),
        ("greedy", 0.0, 1400, 44.9),
        ("triton", 10.0, 300, 19.0),
        ("litserve", 10.0, 300, 27.6),
        ("litserve", 10.0, 1400, 80.8),
        ("ray", 40.0, 300, 54.0),
        ("ray", 40.0, 1400, 75.0),
        ("ray", 10.0, 300, 19.0),
    ],
)
def test_another_simulation_of_the_same_servers_came_to_the_same(batcher, wait_ms, rate_per_s, p99_ms):
    """One device of 5 ms and half a ms a sample, cap 64; the other simulation was written apart from this one."""
    routing = "random" if batcher == "ray" else "shared"
    delay_ms = None if batcher == "greedy" else wait_ms
    of_ray = {"handler": "threaded", "max_ongoing": 10_000} if batcher == "ray" else {}
    demand = stream(rate_per_s, batcher=batcher, delay_ms=delay_ms, routing=routing, **of_ray)

    outcome = simulate(Fleet(1, 64, rate_per_s), LINE, demand, seeds=5, effort=2)

    assert outcome.p99_ms == pytest.approx(p99_ms, rel=0.03)


def test_batches_that_ray_closes_too_small_end_in_a_queue_without_end():
    demand = stream(1400, batcher="ray", routing="random", handler="threaded", max_ongoing=10_000)

    outcome = simulate(Fleet(1, 64, 1400), LINE, demand, seeds=2)

    assert outcome.p99_ms > 1000
    assert outcome.load == pytest.approx(1400 / 1200, rel=0.001)  # measured; batches of 15, that take 12.5 ms
    assert not outcome.steady


def test_the_more_a_request_knows_of_the_queues_the_sooner_it_is_answered():
    """One by one; with batches it need not be so: who joins a queue fills a batch."""
    fleet = Fleet(8, 1, 1160)
    ways = [
        simulate(fleet, LINE, stream(1160, routing=routing), seeds=5).p99_ms
        for routing in ("shared", "least-loaded", "two-choices", "random")
    ]

    assert ways == sorted(ways)
    assert ways[-1] > 1.2 * ways[0]


@pytest.mark.parametrize(("burstiness", "share"), [(0.0, 1.0), (0.5, 1.0), (1.0, 0.3), (2.0, 1.0), (3.0, 0.25)])
def test_requests_come_at_the_rate_and_as_unevenly_as_asked(burstiness, share):
    times = arrivals_ms(stream(1.0, burstiness=burstiness), 400_000, 500.0, share, seed=(3,))
    counts = np.bincount((times / 1000).astype(int))[:-1]  # of each second

    assert len(times) / (times[-1] / 1000) == pytest.approx(500, rel=0.02)
    assert counts.var() / counts.mean() == pytest.approx(1 + share * (burstiness**2 - 1), rel=0.2, abs=0.02)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_a_recorded_stream_keeps_its_shape_at_another_rate(share):
    gaps = (*[0.0] * 9, 10.0) * 20
    times = arrivals_ms(stream(1.0, gaps=gaps), 20_000, 100.0, share, seed=(1,))

    assert len(times) == 20_000
    assert len(times) / (times[-1] / 1000) == pytest.approx(100, rel=0.03)
    assert len(np.unique(times)) == pytest.approx(2000 if share == 1 else 20_000 / 4, rel=0.05)


measured = st.dictionaries(
    st.integers(1, 600), st.lists(st.floats(0.01, 1000), min_size=1, max_size=30), min_size=1, max_size=8
)


@given(measured, st.data())
def test_batches_take_what_was_measured_or_what_lies_between_and_larger_ones_no_less(samples, data):
    service = ServiceTimes(samples)
    size = data.draw(st.integers(1, service.largest))

    curve = service.curve_ms(size)
    assert np.all(np.diff(curve) >= 0)
    assert np.all(service.curve_ms(min(size + 1, service.largest)) >= curve - 1e-9)
    least, most = min(map(min, samples.values())), max(map(max, samples.values()))
    assert least - 1e-9 <= curve[0] <= curve[-1] <= most + 1e-9
    with pytest.raises(ValueError, match="not measured"):
        service.curve_ms(service.largest + 1)


def test_what_a_server_adds_is_added_to_every_batch_and_for_every_request():
    service = ServiceTimes({1: [1.0], 11: [2.0]}, per_batch_ms=3.0, per_sample_ms=0.1)

    assert service.mean_ms(6) == pytest.approx(1.5 + 3.0 + 0.6)
    assert service.line_ms() == pytest.approx((0.2, 3.9))


def test_answers_to_a_whole_batch_free_their_device_of_all_of_it():
    """The first four requests go to the first device, three of them as one batch; then the idler one is asked."""
    asked = iter([[0], [0], [0], [0], [0, 1], [0, 1]])

    served = routed([1.0, 2.0, 3.0, 4.0, 20.0, 20.1], 2, 4, rule_of("greedy", 0.0), lambda: next(asked))

    assert served.done_ms.tolist() == pytest.approx([6.5, 13.0, 13.0, 13.0, 25.5, 25.6])


def test_ray_begins_to_collect_the_next_batch_when_the_last_was_closed_and_not_when_it_ended():
    served = routed([1.0, 12.0], 1, 8, rule_of("ray", 10.0))

    assert served.done_ms.tolist() == pytest.approx([16.5, 27.5])


@pytest.mark.parametrize("devices", [2, 3, 16])
def test_of_two_choices_both_are_equally_likely_and_never_the_same(devices):
    pairs = np.array(list(itertools.islice(_pairs(devices, (1,)), 60_000)))

    assert np.all(pairs[:, 0] != pairs[:, 1])
    assert np.bincount(pairs.ravel(), minlength=devices) == pytest.approx(120_000 / devices, rel=0.05)
