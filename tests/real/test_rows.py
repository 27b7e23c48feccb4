"""How a row is timed: warm-up to a steady state, several processes, for as long as it takes."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from support.command import MODELS, run

from tputfind.summary import throughput_interval

ONE = ("--batch-sizes", 1, "--latency-batches", 10, "--device", "cpu")


def kinds(record) -> list[str]:
    return [notice.kind for notice in record.notices]


def skip_if_disturbed(timing, pace_ms) -> None:
    """Skip where the steps of a model that only sleeps took far longer than it asked for: the machine is too busy."""
    asked_ms = 300 + sum(pace_ms(number) for number in range(2, timing.warmup_steps + len(timing.device_ms) + 1))
    took_ms = 1000 * timing.warmup_s + sum(timing.device_ms)
    if took_ms > 1.2 * asked_ms:
        pytest.skip(f"this machine is too busy: steps of {asked_ms:.0f} ms in all took {took_ms:.0f} ms")


def test_warm_up_goes_on_until_the_steps_are_as_fast_as_they_stay(tmp_path):
    asked = (f"{MODELS}/plain.py:settles_in_200_steps", *ONE, "--processes", 1, "--min-seconds", 1, "--warmup", 5)
    record = run(tmp_path, *asked).record()
    (timing,) = record.rows[0].timings
    skip_if_disturbed(timing, lambda number: 5 * (1 + math.exp(-number / 50)))

    # Whether it was found steady, or came to its bound, is up to the unrest of this machine.
    assert 300 < timing.first_step_ms < 400
    assert 0.8 < timing.warmup_s < 4.5
    assert timing.warmup_steps > 100
    assert median(timing.device_ms[:20]) < 1.1 * median(timing.device_ms[-20:])
    assert len(timing.device_ms) >= 100
    assert sum(timing.device_ms) > 900
    assert "trend" not in kinds(record)


@pytest.mark.parametrize("seed", range(10))
def test_spans_are_steady_when_they_neither_change_nor_scatter_enough_to_hide_it(seed):
    from tputfind.measure.timing import _settled

    rng = random.Random(seed)
    quiet = [5 * rng.gauss(1, 0.001) for _ in range(60)]
    noisy = [5 * rng.gauss(1, 0.02) for _ in range(60)]
    falling = [5 * rng.gauss(1 + 0.2 * (1 - number / 60), 0.001) for number in range(60)]

    assert _settled(quiet[:11], 0.1, 1.0) is None
    assert _settled(quiet, 2.0, 1.0) is True
    assert _settled(noisy, 0.5, 5.0) is False or abs(median(noisy[40:]) / median(noisy[20:40]) - 1) < 0.001
    assert _settled(falling, 2.0, 1.0) is False
    assert _settled(falling, 0.5, 1.0) is False


@pytest.mark.parametrize(("fastest_ms", "batches"), [(2.0, 500), (4.0, 250), (20.0, 100)])
def test_a_window_is_as_long_as_asked_even_if_steps_are_as_fast_as_the_fastest_of_a_warm_up(fastest_ms, batches):
    from tputfind.measure.timing import Plan, WarmUp, _batches_of

    plan = Plan(warmup=3, batches=100, latency_batches=10, least_batches=10, min_seconds=1, max_seconds=10)
    disturbed = WarmUp(
        steps=50, seconds=1, first_step_ms=30, step_ms=2 * fastest_ms, fastest_ms=fastest_ms, steady=True
    )

    assert _batches_of(plan, disturbed) == batches


def test_steps_that_never_settle_end_the_warm_up_at_its_bound_and_are_told(tmp_path):
    asked = (f"{MODELS}/plain.py:slows_down_for_ever", *ONE, "--processes", 1, "--min-seconds", 0.5, "--batches", 40)
    record = run(tmp_path, *asked).record()
    (timing,) = record.rows[0].timings
    skip_if_disturbed(timing, lambda number: 5 * 1.01**number)

    assert timing.steady is False
    assert 2 < timing.warmup_s < 4
    assert "trend" in kinds(record)


def test_without_least_seconds_warm_up_is_the_steps_that_were_asked_for(tmp_path):
    asked = (f"{MODELS}/plain.py:settles_in_200_steps", *ONE, "--processes", 1, "--min-seconds", 0, "--warmup", 7)
    record = run(tmp_path, *asked, "--batches", 20).record()
    (timing,) = record.rows[0].timings

    assert (timing.warmup_steps, len(timing.device_ms)) == (7, 20)


def test_a_row_is_spread_over_processes_that_share_its_batches(tmp_path):
    asked = (f"{MODELS}/plain.py:sleeps", "--batch-sizes", "1,2", "--batches", 20, "--latency-batches", 11)
    record = run(tmp_path, *asked, "--min-seconds", 0).record()

    for row in record.rows:
        assert [len(timing.device_ms) for timing in row.timings] == [7, 7, 6]
        assert [len(timing.latency_ms) for timing in row.timings] == [4, 4, 3]
        assert row.output is not None
    assert "cut_short" not in kinds(record)


def test_processes_that_differ_widen_the_interval_and_noise_that_is_asked_for_takes_more_of_them(tmp_path):
    """The pace of this model depends on its process: no number of batches in one would show it."""
    asked = (f"{MODELS}/plain.py:paced_by_its_process", *ONE, "--min-seconds", 0, "--batches", 30)
    (tmp_path / "few").mkdir()
    (tmp_path / "more").mkdir()
    few = run(tmp_path / "few", *asked).record()
    more = run(tmp_path / "more", *asked, "--max-noise", "20%", "--max-seconds", 60).record()

    assert len(few.rows[0].timings) == 3
    assert throughput_interval(few.rows[0]).half_width > 0.03
    assert "wide_interval" in kinds(few)
    assert len(more.rows[0].timings) >= 3
    assert throughput_interval(more.rows[0]).half_width <= 0.2
    assert "max_noise_not_reached" not in kinds(more)


def test_noise_that_cannot_be_reached_ends_with_the_seconds_and_is_told(tmp_path):
    asked = (f"{MODELS}/plain.py:paced_by_its_process", *ONE, "--min-seconds", 0, "--batches", 30)
    ran = run(tmp_path, *asked, "--max-noise", "0.3%", "--max-seconds", 1)

    assert ran.status == 0, ran.err
    assert 3 <= len(ran.record().rows[0].timings) < 20
    assert "--max-noise 0.30% was not reached at batch 1" in " ".join(ran.out.split())


def test_a_row_that_is_cut_short_is_cut_in_each_process(tmp_path):
    asked = (f"{MODELS}/plain.py:sleeps", "--batch-sizes", 20, "--max-seconds", 1, "--min-seconds", 0)
    record = run(tmp_path, *asked, "--processes", 2).record()
    row = record.rows[0]

    assert [len(timing.device_ms) for timing in row.timings] == [5, 5]
    assert "cut_short" in kinds(record)
