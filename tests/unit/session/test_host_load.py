"""CPU use of other processes is total CPU use without our own part."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tputfind.session.host_load import HostWatch, Reading, cores_of_others, reading

BURNS_A_SECOND = "import time\nwhile time.process_time() < 1: pass"
SECONDS = st.floats(0, 1e6)


def test_other_processes_keep_busy_cores_without_our_own_part():
    assert cores_of_others(Reading(10, 100, 50), Reading(12, 104, 50.8)) == pytest.approx(1.6)


@given(SECONDS, SECONDS, st.floats(0.2, 1e6))
def test_own_work_does_not_count_as_that_of_other_processes(busy_s, own_s, window_s):
    kept = cores_of_others(Reading(0, 0, 0), Reading(window_s, busy_s + own_s, own_s))

    assert kept is None or kept == pytest.approx(busy_s / window_s, abs=1e-3)


def test_short_window_or_constant_counters_give_no_host_load():
    assert cores_of_others(Reading(0, 0, 0), Reading(0.1, 1, 0)) is None
    assert cores_of_others(Reading(0, 7, 0), Reading(2, 7, 1)) is None


def test_cpu_time_of_an_ended_child_counts_as_own():
    before = reading()
    subprocess.run([sys.executable, "-c", BURNS_A_SECOND], check=True)
    after = reading()

    assert after.own_s - before.own_s >= 0.95
    assert after.busy_s - before.busy_s >= 0.5 * (after.own_s - before.own_s)


def test_host_load_is_not_read_if_the_host_does_not_compute():
    watch = HostWatch(on_host=False)
    watch.begin()

    assert watch.end() is None
