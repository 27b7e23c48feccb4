"""The number of devices: the least that meets the demand, and refusals without one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.folders import record_path
from support.records import example, row, timed_record

import tputfind
from tputfind.errors import NoPlan
from tputfind.record.record import Record, Timing
from tputfind.report.outputs import forms
from tputfind.report.views.size import document
from tputfind.report.views.size_answers import details, summary
from tputfind.sizing.engine.service_times import Overheads, service_times_of
from tputfind.sizing.planner.costs import Price
from tputfind.sizing.planner.plan import answers, plan
from tputfind.sizing.planner.question import Demand, read_demand
from tputfind.sizing.planner.search import Search


def record(slope_ms: float = 0.3, intercept_ms: float = 3.0, largest: int = 256, **environment: object) -> Record:
    """Return a record whose batches take these times, within 5 %."""
    sizes = [2**power for power in range(largest.bit_length())]
    steps = [0.95 + 0.001 * number for number in range(100)]
    batches_ms = {size: [(intercept_ms + slope_ms * size) * step for step in steps] for size in sizes}
    return replace(timed_record(batches_ms, **environment), edge=None)


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

    other = Search(record(), replace(demand, seed=1000))
    assert other.judge(best.devices, best.batch_cap).outcome.tail_ms <= 40.0 * 1.02
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


@pytest.mark.parametrize("batcher", ["triton", "mosec", "litserve"])
@given(rates, st.floats(3, 8), st.integers(2, 40))
@settings(max_examples=2)
def test_servers_need_no_fewer_devices_for_more_load_or_smaller_batches(batcher, rate, times, max_batch):
    given_ = {"batcher": batcher, "delay": 2.0}
    one, slo = record(), times * 3.3 * 1.5 + 5

    base = devices_for(one, rate, slo, **given_)
    assert devices_for(one, 1.3 * rate, slo, **given_) >= base
    assert devices_for(one, rate, slo, max_batch_size=max_batch, **given_) >= base


@pytest.mark.parametrize(
    ("option", "factors"),
    [
        ("slo", st.floats(1.3, 3).map(lambda looser: (looser, 1.0))),
        ("rate", st.floats(1.1, 3).map(lambda more: (1.0, more))),
        ("max_batch_size", st.integers(1, 40).map(lambda most: (256, most))),
        ("burstiness", st.sampled_from([(0.0, 1.0), (1.0, 2.0), (1.5, 4.0)])),
    ],
)
@given(data=st.data(), slope_ms=slopes, intercept_ms=intercepts, rate=rates, times=st.floats(3, 8))
@settings(max_examples=8)
def test_a_harder_demand_never_needs_fewer_devices(*, option, factors, data, slope_ms, intercept_ms, rate, times):
    one, demand = record(slope_ms, intercept_ms), {"rate": rate, "slo": times * (intercept_ms + slope_ms) * 1.5}
    easier, harder = (
        devices_for(one, **demand | {option: demand.get(option, 1) * factor}) for factor in data.draw(factors)
    )

    assert harder >= easier


def test_a_large_fleet_grows_as_its_rate():
    """A large fleet rounds up by less, and shares its queue among more devices: it takes at most ten times as many."""
    one = record(largest=64)
    small, large = (plan(one, wanted(rate, 30.0)).outcome for rate in (300_000, 3_000_000))

    assert 9.8 * small.devices <= large.devices <= 10 * small.devices


@pytest.mark.parametrize(("slow", "percentile", "devices"), [(50, 99, None), (2, 99.9, None), (2, 99, 2)])
def test_slow_batches_leave_no_plan_if_they_exceed_the_percentile(slow, percentile, devices):
    one = timed_record({1: [5.0] * (1000 - slow) + [100.0] * slow})

    if devices is None:
        with pytest.raises(NoPlan, match=f"{percentile} % of lone requests take up to 100 ms"):
            plan(one, wanted(100, 20.0, percentile=percentile))
    else:
        assert plan(one, wanted(100, 20.0, percentile=percentile)).outcome.devices == devices


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


def test_refusal_by_few_latencies_says_so():
    measured = record()
    few = Timing(device_ms=(4.0,) * 31, latency_ms=(4.0,) * 30 + (9.0,))
    measured = replace(measured, rows=tuple(replace(each, timings=(few,)) for each in measured.rows))

    with pytest.raises(NoPlan) as refused:
        plan(measured, wanted(100, 8.0))
    assert refused.value.hint.startswith("no --slo below 9ms can be met, by 31 latencies")


@pytest.mark.parametrize("fields", [{"mode": "cudagraph"}, {"mode": "compile"}, {"granularity": 16}])
def test_padded_batch_takes_as_long_as_the_next_measured_size(fields):
    measured = record()
    sizes = [row.batch_size for row in measured.rows]
    between = sizes[-2] + 1
    plain, padded = (service_times_of(replace(measured, spec=replace(measured.spec, **each))) for each in ({}, fields))

    assert plain.mean_ms(sizes[-2]) < plain.mean_ms(between) < plain.mean_ms(sizes[-1])
    assert padded.mean_ms(between) == padded.mean_ms(sizes[-1])


@pytest.mark.parametrize(
    ("largest", "given"),
    [(8, {}), (64, {"batcher": "triton", "samples_per_request": "3"})],  # whole requests nearly fill the cap
)
def test_batch_cap_that_is_filled_and_the_largest_measured_is_reported(largest, given):
    found = plan(record(slope_ms=0.01, largest=largest), wanted(50_000, 100.0, **given))

    assert found.outcome.batch_cap == largest
    assert "largest_measured" in [notice.kind for notice in found.notices]


def test_cap_between_measured_sizes_is_as_good_as_measured():
    assert plan(record(), wanted(4000, 120.0, max_batch_size=255)).outcome.devices == 2
    assert plan(record(), wanted(4000, 120.0, max_batch_size=256)).outcome.devices == 2


def test_record_without_plan_is_listed_with_planned_ones():
    found = answers([record(), record(5.0, 50.0)], wanted())

    assert len(found.plans) == 1
    assert isinstance(found.without[0][1], NoPlan)
    lines = forms(document(found))["csv"]().decode().splitlines()
    assert len(lines) == 3
    assert "no device is fast enough" in lines[2]
    assert "no device is fast enough" in forms(document(found))["json"]().decode()


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
        rows = tuple(replace(row(size, 1.0), timings=timings) for size in (1, 2, 4))
        found = plan(replace(example(), rows=rows, notices=()), wanted(rate=2000.0, slo=40.0))
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
