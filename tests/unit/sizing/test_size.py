"""How many devices: the least that meets the demand, and refusals where none does or a record cannot tell."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import example, row

import tputfind
from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record, Timing
from tputfind.report import size as plans
from tputfind.report import size_csv
from tputfind.sizing import formulas
from tputfind.sizing.demand import Demand
from tputfind.sizing.options import read_demand
from tputfind.sizing.plan import Price, plan
from tputfind.sizing.service import service_of
from tputfind.sizing.simulate import Fleet, simulate
from tputfind.sizing.size import answers, curve


def timed(size: int, latency_ms: float):
    """A row whose batch takes this long, give or take 5 %."""
    spans = tuple(latency_ms * (0.95 + 0.001 * number) for number in range(100))
    return msgspec.structs.replace(row(size, latency_ms), timings=(Timing(device_ms=spans, latency_ms=spans),))


def record(slope_ms: float = 0.3, intercept_ms: float = 3.0, largest: int = 256, **environment: object) -> Record:
    sizes = [2**power for power in range(largest.bit_length())]
    rows = tuple(timed(size, intercept_ms + slope_ms * size) for size in sizes)
    made = msgspec.structs.replace(example(), rows=rows, notices=(), finished="2026-01-01T00:00:00+00:00")
    return msgspec.structs.replace(made, environment=msgspec.structs.replace(made.environment, **environment))


def wanted(rate: float = 20_000, slo: object = 30.0, **more: object) -> Demand:
    return read_demand({"rate": rate, "slo": slo, **more})


@pytest.mark.parametrize(
    ("rate", "slo", "routing", "devices"),
    [
        (20_000, 15.0, "shared", 10),
        (20_000, 15.0, "random", 13),
        (20_000, 30.0, "shared", 8),
        (20_000, 100.0, "shared", 7),
    ],
)
def test_another_simulation_came_to_the_same_number_of_devices(rate, slo, routing, devices):
    """Batches of 3 ms and 0.3 ms a sample; the other simulation was written apart from this one."""
    found = plan(record(), wanted(rate, slo, routing=routing))

    assert abs(found.outcome.devices - devices) <= 1
    assert (found.rules.full_batches, found.rules.naive) == (7, {15.0: 8, 30.0: 7, 100.0: 7}[slo])


@pytest.mark.parametrize("batcher", ["greedy", "triton", "mosec", "litserve", "ray"])
@pytest.mark.parametrize("routing", ["random", "least-loaded"])
def test_the_answer_meets_the_target_under_other_streams_and_one_device_less_does_not(batcher, routing):
    demand = wanted(8000, 40.0, batcher=batcher, routing=routing)
    found = plan(record(), demand)
    service, best, other = service_of(record(), demand), found.outcome, msgspec.structs.replace(demand, seed=1000)

    again = simulate(Fleet(best.devices, best.batch_cap, 8000), service, other, seeds=5)
    assert again.tail_ms <= 40.0 * 1.02
    assert found.fewer is not None
    for cap in (8, 16, 32, 64, 128):
        fewer = simulate(Fleet(best.devices - 1, cap, 8000), service, other, seeds=3)
        # Ray Serve's queue may be short for a while, and grows for good after any pause.
        assert fewer.tail_ms > 40.0 * 0.97 or (batcher == "ray" and fewer.load >= 1)
    assert found.fewer.devices == best.devices - 1
    assert not found.fewer.meets(40.0)


slopes, intercepts = st.floats(0.05, 1.0), st.floats(0.5, 8.0)
rates = st.floats(300, 3_000)


def devices_for(one: Record, rate: float, slo: float, **more: object) -> int:
    """Of a percentile that takes a fifth of the requests that the usual one does."""
    return plan(one, wanted(rate, slo, percentile=95, **more)).outcome.devices


@given(slopes, intercepts, rates, st.floats(2.5, 8), st.floats(1.3, 3))
@settings(max_examples=8)
def test_a_tighter_target_never_needs_fewer_devices(slope_ms, intercept_ms, rate, times, looser):
    one = record(slope_ms, intercept_ms)
    slo = times * (intercept_ms + slope_ms) * 1.5

    assert devices_for(one, rate, slo) >= devices_for(one, rate, slo * looser)


@given(slopes, intercepts, rates, st.floats(3, 8), st.floats(1.1, 3))
@settings(max_examples=8)
def test_a_higher_rate_never_needs_fewer_devices(slope_ms, intercept_ms, rate, times, more):
    one = record(slope_ms, intercept_ms)
    slo = times * (intercept_ms + slope_ms) * 1.5

    assert devices_for(one, rate * more, slo) >= devices_for(one, rate, slo)


@given(slopes, intercepts, rates, st.floats(3, 8), st.sampled_from([(0.0, 1.0), (1.0, 2.0), (1.5, 4.0)]))
@settings(max_examples=8)
def test_a_burstier_stream_never_needs_fewer_devices(slope_ms, intercept_ms, rate, times, burstiness):
    one = record(slope_ms, intercept_ms)
    slo = times * (intercept_ms + slope_ms) * 1.5
    even, bursty = (devices_for(one, rate, slo, burstiness=cv) for cv in burstiness)

    assert bursty >= even


def test_a_large_fleet_grows_as_its_rate():
    one = record(largest=64)
    small, large = (plan(one, wanted(rate, 30.0)).outcome for rate in (300_000, 3_000_000))

    assert large.devices == pytest.approx(10 * small.devices, rel=0.01)


def test_a_curve_rises_with_the_rate():
    outcomes = list(curve(record(), wanted(20_000, 30.0)))

    assert len(outcomes) == 12
    assert [outcome.devices for outcome in outcomes] == sorted(outcome.devices for outcome in outcomes)
    assert outcomes[9].rate_per_s == 20_000
    assert size_csv.curve_csv(outcomes, wanted(20_000, 30.0)).count(b"\n") == 13


def test_a_target_below_what_a_request_alone_takes_is_no_plan_and_the_closest_is_named():
    with pytest.raises(NoPlan, match=r"99 % of requests that are alone take up to 3.45\d ms") as refused:
        plan(record(), wanted(100, 3.0, network="1ms"))

    assert refused.value.exit_code == 6
    assert "no --slo below 4.45" in refused.value.hint


def test_a_batch_that_now_and_then_takes_longer_than_the_target_is_no_plan_however_many_devices():
    spans = (5.0,) * 95 + (100.0,) * 5
    odd = msgspec.structs.replace(timed(1, 5.0), timings=(Timing(device_ms=spans, latency_ms=spans),))

    with pytest.raises(NoPlan, match="alone take up to 100 ms"):
        plan(msgspec.structs.replace(record(), rows=(odd,)), wanted(100, 20.0))


def test_one_slow_batch_in_five_hundred_counts_at_three_nines():
    spans = (5.0,) * 998 + (100.0,) * 2
    odd = msgspec.structs.replace(timed(1, 5.0), timings=(Timing(device_ms=spans, latency_ms=spans),))
    one = msgspec.structs.replace(record(), rows=(odd,))

    with pytest.raises(NoPlan):
        plan(one, wanted(100, 20.0, percentile=99.9))
    assert plan(one, wanted(100, 20.0)).outcome.devices == 2


@pytest.mark.parametrize(("rate", "burstiness"), [(0.5, 10), (5, 20)])
def test_bursts_at_a_low_rate_take_more_devices_and_not_none_at_all(rate, burstiness):
    assert plan(record(largest=16), wanted(rate, 10.0, burstiness=burstiness)).outcome.devices > 1


def test_a_peak_in_recorded_arrivals_is_met_wherever_it_lies():
    calm, peak = [1.0] * 6000, [0.1] * 600
    gaps, one = (*calm, *peak, *calm), record(0.3, 0.3, largest=64)
    least = plan(one, wanted(1500, 4.0)).outcome.devices

    found = plan(one, wanted(1500, 4.0, gaps=gaps))

    service = service_of(one, wanted())
    assert found.outcome.devices >= 1500 * 10 / (1000 * service.per_ms(64))
    assert found.outcome.devices > 3 * least
    assert found.arrivals == len(gaps) + 1
    assert found.demand.gaps is None


def test_a_delay_longer_than_the_target_leaves_batches_of_one():
    assert plan(record(), wanted(100, 20.0, batcher="mosec", delay="30ms")).outcome.batch_cap == 1


@pytest.mark.parametrize("routing", ["shared", "random"])
def test_requests_that_are_got_one_by_one_bound_a_batch_and_take_more_devices(routing):
    given = {"batcher": "litserve", "delay": 5.0, "routing": routing}
    at_once, one_by_one = (plan(record(), wanted(9000, 60.0, **given, overhead_per_get=ms)) for ms in (0.0, 0.2))

    assert one_by_one.outcome.batch_cap <= 25 < at_once.outcome.batch_cap
    assert one_by_one.outcome.devices > at_once.outcome.devices
    assert one_by_one.outcome.load < 1
    assert "window" not in [notice.kind for notice in at_once.notices]
    assert "window" in [notice.kind for notice in one_by_one.notices]


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "to get it, to answer it"),
        ({"overhead_per_get": 0.01}, "to answer it"),
        ({"overhead_per_answer": 0.01}, "to get it"),
        ({"routing": "least-loaded"}, "to answer it"),
        ({"overhead_per_get": 0.01, "overhead_per_answer": 0.01}, None),
    ],
)
def test_what_litserve_does_for_each_request_is_asked_for_where_it_is_not_told(given, missing):
    found = plan(record(), wanted(2000, 60.0, batcher="litserve", delay=5.0, **given))

    seen = [notice.seen for notice in found.notices if notice.kind == "one_by_one"]
    assert [each.rpartition(": ")[2] for each in seen] == ([missing] if missing else [])


def test_answers_that_go_out_one_by_one_bound_what_a_device_does():
    found = plan(record(), wanted(3500, 60.0, overhead_per_answer=1.0))

    assert found.outcome.devices >= 4
    assert found.outcome.load < 1
    assert found.fewer is not None
    assert found.fewer_fails


def test_the_shortest_target_that_is_named_is_not_refused_as_too_short():
    with pytest.raises(NoPlan) as refused:
        plan(record(), wanted(100, 1.0))
    named_ms = float(refused.value.hint.split()[3].removesuffix("ms"))

    alone_ms = float(np.quantile(service_of(record(), wanted()).curve_ms(1), 0.99))
    assert alone_ms <= named_ms <= 1.001 * alone_ms


def test_what_the_network_takes_is_not_there_for_waiting():
    with_network = plan(record(), wanted(20_000, 40.0, network="10ms"))

    assert with_network.outcome.devices == plan(record(), wanted(20_000, 30.0)).outcome.devices


def test_no_batch_larger_than_the_largest_measured_is_planned_with_and_that_is_said():
    found = plan(record(slope_ms=0.01, largest=8), wanted(50_000, 100.0))

    assert found.outcome.batch_cap == 8
    assert "largest_measured" in [notice.kind for notice in found.notices]
    assert plan(record(), wanted(20_000, 100.0, max_batch=16)).outcome.batch_cap <= 16


def test_a_cap_between_two_measured_sizes_is_as_good_as_one_that_was_measured():
    assert plan(record(), wanted(4000, 120.0, max_batch=255)).outcome.devices == 2
    assert plan(record(), wanted(4000, 120.0, max_batch=256)).outcome.devices == 2


def test_what_a_record_says_against_its_rows_is_in_the_plan():
    one = record()
    flagged = msgspec.structs.replace(
        one,
        finished=None,
        notices=(msgspec.structs.replace(example().notices[0], kind="throttled", batch_sizes=(1,)),),
    )

    kinds = [notice.kind for notice in plan(flagged, wanted()).notices]
    assert {"throttled", "interrupted", "copies"} <= set(kinds)
    assert "throttled" not in [notice.kind for notice in plan(one, wanted()).notices]


def test_a_record_without_rows_that_tell_is_refused():
    few = msgspec.structs.replace(timed(4, 5.0), timings=(Timing(device_ms=(5.0,) * 9, latency_ms=(5.0,) * 9),))
    for rows in ((), (few,)):
        with pytest.raises(BadRequest, match="no row with 10 latencies"):
            plan(msgspec.structs.replace(record(), rows=rows), wanted())


def test_a_record_of_training_serves_no_requests():
    trained = msgspec.structs.replace(record().spec, phase="train", dtype="bf16")

    with pytest.raises(BadRequest, match="training"):
        plan(msgspec.structs.replace(record(), spec=trained), wanted())


def test_records_are_ranked_by_devices_and_by_cost_where_all_have_a_price():
    fast, slow = record(0.1, 2.0, device_name="NVIDIA Fast"), record(0.4, 4.0, device_name="NVIDIA Slow 80GB")
    prices = [
        Price(device="fast", price_per_hour=9.0, currency="EUR"),
        Price(device="slow", price_per_hour=99.0, currency="EUR"),
        Price(device="Slow 80", price_per_hour=0.01, currency="EUR"),
        Price(device="NVIDIA Slow", price_per_hour=0.5, currency="EUR"),
    ]

    assert [found.device_name for found in tputfind.size(slow, fast, rate=9000, slo="40ms")] == [
        "NVIDIA Fast",
        "NVIDIA Slow 80GB",
    ]
    cheapest, other = tputfind.size(slow, fast, rate=9000, slo="40ms", prices=prices)
    assert cheapest.device_name == "NVIDIA Slow 80GB"
    assert cheapest.cost_per_hour == 0.5 * cheapest.outcome.devices
    assert cheapest.cost_per_million == pytest.approx(cheapest.cost_per_hour / 3600 / 9000 * 1e6)
    assert other.cost_per_hour > cheapest.cost_per_hour


def test_prices_in_two_currencies_rank_nothing():
    prices = [
        Price(device="NVIDIA", price_per_hour=1.0, currency="EUR"),
        Price(device="slow", price_per_hour=0.01, currency="USD"),
    ]
    fast, slow = record(0.1, 2.0, device_name="NVIDIA A"), record(0.4, 4.0, device_name="NVIDIA slow")

    assert tputfind.size(slow, fast, rate=9000, slo=40.0, prices=prices)[0].device_name == "NVIDIA A"


def test_a_record_without_a_plan_is_told_of_beside_those_that_have_one():
    found = answers([record(), record(5.0, 50.0)], wanted())

    assert len(found.plans) == 1
    assert isinstance(found.without[0][1], NoPlan)
    lines = size_csv.to_csv(found).decode().splitlines()
    assert len(lines) == 3
    assert "no device is fast enough" in lines[2]
    assert "no device is fast enough" in plans.to_json(found).decode()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name two of --rate, --slo and --devices"),
        (
            {"rate": "x", "slo": "50"},
            "--rate: 'x' is not a finite number per second such as 5000, 5k or 1M; --slo: '50' is not a duration",
        ),
        ({"rate": "0", "slo": "50ms"}, "--rate: '0' is not from 1e-09 to 1e+12"),
        ({"rate": "nan", "slo": "50ms"}, "--rate: 'nan' is not a finite number"),
        ({"rate": "5", "slo": "50ms", "seed": "inf"}, "--seed: 'inf' is not a whole number"),
        ({"rate": "5", "slo": "50ms", "percentile": "100"}, "--percentile: '100' is not from 50 to 99.99"),
        ({"rate": "5", "slo": "50ms", "batcher": "mosec", "delay": "0ms"}, "1 ms at the least"),
        ({"rate": "5", "slo": "50ms", "network": "50ms"}, "leaves nothing"),
        ({"rate": "5", "slo": "50ms", "delay": "5ms"}, "greedy batcher"),
        ({"rate": "5", "slo": "50ms", "batcher": "ray", "routing": "shared"}, "in each replica"),
        ({"rate": "5", "slo": "50ms", "batcher": "torchserve"}, "none of greedy, triton"),
        ({"rate": "5", "slo": "50ms", "overhead_per_get": "1ms"}, "overhead_per_get is of --batcher litserve"),
        (
            {"rate": "5", "slo": "50ms", "batcher": "litserve", "overhead_per_get": "1ms", "routing": "least-loaded"},
            "of --routing shared or random",
        ),
        ({"rate": "5", "slo": "50ms", "batcher": "triton", "delay": "0.1us"}, "1us at the least"),
        ({"rate": "5", "slo": "50ms", "batcher": "litserve", "overhead_per_get": 1e-316}, "1us at the least"),
        ({"rate": "5", "slo": "50ms", "burstiness": "2", "gaps": (1.0,) * 100}, "nothing to add"),
        ({"rate": "5", "slo": "50ms", "max_batch": "1.5"}, "not a whole number"),
    ],
)
def test_a_demand_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(BadRequest) as refused:
        read_demand(options)

    assert message in refused.value.message


def test_no_record_is_refused():
    with pytest.raises(BadRequest, match="no record"):
        tputfind.size(rate=5, slo=5)


def test_twice_the_batch_time_is_the_rule_of_nexus():
    service = service_of(record(0.3, 3.0), wanted())

    assert formulas.largest_within(service, 15.0) == 40
    assert formulas.devices_by_batch_time(service, 20_000, 256, 30.0, 2) == formulas.devices_by_batch_time(
        service, 20_000, 256, 15.0, 1
    )
    assert formulas.devices_by_batch_time(service, 20_000, 256, 3.0, 1) is None
