"""Queues with a limit, preferred batches, and the delay that is looked for: closed forms, Triton itself, and plans."""

from __future__ import annotations

import itertools
import math
from math import factorial, inf

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import example, row

import tputfind
from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record, Timing
from tputfind.report.size import to_json, told
from tputfind.report.size_csv import to_csv
from tputfind.sizing.demand import Demand
from tputfind.sizing.options import read_demand
from tputfind.sizing.queues import Spans, Workers, greedy, greedy_within
from tputfind.sizing.service import ServiceTimes
from tputfind.sizing.simulate import Fleet, simulate
from tputfind.sizing.size import answers
from tputfind.sizing.triton import Triton

LINE = ServiceTimes({size: [5 + 0.5 * size] for size in (1, 2, 4, 8, 16)})
EXPONENTIAL = ServiceTimes({1: (-10 * np.log(1 - (np.arange(5000) + 0.5) / 5000)).tolist()})
"""Batches of one that take 10 ms on average, by the exponential distribution."""
CONSTANT = ServiceTimes({1: [10.0]})


def record(*latencies_ms: float) -> Record:
    """Batches of 1, 2, 4 and so on that take so long, give or take 1 %."""
    rows = []
    for power, latency_ms in enumerate(latencies_ms):
        spans = tuple(latency_ms * (1 + 0.0001 * number) for number in range(100))
        rows.append(msgspec.structs.replace(row(2**power, 1.0), timings=(Timing(device_ms=spans, latency_ms=spans),)))
    return msgspec.structs.replace(example(), rows=tuple(rows), notices=())


def refused(service: ServiceTimes, devices: int, load: float, places: int, **more: object) -> float:
    rate_per_s = load * devices * 100
    demand = Demand(rate_per_s=rate_per_s, slo_ms=1e4, max_queue=places, **more)  # type: ignore[arg-type]
    return simulate(Fleet(devices, 1, rate_per_s), service, demand, seeds=4).refused


def blocked(devices: int, load: float, places: int) -> float:
    """Return the share that M/M/c/(c + K) refuses: by Erlang's balance of each state with the next."""
    offered = load * devices
    weights = [offered**state / factorial(state) for state in range(devices + 1)]
    weights += [weights[-1] * load**waiting for waiting in range(1, places + 1)]
    return weights[-1] / sum(weights)


@pytest.mark.parametrize("load", [0.5, 0.9, 1.0, 1.5])
@pytest.mark.parametrize(("devices", "places"), [(1, 1), (1, 5), (3, 4)])
def test_exponential_batches_of_one_are_refused_as_erlang_has_it(devices, places, load):
    assert refused(EXPONENTIAL, devices, load, places) == pytest.approx(
        blocked(devices, load, places), rel=0.05, abs=0.0015
    )


@pytest.mark.parametrize("devices", [1, 2, 5])
def test_without_a_place_to_wait_erlang_b_is_what_is_refused(devices):
    """Whoever finds no device free is lost."""
    gaps = np.random.default_rng(0).exponential(10 / 0.8 / devices, 200_000)
    served = greedy_within(np.cumsum(gaps).tolist(), [0.0] * devices, 1, Spans(EXPONENTIAL, 1, (0,)), 0)

    assert np.isnan(served.done_ms).mean() == pytest.approx(blocked(devices, 0.8, 0), rel=0.02)


def of_constant(load: float, places: int) -> float:
    """Return what M/D/1/K refuses, from its states as seen by who departs (Gross and Harris, section 5.1.7)."""
    states = places + 1  # an own request that is served leaves behind 0 to ``places`` others
    come = [math.exp(-load) * load**number / factorial(number) for number in range(states)]
    matrix = np.zeros((states, states))
    for before, after in itertools.product(range(states), repeat=2):
        number = after - max(before - 1, 0)
        if after == states - 1:
            matrix[before, after] = 1 - sum(come[: max(number, 0)])
        elif number >= 0:
            matrix[before, after] = come[number]
    balance = np.vstack([matrix.T - np.eye(states), np.ones(states)])
    left = np.linalg.lstsq(balance, [0.0] * states + [1.0], rcond=None)[0]
    return 1 - 1 / (left[0] + load)


