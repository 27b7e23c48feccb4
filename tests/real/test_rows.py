"""How a row is timed: warm-up to a steady state, several processes, for as long as it takes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, median
from threading import Event, Thread

import pytest
from support.command import run
from support.folders import MODELS

from tputfind.analysis.answers import throughput_interval

ONE = ("--batch-sizes", 1, "--latency-batches", 10, "--device", "cpu")


def kinds(record) -> list[str]:
    return [notice.kind for notice in record.notices]


@contextmanager
def yardstick() -> Iterator[list[float]]:
    """How many times longer than asked for this machine sleeps in the meantime; by no code of the tool's."""
    asleep_ms: list[float] = []
    slowness: list[float] = []
    done = Event()

    def sleep() -> None:
        while not done.is_set():
            start_ns = time.perf_counter_ns()
            time.sleep(0.005)
            asleep_ms.append((time.perf_counter_ns() - start_ns) / 1e6)

    thread = Thread(target=sleep)
    thread.start()
    try:
        yield slowness
    finally:
        done.set()
        thread.join()
        slowness.append(fmean(asleep_ms) / 5)


def test_warm_up_goes_on_until_the_steps_are_as_fast_as_they_stay(tmp_path):
    asked = (f"{MODELS}/plain.py:settles_in_200_steps", *ONE, "--processes", 1, "--min-seconds", 1, "--warmup", 5)
    with yardstick() as slowness:
        record = run(tmp_path, *asked).record()
    (timing,) = record.rows[0].timings
    steps = timing.warmup_steps + len(timing.device_ms)
    asleep_ms = 300 + sum(5 * (1 + math.exp(-number / 50)) for number in range(2, steps + 1))
    bound_s = 0.3 + 4.0

    # Whether it was found steady, or came to its bound, is up to the unrest of this machine.
    assert timing.first_step_ms > 300
    assert timing.warmup_s > 0.3 + 0.5
    assert timing.warmup_steps > 100 or timing.warmup_s > bound_s
    assert timing.steady or timing.warmup_s > bound_s
    assert len(timing.device_ms) >= 100
    assert 1000 * timing.warmup_s + sum(timing.device_ms) < 1.5 * slowness[0] * asleep_ms
    if slowness[0] > 1.2:
        pytest.skip(f"this machine sleeps {slowness[0]:.1f} times as long as it is asked to: too busy to be steady")
    assert median(timing.device_ms[:20]) < 1.1 * median(timing.device_ms[-20:])
    assert sum(timing.device_ms) > 900
    assert "trend" not in kinds(record)


@pytest.mark.parametrize("seed", range(10))
def test_spans_are_steady_when_they_neither_change_nor_scatter_enough_to_hide_it(seed):
    from tputfind.worker.timing import _settled

    rng = random.Random(seed)

    def spans(scatter, change):
        """Sixty spans; the last third differs by this from the third before, and in nothing else."""
        third = [5 * rng.gauss(1, scatter) for _ in range(20)]
        return [*third, *third, *((1 + change) * span for span in third)]

    # In a third of 1 s they change by so much, in a window of 1 s by three times that, and 1 % is allowed.
    assert _settled(spans(0.0001, 0.0033), 1.0, 1.0) is True
    assert _settled(spans(0.0001, 0.0034), 1.0, 1.0) is False
    assert _settled(spans(0.0001, -0.0034), 1.0, 1.0) is False
    assert _settled(spans(0.0001, 0.0066), 2.0, 1.0) is True
    assert _settled(spans(0.0001, 0.1), 0.5, 1.0) is False
    # Where they scatter too much to show that, they must have been watched for as long as the window.
    assert _settled(spans(0.02, 0.005), 4.99, 5.0) is False
    assert _settled(spans(0.02, 0.005), 5.0, 5.0) is True
    assert _settled(spans(0.0001, 0.005), 5.0, 5.0) is False
    assert _settled(spans(0.1, 0.019), 5.0, 5.0) is True
    assert _settled(spans(0.1, 0.021), 5.0, 5.0) is False
    assert _settled([5.0] * 11, 5.0, 5.0) is None
    assert _settled([5.0] * 12, 5.0, 5.0) is True


def test_a_trials_step_is_the_fastest_after_the_first_and_one_alone_stands_for_itself():
    from tputfind.worker.devices.cpu import Cpu
    from tputfind.worker.timing import try_steps

    device, announced = Cpu(), []

    def fastest_ms(*seconds):
        paces = iter(seconds)
        return try_steps(device, lambda: time.sleep(next(paces)), len(seconds), announced.append)

    assert 20 <= fastest_ms(0, 1, 0.02) < 1000
    assert fastest_ms(0.02, 0.02) >= 20
    assert fastest_ms(0.02) >= 20
    assert len(announced) == 3
    assert announced[1] >= 2 * 0.02  # seconds, of all its steps


@pytest.mark.parametrize(("fastest_ms", "batches"), [(2.0, 500), (4.0, 250), (20.0, 100)])
def test_a_window_is_as_long_as_asked_even_if_steps_are_as_fast_as_the_fastest_of_a_warm_up(fastest_ms, batches):
    from tputfind.worker.timing import Plan, WarmUp, _batches_of

    plan = Plan(warmup=3, batches=100, latency_batches=10, least_batches=10, min_seconds=1, max_seconds=10)
    disturbed = WarmUp(
        steps=50, seconds=1, first_step_ms=30, step_ms=2 * fastest_ms, fastest_ms=fastest_ms, steady=True
    )

    assert _batches_of(plan, disturbed) == batches


def test_steps_that_never_settle_end_the_warm_up_at_its_bound_and_are_told(tmp_path):
    asked = (f"{MODELS}/plain.py:slows_down_for_ever", *ONE, "--processes", 1, "--min-seconds", 0.5, "--batches", 40)
    with yardstick() as slowness:
        record = run(tmp_path, *asked).record()
    (timing,) = record.rows[0].timings

    assert timing.steady is False
    assert 0.3 + 2.0 < timing.warmup_s < 4 * slowness[0]
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
