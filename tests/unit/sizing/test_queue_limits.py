"""Queues with a limit, and the delay of batches, in plans."""

from math import inf

import msgspec
import pytest
from support.queues import refused_of_constant
from support.records import steady_record

import tputfind
from tputfind.errors import BadRequest
from tputfind.report.outputs import forms
from tputfind.report.views.size import document
from tputfind.report.views.size_answers import details, summary
from tputfind.sizing.planner.plan import answers
from tputfind.sizing.planner.question import read_demand
from tputfind.sizing.planner.search import Search


def test_overloaded_fleet_refuses_excess_and_its_latency_is_bounded():
    found = answers([steady_record(10.0)], read_demand({"rate": 150, "slo": 100.0, "devices": 1, "max_queue": 4}))

    (plan,) = found.plans
    assert plan.outcome.verdict == "misses"
    assert plan.outcome.utilization > 1.4
    assert plan.outcome.refused == pytest.approx(refused_of_constant(1.5 * 1.005, 4), rel=0.03)
    assert plan.outcome.p99_ms <= 5 * 10.1
    assert plan.outcome.tail_ms == inf
    assert not plan.holds
    verdict = dict(summary(plan))["Verdict"]
    assert verdict.startswith("1 device: target missed, 3")
    assert "of the requests refused" in verdict


def test_requests_that_are_refused_count_as_late():
    """All answers are in time, so the number of refused requests decides whether the target is met."""
    held = [
        tputfind.size(steady_record(10.0), rate=60, slo=1000, devices=1, max_queue=most, percentile=percentile)[0]
        for most, percentile in ((1, 99), (1, 70), (30, 99))
    ]

    assert [plan.holds for plan in held] == [False, True, True]
    assert held[0].outcome.refused == pytest.approx(held[1].outcome.refused, rel=0.1)
    assert held[0].outcome.goodput_per_s == pytest.approx(60 * (1 - held[0].outcome.refused))


def test_allowed_refusals_need_fewer_devices_than_full_throughput():
    (limited,) = tputfind.size(steady_record(10.0), rate=1050, slo=200, percentile=90, max_queue=20)
    (without,) = tputfind.size(steady_record(10.0), rate=1050, slo=200, percentile=90)

    assert limited.outcome.utilization > 1 > without.outcome.utilization
    assert limited.outcome.devices < without.outcome.devices
    assert 0 < limited.outcome.refused < 0.1


def test_number_of_devices_has_a_range_near_the_allowed_refusals():
    """The upper end of the percentile's interval is a refused request's: its latency is infinite."""
    one = steady_record(*(5 + 0.5 * 2**power for power in range(5)))

    (found,) = tputfind.size(one, rate=1016, slo=200, percentile=90, max_queue=6)

    assert found.outcome.tail_high_ms == inf
    assert (found.fewest, found.most) == (2, 3)


def test_pilots_of_an_overloaded_fleet_do_not_hide_the_large_batches_of_a_larger_one():
    search = Search(steady_record(5.0, 5.2, 5.6, 6.4, 8.0), read_demand({"rate": 3500, "slo": 40.0, "max_queue": 600}))

    assert [search.may_meet(devices) for devices in (1, 2)] == [False, True]


def test_plan_shows_refused_fraction_and_its_setting():
    demand = read_demand({"rate": 600, "slo": 50.0, "batcher": "triton", "max_queue": 40})
    found = answers([steady_record(5.0, 6.0)], demand)

    lines = dict(details(found.plans[0]))
    assert lines["Refused"].endswith("requests that find 40 in the queue (max_queue_size)")
    header, line = forms(document(found))["csv"]().decode().splitlines()
    cells = dict(zip(header.split(","), line.split(","), strict=True))
    assert cells["max_queue"] == "40"
    assert float(cells["refused"]) == pytest.approx(found.plans[0].outcome.refused, rel=1e-4)
    written = msgspec.json.decode(forms(document(found))["json"]())["plans"][0]
    assert written["demand"]["max_queue"] == 40
    assert written["outcome"]["refused"] == found.plans[0].outcome.refused


@pytest.mark.parametrize(
    ("batcher", "finds"), [("mosec", "requests of which a sample finds 40 in"), ("triton", "requests that find 40 in")]
)
def test_limit_counts_samples_if_requests_are_split(batcher, finds):
    demand = {"rate": 100, "slo": 80.0, "batcher": batcher, "max_queue": 40, "samples_per_request": 2}
    (plan,) = answers([steady_record(5.0, 6.0)], read_demand(demand)).plans

    assert finds in dict(details(plan))["Refused"]


def test_queue_too_short_for_a_split_request_is_refused():
    given = {"rate": 100, "slo": 80.0, "max_queue": 3, "samples_per_request": "1:9,4:1"}

    with pytest.raises(BadRequest, match="--max-queue 3 leaves no room for a request of 4 samples"):
        read_demand(given)

    assert read_demand({**given, "batcher": "triton"}).is_whole


@pytest.mark.parametrize(
    "options",
    [
        {"batcher": "litserve", "delay": "2ms", "samples_per_request": 2},
        {"batcher": "mosec", "routing": "least-loaded"},
        {"batcher": "ray", "max_ongoing": 40},
        {"batcher": "triton", "delay": "2ms", "routing": "two-choices", "samples_per_request": "1:3,2:1"},
        {"routing": "random"},
    ],
)
def test_a_limit_goes_with_any_server_routing_and_samples(options):
    (found,) = tputfind.size(steady_record(5.0, 6.0, 7.0), rate=400, slo=80.0, max_queue=30, **options)

    assert found.holds
    assert 0 <= found.outcome.refused < 0.01
