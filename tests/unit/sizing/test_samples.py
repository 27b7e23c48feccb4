"""Requests of several samples: read, packed, split and kept whole."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import example

from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record, Row, Timing
from tputfind.report import size as report
from tputfind.report import size_csv
from tputfind.sizing import formulas
from tputfind.sizing.arrivals import arrivals_ms, samples_of
from tputfind.sizing.batchers import SERVERS, rule_of
from tputfind.sizing.demand import BATCHERS, Demand
from tputfind.sizing.fleets import alone_ms
from tputfind.sizing.options import read_demand
from tputfind.sizing.plan import Plan, Price, plan
from tputfind.sizing.queues import Ends, Spans, by_rule
from tputfind.sizing.replicas import ByRule, Router
from tputfind.sizing.samples import full_batches, many_of, read_shares, shares_of
from tputfind.sizing.serve import Server, serve
from tputfind.sizing.service import ServiceTimes, service_of
from tputfind.sizing.simulate import Fleet, simulate
from tputfind.sizing.size import Answers, curve, size
from tputfind.sizing.whole import InQueues, in_one_queue

SIZES = [1, 2, 4, 8, 16, 32, 64]
LINE = ServiceTimes({size: [5 + 0.5 * size] for size in SIZES})
WHOLE = {"batcher": "greedy", "requests": "whole"}
MIXED = "1:0.8,4:0.2"


def wanted(**more: object) -> Demand:
    return read_demand({"rate": 100, "slo": "50ms", **more})


def spans(cap: int) -> Spans:
    return Spans(LINE, cap, (0,))


def line_ms(samples: int, requests: int) -> float:
    return 5 + 0.5 * samples


def record() -> Record:
    """Return the record of that device."""
    rows = tuple(Row(batch_size=size, timings=(Timing(latency_ms=(5 + 0.5 * size,) * 100),)) for size in SIZES)
    return msgspec.structs.replace(example(), rows=rows, notices=())


# None at the very moment at which another event is: who is first then is a matter of chance in a server too.
gaps_ms = st.integers(0, 200).map(lambda tenths: tenths / 10 + math.sqrt(2) / 1000)
arrivals = st.lists(gaps_ms, min_size=1, max_size=40).map(lambda gaps: list(itertools.accumulate(gaps)))
requests = arrivals.flatmap(
    lambda times: st.tuples(
        st.just(times), st.lists(st.integers(1, 5), min_size=len(times), max_size=len(times)), st.integers(5, 12)
    )
)
devices, waits = st.integers(1, 4), st.integers(1, 30).map(lambda halves: halves / 2)


def followed(times, counts, devices, cap, wait_ms, *, whole, shared):
    """Serve requests event by event, written without the engines: return when each is answered.

    A queue, or one for each device, is a plain list of items. At each event every idle device looks whether the first
    items of its queue are a batch by now.
    """
    queues = [[] for _ in range(1 if shared else devices)]
    unanswered = [0] * len(queues)
    free, running = [0.0] * devices, [None] * devices
    left, done = list(counts), [0.0] * len(times)
    coming = list(range(len(times)))
    now = 0.0
    while coming or any(queues) or any(running):
        for device, batch in enumerate(running):
            if batch is not None and free[device] <= now:
                for request, samples in batch:
                    left[request] -= samples
                    if left[request] == 0:
                        done[request] = free[device]
                        unanswered[0 if shared else device] -= 1
                running[device] = None
        while coming and times[coming[0]] <= now:
            request = coming.pop(0)
            place = min(range(len(queues)), key=lambda one: unanswered[one])
            unanswered[place] += 1
            items = [(request, counts[request])] if whole else [(request, 1)] * counts[request]
            queues[place].extend(items)
        for device in range(devices):
            queue = queues[0 if shared else device]
            if running[device] is None and queue:
                fitting = 0
                while fitting < len(queue) and sum(samples for _, samples in queue[: fitting + 1]) <= cap:
                    fitting += 1
                samples = sum(samples for _, samples in queue[:fitting])
                if samples == cap or fitting < len(queue) or now >= times[queue[0][0]] + wait_ms:
                    running[device] = queue[:fitting]
                    del queue[:fitting]
                    free[device] = now + 5 + 0.5 * samples
        events = [end for end, batch in zip(free, running, strict=True) if batch is not None]
        events += [times[coming[0]]] if coming else []
        events += [times[queue[0][0]] + wait_ms for queue in queues if queue]
        now = min((event for event in events if event > now), default=now)
    return done


@given(requests, devices, st.one_of(st.just(0.0), waits))
def test_whole_requests_are_served_as_a_plain_account_of_events_has_them(asked, device_count, wait_ms):
    times, counts, cap = asked
    batcher = "triton" if wait_ms else "greedy"
    served = in_one_queue(times, counts, [0.0] * device_count, cap, span=line_ms, rule=rule_of(batcher, wait_ms))

    expected = followed(times, counts, device_count, cap, wait_ms, whole=True, shared=True)
    assert served.done_ms == pytest.approx(expected)


@pytest.mark.parametrize("whole", [True, False])
@given(requests, devices, st.one_of(st.just(0.0), waits))
def test_requests_that_are_routed_are_served_as_a_plain_account_of_events_has_them(whole, asked, device_count, wait_ms):
    times, counts, cap = asked
    rule = rule_of("triton" if wait_ms else "greedy", wait_ms)
    queues = InQueues([0.0] * device_count, cap, line_ms, rule)
    ones = [1] * len(times)
    served = queues.serve(times, ones, counts) if whole else queues.serve(times, counts, ones)

    ends = np.cumsum(ones if whole else counts)
    expected = followed(times, counts, device_count, cap, wait_ms, whole=whole, shared=False)
    assert np.maximum.reduceat(served.done_ms, [0, *ends[:-1]]) == pytest.approx(expected)


@given(requests, devices, st.integers(1, 6))
def test_split_requests_are_served_as_a_plain_account_of_events_has_them(asked, device_count, cap):
    times, counts, _ = asked
    served = serve(np.array(times), [0.0] * device_count, Server(cap, LINE, wanted()), (0,), np.array(counts))

    assert served.done_ms == pytest.approx(followed(times, counts, device_count, cap, 0.0, whole=False, shared=True))


@given(arrivals, devices, st.integers(1, 8), st.sampled_from([name for name in BATCHERS if SERVERS[name].rule]), waits)
def test_requests_of_one_sample_are_served_as_before(times, device_count, cap, batcher, wait_ms):
    rule, ones, free = rule_of(batcher, wait_ms), [1] * len(times), [0.0] * device_count
    one_queue = in_one_queue(times, ones, free, cap, span=line_ms, rule=rule)
    queues = InQueues(free, cap, line_ms, rule).serve(times, ones, ones)

    ends, span = Ends(len(times)), spans(cap)
    for ours, plain in (
        (one_queue, by_rule(times, free, cap, spans(cap), rule)),
        (queues, Router([ByRule(each, cap, span, rule, ends) for each in free], ends).serve(times)),
    ):
        assert ours.done_ms.tolist() == plain.done_ms.tolist()
        assert ours.batch.tolist() == plain.batch.tolist()
        assert (ours.batches, ours.busy_ms) == (plain.batches, plain.busy_ms)


@given(requests, devices, st.sampled_from(["greedy", "triton", "mosec", "litserve", "ray"]), st.data())
def test_every_request_is_answered_whatever_the_server(asked, device_count, batcher, data):
    times, counts, cap = asked
    routings = ["random", "least-loaded", "two-choices"] + ([] if batcher == "ray" else ["shared"])
    demand = wanted(batcher=batcher, routing=data.draw(st.sampled_from(routings)), samples_per_request="1:1,5:1")
    served = serve(np.array(times), [0.0] * device_count, Server(cap, LINE, demand), (3,), np.array(counts))

    latency_ms = served.done_ms - times
    assert latency_ms.min() >= 5.5 - 1e-9
    assert served.busy_ms == pytest.approx(5 * served.batches + 0.5 * sum(counts))
    if demand.whole:
        assert np.all(latency_ms >= 5 + 0.5 * np.array(counts) - 1e-9)
        assert np.bincount(served.batch, weights=counts).max() <= cap


@given(arrivals, devices, st.integers(1, 5), st.integers(1, 4))
def test_whole_requests_of_equal_size_are_single_ones_that_take_longer(times, device_count, samples, cap):
    slower = ServiceTimes({size: [5 + 0.5 * samples * size] for size in range(1, 5)})
    single = serve(np.array(times), [0.0] * device_count, Server(cap, slower, wanted()), (0,))
    demand = wanted(samples_per_request=samples, **(WHOLE if samples > 1 else {}))
    counts = np.full(len(times), samples)
    together = serve(np.array(times), [0.0] * device_count, Server(samples * cap, LINE, demand), (0,), counts)

    assert together.done_ms == pytest.approx(single.done_ms)
    assert together.batches == single.batches


def test_with_a_cap_of_one_a_request_is_answered_after_all_its_samples_one_by_one():
    """A request that waits takes as long as its samples: M/G/1, whose mean Pollaczek and Khinchine give."""
    demand = wanted(rate=60, samples_per_request="1:0.5,3:0.3,6:0.2")
    service = ServiceTimes({1: [5.0]})

    found = simulate(Fleet(1, 1, 60.0), service, demand, seeds=5)

    mean_ms, square_ms2 = 5 * 2.6, 25 * (0.5 + 0.3 * 9 + 0.2 * 36)
    load = 0.06 * mean_ms
    assert found.load == pytest.approx(load)
    assert found.mean_ms == pytest.approx(mean_ms + 0.06 * square_ms2 / (2 * (1 - load)), rel=0.03)
    assert found.utilisation == pytest.approx(load, rel=0.02)


def test_the_wait_of_equal_requests_that_are_split_is_that_of_batch_arrivals():
    """M^X/D/1 with X = 4: a sample waits rho D / 2 (1 - rho) behind other requests' work and (X - 1) D / 2 for its own.

    Its request is answered with its last one.
    """
    demand = wanted(rate=40, samples_per_request=4)
    found = simulate(Fleet(1, 1, 40.0), ServiceTimes({1: [5.0]}), demand, seeds=5)

    load, sample_ms, samples = 0.8, 5.0, 4
    sample_waits_ms = load * sample_ms / (2 * (1 - load)) + (samples - 1) * sample_ms / (2 * (1 - load))
    last_waits_ms = sample_waits_ms + (samples - 1) * sample_ms / 2
    assert found.mean_ms == pytest.approx(last_waits_ms + sample_ms, rel=0.03)


@pytest.mark.parametrize("given", [{}, WHOLE])
@pytest.mark.parametrize("load", [0.2, 0.6])
def test_without_a_cap_the_mean_latency_is_that_in_closed_form(given, load):
    """Split or whole, all that waits is one batch."""
    service = ServiceTimes({1: [5.5], 4096: [5 + 0.5 * 4096]})
    demand = wanted(samples_per_request=MIXED, **given)
    rate_per_s = 1000 * load / 0.5 / 1.6

    found = simulate(Fleet(1, 4096, rate_per_s), service, demand, seeds=4)

    closed_ms = formulas.mean_ms_of_one_device(rate_per_s / 1000, 0.5, 5.0, 1.6, demand.samples_dispersion)
    assert found.mean_ms == pytest.approx(closed_ms, rel=0.015)


@pytest.mark.parametrize("batcher", ["greedy", "triton"])
@pytest.mark.parametrize("cap", [5, 8, 16])
def test_a_load_of_one_is_what_devices_do_that_always_have_full_batches(batcher, cap):
    demand = wanted(batcher=batcher, requests="whole", samples_per_request="1:0.3,3:0.4,5:0.3")
    service = service_of(record(), demand)
    counts = samples_of(demand, 30_000, 1.0, (5,))

    served = serve(np.zeros(30_000), [0.0], Server(cap, service, demand), (0,), counts)

    assert service.per_ms(cap) == pytest.approx(counts.sum() / served.busy_ms, rel=0.01)


def test_the_overhead_of_a_request_is_that_of_a_whole_one_and_of_each_sample_that_is_batched_by_itself():
    times, counts = np.arange(50.0) * 7, np.array([1, 4, 1, 2, 4] * 10)

    def busy_ms(**given: object) -> float:
        demand = wanted(samples_per_request="1:2,2:1,4:2", overhead_per_request="3ms", **given)
        service = service_of(record(), demand)
        served = serve(times, [0.0], Server(8, service, demand), (0,), counts)
        return served.busy_ms - 5 * served.batches - 0.5 * counts.sum()

    assert busy_ms(**WHOLE) == pytest.approx(3 * 50)
    assert busy_ms() == pytest.approx(3 * counts.sum())


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30), st.integers(6, 20))
def test_a_batch_is_full_when_the_next_request_does_not_fit(counts, cap):
    packed = full_batches(tuple(counts), cap)

    total, batch, sizes = 0, 0, []
    for samples in itertools.islice(itertools.cycle(counts), 60_000):
        if batch + samples > cap:
            sizes.append(batch)
            batch = 0
        batch += samples
        total += samples
    mean = sum(size * count for size, count in packed.items()) / sum(packed.values())
    assert mean == pytest.approx(np.mean(sizes), rel=0.005)


def test_requests_of_four_up_to_a_cap_of_ten_fill_eight():
    assert set(full_batches(many_of(read_shares(4)), 10)) == {8}


@pytest.mark.parametrize(
    ("value", "shares"),
    [
        ("4", ((4, 1.0),)),
        (4, ((4, 1.0),)),
        (" 4:0.2, 1:0.8 ", ((1, 0.8), (4, 0.2))),
        ("1:3,4:1", ((1, 0.75), (4, 0.25))),
        ("1:75%,4:25%", ((1, 0.75), (4, 0.25))),
        ({1: 0.8, 4: 0.2}, ((1, 0.8), (4, 0.2))),
        ([(4, 1), (1, 1)], ((1, 0.5), (4, 0.5))),
        ("1:0.33,2:0.33,3:0.33", ((1, 1 / 3), (2, 1 / 3), (3, 1 / 3))),
        ("7:1", ((7, 1.0),)),
    ],
)
def test_requests_have_one_number_of_samples_or_several_with_shares_or_weights(value, shares):
    assert [pair for read in (read_shares(value),) for each in read for pair in each] == pytest.approx(
        [pair for each in shares for pair in each]
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0:1", "--samples-per-request: 0 is not between 1 and"),
        ("0", "0 is not between 1 and"),
        ("1:0", "'0' is not from 1e-09 to 1e+15"),
        ("1:nan", "'nan' is not a finite number"),
        ("1:inf", "'inf' is not a finite number"),
        ("1:-1", "'-1' is not from"),
        ("4:0.2,4:0.8", "4 samples have two shares"),
        ("1:0.8,4:0.3", "the shares add up to 1.1, and not to 1"),
        ("1:0.5", "the shares add up to 0.5, and not to 1"),
        ("1:40%,4:40%", "the shares add up to 0.8, and not to 1"),
        ("1:0.8:3", "is no number of samples with its share, such as 4:0.2"),
        ("1:0.8,", "is no number of samples with its share"),
        ("1:,4:1", "'' is not a number"),
        (":1", "'' is not a whole number"),
        ("two", "'two' is not a whole number"),
        ("1.5", "'1.5' is not a whole number"),
        ("99999999999", "99999999999 is not between 1 and"),
        ("", "'' is not a whole number"),
        (
            "100000",
            "100000 on average are too many to simulate p99 where each is batched by itself: lower --percentile",
        ),
        ({}, "has no number of samples"),
        ([3, 4], "is no number of samples with its share"),
        (True, "True is not a whole number"),
    ],
)
def test_what_are_no_shares_of_requests_is_refused_in_one_line(value, said):
    with pytest.raises(BadRequest) as refused:
        wanted(samples_per_request=value)

    assert said in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"requests": "whole"}, "--requests is of requests of several samples: give --samples-per-request"),
        (
            {"requests": "whole", "batcher": "mosec", "samples_per_request": 4},
            "--requests whole: --batcher mosec has them split",
        ),
        (
            {"requests": "split", "batcher": "triton", "samples_per_request": 4},
            "--requests split: --batcher triton has them whole",
        ),
        ({"samples": [1, 2]}, "1 requests have a time, and 2 a number of samples"),
        ({"gaps": [1.0] * 99, "samples": [1] * 99}, "100 requests have a time, and 99 a number of samples"),
        ({"gaps": [1.0] * 99, "samples": [0] * 100}, "--samples: number 0: 0 is not between 1 and"),
        ({"gaps": [1.0] * 99, "samples": "many"}, "'many' is no list of numbers of samples"),
        (
            {"gaps": [1.0] * 99, "samples": [2] * 100, "samples_per_request": 2},
            "--samples-per-request has nothing to add",
        ),
    ],
)
def test_samples_that_contradict_the_rest_are_refused(given, said):
    with pytest.raises(BadRequest) as refused:
        wanted(**given)

    assert said in refused.value.message


@pytest.mark.parametrize(
    ("batcher", "whole"), [("greedy", False), ("triton", True), ("mosec", False), ("litserve", False), ("ray", False)]
)
def test_each_server_has_its_own_way_with_a_request_of_several_samples(batcher, whole):
    assert wanted(batcher=batcher, samples_per_request=2).whole is whole
    assert not wanted(batcher=batcher).whole


def test_drawn_requests_have_their_shares_and_recorded_ones_their_own_samples():
    drawn = samples_of(wanted(samples_per_request=MIXED), 50_000, 1.0, (1,))
    assert np.mean(drawn == 4) == pytest.approx(0.2, abs=0.01)
    assert set(drawn.tolist()) == {1, 4}

    # A request that comes after a gap of n has n samples.
    demand = wanted(gaps=[float(gap) for gap in range(1, 101)], samples=[7, *range(1, 101)])
    assert demand.samples_per_request[0] == (1, pytest.approx(1 / 101))
    for share in (1.0, 0.5):
        times, counts = arrivals_ms(demand, 300, 10.0, share, (2,)), samples_of(demand, 300, share, (2,))
        if share == 1:
            assert counts.tolist() == [*range(1, 101)] * 3
            assert np.diff(times[:100]) / np.diff(times)[0] * 2 == pytest.approx(counts[1:100])
        else:
            assert len(set(counts.tolist())) > 60


def planned(price: Price | None = None, **more: object) -> Plan:
    return plan(record(), read_demand({"rate": 300, "slo": "60ms", **more}), price)


def test_requests_that_all_have_one_sample_are_planned_for_as_before():
    assert planned(samples_per_request="1") == planned()


@pytest.mark.parametrize(
    "given",
    [
        {"batcher": "greedy"},
        WHOLE,
        {"batcher": "triton", "delay": "4ms"},
        {"batcher": "ray", "delay": "4ms"},
        {"batcher": "mosec", "delay": "4ms"},
        {"batcher": "litserve", "delay": "4ms", "overhead_per_get": "0.1ms", "overhead_per_answer": "0.1ms"},
    ],
)
def test_a_plan_is_for_the_samples_and_other_streams_meet_its_target_too(given):
    found = planned(samples_per_request=MIXED, **given)

    assert found.samples_per_s == pytest.approx(480)
    assert found.outcome.devices >= planned(batcher=given["batcher"], delay=given.get("delay")).outcome.devices
    demand = read_demand({"rate": 300, "slo": "60ms", "samples_per_request": MIXED, "seed": 9, **given})
    fleet = Fleet(found.outcome.devices, found.outcome.batch_cap, 300.0)
    assert simulate(fleet, service_of(record(), demand), demand, seeds=5).tail_ms <= 60 * 1.05


def test_no_cap_is_smaller_than_the_largest_request_that_stays_whole():
    found = planned(samples_per_request="1:0.99,16:0.01", **WHOLE)

    assert found.outcome.batch_cap >= 16


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"samples_per_request": "1:9,65:1", "batcher": "triton"},
            "a request of 65 samples stays in one batch, and batches have up to 64: triton refuses it",
        ),
        ({"samples_per_request": 8, "max_batch": 4, **WHOLE}, "batches have up to 4: the server refuses it"),
        ({"samples_per_request": 450, "max_batch": 4}, "batches up to 4: each is split into more than 100"),
    ],
)
def test_a_request_that_no_batch_takes_is_refused(given, said):
    with pytest.raises(BadRequest) as refused:
        planned(**given)

    assert said in refused.value.message


def test_a_whole_request_that_is_late_even_alone_is_told_with_the_shortest_target():
    """Of 2 % with 32 samples, which take 21 ms, half are beyond the percentile."""
    with pytest.raises(NoPlan) as refused:
        planned(slo="20ms", samples_per_request="1:0.98,32:0.02", **WHOLE)

    assert "99 % of requests that are alone take up to 21 ms" in refused.value.message
    demand = read_demand({"rate": 1, "slo": "20ms", "samples_per_request": "1:0.995,32:0.005", **WHOLE})
    assert alone_ms(service_of(record(), demand), demand) == 5.5


def test_rules_of_thumb_are_for_samples():
    """Requests of 4 up to a cap of 64: batches of 64 do 1.73 samples a ms."""
    rules = planned(rate=1000, samples_per_request=4, **WHOLE).rules

    assert rules.full_batches == math.ceil(4 / (64 / 37)) == 3
    assert rules == planned(rate=1000, samples_per_request=4).rules


def test_with_a_price_a_million_samples_cost_less_than_a_million_requests():
    price = Price(device="NVIDIA H200", price_per_hour=3.6, currency="EUR")
    found = planned(samples_per_request=4, price=price)

    assert found.cost_per_million == pytest.approx(found.outcome.devices * 3.6 / 3600 / 300 * 1e6)
    assert found.cost_per_million_samples == pytest.approx(found.cost_per_million / 4)
    costs = dict(report.told(found))["Cost"]
    assert "a million requests, " in costs
    assert "a million samples" in costs


def test_a_plan_tells_the_samples_in_every_form():
    found = planned(samples_per_request=MIXED, batcher="triton")

    told = dict(report.told(found))["Requests"]
    assert told == "1 (80 %), 4 (20 %) samples, 1.6 on average: 480.0 samples/s; each stays in one batch"
    answered = Answers([found], [], "devices", [[found]], [])
    header, line = size_csv.to_csv(answered).decode().splitlines()
    cells = dict(zip(header.split(","), line.split(","), strict=True))
    assert (cells["samples_per_request"], cells["samples_per_s"], cells["requests"]) == ("1.6", "480", "whole")
    plans = msgspec.json.decode(report.to_json(answered))["plans"]
    assert plans[0]["demand"]["samples_per_request"] == [[1, 0.8], [4, 0.2]]
    assert "Requests" not in dict(report.told(planned()))


def test_a_curve_follows_the_rate_of_requests_and_tells_that_of_samples():
    demand = read_demand({"rate": 300, "slo": "60ms", "samples_per_request": 4})

    header, *lines = size_csv.curve_csv(curve(record(), demand), demand).decode().splitlines()

    told = [dict(zip(header.split(","), map(float, line.split(",")), strict=True)) for line in lines]
    assert [one["rate_per_s"] for one in told] == [30.0 * tenth for tenth in range(1, 13)]
    assert all(one["samples_per_s"] == 4 * one["rate_per_s"] for one in told)


def test_a_queue_remembers_the_longer_the_more_requests_differ():
    """At a load of 0.9, with one sample or three: 300 times 1.25 over 0.1 squared. The first tenth warms up."""
    demand = wanted(samples_per_request="1:0.5,3:0.5", percentile=50)
    rate_per_s = 0.9 * 1000 / 5 / 2

    found = simulate(Fleet(1, 1, rate_per_s), ServiceTimes({1: [5.0]}), demand, seeds=1)

    assert found.requests == pytest.approx(0.9 * 300 * 1.25 / 0.1**2, abs=2)


@pytest.mark.parametrize(
    ("given", "request_ms"),
    [
        ({}, 3 * 9.0),
        ({"overhead_per_answer": "1ms"}, 3 * 9.0 + 20),
        ({**WHOLE, "overhead_per_answer": "1ms", "overhead_per_request": "2ms"}, 15.0 + 20 * 2 + 1),
    ],
)
def test_a_request_takes_no_longer_than_all_its_batches(given, request_ms):
    cap = 20 if "requests" in given else 8
    server = Server(cap, LINE, wanted(samples_per_request="1:1,20:1", **given))

    assert server.request_and_window_ms() == (request_ms, 0.0)


@pytest.mark.parametrize("given", [{}, WHOLE, {"batcher": "triton", "delay": "3ms"}, {"routing": "least-loaded"}])
def test_requests_that_come_once_in_thirty_years_take_as_long_as_one_alone(given):
    demand = wanted(rate=1e-9, samples_per_request="2:0.5,8:0.5", **given)

    found = simulate(Fleet(2, 8, 1e-9), LINE, demand, seeds=2)

    waits_ms = demand.wait_ms / 2  # a full batch does not
    assert found.mean_ms == pytest.approx(7.5 + waits_ms, rel=0.02)
    assert found.p99_ms == pytest.approx(9.0)


def test_where_all_requests_are_large_no_smaller_batch_is_missing():
    rows = tuple(row for row in record().rows if row.batch_size >= 4)
    without_small = msgspec.structs.replace(record(), rows=rows)

    def kinds(samples: int, **given: object) -> set[str]:
        demand = read_demand({"rate": 300, "slo": "60ms", "samples_per_request": samples, **given})
        return {notice.kind for notice in plan(without_small, demand).notices}

    assert "no_small_batches" not in kinds(4, **WHOLE)
    assert "no_small_batches" in kinds(3, **WHOLE)
    assert "no_small_batches" in kinds(4)


def test_python_takes_shares_as_a_mapping():
    (found,) = size(record(), rate=300, slo=60, samples_per_request={1: 0.8, 4: 0.2})

    assert found == planned(samples_per_request=MIXED)


def test_the_highest_rate_is_in_requests():
    single, of_four = (
        size(record(), devices=2, slo=60, samples_per_request=samples)[0].demand.rate_per_s for samples in (1, 4)
    )

    assert 2 < single / of_four < 6


def test_shares_of_recorded_requests_are_counted():
    assert shares_of([4, 1, 1, 1]) == ((1, 0.75), (4, 0.25))
