"""A power-limited device works for three seconds before a window begins, and not longer."""

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.listener import Heard

from tputfind.processes.messages import Plan
from tputfind.worker import timing
from tputfind.worker import warm_up as module
from tputfind.worker.devices.cpu import Cpu
from tputfind.worker.loops import Work
from tputfind.worker.timing import time_windows
from tputfind.worker.warm_up import Load

SPANS_S = st.integers(0, 10 * 64).map(lambda sixty_fourths: sixty_fourths / 64)  # they add up exactly


class Clock:
    """A clock that stands still until set."""

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
    """Let a row work, and return the seconds of work that its window still lacks."""
    clock.now_s += pause_s
    load.begin()
    clock.now_s += work_s
    lacking_s = load.seconds()
    load.leave(slowed=slowed)
    return lacking_s


def test_bring_up_works_in_moments_until_warm_up_is_complete(clock):
    load = Load()
    load.begin()

    def moment():
        clock.now_s += 0.7
        return 7

    assert load.bring_up(moment) == 5 * 7
    assert load.bring_up(moment) == 0


@given(st.lists(st.tuples(SPANS_S, SPANS_S, st.booleans()), min_size=1))
@example([(5, 8, True), (2.9, 0.25, True), (3.1, 0.25, False)])
def test_warm_up_lacks_three_seconds_or_one_after_a_slowed_row(rows):
    with pytest.MonkeyPatch.context() as patched:
        clock = Clock()
        patched.setattr(module, "perf_counter", clock)
        load, before = Load(), False
        for pause_s, work_s, slowed in rows:
            lacking_s = row(load, clock, pause_s=pause_s, work_s=work_s, slowed=slowed)
            assert lacking_s == pytest.approx(max(0.0, (1 if before and pause_s <= 3 else 3) - work_s), abs=1e-6)
            before = slowed


def test_loading_in_first_step_is_a_pause_and_rest_is_work(clock):
    load = Load()
    row(load, clock, pause_s=5, work_s=8)
    load.begin()
    clock.now_s += 1.2
    load.add_pause(0.5)

    assert load.seconds() == pytest.approx(1 - 0.7)


def test_loading_for_longer_is_a_rest(clock):
    load = Load()
    row(load, clock, pause_s=5, work_s=8)
    clock.now_s += 0.5
    load.begin()
    clock.now_s += 3.2
    load.add_pause(2.6)

    assert load.seconds() == pytest.approx(3 - 0.6)


SLEEP_S = 0.01
SHORT = Work(lambda: time.sleep(SLEEP_S), lambda: time.sleep(SLEEP_S))


def plan_of(**given):
    usual = {"batches": 5, "window_s": 0.1, "latency_batches": 5, "every_latency": False, "warmup": 1}
    return Plan(**{**usual, **given}, least_batches=5, max_seconds=20)


def windows_of_rows(monkeypatch, held_down, plan):
    """Time rows in sequence on a CPU whose clock counts as throttled or not.

    Return their windows, their listeners, and the final load.
    """
    answers = iter(held_down)
    monkeypatch.setattr(timing, "slowed_by_power", lambda _device: next(answers))
    monkeypatch.setattr(module, "_LOAD_S", 1.0)
    monkeypatch.setattr(module, "_SWING_S", 0.2)
    monkeypatch.setattr(timing, "WINDOW_S", 0.2)
    device, load = Cpu(), Load()
    heard = [Heard() for _ in held_down]
    found = [time_windows(device, SHORT, device.stopwatch(100), plan, each, load=load).throughput for each in heard]
    return found, heard, load


def test_row_directly_after_another_warms_up_less(monkeypatch):
    (first, second), heard, load = windows_of_rows(monkeypatch, [True, True], plan_of())

    assert (first.slowed, second.slowed) == (True, True)
    assert first.warmup_s > 0.9
    assert heard[1].busy_s[0] < 0.5  # its wait
    assert [each.windows for each in heard] == [2, 1]  # the window of the first one was repeated
    assert min(sum(each.device_ms) for each in (first, second)) >= 200
    assert load.goes_on()


def test_a_row_that_is_slowed_no_more_ends_it(monkeypatch):
    found, heard, load = windows_of_rows(monkeypatch, [True, False], plan_of())

    assert [each.slowed for each in found] == [True, False]
    assert [each.windows for each in heard] == [2, 1]
    assert not load.goes_on()


def test_fixed_number_of_batches_is_kept_under_load(monkeypatch):
    found, _, _ = windows_of_rows(monkeypatch, [True, True], plan_of(batches=20, window_s=0.0))

    assert [len(each.device_ms) for each in found] == [20, 20]


def timed_on(monkeypatch, step, plan, single=None, waits_s=0.0, **capabilities):
    """Time one row on a CPU with these capabilities; return the windows and the listener."""
    monkeypatch.setattr(timing, "slowed_by_power", lambda _device: False)
    device, heard = Cpu(), Heard()
    heard.waits_s = waits_s
    monkeypatch.setattr(device, "capabilities", replace(device.capabilities, **capabilities))
    found = time_windows(device, Work(step, single or step), device.stopwatch(100), plan, heard, load=Load())
    return found, heard


