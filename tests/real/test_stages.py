"""The stage timer, on the host only."""

import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tputfind.errors import BadRequest
from tputfind.stages.timer import COLUMNS, RESERVOIR, Samples, StageTimer


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def by_name(timer: StageTimer):
    return {line.stage: line for line in timer.stages()}


@pytest.mark.parametrize("work", [busy, time.sleep])
@pytest.mark.parametrize("device", [True, False])
def test_host_time_lies_between_inner_and_outer_clock(work, device):
    timer = StageTimer("cpu")
    inside = around = 0.0
    for _ in range(20):
        start = time.perf_counter()
        with timer.stage("work", device=device):
            begun = time.perf_counter()
            work(0.002)
            inside += time.perf_counter() - begun
        around += time.perf_counter() - start

    (line,) = timer.stages()

    assert (line.stage, line.count, line.failed, line.unresolved) == ("work", 20, 0, 0)
    assert inside * 1000 <= line.host_ms * 20 <= around * 1000
    assert line.host_ms >= 2
    assert line.share == pytest.approx(1, abs=0.1)


def test_stages_nest_and_come_in_order_of_first_use():
    timer = StageTimer("cpu")
    for _ in range(3):
        with timer.stage("classify"):
            with timer.stage("classify/embed"):
                busy(0.002)
            with timer.stage("classify/embed"), timer.stage("classify/embed/head"):
                busy(0.001)

    outer, embed, head = timer.stages()

    assert [outer.stage, embed.stage, head.stage] == ["classify", "classify/embed", "classify/embed/head"]
    assert [outer.count, embed.count, head.count] == [3, 6, 3]
    assert head.host_ms <= 2 * embed.host_ms <= outer.host_ms
    assert outer.share + embed.share > 1.5


@pytest.mark.parametrize("device", [True, False])
def test_nested_same_stage_has_outer_share_and_both_counts(device):
    timer = StageTimer("cpu")

    def descends(depth: int) -> None:
        with timer.stage("work", device=device):
            busy(0.002)
            if depth:
                descends(depth - 1)

    for _ in range(3):
        descends(4)
    (line,) = timer.stages()

    assert line.count == 15
    assert 0.5 < line.share <= 1


def test_generator_left_open_in_a_stage_does_not_distort_share():
    timer = StageTimer("cpu")

    def yields():
        with timer.stage("work"):
            yield

    first, second = yields(), yields()
    next(first)
    next(second)
    first.close()
    second.close()
    timer.reset()
    with timer.stage("work"):
        busy(0.002)

    (line,) = timer.stages()
    assert (line.count, line.share) == (1, pytest.approx(1))


def test_the_same_stage_in_another_thread_is_not_inside_this_one():
    timer, shares = StageTimer("cpu"), []

    def works() -> None:
        with timer.stage("work"):
            busy(0.005)

    with timer.stage("work"):
        thread = threading.Thread(target=works)
        thread.start()
        thread.join()
        shares.append(by_name(timer)["work"].share)
    (line,) = timer.stages()

    assert shares == [pytest.approx(1)]
    assert line.count == 2
    assert line.share > 1


