"""The answers of a record, and joint statistics of its rows."""

import pytest
from msgspec.structs import replace
from support.records import CPU_CAN, HEALTH, example, row

from tputfind.analysis.answers import (
    answers,
    best_under,
    compile_s,
    fastest,
    format_latency,
    format_rate,
    health,
    knee,
    known_interval,
    latency_interval_ms,
    none_within_slo,
    peak_bytes,
    ran_in_all_processes,
    rate_ratio_interval,
    scatter,
    throughput_interval,
    to_deploy,
)
from tputfind.record.record import Compiled, Edge, Failure, Health, Row, Timing, Trial, host_bound

FAILED = Row(batch_size=64, failure=Failure(kind="died", message="no"))


def watched(*windows: tuple[int, float, Health | None], batch_size: int = 4) -> Row:
    """Return a row of processes, each with a number of batches, their time in ms, and its health."""
    timings = tuple(Timing(device_ms=(ms,) * count, health=seen) for count, ms, seen in windows)
    return Row(batch_size=batch_size, timings=timings)


def seen(**fields) -> Health:
    return replace(HEALTH, **fields)


def test_health_weighs_each_process_by_the_length_of_its_window():
    short, long = seen(power_w=100.0, sm_clock_mhz=1000.0), seen(power_w=400.0, sm_clock_mhz=1600.0)
    found = health(watched((10, 10.0, short), (20, 10.0, long)))

    assert found.power_w == pytest.approx(300)
    assert found.sm_clock_mhz == pytest.approx(1400)


def test_energy_counts_only_processes_with_power_readings():
    found = health(watched((10, 10.0, seen(power_w=100.0)), (30, 10.0, seen(power_w=None)), (5, 10.0, None)))

    assert found.power_w == pytest.approx(100)
    assert found.energy_mj_per_sample == pytest.approx(100 * 0.1 / (10 * 4) * 1000)
    unread = health(watched((10, 10.0, seen(power_w=None))))
    assert (unread.power_w, unread.energy_mj_per_sample) == (None, None)


def test_the_highest_temperature_and_clock_limit_of_all_processes_count():
    one = seen(temperature_c=50.0, sm_clock_max_mhz=1980.0)
    other = seen(temperature_c=70.0, sm_clock_max_mhz=1900.0)
    unknown = seen(temperature_c=None, sm_clock_max_mhz=None)
    found = health(watched((10, 10.0, one), (10, 10.0, other), (10, 10.0, unknown)))

    assert (found.temperature_c, found.sm_clock_max_mhz) == (70, 1980)
    assert health(watched((10, 10.0, unknown))).temperature_c is None


def test_slowdown_of_one_process_is_averaged_over_watched_processes():
    slow = seen(slowed={"power_cap": 0.04, "sync_boost": 0.008})
    found = health(watched((10, 10.0, slow), (30, 10.0, seen(slowed={})), (60, 10.0, None)))

    assert found.slowed == {"power_cap": pytest.approx(0.01), "sync_boost": pytest.approx(0.002)}
    assert health(watched((10, 10.0, slow))).throttled is True
    assert health(watched((10, 10.0, seen(slowed={"power_cap": 0.01})))).throttled is True
    assert health(watched((10, 10.0, seen(slowed={"power_cap": 0.009})))).throttled is False
    assert health(watched((10, 10.0, None))) is None


def test_fastest_of_equal_rows_is_smallest_and_ignores_failed_rows():
    rows = [row(8, 4.0), row(4, 2.0), row(1, 1.0), FAILED]

    assert fastest(rows).batch_size == 4
    assert fastest([FAILED]) is None
    assert fastest([]) is None


def test_knee_is_smallest_row_with_95_percent_of_best_throughput():
    at_95, below = row(95, 10.0), row(90, 10.0)

    assert knee([below, row(100, 10.0), at_95, FAILED]).batch_size == 95
    assert knee([row(1, 10.0), row(100, 10.0)]).batch_size == 100
    assert knee([row(100, 10.0), FAILED]) is None