def loading(first_s, then_s):
    """Return a step that takes longer at its first call."""
    steps = iter([first_s])
    return lambda: time.sleep(next(steps, then_s))


def test_waiting_for_other_devices_is_no_warm_up(monkeypatch):
    found, _ = timed_on(monkeypatch, SHORT.step, plan_of(), SHORT.single, waits_s=2.0)

    assert found.throughput.warmup_s < 1.5


def test_short_batches_after_slow_first_step_are_not_waited_for_singly(monkeypatch):
    """As on a device with events: each batch would add a round trip to the device."""
    plan = plan_of(batches=20, window_s=0.0, warmup=0)
    found = timed_on(monkeypatch, loading(0.15, 0.005), plan, events=True)[0].throughput

    assert len(found.device_ms) == 20
    assert found.singles.synchronised_ms == []
    assert found.warmup_steps > 20


def test_device_with_power_readings_works_before_its_window(monkeypatch):
    plan = plan_of(window_s=0.4, warmup=0)
    read, _ = timed_on(monkeypatch, SHORT.step, plan, health=True)
    short, _ = timed_on(monkeypatch, SHORT.step, plan_of(window_s=0.0, warmup=0), health=True)
    worked_s = []
    monkeypatch.setattr(timing, "work_for", lambda seconds, _moment: worked_s.append(seconds) or 0)
    others = [timed_on(monkeypatch, SHORT.step, plan)[0] for _ in range(3)]  # a busy host may unsettle one

    assert read.throughput.warmup_s >= 0.15
    assert read.throughput.warmup_steps >= 10
    assert short.throughput.warmup_s >= 0.5, "until a power limit would show"
    assert worked_s == []
    assert min(other.throughput.warmup_s for other in others) < 0.15


def test_window_restarts_after_a_first_step_that_loads(monkeypatch):
    plan = plan_of(window_s=0.4, warmup=0)
    found, heard = timed_on(monkeypatch, loading(0.15, 0.005), plan, events=True, health=True)

    assert found.throughput.warmup_s >= 0.3
    assert heard.windows == 2


class Queue:
    """A device that computes submitted work in order, with its marks."""

    def __init__(self, submitted_s, computed_s):
        self._submitted_s, self._computed_s = submitted_s, computed_s
        self._done_s, self._marks_s = 0.0, []

    def step(self):
        time.sleep(self._submitted_s)
        self._done_s = max(time.perf_counter(), self._done_s) + self._computed_s

    def synchronize(self):
        time.sleep(max(0.0, self._done_s - time.perf_counter()))

    def mark(self):
        self._marks_s.append(max(time.perf_counter(), self._done_s))

    def spans_ms(self):
        marks_s, self._marks_s = self._marks_s, []
        return [1000 * (end - begin) for begin, end in pairwise(marks_s)]


def waited_for(monkeypatch, submitted_s, computed_s):
    """Time one row of batches with given times of submission and computation."""
    device, heard, queue = Cpu(), Heard(), Queue(submitted_s, computed_s)
    monkeypatch.setattr(timing, "slowed_by_power", lambda _device: False)
    monkeypatch.setattr(device, "capabilities", replace(device.capabilities, events=True, health=True))
    monkeypatch.setattr(device, "synchronize", queue.synchronize)
    step, plan = queue.step, plan_of(batches=2, window_s=0.2, warmup=0)
    return time_windows(device, Work(step, step), queue, plan, heard, load=Load()), heard


def test_long_batches_are_not_taken_once_more_for_that(monkeypatch):
    found, heard = waited_for(monkeypatch, 0.001, 0.15)

    assert heard.windows == 1
    assert found.one
    assert found.throughput.warmup_steps == 1
    assert min(found.throughput.device_ms) >= 150


def test_host_work_before_a_long_batch_is_not_device_time(monkeypatch):
    found, _ = waited_for(monkeypatch, 0.03, 0.09)

    assert not found.one
    assert min(found.latency_ms) >= 120
    assert max(found.throughput.device_ms) < 110


def test_loading_and_warm_up_do_not_shorten_the_latency_window(monkeypatch):
    plan = replace(plan_of(batches=2, window_s=0.1, latency_batches=40, every_latency=True), max_seconds=0.7)
    found, _ = timed_on(monkeypatch, loading(0.6, 0.01), plan, single=lambda: time.sleep(0.01), events=True)

    assert len(found.latency_ms) == 40


def test_batches_that_exceed_the_seconds_leave_half_of_them_to_latencies(monkeypatch):
    plan = replace(plan_of(batches=100, window_s=0.0, latency_batches=100, every_latency=True), max_seconds=0.8)
    found, _ = timed_on(monkeypatch, SHORT.step, plan, single=SHORT.step, events=True)

    assert 5 <= len(found.throughput.device_ms) < 50
    assert 20 <= len(found.latency_ms) < 100
