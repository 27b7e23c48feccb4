"""Devices side by side: verdicts against the median of the other devices, and the effect of load on each."""

import random
from math import exp
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import HEALTH, example, row

from tputfind.analysis import fleet
from tputfind.analysis.fleet import all_busy_share_of_window, ratio_to_others
from tputfind.record.record import Timing

SPAN = st.tuples(st.floats(0, 100), st.floats(0, 100)).map(lambda ends: (min(ends), max(ends)))


def timed(batch_size, paces_ms, **fields):
    """Return a row whose processes have these step times in ms; each took twenty batches."""
    timings = tuple(Timing(device_ms=(pace,) * 20, **{"health": HEALTH, **fields}) for pace in paces_ms)
    return replace(row(batch_size, paces_ms[0]), timings=timings)


def of_device(number, *rows, load="solo"):
    """Return a record of one GPU of a host."""
    record = example()
    name = f"cuda:{number}"
    environment = replace(record.environment, device=name, device_uuid=f"GPU-{number}")
    busy = 3 if load == "all_busy" else 1
    spec = replace(record.spec, device=name, load=load, busy_devices=busy)
    return replace(record, spec=spec, environment=environment, rows=rows, notices=())


STEADY = (10.0, 10.001, 9.999)


def test_processors_of_two_hosts_are_two_devices():
    def record_of_host(name):
        record = of_device(0, timed(8, STEADY))
        spec, there = replace(record.spec, device="cpu"), replace(record.environment, device="cpu", device_uuid=None)
        return replace(record, spec=spec, environment=replace(there, host=name))

    (found,) = fleet.compare_devices([record_of_host("one"), record_of_host("other")])

    assert len(found.devices) == 2


@given(SPAN, st.lists(st.none() | SPAN, max_size=4))
def test_busy_fraction_of_window_lies_between_0_and_1(window, others):
    share = all_busy_share_of_window(window, others)

    assert 0 <= share <= 1
    if None in others:
        assert share == 0


def test_busy_fraction_of_window_is_overlap_of_all_other_devices():
    assert all_busy_share_of_window((10, 20), [(0, 30), (5, 20)]) == 1
    assert all_busy_share_of_window((10, 20), [(12, 30), (5, 17)]) == pytest.approx(0.5)
    assert all_busy_share_of_window((10, 20), [(21, 30)]) == 0
    assert all_busy_share_of_window((10, 20), []) == 1


