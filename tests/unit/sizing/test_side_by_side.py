"""Many queues at once: what they are served is what each is served by itself."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tputfind.sizing.demand import Demand
from tputfind.sizing.queues import Spans, greedy
from tputfind.sizing.serve import Server, takes_what_waits
from tputfind.sizing.service import ServiceTimes
from tputfind.sizing.side_by_side import Queues, greedy_parts, greedy_queues
from tputfind.sizing.simulate import Fleet, parts_of, simulate, usual_ms_of
from tputfind.sizing.stream import Pace, run

LINE = ServiceTimes({size: [0.5 * size + 5] for size in (1, 2, 4, 8, 16, 512)})
SCATTERED = ServiceTimes(
    {1: [4.0, 5.0, 6.0, 9.0], 3: [5.0, 6.0, 8.0, 9.5], 8: [7.0, 9.0, 10.0, 14.0]}, per_batch_ms=0.3, per_sample_ms=0.1
)

gaps_ms = st.integers(0, 200).map(lambda tenths: tenths / 10)
arrivals = st.lists(gaps_ms, min_size=1, max_size=40).map(lambda gaps: list(itertools.accumulate(gaps)))
several = st.lists(arrivals, min_size=1, max_size=7)


def demand_of(rate_per_s: float, **more: object) -> Demand:
    return Demand(rate_per_s=rate_per_s, slo_ms=50.0, **more)  # type: ignore[arg-type]


@given(several, st.integers(1, 4), st.integers(1, 20), st.data())
def test_each_queue_is_served_as_it_is_by_itself(queues, device_count, cap, data):
    begins = st.lists(st.floats(0, 30), min_size=device_count, max_size=device_count)
    free_ms = [data.draw(begins) for _ in queues]
    firsts = np.concatenate(([0], np.cumsum([len(times) for times in queues])))
    together = Queues(np.concatenate(queues), firsts, np.array(free_ms))

    served = greedy_queues(together, cap, LINE, np.zeros(firsts[-1], dtype=np.int64))

    alone = [greedy(times, free, cap, Spans(LINE, cap, (0,))) for times, free in zip(queues, free_ms, strict=True)]
    assert served.done_ms == pytest.approx(np.concatenate([one.done_ms for one in alone]), rel=1e-12)
    assert served.sizes.tolist() == [size for one in alone for size in np.bincount(one.batch)]
    assert served.busy_ms == pytest.approx(sum(one.busy_ms for one in alone))


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3)), min_size=1))
def test_the_times_of_many_batches_are_those_of_each(batches):
    sizes, numbers = (np.array(column) for column in zip(*batches, strict=True))

    assert SCATTERED.each_ms(sizes, numbers) == pytest.approx([SCATTERED.one_ms(*batch) for batch in batches])


def at_once(begins, ends) -> int:
    """How many of some spans there are at the same time, at the most."""
    steps = sorted([(end, -1) for end in ends] + [(begin + 1e-9, 1) for begin in begins])
    return max(itertools.accumulate(step for _, step in steps))


def test_requests_that_are_dealt_out_stay_in_their_part_and_wait_for_their_device_alone():
    arrivals = np.cumsum(np.random.default_rng(1).exponential(2.0, (50, 200)), axis=1)

    served = greedy_parts(arrivals, np.zeros((50, 3)), 8, LINE, (0,), dealt_out=True)

    assert (served.done_ms - arrivals).min() >= 5.5 - 1e-9
    assert served.sizes.sum() == arrivals.size
    assert served.busy_ms == pytest.approx(5 * len(served.sizes) + 0.5 * arrivals.size)
    batches = 0
    for done_ms in served.done_ms:
        ends, sizes = np.unique(done_ms, return_counts=True)
        assert at_once(ends - 5 - 0.5 * sizes, ends) == 3
        batches += len(ends)
    assert batches == len(served.sizes)


@pytest.mark.parametrize(
    ("more", "devices", "those"),
    [
        ({}, 3, True),
        ({"routing": "random"}, 3, True),
        ({"routing": "least-loaded"}, 3, False),
        ({"routing": "least-loaded"}, 1, True),
        ({"batcher": "triton"}, 3, True),
        ({"batcher": "triton", "delay_ms": 1.0}, 3, False),
        ({"batcher": "ray", "routing": "two-choices"}, 3, False),
        ({"max_queue": 5}, 3, False),
        ({"batcher": "litserve", "delay_ms": 0.0}, 3, True),
        ({"batcher": "litserve", "delay_ms": 0.0, "overhead_per_get_ms": 0.1}, 3, False),
        ({"batcher": "mosec", "delay_ms": 1.0}, 3, False),
        ({"overhead_per_answer_ms": 0.1}, 3, False),
        ({"overhead_per_request_ms": 0.1}, 3, True),
        ({"samples_per_request": ((1, 0.5), (4, 0.5))}, 3, False),
    ],
)
def test_only_servers_that_take_what_waits_are_simulated_side_by_side(more, devices, those):
    assert takes_what_waits(demand_of(1.0, **more), devices) is those


@settings(max_examples=12)
@given(
    st.sampled_from(["shared", "random"]), st.integers(1, 8), st.sampled_from([0.1, 0.4, 0.7]), st.sampled_from([1, 8])
)
def test_parts_side_by_side_show_what_one_after_the_other_do(routing, devices, load, cap):
    demand = demand_of(1.0, routing=routing)
    rate_per_s = load * devices * 1000 * SCATTERED.per_ms(cap)
    fleet, server = Fleet(devices, cap, rate_per_s), Server(cap, SCATTERED, demand)
    pace = Pace(devices, rate_per_s, 1.0, usual_ms_of(fleet, SCATTERED, demand))

    many = [run(server, pace, (1, seed), 20_000, parts=50) for seed in range(10)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tputfind.sizing.stream._MANY", 10**9)
        one = [run(server, pace, (2, seed), 20_000, parts=50) for seed in range(10)]

    def tails(streams):
        return np.array([np.quantile(stream.latency_ms, [0.5, 0.99]) for stream in streams])

    error = np.hypot(tails(many).std(axis=0, ddof=1), tails(one).std(axis=0, ddof=1)) / math.sqrt(10)
    apart = np.abs(tails(many).mean(axis=0) - tails(one).mean(axis=0))
    assert (apart <= 0.02 * tails(one).mean(axis=0) + 6 * error).all()
    assert np.mean([stream.utilisation for stream in many]) == pytest.approx(
        np.mean([stream.utilisation for stream in one]), rel=0.02
    )
    assert {len(stream.latency_ms) for stream in many} == {50 * (400 - 40)}


@pytest.mark.parametrize("routing", ["shared", "random"])
def test_a_fleet_near_its_limit_has_no_parts(routing):
    demand = demand_of(1.0, routing=routing)
    rate_per_s = 0.99 * 4000 * LINE.per_ms(8)
    fleet = Fleet(4, 8, rate_per_s)
    pace = Pace(4, rate_per_s, 1.0, usual_ms_of(fleet, LINE, demand))

    assert parts_of(pace, Server(8, LINE, demand), 10_000.0, 500_000) == 1


def test_the_same_seed_tells_the_same_of_queues_side_by_side():
    demand = demand_of(900.0, routing="random")
    first, again, other = (
        simulate(Fleet(64, 8, 900.0), SCATTERED, demand_of(900.0, routing="random", seed=seed), seeds=2)
        for seed in (3, 3, 4)
    )

    assert demand.seed == 0
    assert first == again
    assert first != other
