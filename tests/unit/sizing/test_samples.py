"""Requests of several samples: simulated like a plain event list, and planned for."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.queues import arrival_lists, batches_by_size, busy_ms, followed
from support.records import example

from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record, Row, Timing
from tputfind.report.outputs import forms
from tputfind.report.views.size import document
from tputfind.report.views.size_answers import details, summary
from tputfind.sizing.engine.replications import Effort, Fleet, Outcome, simulate
from tputfind.sizing.engine.servers import Server
from tputfind.sizing.engine.service_times import ServiceTimes, service_times_of
from tputfind.sizing.engine.serving import Kind, serve
from tputfind.sizing.planner import closed_forms
from tputfind.sizing.planner.costs import Price
from tputfind.sizing.planner.plan import Answers, Plan, plan, size
from tputfind.sizing.planner.question import Demand, read_demand
from tputfind.sizing.planner.search import Search

SIZES = [1, 2, 4, 8, 16, 32, 64]
LINE = ServiceTimes({size: [5 + 0.5 * size] for size in SIZES})
WHOLE = {"batcher": "triton"}
MIXED = "1:0.8,4:0.2"


def wanted(**more: object) -> Demand:
    return read_demand({"rate": 100, "slo": "50ms", **more})


def record() -> Record:
    """Return the record of the device."""
    rows = tuple(Row(batch_size=size, timings=(Timing(latency_ms=(5 + 0.5 * size,) * 100),)) for size in SIZES)
    return replace(example(), rows=rows, notices=())


requests = arrival_lists.flatmap(
    lambda times: st.tuples(
        st.just(times), st.lists(st.integers(1, 5), min_size=len(times), max_size=len(times)), st.integers(5, 12)
    )
)
devices = st.integers(1, 4)


@pytest.mark.parametrize("whole", [True, False])
@given(requests, devices)
def test_requests_are_served_as_a_plain_account_of_events_has_them(whole, asked, device_count):
    times, counts, cap = asked
    server = Server("triton" if whole else "greedy", is_whole=whole)
    kinds, free = [Kind(device_count, cap, LINE)], [0.0] * device_count
    served = serve(np.array(times), np.array(counts), kinds, server, free_ms=free, seed=(0,))

    done, _ = followed(times, counts, [(cap, lambda samples: 5 + 0.5 * samples)] * device_count, whole=whole)
    assert served.done_ms == pytest.approx(done)


@given(requests, devices, st.sampled_from(["greedy", "triton", "mosec", "litserve", "ray"]), st.data())
def test_every_request_is_answered_whatever_the_server(asked, device_count, batcher, data):
    times, counts, cap = asked
    routings = ["random", "least-loaded", "two-choices"] + ([] if batcher == "ray" else ["shared"])
    demand = wanted(batcher=batcher, routing=data.draw(st.sampled_from(routings)), samples_per_request="1:1,5:1")
    kinds, free = [Kind(device_count, cap, LINE)], [0.0] * device_count
    served = serve(np.array(times), np.array(counts), kinds, demand.server, free_ms=free, seed=(3,))

    assert (served.done_ms - times).min() >= 5.5 - 1e-9
    assert sum(size * often for size, often in enumerate(batches_by_size(served))) == sum(counts)
    assert busy_ms(served) == pytest.approx(5 * sum(batches_by_size(served)) + 0.5 * sum(counts))


def simulated(service: ServiceTimes, cap: int, rate_per_s: float, **given: object) -> Outcome:
    demand = wanted(**given)
    fleet = Fleet([Kind(1, cap, service)], rate_per_s, demand.server, demand.traffic)
    return simulate(fleet, demand.goal, Effort(400_000, 3_000_000), (0,)).outcome


def test_split_request_is_answered_after_its_samples_as_m_g_1():
    """The service time of a request is that of its samples: M/G/1, with the mean wait of Pollaczek and Khinchine."""
    found = simulated(ServiceTimes({1: [5.0]}), 1, 60.0, samples_per_request="1:0.5,3:0.3,6:0.2")

    mean_ms, square_ms2 = 5 * 2.6, 25 * (0.5 + 0.3 * 9 + 0.2 * 36)
    load = 0.06 * mean_ms
    assert found.utilization == pytest.approx(load)
    assert found.mean_ms == pytest.approx(mean_ms + 0.06 * square_ms2 / (2 * (1 - load)), rel=0.03)
    assert found.busy == pytest.approx(load, rel=0.02)


def test_split_equal_requests_wait_like_batch_arrivals():
    """M^X/D/1 with X = 4: a sample waits rho D / 2 (1 - rho) for other requests and (X - 1) D / 2 for its own.

    Its request is answered with its last sample.
    """
    found = simulated(ServiceTimes({1: [5.0]}), 1, 40.0, samples_per_request=4)

    load, sample_ms, samples = 0.8, 5.0, 4
    sample_waits_ms = load * sample_ms / (2 * (1 - load)) + (samples - 1) * sample_ms / (2 * (1 - load))
    last_waits_ms = sample_waits_ms + (samples - 1) * sample_ms / 2
    assert found.mean_ms == pytest.approx(last_waits_ms + sample_ms, rel=0.03)


@pytest.mark.parametrize("given", [{}, WHOLE])
@pytest.mark.parametrize("load", [0.2, 0.6])
def test_without_a_batch_limit_the_mean_latency_is_that_in_closed_form(given, load):
    """Split or whole, all waiting samples form one batch."""
    service = ServiceTimes({1: [5.5], 4096: [5 + 0.5 * 4096]})
    rate_per_s = 1000 * load / 0.5 / 1.6

    found = simulated(service, 4096, rate_per_s, samples_per_request=MIXED, **given)

    dispersion = wanted(samples_per_request=MIXED).traffic.dispersion(0.0)
    closed_ms = closed_forms.mean_ms_of_one_device(rate_per_s / 1000, 0.5, 5.0, 1.6, dispersion)
    assert found.mean_ms == pytest.approx(closed_ms, rel=0.015)


@pytest.mark.parametrize("cap", [5, 8, 16])
def test_utilization_of_one_is_rate_with_always_full_batches(cap):
    demand = wanted(batcher="triton", samples_per_request="1:0.3,3:0.4,5:0.3")
    service = service_times_of(record(), traffic=demand.traffic, is_whole=True)
    counts = demand.traffic.draw(30_000, 1.0, (5,)).sizes
    kinds = [Kind(1, cap, service)]

    served = serve(np.arange(30_000) * 1e-6, counts, kinds, demand.server, free_ms=[1.0], seed=(0,))

    assert service.per_ms(cap) == pytest.approx(counts.sum() / busy_ms(served), rel=0.01)


def planned(price: Price | None = None, **more: object) -> Plan:
    return plan(record(), read_demand({"rate": 300, "slo": "60ms", **more}), price)


def test_requests_that_all_have_one_sample_are_planned_for_as_before():
    assert planned(samples_per_request="1") == planned()


@pytest.mark.parametrize(
    "given",
    [
        {"batcher": "greedy"},
        {"batcher": "triton", "delay": "4ms"},
        {"batcher": "litserve", "delay": "4ms", "overhead": "litserve"},
        {"batcher": "mosec", "delay": "4ms", "routing": "least-loaded", "max_queue": 500},
    ],
)
def test_plan_counts_samples_and_meets_target_under_other_streams(given):
    found = planned(samples_per_request=MIXED, **given)

    assert found.samples_per_s == pytest.approx(480)
    assert found.outcome.devices >= planned(batcher=given["batcher"], delay=given.get("delay")).outcome.devices
    demand = read_demand({"rate": 300, "slo": "60ms", "samples_per_request": MIXED, "seed": 9, **given})
    assert Search(record(), demand).judge(found.outcome.devices, found.outcome.batch_cap).outcome.tail_ms <= 60 * 1.05


def test_no_batch_limit_is_smaller_than_the_largest_request_that_stays_whole():
    assert planned(samples_per_request="1:0.99,16:0.01", **WHOLE).outcome.batch_cap >= 16


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"samples_per_request": "1:9,65:1", "batcher": "triton"},
            "a request of 65 samples stays in one batch, and batches have up to 64: triton refuses it",
        ),
        ({"samples_per_request": 450, "max_batch_size": 4}, "batches up to 4: each is split into more than 100"),
        ({"samples_per_request": 6000, "routing": "least-loaded"}, "are too many to simulate p99"),
    ],
)
def test_a_request_that_no_batch_takes_is_refused(given, said):
    with pytest.raises(BadRequest) as refused:
        planned(**given)

    assert said in refused.value.message


def test_late_whole_request_is_refused_with_the_shortest_target():
    """2 % of requests have 32 samples, which take 21 ms; half of them are beyond the percentile."""
    with pytest.raises(NoPlan) as refused:
        planned(slo="20ms", samples_per_request="1:0.98,32:0.02", **WHOLE)

    assert "99 % of lone requests take up to 21 ms" in refused.value.message


def test_rules_of_thumb_are_for_samples():
    """Requests of 4 samples in batches of up to 64: batches of 64 do 1.73 samples per ms."""
    rules = planned(rate=1000, samples_per_request=4, **WHOLE).rules

    assert rules.full_batches == math.ceil(4 / (64 / 37)) == 3
    assert rules == planned(rate=1000, samples_per_request=4).rules


def test_with_a_price_a_million_samples_cost_less_than_a_million_requests():
    price = Price(device="NVIDIA H200", price_per_hour=3.6, currency="EUR")
    found = planned(samples_per_request=4, price=price)

    assert found.cost_per_million == pytest.approx(found.outcome.devices * 3.6 / 3600 / 300 * 1e6)
    assert found.cost_per_million_samples == pytest.approx(found.cost_per_million / 4)
    costs = dict(summary(found))["Cost"]
    assert "a million requests, " in costs
    assert "a million samples" in costs


def test_plan_shows_samples_in_every_form():
    found = planned(samples_per_request=MIXED, batcher="triton")

    told = dict(details(found))["Requests"]
    assert told == "1 (80 %), 4 (20 %) samples, 1.6 on average: 480.0 samples/s; each stays in one batch"
    answered = Answers([found], [], "devices", [[found]], [])
    header, line = forms(document(answered))["csv"]().decode().splitlines()
    cells = dict(zip(header.split(","), line.split(","), strict=True))
    assert (cells["samples_per_request"], cells["samples_per_s"]) == ("1.6", "480")
    plans = msgspec.json.decode(forms(document(answered))["json"]())["plans"]
    assert plans[0]["demand"]["samples_per_request"] == [[1, 0.8], [4, 0.2]]
    assert "Requests" not in dict(details(planned()))


def test_if_all_requests_are_large_no_smaller_batch_is_missing():
    rows = tuple(row for row in record().rows if row.batch_size >= 4)
    without_small = replace(record(), rows=rows)

    def kinds(samples: int, **given: object) -> set[str]:
        demand = read_demand({"rate": 300, "slo": "60ms", "samples_per_request": samples, **given})
        return {notice.kind for notice in plan(without_small, demand).notices}

    assert "no_small_batches" not in kinds(4, **WHOLE)
    assert "no_small_batches" in kinds(3, **WHOLE)
    assert "no_small_batches" in kinds(4)


def test_the_highest_rate_is_in_requests():
    single, of_four = (
        size(record(), devices=2, slo=60, samples_per_request=samples)[0].demand.rate_per_s for samples in (1, 4)
    )

    assert 2 < single / of_four < 6
