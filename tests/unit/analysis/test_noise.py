"""A fault added to otherwise quiet samples raises exactly its own notice."""

import random

import pytest
from msgspec.structs import replace
from support.records import HEALTH, can_of, example, row, whole
from support.shown import frame

from tputfind.analysis import notices
from tputfind.analysis.answers import health
from tputfind.record.record import Timing

OF_NOISE = {
    *("outliers", "trend", "spread", "wide_interval", "not_settled"),
    *("cut_short", "max_noise_not_reached", "unfinished"),
}


def quiet(rng, count=100):
    return [10 * rng.gauss(1, 0.002) for _ in range(count)]


def one_batch_ten_times_slower(rng):
    samples = quiet(rng)
    samples[rng.randrange(100)] *= 10
    return samples


def drifting_by_10_percent(rng):
    return [sample * (1 + 0.1 * number / 100) for number, sample in enumerate(quiet(rng))]


def getting_faster_by_10_percent(rng):
    return list(reversed(drifting_by_10_percent(rng)))


def of_two_modes(rng):
    return [sample * rng.choice((1, 1.2)) for sample in quiet(rng)]


def kinds(
    *windows, steady=True, missing=0, ended_by="full", finished="2026-11-20T12:01:00+00:00", device="cuda:0", **changes
):
    """Return the kinds of noise notices of a record with a row of these windows, one per process."""
    timings = tuple(
        Timing(device_ms=tuple(window), latency_ms=(1.0,) * 100, health=HEALTH, steady=steady) for window in windows
    )
    spec = replace(example().spec, processes=len(windows) + missing, **changes)
    only = replace(row(4, 5.0), timings=timings, ended_by=ended_by)
    on = replace(example().environment, device=device, can=can_of(device))
    record = replace(example(), spec=spec, environment=on, rows=(only,), finished=finished)
    found = whole(notices.of(record))
    return [notice.kind for notice in found if notice.kind in OF_NOISE]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (quiet, []),
        (one_batch_ten_times_slower, ["outliers"]),
        (drifting_by_10_percent, ["trend"]),
        (getting_faster_by_10_percent, ["trend"]),
        (of_two_modes, ["spread"]),
    ],
)
def test_a_fault_raises_its_notice_and_only_that(samples, expected, seed):
    rng = random.Random(seed)

    assert kinds(samples(rng)) == expected
    assert kinds(quiet(rng), quiet(rng), quiet(rng)) == []


@pytest.mark.parametrize("seed", range(20))
def test_noise_signs_are_found_in_one_or_all_of_three_processes(seed):
    rng = random.Random(seed)

    assert kinds(quiet(rng), one_batch_ten_times_slower(rng), quiet(rng)) == ["outliers"]
    assert kinds(drifting_by_10_percent(rng), quiet(rng), quiet(rng)) == ["trend"]
    assert kinds(getting_faster_by_10_percent(rng), quiet(rng), quiet(rng)) == ["trend"]
    assert kinds(of_two_modes(rng), of_two_modes(rng), of_two_modes(rng)) == ["spread"]


def test_processes_that_disagree_though_each_is_steady_widen_the_interval():
    rng = random.Random(1)
    slower = [sample * 1.1 for sample in quiet(rng)]

    assert kinds(quiet(rng), slower, quiet(rng)) == ["wide_interval"]


def test_outliers_do_not_hide_processes_that_disagree():
    rng = random.Random(1)
    slower = [sample * 1.4 for sample in one_batch_ten_times_slower(rng)]

    assert kinds(quiet(rng), slower, quiet(rng)) == ["outliers", "wide_interval"]
    assert kinds(quiet(rng), [10 * sample for sample in quiet(rng)], quiet(rng)) == ["wide_interval"]


def test_many_slow_batches_are_no_outliers_but_scatter():
    rng = random.Random(1)
    samples = [sample * (5 if number % 4 == 0 else 1) for number, sample in enumerate(quiet(rng))]

    assert kinds(samples) == ["spread"]


def test_unsettled_process_is_reported_unless_its_trend_is():
    rng = random.Random(1)

    assert kinds(quiet(rng), steady=False) == ["not_settled"]
    assert kinds(drifting_by_10_percent(rng), steady=False) == ["trend"]


def flat(ms=10.0, count=100):
    return [ms] * count