def test_answers_are_rows_that_were_timed():
    record = example()
    largest = replace(record.edge, largest_batch=2)

    assert [name for name, _ in answers(record)] == ["fastest", "knee", "largest", "safe"]
    assert [name for name, _ in answers(replace(record, edge=largest, safe=None))] == ["fastest", "knee"]
    assert {name: one.batch_size for name, one in answers(record)} == {"fastest": 4, "knee": 4, "largest": 5, "safe": 4}
    assert [name for name, _ in answers(replace(record, edge=Edge(largest_batch=0, limited_by="memory")))][-1] == "safe"


def test_the_best_under_a_limit_meets_it_with_its_percentile():
    rows = [row(1, 4.0), row(8, 10.0), row(64, 20.0)]

    # Latencies count up from the device time by 0.01 ms a batch.
    assert best_under(rows, 10.5, 50).batch_size == 8
    assert best_under(rows, 10.4951, 50).batch_size == 8
    assert best_under(rows, 10.49, 50).batch_size == 1
    assert best_under(rows, 3.0, 50) is None
    assert best_under([row(1, 4.0, batches=99)], 100.0, 99) is None
    even = Row(batch_size=1, timings=(Timing(device_ms=(10.0,) * 100, latency_ms=(10.0,) * 100),))
    assert best_under([even], 10.0, 99) == even


def test_batch_to_deploy_is_knee_or_best_within_slo():
    rows = (row(1, 2.0), row(8, 8.0), row(64, 63.0))
    plain = replace(example(), rows=rows, spec=replace(example().spec, slo_ms=None), safe=None)
    safe = replace(example().safe, largest_batch=1)

    assert to_deploy(replace(plain, safe=safe)).batch_size == 1
    assert to_deploy(replace(plain, rows=rows[1:], safe=safe)).batch_size == 8
    assert to_deploy(plain).batch_size == 8
    assert to_deploy(replace(plain, rows=rows[2:])).batch_size == 64
    assert to_deploy(replace(plain, spec=replace(plain.spec, slo_ms=5.0))).batch_size == 1
    assert to_deploy(replace(plain, spec=replace(plain.spec, slo_ms=1.0))) is None
    assert to_deploy(replace(plain, rows=())) is None


def test_slo_that_a_median_may_meet_is_not_known_to_be_missed():
    record = replace(example(), rows=(row(1, 11.0), row(8, 20.0)))
    few = replace(record, rows=(row(1, 9.503), row(8, 20.0)))  # its median is 9.998 ms

    assert none_within_slo([record, record]) == "has p99 within --slo 10 ms"
    assert none_within_slo([record, few]) == "is known to have p99 within --slo 10 ms"


@pytest.mark.parametrize("end", ["known", "alike", "beside"])
def test_row_has_all_its_processes_or_an_end_that_needs_no_more(end):
    record, twice = example(), row(1, 5.0)
    record = replace(record, spec=replace(record.spec, processes=3))
    twice = replace(twice, timings=twice.timings * 2, ended_by=end)

    assert ran_in_all_processes(record, twice) == (end != "beside")
    assert ran_in_all_processes(record, replace(twice, timings=twice.timings[:1] * 3))


def test_row_is_host_bound_from_80_percent_and_unknown_without_samples():
    assert host_bound(row(1, 10.0, enqueue_ms=8.0)) is True
    assert host_bound(row(1, 10.0, enqueue_ms=7.99)) is False
    assert host_bound(Row(batch_size=1, timings=(Timing(device_ms=(1.0,)),))) is None
    assert host_bound(Row(batch_size=1, timings=(Timing(enqueue_ms=(1.0,)),))) is None


