"""The allowed silence of a process, trials that are repeated, and rows of which the check did not end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import example, row

from tputfind.errors import DeviceInUse, NoSuchDevice, OutOfTime
from tputfind.processes.messages import Diagnosis, Timed
from tputfind.record.record import Failure, FailureKind, OutputCheck, Trial
from tputfind.session import trials
from tputfind.session.health import Watches
from tputfind.session.host_load import HostWatch
from tputfind.session.trials import TrialRunner, diagnosis_of, timeout_s


def trial(batch_size, seconds, *, step_ms=None, kind: FailureKind | None = None):
    failure = None if kind is None else Failure(kind=kind, message="")
    return Trial(batch_size=batch_size, steps=3, step_ms=step_ms, failure=failure, seconds=seconds)


@pytest.mark.parametrize(
    ("batch_size", "taken", "expected_s"),
    [
        (8, [], 600),
        (8, [trial(1, 0.2)], 30),
        (8, [trial(1, 30.0)], 120),
        (8, [trial(1, 30.0), trial(2, 1.0)], 120),
        (8, [trial(16, 30.0, kind="out_of_memory")], 120),
        (8, [trial(16, 600.0, kind="timeout")], 600),
        (8, [trial(16, 500.0, kind="died"), trial(1, 30.0)], 120),
        (500, [trial(1, 14.0, step_ms=70 / 3)], 4 * (14 + 35 - 0.07)),
        (500, [trial(500, 40.0, step_ms=9e3)], 160),
        (500, [trial(1, 24.0, step_ms=9e3), trial(250, 24.0, step_ms=1e3)], 4 * (24 - 3 + 6)),
        # A slow trial consists mostly of its own steps, which count once.
        (501, [trial(1, 2.0, step_ms=40.0), trial(500, 62.0, step_ms=2e4)], 4 * (62 + 3 * 0.04)),
        (500, [trial(1, 4.0, step_ms=9e3, kind="out_of_memory")], 30),
        # Step times that grow faster than linearly are extrapolated: here a square.
        (400, [trial(size, 20.0, step_ms=size**2 / 10) for size in (10, 50, 100)], 4 * (20 + 3 * 15.99)),
    ],
)
def test_timeout_is_four_times_the_expected_time_of_a_trial(batch_size, taken, expected_s):
    assert timeout_s(batch_size, taken) == pytest.approx(expected_s)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1e5), st.floats(0, 1e6)), min_size=1),
    st.integers(1, 10**6),
    st.sampled_from([10.0, 30.0]),
)
def test_a_process_is_waited_for_longer_than_the_longest_trial_took(taken, batch_size, least_s):
    before = [trial(size, seconds, step_ms=step_ms) for size, seconds, step_ms in taken]

    assert timeout_s(batch_size, before, least_s) >= max(least_s, 4 * max(one.seconds for one in before))


class Answers:
    """Children that answer with these failures in order, and then with passed trials."""

    server_pid = None

    def __init__(self, *failures: Failure) -> None:
        self.asked = 0
        self._failures = failures

    def check_start(self, needed_s):
        """Keep the seconds that are needed: no budget is set."""
        self.needed_s = needed_s

    def ask_one(self, question, answer_type, timeout_s):
        self.asked += 1
        failure = self._failures[self.asked - 1] if self.asked <= len(self._failures) else None
        return Trial(batch_size=question.batch_size, failure=failure)


KERNEL = Failure(kind="kernel_limit", message="cuBLAS: execution failed (RuntimeError: CUDA error)")
AT_THE_SMALLEST = Failure(
    kind="error", message="cuBLAS: execution failed (RuntimeError: CUBLAS_STATUS_EXECUTION_FAILED)"
)
CRASH = Failure(kind="died", message="killed by SIGSEGV")


@pytest.mark.parametrize(
    ("failures", "taken", "asked", "failure"),
    [
        ([KERNEL, KERNEL], [], 2, KERNEL),
        ([KERNEL], [], 2, None),
        ([KERNEL, CRASH], [], 2, CRASH),
        ([AT_THE_SMALLEST, AT_THE_SMALLEST], [], 2, AT_THE_SMALLEST),
        ([KERNEL], [KERNEL], 1, KERNEL),
        ([KERNEL], [CRASH, None], 2, None),
        ([CRASH], [], 1, CRASH),
    ],
)
def test_first_kernel_error_of_a_run_is_tried_twice(failures, taken, asked, failure):
    record = example()
    children = Answers(*failures)
    runner = TrialRunner(children, record.spec, record.environment)

    before = [Trial(batch_size=1, failure=each) for each in taken]
    answer = runner.try_batch(8, None, memory_limit_bytes=None, taken=before)

    assert (answer.failure, children.asked) == (failure, asked)


@pytest.mark.parametrize(("took_s", "needed_s"), [((), 0.0), ((7.0,), 7.0), ((7.0, 0.5, 1.0), 2.5)])
def test_slow_first_trial_demands_only_its_own_time_from_a_budget(took_s, needed_s):
    children, record = Answers(), example()
    runner = TrialRunner(children, record.spec, record.environment)

    runner.try_batch(8, None, memory_limit_bytes=None, taken=[trial(1, seconds) for seconds in took_s])

    assert children.needed_s == needed_s


class Late:
    def ask_one(self, *_):
        raise OutOfTime("--budget ended before a batch was timed")


def test_diagnosis_that_the_budget_ends_finds_nothing_and_hides_no_failure():
    assert diagnosis_of(Late(), example().spec, 1, None) == Diagnosis()


def test_row_whose_check_the_budget_ends_is_kept_unchecked():
    def answers():
        yield Timed(unchecked=row(8, 5.0))
        raise OutOfTime("--budget ended before a batch was timed")

    found = trials._rows(answers(), Watches(()), HostWatch(on_host=False), None, None)

    kept = next(found)
    assert (kept.batch_size, kept.output) == (
        8,
        OutputCheck(result="unchecked", remark="--budget ended during the check"),
    )
    with pytest.raises(OutOfTime):
        next(found)


@pytest.mark.parametrize(("others_bytes", "error"), [(None, NoSuchDevice), (2**30, DeviceInUse)])
def test_strict_run_needs_to_know_that_others_hold_no_memory(others_bytes, error):
    record = example()
    environment = replace(record.environment, memory_of_others_bytes=others_bytes)

    with pytest.raises(error, match="--strict"):
        trials.check_memory(replace(record.spec, strict=True), environment)
    trials.check_memory(replace(record.spec, strict=False), environment)
    trials.check_memory(replace(record.spec, strict=True), record.environment)