def scattered(deviation):
    """Return a hundred samples with this spread, ordered without a trend."""
    step = 1.349 * deviation
    return [10 * (1 + step * (number % 2 - 0.5)) for number in range(100)]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([[*flat(count=99), 10 * (1 + 100 * 0.0099)]], []),
        ([[*flat(count=99), 10 * (1 + 100 * 0.0101)]], ["outliers"]),
        ([[10 * (1 + 0.019 * (number // 10) / 8.5) for number in range(100)]], []),
        ([[10 * (1 + 0.021 * (number // 10) / 8.0) for number in range(100)]], ["trend"]),
        ([scattered(0.049)] * 3, []),
        ([scattered(0.051)] * 3, ["spread"]),
        ([scattered(0.051), flat(), flat()], []),  # in one of three
    ],
)
def test_each_noise_sign_is_reported_above_its_own_threshold(windows, expected):
    assert kinds(*windows) == expected


@pytest.mark.parametrize(
    ("half_width", "trending", "expected"),
    [
        (0.029, False, []),
        (0.031, False, ["wide_interval"]),
        (0.09, True, ["trend"]),
        (0.11, True, ["trend", "wide_interval"]),
    ],
)
def test_differing_processes_are_reported_from_3_percent_or_10_with_a_trend(half_width, trending, expected):
    # With three processes off by -d, 0 and d, the half-width is 4.303 d / the root of 3.
    off = half_width * 3**0.5 / 4.303
    drift = [1 + (0.03 * (number // 10) if trending else 0) for number in range(100)]

    assert kinds(*([10 * (1 + each) * pace for pace in drift] for each in (-off, 0, off))) == expected


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([[*flat(count=99), 10 * (1 + 100 * 0.039)]], []),
        ([[*flat(count=99), 10 * (1 + 100 * 0.041)]], ["outliers"]),
        ([[10 * (1 + 0.05 * (number // 10) / 8.5) for number in range(100)]], []),
        ([[10 * (1 + 0.1 * (number // 10) / 8.0) for number in range(100)]], ["trend"]),
        ([scattered(0.12)] * 3, []),
        ([scattered(0.21)] * 3, ["spread"]),
        ([flat(), flat(10.4), flat()], []),
        ([flat(), flat(12), flat()], ["wide_interval"]),
    ],
)
def test_noise_thresholds_are_higher_on_a_cpu(windows, expected):
    assert kinds(*windows, device="cpu") == expected


def test_unsettled_cpu_times_are_reported_only_with_visible_noise():
    rng = random.Random(1)

    assert kinds(quiet(rng), steady=False, device="cpu") == []
    assert kinds(scattered(0.21), steady=False, device="cpu") == ["spread", "not_settled"]


def test_noise_notices_are_merged_into_one_with_every_sign():
    rng = random.Random(1)
    rows = [
        replace(row(size, 5.0), timings=(Timing(device_ms=tuple(samples), steady=steady),))
        for size, samples, steady in ((1, one_batch_ten_times_slower(rng), True), (2, of_two_modes(rng), False))
    ]
    record = replace(example(), rows=tuple(rows))
    signs = {"noise", "outliers", "trend", "spread", "wide_interval", "not_settled"}
    (noise,) = [notice for notice in whole(notices.shown_notices(record)) if notice.kind in signs]

    assert noise.seen == "batch times jump, scatter and do not settle at batch 1, 2"
    assert noise.batch_sizes == (1, 2)
    assert not [notice for notice in notices.of(record) if notice.kind == "noise"]  # the kinds in the CSV are its parts


def test_one_notice_of_noise_is_read_as_it_is():
    rows = (replace(row(1, 5.0), timings=(Timing(device_ms=tuple(of_two_modes(random.Random(1)))),)),)
    record = replace(example(), rows=rows)

    assert [notice.kind for notice in notices.shown_notices(record)] == [notice.kind for notice in notices.of(record)]


def test_a_run_that_goes_on_may_still_reach_its_noise():
    apart = [flat(), flat(10.5), flat()]

    assert kinds(*apart, max_noise=0.01) == ["max_noise_not_reached"]
    assert kinds(*apart, max_noise=0.01, finished=None) == ["wide_interval"]


def test_row_with_missing_processes_is_reported_as_unfinished():
    rng = random.Random(1)

    assert kinds(quiet(rng), quiet(rng), missing=1) == ["unfinished"]
    assert kinds(quiet(rng), quiet(rng), missing=1, ended_by="known") == []
    assert kinds(quiet(rng), quiet(rng), missing=1, ended_by="alike") == []


def test_noise_of_rows_without_influence_is_not_reported():
    jumping = one_batch_ten_times_slower(random.Random(1))

    assert kinds(jumping, missing=2, ended_by="beside", steady=False) == []
    assert "outliers" in kinds(jumping, missing=2, ended_by="time")


def test_single_unsteady_process_gives_no_notice_about_differing_processes():
    record = example()
    windows = [10.0] * 8 + [12.0] * 4
    one = replace(row(4, 5.0), timings=(Timing(device_ms=tuple(windows)),))
    found = notices.of(replace(record, rows=(one,)))

    (notice,) = [notice for notice in found if notice.kind == "wide_interval"]
    assert "processes differ" not in notice.cause
    assert "--processes" in notice.advice
    jumps = replace(row(4, 5.0), timings=(Timing(device_ms=(10.0,) * 99 + (99.0,)),))
    assert not [one for one in notices.of(replace(record, rows=(jumps,))) if "--processes" in one.advice]


def test_cut_short_window_is_reported_but_not_an_unfinished_row():
    rng = random.Random(1)

    assert kinds(quiet(rng, 20)) == ["cut_short"]
    assert kinds(quiet(rng, 34), quiet(rng, 33), quiet(rng, 33)) == []


def test_noise_above_max_noise_is_reported():
    rng = random.Random(1)
    slower = [sample * 1.02 for sample in quiet(rng)]

    assert kinds(quiet(rng), slower, quiet(rng), max_noise=0.01) == ["max_noise_not_reached"]
    assert kinds(*([sample * pace for sample in quiet(rng)] for pace in (1, 20, 0.9)), max_noise=0.01) == [
        "max_noise_not_reached"
    ]
    assert kinds(quiet(rng), quiet(rng), quiet(rng), max_noise=0.01) == []


def slowed(**reasons):
    timings = tuple(replace(timing, health=replace(HEALTH, slowed=reasons)) for timing in row(4, 5.0).timings)
    return replace(example(), rows=(replace(row(4, 5.0), timings=timings),))


def test_throttled_row_is_kept_and_flagged_with_its_reason():
    record = slowed(power_cap=0.4)
    (notice,) = [notice for notice in notices.of(record) if notice.kind == "throttled"]
    (cells,) = frame([record]).to_dict("records")

    assert notice.seen == "clocks were reduced up to 40% of the time at batch 4, 1700 of 1980 MHz (-14%)"
    assert notice.cause == "power limit"
    assert (cells["throttled"], cells["throttle_reasons"]) == (True, "power_cap")
    assert cells["samples_per_s"] > 0


def test_unknown_throttle_reason_is_shown_by_its_name():
    (notice,) = [notice for notice in notices.of(slowed(power_cap=0.4, moonlight=0.1)) if notice.kind == "throttled"]

    assert notice.cause == "moonlight and power limit"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("power_cap", "deploy under the same limit"),
        ("software_thermal", "cool it better"),
        ("hardware_slowdown", "cool it better"),
    ],
)
def test_better_cooling_is_advised_if_heat_throttles_one_percent_of_time(reason, advice):
    (notice,) = [
        notice for notice in notices.of(slowed(**{reason: 0.01, "sync_boost": 0.005})) if "clocks" in notice.seen
    ]

    assert (notice.kind, notice.batch_sizes) == ("throttled", (4,))
    assert notice.advice.startswith(advice)
    assert "sync boost" not in notice.cause
    assert notice.seen.endswith("up to 1% of the time at batch 4, 1700 of 1980 MHz (-14%)")


def test_throttled_rows_report_lowest_clock_and_highest_maximum_clock():
    def at(batch_size, share, mhz, most_mhz):
        found = replace(HEALTH, slowed={"power_cap": share}, sm_clock_mhz=mhz, sm_clock_max_mhz=most_mhz)
        timings = tuple(replace(timing, health=found) for timing in row(4, 5.0).timings)
        return replace(row(batch_size, 5.0), timings=timings)

    def seen(*rows):
        record = replace(example(), rows=rows)
        return next(notice.seen for notice in notices.of(record) if notice.kind == "throttled")

    several = seen(at(1, 0.2, 1500.0, 1980.0), at(2, 0.5, 1300.0, 1990.0), at(4, 0.3, None, None))

    assert several.endswith("up to 50% of the time at batch 1, 2, 4, 1300 of 1990 MHz (-35%)")
    assert seen(at(1, 0.2, None, 1980.0)).endswith("up to 20% of the time at batch 1")
    assert seen(at(1, 0.2, 1500.0, None)).endswith("up to 20% of the time at batch 1")


def test_throttle_reasons_are_listed_in_one_fixed_order():
    held = slowed(power_cap=0.5, sync_boost=0.2, power_brake=0.1, hardware_slowdown=0.3, software_thermal=0.001)
    (notice,) = [notice for notice in notices.of(held) if notice.kind == "throttled"]

    assert notice.cause == "hardware slowdown and power brake and power limit and sync boost group"


@pytest.mark.parametrize(("uuid", "told"), [("GPU-0", [(4, 8)]), (None, [])])
def test_health_is_missed_only_of_a_gpu_and_its_columns_are_empty(uuid, told):
    bare = tuple(replace(timing, health=None) for timing in row(4, 5.0).timings)
    rows = tuple(replace(row(size, 5.0), timings=bare) for size in (4, 8))
    record = replace(example(), rows=rows, environment=replace(example().environment, device_uuid=uuid))

    assert [notice.batch_sizes for notice in notices.of(record) if notice.kind == "health_unknown"] == told
    columns = ["sm_clock_mhz", "power_w", "energy_mj_per_sample", "throttled"]
    assert frame([record])[columns].isna().all(axis=None)


def test_a_moment_at_a_limit_is_no_throttling():
    record = slowed(power_cap=0.004)

    assert not [notice for notice in notices.of(record) if notice.kind == "throttled"]
    assert health(record.rows[0]).throttled is False


def test_energy_of_several_devices_is_unknown_from_the_power_of_one():
    record = replace(example(), spec=replace(example().spec, dtype="bf16", phase="train", parallel="ddp", gpus=2))

    assert frame([record])["energy_mj_per_sample"].isna().all()
    assert frame([example()])["energy_mj_per_sample"].notna().any()
