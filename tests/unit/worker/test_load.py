"""A device that its power limit slows is at work for three seconds before a window begins, and not for longer."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.listener import Heard

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


def test_loading_in_the_first_step_is_a_pause_and_the_rest_of_it_work(clock):
    load = Load()
    row(load, clock, pause_s=5, work_s=8)
    load.begin()
    clock.now_s += 1.5
    load.rested(0.5)

    assert load.seconds() == pytest.approx(3 - (3 - 3 * 0.5) - 1.0)


SLEEP_S = 0.01
SHORT = Work(lambda: time.sleep(SLEEP_S), lambda: time.sleep(SLEEP_S))


def plan_of(**given):
    usual = {"batches": 5, "window_s": 0.1, "latency_batches": 5, "every_latency": False, "warmup": 1}
    return Plan(**{**usual, **given}, least_batches=5, max_seconds=20)


def windows_of_rows(monkeypatch, held_down, plan):
    """Time rows in turn, on a processor whose clock is taken for one that is held down or is not.

    Return their windows, what their listeners heard, and the load that they leave.
    """
    answers = iter(held_down)
    monkeypatch.setattr(timing, "slowed_by_power", lambda _device: next(answers))
    monkeypatch.setattr(module, "_LOAD_S", 1.0)
    monkeypatch.setattr(module, "_FOR_PAUSE", 0.1)
    monkeypatch.setattr(timing, "WINDOW_S", 0.2)
    device, load = Cpu(), Load()
    heard = [Heard() for _ in held_down]
    found = [time_windows(device, SHORT, device.stopwatch(100), plan, each, load=load).throughput for each in heard]
    return found, heard, load


def test_a_row_right_behind_another_waits_for_less(monkeypatch):
    (first, second), heard, load = windows_of_rows(monkeypatch, [True, True], plan_of())

    assert (first.slowed, second.slowed) == (True, True)
    assert first.warmup_s > 0.9
    assert heard[1].busy_s[0] < 0.5  # what it waits for
    assert [each.windows for each in heard] == [2, 1]  # the first one's was taken anew
    assert min(sum(each.device_ms) for each in (first, second)) >= 200
    assert load.goes_on()


def test_a_row_that_is_slowed_no_more_ends_it(monkeypatch):
    found, heard, load = windows_of_rows(monkeypatch, [True, False], plan_of())

    assert [each.slowed for each in found] == [True, False]
    assert [each.windows for each in heard] == [2, 1]
    assert not load.goes_on()


def test_of_batches_by_number_as_many_are_kept_under_load(monkeypatch):
    found, _, _ = windows_of_rows(monkeypatch, [True, True], plan_of(batches=20, window_s=0.0))

    assert [len(each.device_ms) for each in found] == [20, 20]


def test_waiting_for_other_devices_is_no_warm_up(monkeypatch):
    monkeypatch.setattr(timing, "slowed_by_power", lambda _device: False)
    device, heard = Cpu(), Heard()
    heard.waits_s = 2.0
    found = time_windows(device, SHORT, device.stopwatch(100), plan_of(), heard, load=Load()).throughput

    assert found.warmup_s < 1.5


def test_short_batches_behind_a_first_step_that_took_long_are_not_waited_for_one_by_one(monkeypatch):
    """As on a device with events: each would hold the way to the device and back."""
    monkeypatch.setattr(timing, "slowed_by_power", lambda _device: False)
    device = Cpu()
    monkeypatch.setattr(device, "capabilities", replace(device.capabilities, events=True))
    steps = iter([0.15])

    def step():
        time.sleep(next(steps, 0.005))

    plan = plan_of(batches=20, window_s=0.0, warmup=0)
    found = time_windows(device, Work(step, step), device.stopwatch(100), plan, Heard(), load=Load()).throughput

    assert len(found.device_ms) == 20
    assert found.singles.synchronised_ms == []
    assert found.warmup_steps > 20