@pytest.mark.parametrize("load", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize("batcher", ["greedy", "mosec"])
def test_constant_batches_of_one_are_refused_as_the_embedded_chain_has_it(load, places, batcher):
    assert refused(CONSTANT, 1, load, places, batcher=batcher) == pytest.approx(
        of_constant(load, places), rel=0.05, abs=0.001
    )


gaps_ms = st.integers(0, 200).map(lambda tenths: tenths / 10 + math.sqrt(2) / 1000)
arrivals = st.lists(gaps_ms, min_size=1, max_size=60).map(lambda gaps: list(itertools.accumulate(gaps)))
devices, caps, places = st.integers(1, 3), st.integers(1, 8), st.integers(1, 6)
waits = st.integers(0, 30).map(lambda halves: halves / 2)


@given(arrivals, devices, caps, waits)
def test_a_limit_that_is_never_reached_changes_nothing(times, device_count, cap, wait_ms):
    free, spans = [0.0] * device_count, lambda: Spans(LINE, cap, (0,))

    assert (
        greedy_within(times, free, cap, spans(), 99).done_ms.tolist()
        == greedy(times, free, cap, spans()).done_ms.tolist()
    )
    assert (
        Workers(free, cap, spans(), wait_ms, 99).serve(times).done_ms.tolist()
        == Workers(free, cap, spans(), wait_ms).serve(times).done_ms.tolist()
    )


@given(arrivals, devices, caps, waits, places)
def test_each_request_is_refused_or_answered_once_and_no_more_wait_than_may(times, device_count, cap, wait_ms, most):
    free = [0.0] * device_count
    servers = (
        greedy_within(times, free, cap, Spans(LINE, cap, (0,)), most),
        Workers(free, cap, Spans(LINE, cap, (0,)), wait_ms, most).serve(times),
        Triton(free, cap, Spans(LINE, cap, (0,)), wait_ms, most_waiting=most).serve(times),
    )
    for served in servers:
        answered = ~np.isnan(served.done_ms)
        assert answered.tolist() == (served.batch >= 0).tolist()
        assert np.unique(served.batch[answered]).tolist() == list(range(served.batches))
        assert np.bincount(served.batch[answered]).max() <= cap
        begins = served.done_ms - 5 - 0.5 * np.bincount(served.batch[answered])[served.batch]
        assert all(begins[answered] >= np.array(times)[answered] - 1e-9)
        for at in np.array(times)[~answered]:
            # Who waits has come before, and its batch begins after; mosec's workers collect while they are free.
            assert sum((np.array(times) < at) & answered & (begins >= at - 1e-9)) >= most


@given(arrivals, caps, st.integers(1, 3))
def test_without_delay_and_preference_triton_takes_what_waits(times, cap, device_count):
    free = [0.0] * device_count
    by_source = Triton(free, cap, Spans(LINE, cap, (0,)), 0.0).serve(times)

    assert by_source.done_ms == pytest.approx(greedy(times, free, cap, Spans(LINE, cap, (0,))).done_ms)


SEEN = [
    (10, (), None, 15, 60, 205, [1, 1, 16, 11, 16, 11, 4]),
    (0, (4, 8), None, 15, 60, 205, [1, 4, 8, 8, 4, 8, 8, 8, 8, 3]),
    (10, (4, 8), None, 7, 120, 205, [2, 12, 16, 2, 16, 16, 16, 16, 16, 8]),
    (0, (4, 8), None, 7, 120, 205, [1, 4] + [8] * 14 + [3]),
    (50, (4, 8), None, 30, 40, 45, [2] * 20),
    (10, (), 8, 15, 60, 205, [1, 8, 8]),
    (0, (4, 8), 64, 7, 120, 205, [1] + [8] * 10),
]
"""Requests at even gaps, and the batches that a Triton made of them: PyTriton 0.7.0, one instance, largest batch 16,
batches of any size take as long."""


@pytest.mark.parametrize("seen", SEEN)
def test_triton_itself_made_the_same_batches(seen):
    delay_ms, preferred, most, gap_ms, count, span_ms, batches = seen
    service = ServiceTimes({16: [float(span_ms)]})
    server = Triton([0.0], 16, Spans(service, 16, (0,)), delay_ms, preferred=preferred, most_waiting=most)

    served = server.serve([3.0 + gap_ms * number for number in range(count)])

    assert np.bincount(served.batch[served.batch >= 0]).tolist() == batches


def test_a_full_queue_of_triton_lets_a_free_device_wait_for_half_a_second():
    """The first batch ends at 110 ms, the queue is full since 15, and nothing that is let in wakes the batcher."""
    server = Triton([0.0], 4, Spans(ServiceTimes({4: [100.0]}), 4, (0,)), 0.0, most_waiting=1)

    served = server.serve([10.0, 15.0, 20.0, 115.0, 200.0])

    assert served.done_ms[[0, 1]].tolist() == [110.0, 710.0]
    assert np.isnan(served.done_ms[2:]).all()


def test_a_stream_of_triton_has_no_end_behind_which_requests_wait_for_nobody():
    """A queue of 500 is never full at a third of the load, so that no request is late; nor are the last ones."""
    service = ServiceTimes({1: [2.0], 32: [20.0]})
    demand = read_demand({"rate": 500, "slo": "100ms", "batcher": "triton", "max_queue": 500, "percentile": 99.9})
    seen = simulate(Fleet(1, 32, 500.0), service, demand, seeds=3)

    assert seen.refused == 0
    assert seen.goodput_per_s == 500


def batches_of(preferred, cap, wait_ms, times, span_ms):
    """Batches by the preferred sizes as documented, a second time and plainly, for one device."""
    queue, made, free = list(times), [], 0.0
    while queue:
        first = queue[0]
        now = max(free, first)
        while True:
            waiting = sum(time <= now for time in queue)
            best = max((size for size in preferred if size <= waiting), default=0)
            late = wait_ms > 0 and now >= first + wait_ms
            if best and not late:
                size = best
                break
            if late or wait_ms == 0:
                size = min(waiting, cap)
                break
            now = min([first + wait_ms, *(time for time in queue if time > now)])
        made.append((now, size))
        queue, free = queue[size:], now + span_ms
    return made


@given(st.sampled_from([(2,), (2, 4), (3, 5)]), st.integers(5, 8), waits, arrivals)
def test_batches_for_a_device_that_is_free_are_those_that_are_documented(preferred, cap, wait_ms, times):
    """Batches take no time, so that the device is free whenever one is made."""
    tiny_ms = 1e-6
    server = Triton([0.0], cap, Spans(ServiceTimes({cap: [tiny_ms]}), cap, (0,)), wait_ms, preferred=preferred)

    served = server.serve(times)

    sizes = np.bincount(served.batch)
    begins = [served.done_ms[served.batch == number][0] - tiny_ms for number in range(served.batches)]
    expected = batches_of(preferred, cap, wait_ms, times, tiny_ms)
    assert sizes.tolist() == [size for _, size in expected]
    assert begins == pytest.approx([now for now, _ in expected], abs=1e-4)


def test_a_fleet_that_is_asked_too_much_refuses_the_rest_and_its_latency_stays():
    found = answers([record(10.0)], read_demand({"rate": 150, "slo": 100.0, "devices": 1, "max_queue": 4}))

    (plan,) = found.plans
    assert plan.outcome.steady
    assert plan.outcome.load > 1.4
    assert plan.outcome.refused == pytest.approx(of_constant(1.5 * 1.005, 4), rel=0.03)
    assert plan.outcome.p99_ms <= 5 * 10.1
    assert plan.outcome.tail_ms == inf
    assert not plan.holds
    assert dict(told(plan))["Target"].startswith("1: target missed, 3")
    assert "of the requests refused" in dict(told(plan))["Target"]


def test_requests_that_are_refused_count_as_late():
    """All that are answered are in time; whether the target is met is for how many are refused."""
    held = [
        tputfind.size(record(10.0), rate=60, slo=1000, devices=1, max_queue=most, percentile=percentile)[0]
        for most, percentile in ((1, 99), (1, 70), (30, 99))
    ]

    assert [plan.holds for plan in held] == [False, True, True]
    assert held[0].outcome.refused == pytest.approx(held[1].outcome.refused, rel=0.1)
    assert held[0].outcome.goodput_per_s == pytest.approx(60 * (1 - held[0].outcome.refused))


def test_where_a_tenth_may_be_refused_fewer_devices_are_enough_than_keep_up():
    (limited,) = tputfind.size(record(10.0), rate=1050, slo=200, percentile=90, max_queue=20)
    (without,) = tputfind.size(record(10.0), rate=1050, slo=200, percentile=90)

    assert limited.outcome.load > 1 > without.outcome.load
    assert limited.outcome.devices < without.outcome.devices
    assert 0 < limited.outcome.refused < 0.1


def test_of_a_fleet_that_is_sampled_the_queue_is_too():
    demand = read_demand({"rate": 128 * 100, "slo": 1000, "max_queue": 20})
    whole, half = (
        simulate(Fleet(count, 1, count * 100.0), CONSTANT, one, seeds=3)
        for count, one in ((128, demand), (64, msgspec.structs.replace(demand, max_queue=10)))
    )

    assert whole.refused == half.refused > 0


def test_a_plan_tells_what_is_refused_and_by_which_setting():
    found = answers([record(5.0, 6.0)], read_demand({"rate": 600, "slo": 50.0, "batcher": "triton", "max_queue": 40}))

    lines = dict(told(found.plans[0]))
    assert lines["Refused"].endswith("requests that find 40 in the queue (max_queue_size)")
    header, line = to_csv(found).decode().splitlines()
    cells = dict(zip(header.split(","), line.split(","), strict=True))
    assert (cells["max_queue"], cells["preferred_batches"]) == ("40", "")
    assert float(cells["refused"]) == pytest.approx(found.plans[0].outcome.refused, rel=1e-4)
    written = msgspec.json.decode(to_json(found))["plans"][0]
    assert written["demand"]["max_queue"] == 40
    assert written["outcome"]["refused"] == found.plans[0].outcome.refused


def test_preferred_batches_are_the_largest_unless_requests_may_be_late():
    at_once, late = (
        tputfind.size(
            record(5.0, 5.5, 6.0, 7.0), rate=400, slo=60, batcher="triton", preferred_batches=[2, 4], delay=ms
        )
        for ms in (0.0, 4.0)
    )

    assert at_once[0].outcome.batch_cap == 4
    assert late[0].outcome.batch_cap >= 4
    assert dict(told(at_once[0]))["Preferred"] == "batches of 2, 4 (preferred_batch_size)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batcher": "bentoml", "max_queue": 5}, "--max-queue is of --batcher greedy, triton, mosec or ray"),
        ({"batcher": "bentoml", "delay": "auto"}, "finds out by itself how long to wait"),
        ({"max_queue": 0}, "--max-queue: 0 is not between 1"),
        ({"max_queue": 5, "routing": "least-loaded"}, "of --routing shared or random"),
        ({"preferred_batches": "4"}, "--preferred-batches is of --batcher triton"),
        ({"batcher": "triton", "preferred_batches": "4,x"}, "--preferred-batches: 'x' is not a whole number"),
        ({"batcher": "triton", "preferred_batches": "9", "max_batch": 8}, "9 is above --max-batch 8"),
        ({"delay": "auto"}, "the greedy batcher sends what is there"),
        ({"batcher": "mosec", "delay": "auto", "devices": 3}, "--delay auto looks for the fewest devices"),
        ({"batcher": "mosec", "delay": "soon"}, "--delay: 'soon' is not a duration"),
    ],
)
def test_what_no_server_does_is_told_in_a_line(options, message):
    with pytest.raises(BadRequest) as wrong:
        read_demand({"rate": 5, "slo": "50ms"} | options)

    assert message in wrong.value.message


