"""Recorded NVML readings of an H200: vit_b_16 reached its power limit and mobilenet_v3_large did not."""

import json
import math
from statistics import fmean

import msgspec
import pytest
from msgspec.structs import replace
from support.folders import GOLDEN
from support.records import example

from tputfind.record.environment import RankDevice
from tputfind.record.record import Health
from tputfind.session.health import Ends, Reading, Watch, Watches, memory_in_use_bytes, slowest, summarise
from tputfind.session.trials import TrialRunner

RECORDED = json.loads((GOLDEN / "nvml-h200.json").read_bytes())


def recorded(model: str) -> tuple[Ends, list[Reading]]:
    begin, end, within = (
        msgspec.convert(RECORDED[model][part], list[Reading] if part == "within" else Reading)
        for part in ("begin", "end", "within")
    )
    return Ends(begin, end), within


def test_power_limited_card_shows_lower_clocks_with_that_reason():
    health = summarise(*recorded("vit_b_16"), 1980)

    assert health.slowed == {"power_cap": pytest.approx(1.0)}
    assert 1500 < health.sm_clock_mhz < 1800
    assert 600 < health.power_w < 710
    assert 45 < health.temperature_c < 60


def test_a_card_below_its_power_limit_is_seen_at_its_highest_clock():
    health = summarise(*recorded("mobilenet_v3_large"), 1980)

    assert health.slowed == {}
    assert health.sm_clock_mhz == health.sm_clock_max_mhz == 1980
    assert 400 < health.power_w < 520


def moments(*, seconds: float, rest_s: float = 0.0) -> tuple[Ends, list[Reading]]:
    """Return readings every 0.05 s of a window at 500 W; the readings lag and show 120 W for ``rest_s``."""
    ends, _ = recorded("mobilenet_v3_large")
    begin, end = (replace(one, power_mw=120_000) for one in ends)
    at = [0.051 * number for number in range(1, math.ceil(seconds / 0.051))]
    told = [Reading(at_s=begin.at_s + one, power_mw=120_000 if one < rest_s else 500_000) for one in at]
    return Ends(begin, replace(end, at_s=begin.at_s + seconds)), told


def test_power_is_mean_of_readings_or_of_counter_in_long_windows():
    """The energy counter of an H100 rises every 100 ms: at one rate, windows of 0.35 s read 428 W and 565 W."""
    short, told = moments(seconds=0.35)
    long, told_in_long = moments(seconds=2.5)
    uncounted = Ends(*(replace(one, energy_mj=None) for one in long))
    of_counter_w = (long.end.energy_mj - long.begin.energy_mj) / 1000 / 2.5

    def rising(told: list[Reading]) -> list[Reading]:
        return [replace(look, power_mw=1000 * watt) for watt, look in enumerate(told, 500)]

    assert (len(told), len(told_in_long)) == (6, 49)
    assert summarise(short, rising(told), 1980).power_w == pytest.approx(fmean([502, 503, 504, 505]))
    assert summarise(uncounted, rising(told_in_long), 1980).power_w == pytest.approx(fmean(range(502, 549)))
    assert summarise(long, rising(told_in_long), 1980).power_w == pytest.approx(of_counter_w)


@pytest.mark.parametrize("seconds", [0.31, 0.35, 0.42, 1.3])
def test_the_rest_before_a_window_is_no_part_of_its_power(seconds):
    ends, told = moments(seconds=seconds, rest_s=0.12)
    watts = [look.power_mw / 1000 for look in told]

    assert fmean(watts) < 475
    assert summarise(ends, told, 1980).power_w == pytest.approx(500)


def test_a_slowdown_that_falls_between_the_readings_is_seen_in_the_counters():
    ends, within = recorded("mobilenet_v3_large")
    later = ends.end.slowed_ns | {"software_thermal": ends.begin.slowed_ns["software_thermal"] + 300_000_000}
    seconds = ends.end.at_s - ends.begin.at_s

    health = summarise(Ends(ends.begin, replace(ends.end, slowed_ns=later)), within, 1980)

    assert health.slowed == {"software_thermal": pytest.approx(0.3 / seconds)}


def test_a_card_that_has_no_counters_is_judged_by_the_readings():
    ends, within = recorded("vit_b_16")
    bare = Ends(*(replace(end, slowed_ns={}, energy_mj=None) for end in ends))

    health = summarise(bare, within, None)

    assert health.slowed == {"power_cap": 1.0}
    assert (health.power_w, health.sm_clock_max_mhz) == (None, None)


BEGIN = recorded("vit_b_16")[0].begin


@pytest.mark.parametrize("end", [{"energy_mj": BEGIN.energy_mj}, {"at_s": BEGIN.at_s + 0.01}])
def test_energy_counter_standing_still_or_of_a_short_window_is_not_used(end):
    ends, _ = recorded("vit_b_16")

    assert summarise(Ends(ends.begin, replace(ends.end, **end)), [], 1980).power_w is None


def test_card_without_readings_has_empty_health():
    assert summarise(Ends(Reading(at_s=1.0), Reading(at_s=2.0)), [], None) == Health(readings=1)


@pytest.mark.parametrize("uuid", [None, "GPU-00000000-0000-0000-0000-000000000000"])
def test_a_device_that_nvml_does_not_know_is_watched_to_no_effect(uuid):
    for watched in (Watch(uuid), Watches((uuid, None))):
        with watched as watch:
            assert watch.end() is None  # it did not begin
            watch.begin()
            assert watch.end() is None
    assert memory_in_use_bytes(uuid) is None


def test_health_of_a_job_is_that_of_its_device_with_the_lowest_clock():
    free = Health(readings=3, sm_clock_mhz=1900.0, sm_clock_max_mhz=1980.0)
    hot = Health(readings=3, sm_clock_mhz=1300.0, sm_clock_max_mhz=1980.0, slowed={"hardware_thermal": 1.0})
    unread = Health(readings=3)

    assert slowest([free, hot, unread]) == hot
    assert slowest([unread]) == unread
    assert slowest([]) is None


def test_devices_of_all_ranks_are_watched_but_one_alone_by_itself():
    record = example()
    beside = (RankDevice(device="cuda:1", device_name="GPU", device_uuid="GPU-1"),)
    environment = replace(record.environment, device_uuid="GPU-0", others=beside)
    spec = replace(
        record.spec, phase="train", dtype="fp32", parallel="ddp", gpus=2, device="cuda", soak=0, headroom=None
    )

    runner = TrialRunner(None, spec, environment)

    assert runner._uuids == ("GPU-0", "GPU-1")
    assert runner.single_device_runner()._uuids == ("GPU-0",)
