"""How long a process may be silent, as the trials before it let expect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tputfind.record.record import Failure, FailureKind, Trial
from tputfind.session.trials import timeout_s


def trial(batch_size, seconds, *, step_ms=None, kind: FailureKind | None = None):
    failure = None if kind is None else Failure(kind=kind, message="")
    return Trial(batch_size=batch_size, steps=3, step_ms=step_ms, failure=failure, seconds=seconds)


@pytest.mark.parametrize(
    ("batch_size", "taken", "expected_s"),
    [
        (8, [], 600),
        (8, [trial(1, 0.2)], 60),
        (8, [trial(1, 30.0)], 300),
        (8, [trial(1, 30.0), trial(2, 1.0)], 300),
        (8, [trial(16, 30.0, kind="out_of_memory")], 300),
        (8, [trial(16, 600.0, kind="timeout")], 600),
        (8, [trial(16, 500.0, kind="died"), trial(1, 30.0)], 300),
        (500, [trial(1, 4.0, step_ms=70 / 3)], 10 * (4 + 35)),
        (500, [trial(500, 40.0, step_ms=9e3)], 400),
        (500, [trial(1, 4.0, step_ms=9e3), trial(250, 4.0, step_ms=1e3)], 10 * (4 + 6)),
        (500, [trial(1, 4.0, step_ms=9e3, kind="out_of_memory")], 60),
    ],
)
def test_a_process_may_be_silent_for_ten_times_what_the_trials_let_expect(batch_size, taken, expected_s):
    assert timeout_s(batch_size, taken) == pytest.approx(expected_s)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1e5), st.floats(0, 1e6)), min_size=1),
    st.integers(1, 10**6),
)
def test_a_process_is_waited_for_longer_than_the_longest_trial_took(taken, batch_size):
    trials = [trial(size, seconds, step_ms=step_ms) for size, seconds, step_ms in taken]

    assert timeout_s(batch_size, trials) >= max(60, 10 * max(one.seconds for one in trials))