def test_peak_bytes_is_reserved_and_resident_only_where_that_is_unknown():
    record, one = example(), row(8, 4.0)
    host = replace(record, environment=replace(record.environment, device="cpu", can=CPU_CAN))

    assert peak_bytes(record, one) == 8 * 2**21
    assert peak_bytes(host, one) == 8 * 2**21
    unknown = replace(one, peak_reserved_bytes=None)
    assert peak_bytes(host, unknown) == 8 * 2**20
    assert peak_bytes(record, unknown) is None


def test_compiling_took_as_long_as_in_the_process_that_did_it_first():
    def compiled(seconds):
        return Compiled(seconds=seconds, graphs=1)

    one = Row(batch_size=4, timings=tuple(Timing(compiled=each) for each in (compiled(2.0), None, compiled(1.0))))
    trials = (Trial(batch_size=4, compiled=compiled(30.0)), Trial(batch_size=8, compiled=compiled(90.0)))

    assert compile_s(replace(example(), trials=trials), one) == 30
    assert compile_s(replace(example(), trials=()), one) == 2
    assert compile_s(replace(example(), trials=()), row(4, 1.0)) is None


def test_interval_of_noiseless_row_is_repeatability():
    one = row(8, 10.0)
    interval, latency = throughput_interval(one), latency_interval_ms(one)

    assert interval == pytest.approx((800 * 0.998, 800 * 1.002))
    assert latency.low < 10.495 * 0.998 < 10.495 * 1.002 < latency.high
    assert throughput_interval(FAILED) is None
    assert throughput_interval(replace(one, failure=FAILED.failure)) is None
    assert throughput_interval(row(8, 10.0, batches=3)) is None
    assert latency_interval_ms(FAILED) is None
    assert latency_interval_ms(replace(one, failure=FAILED.failure)) is None


def test_interval_below_zero_is_kept_and_drawn_from_zero():
    """Two processes differ by a large factor, so the interval is many times the mean."""
    wild = Row(batch_size=1, timings=(Timing(device_ms=(1.0,) * 9, latency_ms=(1.0,) * 9),) * 1)
    wild = replace(wild, timings=(*wild.timings, Timing(device_ms=(99.0,) * 9, latency_ms=(99.0,) * 9)))

    for interval in (throughput_interval(wild), latency_interval_ms(wild)):
        assert interval.low < 0
        assert interval.half_width > 1
        assert interval.above_zero == (0, interval.high)


def test_the_ratio_of_two_rates_is_of_samples_and_not_of_batches():
    one, other = (
        Row(batch_size=size, timings=(Timing(device_ms=(ms,) * 9),) * 3) for size, ms in ((8, 10.0), (2, 5.0))
    )
    interval = rate_ratio_interval(one, other)

    assert interval.low < 2 < interval.high
    assert interval.low * interval.high == pytest.approx(4)
    assert rate_ratio_interval(row(1, 1.0), row(1, 1.0)) is None
    wider = replace(one, timings=(*one.timings[:2], replace(other.timings[0], device_ms=(10.1,) * 9)))
    assert rate_ratio_interval(wider, other, 0.99).high > rate_ratio_interval(wider, other).high
    assert scatter([one, wider]) == throughput_interval(wider).half_width > scatter([one]) > scatter([FAILED]) == 0


def test_rate_is_printed_with_significant_digits():
    assert format_rate(example(), FAILED) == ""
    assert format_rate(example(), row(8, 6.54321)) == "1223"
    assert format_rate(example(), row(8, 6.54321, batches=3)) == "1223"  # too few for an interval


def test_rate_of_one_of_several_processes_has_tilde_and_three_digits():
    record = replace(example(), spec=replace(example().spec, processes=None))
    once = row(8, 6.54321)

    assert format_rate(record, once) == "~1220"
    assert format_latency(record, once, 7.04321) == "~7.04"
    assert known_interval(record, once) is None
    assert format_rate(record, replace(once, timings=once.timings * 2)) == "1223"
