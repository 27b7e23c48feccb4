"""A device that its power limit slows is at work for three seconds before a window begins, and not for longer."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tputfind.processes.messages import Plan
from tputfind.worker import load as module
from tputfind.worker import timing
from tputfind.worker.devices.cpu import Cpu
from tputfind.worker.load import Load
from tputfind.worker.loops import Work
from tputfind.worker.timing import time_windows

SPANS_S = st.floats(0, 10)


class Clock:
    """Stands where it was set."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def row(load, clock, *, pause_s, work_s, slowed=True):
    """Let a row work, and return how much work its window lacks then."""
    clock.now_s += pause_s
    load.begin()
    clock.now_s += work_s
    lacking_s = load.seconds()
    load.leave(slowed=slowed)
    return lacking_s


def test_a_device_works_for_three_seconds_and_its_first_window_is_among_them(clock):
    assert row(Load(), clock, pause_s=5, work_s=0) == pytest.approx(3)
    assert row(Load(), clock, pause_s=5, work_s=1.25) == pytest.approx(1.75)
    assert row(Load(), clock, pause_s=5, work_s=4) == 0


def test_work_for_three_times_a_pause_makes_up_for_it(clock):
    load = Load()
    row(load, clock, pause_s=5, work_s=8)

    assert row(load, clock, pause_s=0.5, work_s=0.25) == pytest.approx(1.25)


def test_work_that_no_power_limit_slowed_counts_for_no_later_row(clock):
    load = Load()
    row(load, clock, pause_s=5, work_s=8, slowed=False)

    assert row(load, clock, pause_s=0.01, work_s=1) == pytest.approx(2)


def test_it_works_on_in_moments_until_nothing_is_lacking(clock):
    load = Load()
    load.begin()

    def moment():
        clock.now_s += 0.7
        return 7

    assert load.bring_up(moment) == 5 * 7
    assert load.bring_up(moment) == 0


@given(st.lists(st.tuples(SPANS_S, SPANS_S), min_size=1))
def test_a_pause_never_spares_work_and_no_row_lacks_more_than_the_first(rows):
    with pytest.MonkeyPatch.context() as patched:
        clock = Clock()
        patched.setattr(module, "perf_counter", clock)
        load = Load()
        at_work_s = 0.0
        for pause_s, work_s in rows:
            at_work_s = max(0.0, min(3.0, at_work_s) - 3 * pause_s) + work_s
            assert row(load, clock, pause_s=pause_s, work_s=work_s) == pytest.approx(max(0.0, 3 - at_work_s), abs=1e-6)


def test_a_row_right_behind_another_waits_for_less(monkeypatch):
    """Through the windows of two rows, on a processor that is taken for one that is held down."""
    monkeypatch.setattr(timing, "slowed_by_power", lambda _device: True)
    monkeypatch.setattr(module, "_LOAD_S", 1.0)
    monkeypatch.setattr(timing, "WINDOW_S", 0.2)
    device, load = Cpu(), Load()
    work = Work(lambda: time.sleep(0.01), lambda: time.sleep(0.01))
    plan = Plan(
        batches=5, least_batches=5, window_s=0.1, latency_batches=5, every_latency=False, warmup=1, max_seconds=20
    )
    heard = Heard()
    first, second = (
        time_windows(device, work, device.stopwatch(100), plan, heard, load=load).throughput for _ in range(2)
    )

    assert first.slowed
    assert first.warmup_s > 0.9
    assert second.warmup_s < 0.6
    assert heard.windows == 2 + 1  # the first one's was taken anew


class Heard:
    """Counts the windows that begin."""

    windows = 0

    def busy(self, seconds):
        pass

    def window(self, *, begins):
        self.windows += begins

    def meet(self, work):
        return 0
