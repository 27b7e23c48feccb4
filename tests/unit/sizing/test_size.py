"""The number of devices: the least that meets the demand, and refusals without one."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.folders import record_path
from support.records import example, row

import tputfind
from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record, Timing
from tputfind.report.outputs import forms
from tputfind.report.views.size import document
from tputfind.report.views.size_answers import details, summary
from tputfind.sizing.engine.service_times import Overheads, service_times_of
from tputfind.sizing.planner import closed_forms
from tputfind.sizing.planner.costs import Price
from tputfind.sizing.planner.plan import answers, plan
from tputfind.sizing.planner.question import Demand, read_demand
from tputfind.sizing.planner.search import Search


def timed(size: int, latency_ms: float):
    """Return a row whose batch takes this time, within 5 %."""
    spans = tuple(latency_ms * (0.95 + 0.001 * number) for number in range(100))
    return msgspec.structs.replace(row(size, latency_ms), timings=(Timing(device_ms=spans, latency_ms=spans),))


def record(slope_ms: float = 0.3, intercept_ms: float = 3.0, largest: int = 256, **environment: object) -> Record:
    sizes = [2**power for power in range(largest.bit_length())]
    rows = tuple(timed(size, intercept_ms + slope_ms * size) for size in sizes)
    made = msgspec.structs.replace(example(), rows=rows, notices=(), edge=None, finished="2026-01-01T00:00:00+00:00")
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
    """Batches take 3 ms plus 0.3 ms per sample; the other simulation was written independently."""
    found = plan(record(), wanted(rate, slo, routing=routing))

    assert abs(found.outcome.devices - devices) <= 1
    assert (found.rules.full_batches, found.rules.naive) == (7, {15.0: 8, 30.0: 7, 100.0: 7}[slo])


@pytest.mark.parametrize("rate", [5_000, 20_000, 30_000])
def test_plan_prefers_a_measured_batch_size_that_does_as_well(rate):
    found = plan(record(), wanted(rate, 100.0))

    assert found.outcome.batch_cap in {row.batch_size for row in record().rows}


@pytest.mark.parametrize(
    ("batcher", "routing"),
    [
        ("greedy", "random"),
        ("triton", "least-loaded"),
        ("mosec", "random"),
        ("litserve", "least-loaded"),
        ("ray", "random"),
    ],
)
def test_plan_meets_target_under_other_streams_and_one_fewer_misses(batcher, routing):
    demand = wanted(8000, 40.0, batcher=batcher, routing=routing, max_ongoing=300)
    found = plan(record(), demand)
    best = found.outcome

    other = Search(record(), msgspec.structs.replace(demand, seed=1000))
    assert other.judge(best.devices, best.batch_cap).outcome.tail_ms <= 40.0 * 1.02
    assert found.fewer is not None
    for cap in (8, 16, 32, 64, 128):
        assert other.judge(best.devices - 1, cap).outcome.tail_ms > 40.0 * 0.97
    assert found.fewer.devices == best.devices - 1
    assert not found.fewer.meets_target


@pytest.mark.long
@pytest.mark.parametrize("server", [{"batcher": "triton", "delay": 2.0}, {"routing": "random"}], ids=str)
def test_devices_differ_by_2_at_most_between_seeds(server):
    plans = [plan(record(), wanted(200_000, 20.0, seed=seed, **server)) for seed in range(3)]
    devices = [found.outcome.devices for found in plans]

    assert min(devices) > 70
    assert max(devices) <= min(devices) + (2 if "routing" in server else 1), devices


slopes, intercepts = st.floats(0.05, 1.0), st.floats(0.5, 8.0)
rates = st.floats(300, 3_000)


def devices_for(one: Record, rate: float, slo: float, **more: object) -> int:
    """Return the devices for a percentile that needs a fifth of the usual requests."""
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


@given(slopes, intercepts, rates, st.floats(3, 8), st.integers(1, 40))
@settings(max_examples=8)
def test_a_smaller_batch_limit_never_needs_fewer_devices(slope_ms, intercept_ms, rate, times, max_batch):
    one = record(slope_ms, intercept_ms)
    slo = times * (intercept_ms + slope_ms) * 1.5

    assert devices_for(one, rate, slo, max_batch_size=max_batch) >= devices_for(one, rate, slo)


@pytest.mark.parametrize("batcher", ["triton", "mosec", "litserve"])
@given(rates, st.floats(3, 8), st.integers(2, 40))
@settings(max_examples=2)
def test_servers_need_no_fewer_devices_for_more_load_or_smaller_batches(batcher, rate, times, max_batch):
    given_ = {"batcher": batcher, "delay": 2.0}
    one, slo = record(), times * 3.3 * 1.5 + 5

    base = devices_for(one, rate, slo, **given_)
    assert devices_for(one, 1.3 * rate, slo, **given_) >= base
    assert devices_for(one, rate, slo, max_batch_size=max_batch, **given_) >= base


@given(slopes, intercepts, rates, st.floats(3, 8), st.sampled_from([(0.0, 1.0), (1.0, 2.0), (1.5, 4.0)]))
@settings(max_examples=8)
def test_a_burstier_stream_never_needs_fewer_devices(slope_ms, intercept_ms, rate, times, burstiness):
    one = record(slope_ms, intercept_ms)
    slo = times * (intercept_ms + slope_ms) * 1.5
    even, bursty = (devices_for(one, rate, slo, burstiness=cv) for cv in burstiness)

    assert bursty >= even


def test_a_large_fleet_grows_as_its_rate():
    """A large fleet rounds up by less, and shares its queue among more devices: it takes at most ten times as many."""
    one = record(largest=64)
    small, large = (plan(one, wanted(rate, 30.0)).outcome for rate in (300_000, 3_000_000))

    assert 9.8 * small.devices <= large.devices <= 10 * small.devices


def test_target_below_lone_request_is_refused_with_the_closest():
    with pytest.raises(NoPlan, match=r"99 % of lone requests take up to 3.45\d ms") as refused:
        plan(record(), wanted(100, 3.0, network="1ms"))

    assert refused.value.exit_code == 6
    assert "no --slo below 4.45" in refused.value.hint


def test_batch_sometimes_longer_than_target_has_no_plan():
    spans = (5.0,) * 95 + (100.0,) * 5
    odd = msgspec.structs.replace(timed(1, 5.0), timings=(Timing(device_ms=spans, latency_ms=spans),))

    with pytest.raises(NoPlan, match="99 % of lone requests take up to 100 ms"):
        plan(msgspec.structs.replace(record(), rows=(odd,)), wanted(100, 20.0))


def test_one_slow_batch_in_five_hundred_counts_at_three_nines():
    spans = (5.0,) * 998 + (100.0,) * 2
    odd = msgspec.structs.replace(timed(1, 5.0), timings=(Timing(device_ms=spans, latency_ms=spans),))
    one = msgspec.structs.replace(record(), rows=(odd,))

    with pytest.raises(NoPlan):
        plan(one, wanted(100, 20.0, percentile=99.9))
    assert plan(one, wanted(100, 20.0)).outcome.devices == 2


@pytest.mark.parametrize(("rate", "burstiness"), [(0.5, 10), (5, 20)])
def test_bursts_at_low_rate_take_more_than_one_device(rate, burstiness):
    assert plan(record(largest=16), wanted(rate, 10.0, burstiness=burstiness)).outcome.devices > 1


def test_a_peak_in_recorded_arrivals_is_met_wherever_it_lies():
    calm, peak = [1.0] * 6000, [0.1] * 600
    gaps, one = (*calm, *peak, *calm), record(0.3, 0.3, largest=64)
    least = plan(one, wanted(1500, 4.0)).outcome.devices

    found = plan(one, wanted(1500, 4.0, gaps=gaps))

    service = service_times_of(one)
    assert found.outcome.devices >= 1500 * 10 / (1000 * service.per_ms(64))
    assert found.outcome.devices > 3 * least
    assert found.arrivals == len(gaps) + 1
    assert found.demand.gaps is None


def test_a_delay_longer_than_the_target_leaves_batches_of_one():
    assert plan(record(), wanted(100, 20.0, batcher="mosec", delay="30ms")).outcome.batch_cap == 1


def test_answers_sent_one_by_one_limit_the_throughput():
    found = plan(record(), wanted(3500, 60.0).replace_overheads(Overheads(per_answer_ms=1.0)))

    assert found.outcome.devices >= 4
    assert found.outcome.utilization < 1
    assert found.fewer is not None
    assert found.fewer_fails


def test_the_shortest_target_that_is_named_is_not_refused_as_too_short():
    with pytest.raises(NoPlan) as refused:
        plan(record(), wanted(100, 1.0))
    named_ms = float(refused.value.hint.split()[3].removesuffix("ms"))

    alone_ms = float(np.quantile(service_times_of(record()).curve_ms(1), 0.99))
    assert alone_ms <= named_ms <= 1.001 * alone_ms


def test_refusal_by_few_latencies_says_so():
    measured = record()
    few = Timing(device_ms=(4.0,) * 31, latency_ms=(4.0,) * 30 + (9.0,))
    measured = msgspec.structs.replace(
        measured, rows=tuple(msgspec.structs.replace(each, timings=(few,)) for each in measured.rows)
    )

    with pytest.raises(NoPlan) as refused:
        plan(measured, wanted(100, 8.0))
    assert refused.value.hint.startswith("no --slo below 9ms can be met, by 31 latencies")


def test_network_time_is_subtracted_from_the_target():
    with_network = plan(record(), wanted(20_000, 40.0, network="10ms"))

    assert with_network.outcome.devices == plan(record(), wanted(20_000, 30.0)).outcome.devices


@pytest.mark.parametrize("fields", [{"mode": "cudagraph"}, {"mode": "compile"}, {"granularity": 16}])
def test_padded_batch_takes_as_long_as_the_next_measured_size(fields):
    measured = record()
    sizes = [row.batch_size for row in measured.rows]
    between = sizes[-2] + 1
    plain, padded = (
        service_times_of(msgspec.structs.replace(measured, spec=msgspec.structs.replace(measured.spec, **each)))
        for each in ({}, fields)
    )

    assert plain.mean_ms(sizes[-2]) < plain.mean_ms(between) < plain.mean_ms(sizes[-1])
    assert padded.mean_ms(between) == padded.mean_ms(sizes[-1])


def test_batches_of_whole_requests_that_nearly_fill_the_cap_fill_it():
    found = plan(record(slope_ms=0.01, largest=64), wanted(50_000, 100.0, batcher="triton", samples_per_request="3"))

    assert found.outcome.batch_cap == 64
    assert "largest_measured" in [notice.kind for notice in found.notices]


def test_batch_cap_never_exceeds_largest_measured_and_is_reported():
    found = plan(record(slope_ms=0.01, largest=8), wanted(50_000, 100.0))

    assert found.outcome.batch_cap == 8
    assert "largest_measured" in [notice.kind for notice in found.notices]
    assert plan(record(), wanted(20_000, 100.0, max_batch_size=16)).outcome.batch_cap <= 16


def test_cap_between_measured_sizes_is_as_good_as_measured():
    assert plan(record(), wanted(4000, 120.0, max_batch_size=255)).outcome.devices == 2
    assert plan(record(), wanted(4000, 120.0, max_batch_size=256)).outcome.devices == 2


def test_record_notices_about_rows_appear_in_the_plan():
    one = record()
    flagged = msgspec.structs.replace(
        one,
        finished=None,
        notices=(msgspec.structs.replace(example().notices[0], kind="throttled", batch_sizes=(1,)),),
    )

    kinds = [notice.kind for notice in plan(flagged, wanted()).notices]
    assert {"throttled", "interrupted", "copies"} <= set(kinds)
    assert "throttled" not in [notice.kind for notice in plan(one, wanted()).notices]


def test_record_without_sufficient_latencies_is_refused():
    few = msgspec.structs.replace(timed(4, 5.0), timings=(Timing(device_ms=(5.0,) * 9, latency_ms=(5.0,) * 9),))
    for rows in ((), (few,)):
        with pytest.raises(BadRequest, match="no row with 10 latencies"):
            plan(msgspec.structs.replace(record(), rows=rows), wanted())


def test_a_record_of_training_serves_no_requests():
    trained = msgspec.structs.replace(record().spec, phase="train", dtype="bf16")

    with pytest.raises(BadRequest, match="training"):
        plan(msgspec.structs.replace(record(), spec=trained), wanted())


def test_records_are_ranked_by_devices_and_by_cost_with_prices():
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


def test_prices_in_two_currencies_do_not_rank():
    prices = [
        Price(device="NVIDIA", price_per_hour=1.0, currency="EUR"),
        Price(device="slow", price_per_hour=0.01, currency="USD"),
    ]
    fast, slow = record(0.1, 2.0, device_name="NVIDIA A"), record(0.4, 4.0, device_name="NVIDIA slow")

    assert tputfind.size(slow, fast, rate=9000, slo=40.0, prices=prices)[0].device_name == "NVIDIA A"


def test_record_without_plan_is_listed_with_planned_ones():
    found = answers([record(), record(5.0, 50.0)], wanted())

    assert len(found.plans) == 1
    assert isinstance(found.without[0][1], NoPlan)
    lines = forms(document(found))["csv"]().decode().splitlines()
    assert len(lines) == 3
    assert "no device is fast enough" in lines[2]
    assert "no device is fast enough" in forms(document(found))["json"]().decode()


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
        ({"rate": "5", "slo": "50ms", "batcher": "mosec", "delay": "0ms"}, "whole ms from 1 on"),
        ({"rate": "5", "slo": "50ms", "network": "50ms"}, "leaves nothing"),
        ({"rate": "5", "slo": "50ms", "delay": "5ms"}, "greedy batcher"),
        ({"rate": "5", "slo": "50ms", "batcher": "ray", "routing": "shared"}, "in each replica"),
        ({"rate": "5", "slo": "50ms", "batcher": "torchserve"}, "is not one of greedy, triton"),
        ({"rate": "5", "slo": "50ms", "batcher": "triton", "delay": "0.1us"}, "at least 1us"),
        ({"rate": "5", "slo": "50ms", "burstiness": "2", "gaps": (1.0,) * 100}, "cannot be combined with --arrivals"),
        ({"rate": "5", "slo": "50ms", "max_batch_size": "1.5"}, "not a whole number"),
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
    service = service_times_of(record(0.3, 3.0))

    assert service.largest_within(15.0) == 40
    assert closed_forms.devices_by_batch_time(service, 20_000, 256, 30.0, 2) == closed_forms.devices_by_batch_time(
        service, 20_000, 256, 15.0, 1
    )
    assert closed_forms.devices_by_batch_time(service, 20_000, 256, 3.0, 1) is None


def test_spare_devices_share_the_extra_traffic_that_decides_the_batch_limit():
    """No batch limit bears 20 % more on the five devices that remain after a loss."""
    served = tputfind.load_record(record_path("nvidia-h200/default/vit_b_16-fp16.json"))
    demand = wanted(30_000, 40.0, batcher="mosec", overhead="mosec", spare=1)
    found = plan(served, demand)
    larger = Search(served, demand).judge(6, 186).outcome

    assert (found.outcome.devices, found.outcome.batch_cap) == (6, 64)
    assert found.more_traffic.tail_ms < Search(served, demand).outcome_under_more_traffic(larger).tail_ms / 2


@pytest.mark.parametrize("spare", [0, 1])
def test_highest_rate_is_served_and_10_percent_more_is_not(spare):
    asked = {"devices": 2 + spare, "slo": 30.0, "spare": spare}
    found = plan(record(), read_demand(asked))
    rate = found.demand.rate_per_s

    assert found.holds
    assert found.serving.devices == 2
    assert not plan(record(), read_demand({**asked, "rate": 1.1 * rate})).holds
    assert plan(record(), wanted(rate=0.95 * rate)).outcome.devices <= 2


def test_tightest_target_is_met_and_a_tighter_one_is_not():
    found = plan(record(), read_demand({"devices": 2, "rate": 500.0}))
    slo_ms = found.demand.slo_ms

    assert found.holds
    assert slo_ms <= 1.03 * found.outcome.tail_high_ms
    assert not plan(record(), read_demand({"devices": 2, "rate": 500.0, "slo": 0.93 * slo_ms})).holds
    with pytest.raises(NoPlan, match="2 devices cannot serve 50000 requests/s"):
        plan(record(), read_demand({"devices": 2, "rate": 50_000.0}))


def test_spare_devices_do_not_bear_utilization_of_those_that_serve():
    """Batches of 8 keep up at 79 % of one device, and batches of 64 at 40 %."""
    found = plan(record(0.5, 5.0, 64), wanted(700, 60.0, max_utilization="50%", spare=2))

    assert found.holds
    assert found.serving.devices == 1
    assert found.serving.utilization <= 0.5


FILLS_SLOWLY = {"batcher": "mosec", "delay": 20.0, "routing": "random", "spare": 1}
"""More devices fill their batches later, so that all together miss targets that they meet without the spare one."""


def test_plan_meets_target_with_and_without_spare_devices():
    found = plan(record(0.5, 3.0, 32), wanted(900, 30.0, **FILLS_SLOWLY))

    assert found.holds
    assert max(found.outcome.tail_ms, found.without_spare.tail_ms) <= 30


def test_spare_devices_that_fill_batches_too_slowly_leave_no_plan():
    demand = wanted(1000, 17.6, batcher="ray", delay=50.0, burstiness=0.5, spare=3)

    with pytest.raises(NoPlan, match="2 devices would meet the target, but not together with 3 spare"):
        plan(record(0.5, 5.0, 8), demand)


@pytest.mark.parametrize("given", [{"rate": 900}, {"slo": 30.0, "percentile": 90}])
def test_answers_of_given_devices_hold_with_and_without_spare_ones(given):
    found = plan(record(0.5, 3.0, 32), read_demand({"devices": 2, **FILLS_SLOWLY, **given}))

    assert found.holds
    assert found.outcome.meets_target
    assert found.without_spare.meets_target


def test_given_devices_miss_target_that_only_all_together_miss():
    found = plan(record(0.5, 3.0, 32), wanted(900, 25.0, devices=2, **FILLS_SLOWLY))

    assert not found.holds
    assert found.without_spare.meets_target
    assert dict(summary(found))["Verdict"].startswith("2 devices: target missed, p99")
    assert dict(details(found))["None gone"].startswith("2: target missed, p99")


def test_tightest_target_is_long_enough_for_batches_of_allowed_utilization():
    """Only batches above 34 keep the utilization below 45 %; they take 22 ms and more."""
    found = plan(record(0.5, 5.0, 64), read_demand({"devices": 1, "rate": 700, "max_utilization": "45%"}))

    assert found.holds
    assert 22 <= found.demand.slo_ms <= 25


def test_rate_needing_large_batches_is_served_within_long_target():
    """A lone request takes 5.5 ms; 95 % of the throughput of batches of 64 needs batches of 47 and more."""
    one = record(0.5, 5.0, 64)

    found = plan(one, read_demand({"devices": 2, "rate": 0.95 * 2 * 64 / 37 * 1000}))

    assert found.holds
    assert 47 <= found.outcome.batch_cap <= 64


@pytest.mark.parametrize(("solved", "given"), [("rate", {"slo": 20.0}), ("slo", {"rate": 500.0})])
def test_plans_of_given_devices_are_ordered_by_best_answer(solved, given):
    slow, fast = record(0.5, 8.0, device_name="Slow"), record(0.2, 3.0)

    found = tputfind.size(slow, fast, devices=3, **given)

    assert [each.device_name for each in found] == ["NVIDIA Example", "Slow"]
    assert [each.demand.solve for each in found] == [solved, solved]
    assert all(each.holds and (each.fewest, each.most) == (None, None) for each in found)


def test_rows_with_differing_processes_widen_the_range_of_devices():
    """Two records of the same latencies: separate by process in one, mixed in the other."""
    slow, fast, mixed = (12.0,) * 50, (8.0,) * 50, (8.0, 12.0) * 25

    def ranged(*processes: tuple[float, ...]):
        timings = tuple(Timing(device_ms=each, latency_ms=each) for each in processes)
        rows = tuple(msgspec.structs.replace(row(size, 1.0), timings=timings) for size in (1, 2, 4))
        found = plan(msgspec.structs.replace(example(), rows=rows, notices=()), wanted(rate=2000.0, slo=40.0))
        return (found.most or np.inf) - found.fewest

    assert ranged(slow, fast) > ranged(mixed, mixed)


def test_plan_holds_its_inputs_and_costs():
    demand = wanted(1000, batcher="mosec", delay=7.0, max_batch_size=4)
    found = plan(record(), demand, Price(device="example", price_per_hour=3.6, currency="EUR"))

    assert (found.model, found.device_name, found.demand, found.arrivals) == ("resnet50", "NVIDIA Example", demand, 0)
    assert (found.slope_ms, found.intercept_ms) == service_times_of(record()).line_ms()
    assert found.delay_ms == 7.0
    assert found.cost_per_hour == 3.6 * found.outcome.devices
    assert found.cost_per_million == pytest.approx(found.outcome.devices, rel=1e-9)
    assert {"copies", "no_overhead"} <= {notice.kind for notice in found.notices}


def test_overheads_take_more_devices_and_no_notice_then_asks_for_them():
    without, measured = (plan(record(), wanted(overhead=each)) for each in (0, "mosec"))

    assert measured.outcome.devices > without.outcome.devices
    assert "no_overhead" not in [notice.kind for notice in measured.notices]