def test_a_preferred_batch_that_was_not_measured_is_refused():
    with pytest.raises(BadRequest, match="--preferred-batches: 16 is above 2, the largest batch measured"):
        tputfind.size(record(5.0, 6.0), rate=100, slo=50, batcher="triton", preferred_batches="16")


def test_the_delay_is_the_shortest_with_which_the_fewest_devices_are_enough():
    """Ray closes its batches by the clock: the shorter the delay, the smaller they are."""
    batches, asked = record(5.0, 5.1, 5.2, 5.4), {"rate": 500, "slo": 40.0}
    asked |= {"batcher": "ray", "handler": "threaded", "max_ongoing": 100}
    lines: list[str] = []

    (found,) = answers([batches], read_demand({**asked, "delay": "auto"}), tell=lines.append).plans

    needed = {ms: tputfind.size(batches, **asked, delay=ms)[0].outcome.devices for ms in (0.0, 1.2, 2.5, 5, 10, 20)}
    assert found.outcome.devices == min(needed.values()) < needed[0.0]
    assert found.delay_ms == min(ms for ms, devices in needed.items() if devices == found.outcome.devices)
    assert dict(told(found))["Delay"] == (
        f"{found.delay_ms:g} ms: of 6 delays tried, 0 to 20 ms, the shortest with the fewest devices"
    )
    assert any("waiting 2.5 ms for more" in line for line in lines)


def test_where_no_delay_helps_the_reason_is_that_of_one():
    with pytest.raises(NoPlan, match="no device is fast enough"):
        tputfind.size(record(5.0), rate=100, slo=4.0, batcher="triton", delay="auto")


def test_a_target_that_a_lone_request_just_meets_is_refused_before_anything_is_simulated():
    spans = (5.0,) * 99 + (9.0,)
    odd = msgspec.structs.replace(row(1, 5.0), timings=(Timing(device_ms=spans, latency_ms=spans),))
    told_: list[str] = []

    found = answers(
        [msgspec.structs.replace(record(), rows=(odd,))], read_demand({"devices": 2, "slo": 6.0}), tell=told_.append
    )

    ((_, refused_),) = found.without
    assert "met the target at no rate" in refused_.message
    assert told_ == []
