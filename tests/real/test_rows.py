"""Timing of a row: after its transient, in several processes, until it is known or its time is up."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, median
from threading import Event, Thread

import pytest
from support.command import run
from support.folders import MODELS

from tputfind.analysis.answers import fastest, knee, throughput_interval
from tputfind.processes.messages import TimeBatches, Timed, TryBatch
from tputfind.record.spec import read_spec
from tputfind.session import stopping
from tputfind.session.inspect import inspect

ONE = ("--batch-sizes", 1, "--device", "cpu")


def kinds(record) -> list[str]:
    return [notice.kind for notice in record.notices]


@contextmanager
def yardstick() -> Iterator[list[float]]:
    """Measure how many times longer than requested this machine sleeps meanwhile, without code of the tool."""
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


@pytest.mark.alone
def test_steps_that_have_not_settled_are_left_out_of_the_window(tmp_path):
    asked = (f"{MODELS}/plain.py:settles_in_200_steps", *ONE, "--processes", 1)
    with yardstick() as slowness:
        record = run(tmp_path, *asked).record()
    (timing,) = record.rows[0].timings

    assert timing.first_step_ms > 300
    assert timing.warmup_steps > 30
    assert timing.warmup_s > 0.3 + 0.2
    assert sum(timing.device_ms) >= 1000
    assert timing.ended_by in ("full", "unsettled")
    if slowness[0] > 1.2:
        pytest.skip(f"this machine sleeps {slowness[0]:.1f} times as long as it is asked to: too busy to be steady")
    assert timing.steady
    assert median(timing.device_ms[:20]) < 1.1 * median(timing.device_ms[-20:])
    assert "trend" not in kinds(record)


def test_settled_from_separates_transient_from_drift():
    from tputfind.worker.timing import settled_from

    falling = [9.0, 8.5, 8.0, 7.0, 6.0]
    steady = [5.0, 5.01] * 50
    assert settled_from(falling + steady) == (5, True)
    assert settled_from(steady, 3) == (3, True)
    assert settled_from([5.0] * 200) == (0, True)
    assert settled_from([5.0 + 0.01 * number for number in range(100)])[1] is False
    too_little_for_any_figure = [5.0 + 0.00005 * number for number in range(100)]
    assert settled_from(too_little_for_any_figure) == (0, True)
    assert settled_from([5 * 1.01**number for number in range(300)])[1] is False
    assert settled_from([6.0, 5.0, 5.0])[1] is None
    assert settled_from([], 5) == (0, None)
    assert settled_from([5.0], 5) == (1, None)


def test_window_lacks_batches_until_planned_number_and_duration():
    from tputfind.processes.messages import Plan
    from tputfind.worker.loops import MOST_MARKED
    from tputfind.worker.timing import lacking_batches

    plan = Plan(
        batches=4, least_batches=1, window_s=0.5, latency_batches=34, every_latency=False, warmup=0, max_seconds=2
    )
    assert lacking_batches(plan, [], 1000.0) == 4
    assert lacking_batches(plan, [], 10.0) == 50
    assert lacking_batches(plan, [10.0] * 20, 10.0) == 30
    assert lacking_batches(plan, [10.0] * 50, 10.0) == 0
    assert lacking_batches(plan, [1000.0] * 3, 1000.0) == 1
    assert lacking_batches(plan, [0.01] * (MOST_MARKED - 1), 0.01) == 1
    assert lacking_batches(plan, [0.01] * MOST_MARKED, 0.01) == 0


def test_trial_step_is_fastest_after_the_first_or_the_only_one():
    from tputfind.worker.devices.cpu import Cpu
    from tputfind.worker.loops import Work, trial_step_ms, try_steps

    device, announced = Cpu(), []

    def fastest_ms(*seconds):
        paces = iter(seconds)
        work = Work(step := lambda: time.sleep(next(paces)), step)
        return trial_step_ms(try_steps(device, work, len(seconds), announced.append).spans_ms)

    assert 20 <= fastest_ms(0, 1, 0.02) < 1000
    assert fastest_ms(0.02, 0.02) >= 20
    assert fastest_ms(0.02) >= 20
    assert len(announced) == 3
    assert announced[1] >= 2 * 0.02  # seconds, of all its steps


PROCESSES = """
import os

import torch


def make():
    with open(__file__ + ".built", "a") as built:
        built.write(f"{os.getpid()}\\n")
    return torch.nn.Linear(4, 4), lambda batch: torch.randn(batch, 4)
"""


def test_process_of_a_trial_continues_as_the_row_of_its_batch(tmp_path, ask):
    (tmp_path / "counted.py").write_text(PROCESSES)

    asked = (f"{tmp_path}/counted.py:make", "--device", "cpu", "--max-batch", 2, "--processes", 1, "--max-seconds", 1)
    record = ask(tmp_path, *asked).record()

    assert [trial.batch_size for trial in record.trials] == [1, 2]
    assert [row.batch_size for row in record.rows if row.status == "ok"] == [1, 2]
    assert (
        len(set((tmp_path / "counted.py.built").read_text().split())) == 3
    )  # one for diagnosis, one for each batch size


SLOW_AT_FIRST = """
import time

import torch
from torchvision.models import resnet18


def make():
    model, first = resnet18(), iter([1.0])
    model.register_forward_pre_hook(lambda *_: time.sleep(next(first, 0.0)))
    return model, lambda batch: torch.randn(batch, 3, 64, 64)