@pytest.mark.parametrize("error", [ValueError("no such box"), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_goes_through_unchanged_and_its_block_is_counted_apart(error):
    timer = StageTimer("cpu")
    with timer.stage("outer"), timer.stage("inner"):
        pass

    def fails() -> None:
        with timer.stage("outer"), timer.stage("inner"):
            busy(0.02)
            raise error

    with pytest.raises(type(error)) as raised:
        fails()

    assert raised.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    for line in timer.stages():
        assert (line.count, line.failed) == (1, 1)
        assert line.host_ms < 10


def test_stage_that_only_failed_has_no_times():
    timer = StageTimer("cpu")
    with pytest.raises(ValueError), timer.stage("work"):
        raise ValueError

    (line,) = timer.stages()

    assert (line.count, line.failed, line.unresolved) == (0, 1, 0)
    assert (line.host_ms, line.device_ms, line.enqueue_ms, line.share) == (None, None, None, None)
    assert len(timer.frame()) == 1


def test_leaving_a_block_early_is_no_failure():
    timer = StageTimer("cpu")

    def leaves() -> int:
        for _ in range(2):
            with timer.stage("continue"):
                continue
        with timer.stage("return"):
            return 1

    assert leaves() == 1
    assert [(line.count, line.failed) for line in timer.stages()] == [(2, 0), (1, 0)]


@pytest.mark.alone
def test_a_hundred_thousand_blocks_take_no_memory_and_little_time():
    timer = StageTimer("cpu")

    def blocks(count: int) -> None:
        for _ in range(count):
            with timer.stage("outer"), timer.stage("inner", device=False):
                pass

    blocks(100)
    start = time.perf_counter()
    blocks(100_000)
    each_us = (time.perf_counter() - start) / 200_000 * 1e6
    tracemalloc.start()
    try:
        blocks(100)
        before = tracemalloc.get_traced_memory()[0]
        blocks(50_000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    print(f"{each_us:.2f} us a block, {grown} bytes grown")
    assert each_us < 30
    assert grown < 4096


def test_reset_discards_measurements_and_the_open_block():
    timer = StageTimer("cpu")
    with timer.stage("warm-up"):
        pass
    with timer.stage("work"):
        timer.reset()
        busy(0.01)
    assert timer.stages() == ()

    time.sleep(0.05)
    with timer.stage("work"):
        busy(0.001)

    (line,) = timer.stages()
    assert line.count == 1
    assert line.host_ms < 10
    assert line.share == pytest.approx(1)


def test_the_table_has_every_column_and_leaves_the_device_empty():
    timer = StageTimer("cpu")
    for _ in range(200):
        with timer.stage("detect"):
            pass
        with timer.stage("draw", device=False):
            pass

    table = timer.frame()

    assert {name: str(kind) for name, kind in table.dtypes.items()} == COLUMNS
    assert table["stage"].tolist() == ["detect", "draw"]
    assert table["count"].tolist() == [200, 200]
    assert table[["device_ms", "device_ms_p50", "device_ms_p99", "enqueue_ms"]].isna().all(axis=None)
    assert table[["host_ms", "share", "failed", "unresolved"]].notna().all(axis=None)
    assert (table["host_ms"] > 0).all()
    assert table[["failed", "unresolved"]].eq(0).all(axis=None)
    assert 0 < table["share"].sum() <= 1


def test_empty_stage_table_has_the_same_columns():
    table = StageTimer("cpu").frame()

    assert len(table) == 0
    assert {name: str(kind) for name, kind in table.dtypes.items()} == COLUMNS


def test_threads_share_a_timer():
    timer = StageTimer("cpu")
    together = threading.Barrier(4)

    def work(number: int) -> None:
        together.wait()
        for _ in range(5000):
            with timer.stage("all"), timer.stage(f"thread {number}"):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        timer.stages()
    for thread in threads:
        thread.join()

    counts = {stage: line.count for stage, line in by_name(timer).items()}
    assert counts == {"all": 20_000} | {f"thread {number}": 5000 for number in range(4)}


def test_a_signal_handler_may_ask_at_any_moment():
    timer, asked = StageTimer("cpu"), Counter()

    def handler(*_) -> None:
        asked[len(timer.stages())] += 1

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            with timer.stage("work"):
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert asked.total() > 10


def test_inference_mode_may_be_inside_or_outside():
    timer, x = StageTimer("cpu"), torch.ones(8)
    with torch.inference_mode(), timer.stage("outside"):
        outside = x * 2
    with timer.stage("inside"), torch.inference_mode():
        inside = x * 2

    assert outside.is_inference()
    assert inside.is_inference()
    assert [line.count for line in timer.stages()] == [1, 1]


def test_a_block_is_good_for_one_with_at_a_time():
    timer = StageTimer("cpu")
    block = timer.stage("work")
    for _ in range(2):
        with block:
            pass
    with block, pytest.raises(RuntimeError, match="'work' is open: call stage"), block:
        pass

    (line,) = timer.stages()
    assert (line.count, line.failed) == (3, 0)


def test_a_timer_leaves_the_users_random_numbers_alone():
    states = random.getstate(), torch.random.get_rng_state()
    timer = StageTimer("cpu")
    for _ in range(10):
        with timer.stage("work"):
            pass
    samples = Samples()
    for number in range(2 * RESERVOIR):
        samples.add(number)

    assert random.getstate() == states[0]
    assert torch.equal(torch.random.get_rng_state(), states[1])


@pytest.mark.parametrize("device", ["meta", torch.device("mps")])
def test_device_without_marks_is_refused_with_advice(device):
    with pytest.raises(BadRequest, match=f"not on {device}") as raised:
        StageTimer(device)

    assert "cpu" in raised.value.hint


def test_timer_opens_no_gpu_and_imports_no_pandas():
    script = (
        "import sys, torch\n"
        "from tputfind.stages.timer import StageTimer\n"
        "timer = StageTimer()\n"
        "with timer.stage('work'):\n"
        "    torch.ones(8) * 2\n"
        "(line,) = timer.stages()\n"
        "timer.finish()\n"
        "assert line.count == 1 and line.device_ms is None and line.unresolved == 0, line\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'pandas' not in sys.modules\n"
        "open_block = timer.stage('left open')\n"
        "open_block.__enter__()\n"
    )

    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_few_samples_are_all_kept_and_counted_right(values):
    samples = Samples()
    for value in values:
        samples.add(value)

    assert samples.chosen == values
    assert samples.count == len(values)
    assert samples.total / samples.count == pytest.approx(statistics.fmean(values))


@given(st.integers(RESERVOIR + 1, 5 * RESERVOIR))
def test_reservoir_keeps_distinct_samples(count):
    samples = Samples()
    for number in range(count):
        samples.add(number)

    assert samples.count == count
    assert samples.total == count * (count - 1) / 2
    assert len(samples.chosen) == len(set(samples.chosen)) == RESERVOIR
    assert set(samples.chosen) <= set(range(count))


def test_early_and_late_samples_are_kept_alike():
    samples = Samples()
    for number in range(100_000):
        samples.add(number)

    tenths = Counter(number // 10_000 for number in samples.chosen)
    assert all(60 < tenths[tenth] < 140 for tenth in range(10))  # 100 each, give or take four standard deviations