@pytest.mark.parametrize("apart", [0.0, 0.05])
@pytest.mark.parametrize("others", [1, 2, 3, 6])
def test_interval_of_ratio_covers_true_ratio_at_its_level(others, apart):
    draw = random.Random(others)
    runs, held = 400, 0
    for _ in range(runs):
        true_ms = [10 * exp(draw.gauss(0, apart)) for _ in range(others + 1)]
        rows = [timed(4, [pace * exp(draw.gauss(0, 0.02)) for _ in range(4)]) for pace in true_ms]
        _, interval = ratio_to_others(rows[0], rows[1:])
        middle_ms = sorted(true_ms[1:])[(others - 1) // 2]
        held += interval.low <= middle_ms / true_ms[0] <= interval.high

    assert held / runs >= 0.93


@given(st.lists(st.floats(1, 100), min_size=2, max_size=6))
def test_ratio_is_to_median_of_other_devices_and_inside_its_interval(paces):
    rows = [timed(8, (pace, pace * 1.001)) for pace in paces]
    ratio, interval = ratio_to_others(rows[0], rows[1:])

    rates = [one.samples_per_s for one in rows[1:]]
    assert interval.low < ratio < interval.high
    assert min(rates) * 0.999 <= rows[0].samples_per_s / ratio <= max(rates) * 1.001
    if len(rates) % 2:
        assert ratio == pytest.approx(rows[0].samples_per_s / median(rates))


def test_ratio_of_two_devices_is_reciprocal_of_reverse_ratio():
    one, other = timed(8, (10.0, 10.1)), timed(8, (12.0, 12.2))
    (ratio, interval), (back, backwards) = ratio_to_others(one, [other]), ratio_to_others(other, [one])

    assert ratio == pytest.approx(1 / back)
    assert (interval.low, interval.high) == pytest.approx((1 / backwards.high, 1 / backwards.low))


def test_slow_device_is_found_with_its_causes():
    cool = timed(8, STEADY)
    held = replace(HEALTH, sm_clock_mhz=1500.0, temperature_c=85.0, slowed={"power_cap": 0.4})
    slow = replace(timed(8, [11.0, 11.001, 10.999], health=held), memory_of_others_bytes=2**30)
    (found,) = fleet.compare_devices([of_device(0, cool), of_device(1, cool), of_device(2, slow)])

    assert [one.verdict for one in found.devices] == ["same", "same", "slower"]
    assert found.devices[2].ratio == pytest.approx(10 / 11)
    told = "; ".join(found.devices[2].causes)
    for part in ("SM clock 1500 MHz, the others 1700", "85 °C, the others 50", "power limit 40%", "1.0 GiB"):
        assert part in told
    assert found.devices[0].causes == ()


def test_verdict_is_for_fastest_batch_and_other_differing_rows_are_listed():
    even = (timed(1, STEADY), timed(8, STEADY))
    late = (timed(1, [12.0, 12.001, 11.999]), timed(8, STEADY))
    (found,) = fleet.compare_devices([of_device(0, *even), of_device(1, *even), of_device(2, *late)])

    assert found.batch_size == 8
    assert {one.verdict for one in found.devices} == {"same"}
    assert [(one.record.environment.device, one.row.batch_size) for one in found.elsewhere] == [("cuda:2", 1)]


def test_verdict_is_not_known_from_one_or_noisy_processes():
    once = timed(8, [10.0])
    wild = timed(8, [5.0, 10.0, 20.0])

    (found,) = fleet.compare_devices([of_device(0, once), of_device(1, timed(8, STEADY))])
    assert {one.verdict for one in found.devices} == {"not known"}
    (found,) = fleet.compare_devices([of_device(0, wild), of_device(1, timed(8, STEADY))])
    assert {one.verdict for one in found.devices} == {"not known"}


def test_single_device_or_unlike_devices_are_not_compared():
    first = of_device(0, timed(8, STEADY))
    other = of_device(1, timed(8, STEADY))
    bf16 = replace(other, spec=replace(other.spec, dtype="bf16"))
    unlike = replace(other, environment=replace(other.environment, device_name="NVIDIA Other"))

    assert fleet.compare_devices([first]) == fleet.compare_devices([first, first]) == []
    assert fleet.compare_devices([first, bf16]) == fleet.compare_devices([first, unlike]) == []
    assert fleet.compare_devices([first, of_device(1, timed(4, STEADY))]) == []


def test_all_busy_devices_are_compared_with_themselves_alone_and_summed():
    held = replace(HEALTH, sm_clock_mhz=1500.0, slowed={"power_cap": 0.9})
    alone = [of_device(number, timed(8, STEADY)) for number in range(3)]
    busy = [
        of_device(0, timed(8, STEADY, all_busy_share=1.0), load="all_busy"),
        of_device(1, timed(8, [12.5, 12.501, 12.499], health=held, all_busy_share=1.0), load="all_busy"),
        of_device(2, timed(8, STEADY, all_busy_share=0.5), load="all_busy"),
    ]
    ((found,),) = fleet.all_busy([*alone, *busy])

    assert [one.verdict for one in found.devices] == ["same", "slower", "same"]
    assert found.devices[1].ratio == pytest.approx(0.8)
    assert "SM clock 1500 MHz, alone 1700" in found.devices[1].causes
    assert "power limit 90% of the time" in found.devices[1].causes
    assert found.alone_per_s == pytest.approx(2400)
    assert found.busy_per_s == pytest.approx(2240)
    assert found.ratio == pytest.approx(2240 / 2400)
    assert found.interval.low < found.ratio < found.interval.high
    assert fleet.compare_devices([*alone, *busy]) == fleet.compare_devices(alone)


@pytest.mark.parametrize("change", [{"optimizer": "adamw"}, {"clip": 1.0}, {"accumulate": 4}])
def test_busy_devices_are_not_compared_with_other_training_alone(change):
    def training(load, **changes):
        record = of_device(0, timed(8, STEADY), load=load)
        return replace(record, spec=replace(record.spec, phase="train", dtype="bf16", **changes))

    busy = training("all_busy")

    assert len(fleet.all_busy([training("solo"), busy])) == 1
    assert fleet.all_busy([training("solo", **change), busy]) == []
    assert "alone" in fleet.records_for_plan([training("solo"), busy])[1][0]
    assert "alone" not in fleet.records_for_plan([training("solo", **change), busy])[1][0]


def test_plan_uses_slowest_of_all_busy_devices_and_none_alone():
    alone = [of_device(number, timed(8, STEADY)) for number in range(2)]
    busy = [of_device(0, timed(8, STEADY), load="all_busy"), of_device(1, timed(8, [12.5, 12.5]), load="all_busy")]

    assert fleet.records_for_plan(alone) == (alone, [])
    kept, (told,) = fleet.records_for_plan([*alone, *busy])
    assert kept == [busy[1]]
    assert "planned with the slowest of 2, cuda:1, while 3 devices were busy: 640.0 samples/s at batch 8, 0.80" in told
    assert fleet.records_for_plan(busy)[0] == [busy[1]]


def test_plan_ignores_all_busy_devices_timed_only_at_small_batches():
    alone = [of_device(number, timed(1, [5.0, 5.001, 4.999]), timed(8, STEADY)) for number in range(2)]
    cut = [of_device(number, timed(1, [5.0, 5.001, 4.999]), load="all_busy") for number in range(2)]
    whole = of_device(1, timed(1, [5.0, 5.001, 4.999]), timed(8, [12.5, 12.5]), load="all_busy")

    kept, (told,) = fleet.records_for_plan([*alone, *cut])
    assert kept == alone
    assert "planned with devices alone; batch 8, the fastest, was not timed while all were busy" in told
    kept, (told,) = fleet.records_for_plan([*alone, cut[0], whole])
    assert kept == [whole]
    assert "640.0 samples/s at batch 8, 0.80 times what it does alone" in told


def test_plan_keeps_devices_that_were_mostly_not_busy_together_without_others():
    apart = [of_device(number, timed(8, STEADY, all_busy_share=0.1), load="all_busy") for number in range(2)]

    kept, (told,) = fleet.records_for_plan(apart)

    assert kept == apart
    assert "mostly not busy at the same time" in told