"""


def test_row_after_its_trial_equals_row_in_fresh_process(tmp_path, kept):
    (tmp_path / "slow.py").write_text(SLOW_AT_FIRST)
    spec = read_spec(f"{tmp_path}/slow.py:make", {"device": "cpu"})
    timing = stopping.process_plan(spec, 0)
    can = inspect(spec, kept).environment.can
    going = list(kept.ask(TryBatch(spec, 8, can=can, then=timing), Timed, 60))
    fresh = [told.row for told in kept.ask(TimeBatches(spec, timing, (8,), can=can), Timed, 60) if told.row]
    (trial,) = (told.trial for told in going if told.trial)
    (behind,) = (told.row for told in going if told.row)

    assert trial.failure is behind.failure is fresh[0].failure is None
    assert behind.output.result == fresh[0].output.result == "right"
    assert behind.timings[0].first_step_ms > 1000 > trial.step_ms
    assert behind.peak_allocated_bytes == pytest.approx(fresh[0].peak_allocated_bytes, rel=0.05)
    assert behind.peak_allocated_bytes >= trial.peak_allocated_bytes


def test_steps_that_never_settle_end_at_the_bound_with_notice(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:slows_down_for_ever", *ONE, "--processes", 1)
    record = ask(tmp_path, *asked).record()
    (timing,) = record.rows[0].timings

    assert (timing.steady, timing.ended_by) == (False, "unsettled")
    assert timing.warmup_s + sum(timing.device_ms) / 1000 > 4.0
    assert {"trend", "not_settled"} & set(kinds(record))


@pytest.mark.alone
def test_row_known_early_takes_only_its_three_processes(tmp_path):
    record = run(tmp_path, f"{MODELS}/plain.py:sleeps", "--batch-sizes", "1,8", "--max-noise", "50%").record()

    for row in record.rows:
        assert row.ended_by == "known"
        assert len(row.timings) == 3
        assert throughput_interval(row).half_width <= 0.5
        assert all(timing.ended_by == "full" for timing in row.timings)
        assert all(sum(timing.device_ms) >= 1000 / 3 for timing in row.timings)
    assert len(record.rows[1].device_ms) < 100


def test_every_row_and_window_of_default_run_has_end_reason(tmp_path, ask):
    record = ask(tmp_path, f"{MODELS}/plain.py:sleeps", "--max-batch", 4).record()

    assert [row.batch_size for row in record.rows] == [1, 2, 4]
    assert {row.ended_by for row in record.rows} <= {"full", "time", "beside"}
    assert {timing.ended_by for row in record.rows for timing in row.timings} <= {"full", "unsettled", "time"}
    assert all(len(row.timings) in ((1, 2) if row.ended_by == "beside" else (3,)) for row in record.rows)
    assert all(row.ended_by != "beside" for row in (fastest(record.rows), knee(record.rows)))


def test_warm_up_steps_do_not_extend_a_row_beyond_its_seconds(tmp_path, ask):
    asked = ("--batch-sizes", 20, "--warmup", 100, "--max-seconds", 1, "--processes", 1)
    record = ask(tmp_path, f"{MODELS}/plain.py:sleeps", *asked).record()
    (timing,) = record.rows[0].timings

    assert timing.ended_by == "time"
    assert timing.warmup_s + sum(timing.device_ms) / 1000 < 5  # of the 20 s that 100 steps take


def test_first_process_of_a_row_runs_alone_and_gives_its_peak(tmp_path, ask):
    """Rows in one process share its peak: later rows would show the peak of the largest earlier row."""
    asked = ("resnet18", "--image-size", 128, "--batch-sizes", "1,16", "--batches", 3)
    shared = ask(tmp_path, *asked).record()
    (tmp_path / "alone").mkdir()
    alone = ask(tmp_path / "alone", *asked, "--processes", 1).record()

    assert [len(row.timings) for row in shared.rows] == [3, 3]
    for row, by_itself in zip(shared.rows, alone.rows, strict=True):
        assert row.peak_allocated_bytes == pytest.approx(by_itself.peak_allocated_bytes, rel=0.15)
    small, large = (row.peak_allocated_bytes for row in shared.rows)
    assert small < 0.7 * large


@pytest.mark.alone
def test_differing_processes_widen_interval_and_max_noise_adds_processes(tmp_path):
    """The step time of this model depends on its process, so more batches in one process do not show it."""
    asked = (f"{MODELS}/plain.py:paced_by_its_process", *ONE, "--batches", 30)
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


def test_unreachable_noise_ends_by_time_with_a_notice(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:paced_by_its_process", *ONE, "--batches", 30)
    ran = ask(tmp_path, *asked, "--max-noise", "0.3%", "--max-seconds", 1)

    assert ran.status == 0, ran.err
    assert 3 <= len(ran.record().rows[0].timings) < 20
    assert "--max-noise 0.30% was not reached at batch 1" in " ".join(ran.out.split())


def test_a_row_that_is_cut_short_is_cut_in_each_process(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:sleeps", "--batch-sizes", 20, "--max-seconds", 1, "--batches", 50)
    record = ask(tmp_path, *asked, "--processes", 2).record()
    row = record.rows[0]

    assert row.ended_by == "time"
    assert [timing.ended_by for timing in row.timings] == ["time", "time"]
    assert all(1 <= len(timing.device_ms) <= 5 for timing in row.timings)
    assert "cut_short" in kinds(record)
