"""What of a record that was cut short is gone on with."""

from __future__ import annotations

import msgspec
import pytest
from support.records import example, row

from tputfind.record import Failure, Row, Trial
from tputfind.resume import without_accidents

ACCIDENTS = [
    Failure(kind="timeout", message="no answer within 2 s"),
    Failure(kind="died", message="killed by SIGTERM"),
    Failure(kind="died", message="killed by SIGINT"),
    Failure(kind="died", message="killed by SIGHUP"),
    Failure(kind="died", message="the measuring process was killed"),
]
FAULTS = [
    Failure(kind="out_of_memory", message="OutOfMemoryError: CUDA out of memory."),
    Failure(kind="died", message="killed by SIGSEGV"),
    Failure(kind="error", message="ValueError: killed by SIGTERM"),
    Failure(kind="wrong_output", message="sample 0 differs"),
]


@pytest.mark.parametrize("failure", ACCIDENTS, ids=lambda failure: failure.message)
def test_what_ended_a_process_from_outside_is_forgotten_and_what_others_timed_of_the_row_stands(failure):
    timed, lost = row(1, 4.0), Row(batch_size=2, failure=failure)
    begun = msgspec.structs.replace(row(4, 5.0), failure=failure)
    passed, ended = Trial(batch_size=1, step_ms=1.0), Trial(batch_size=2, failure=failure)
    record = msgspec.structs.replace(example(), trials=(passed, ended), rows=(timed, lost, begun))

    left = without_accidents(record)

    assert left.trials == (passed,)
    assert left.rows == (timed, row(4, 5.0))


@pytest.mark.parametrize("failure", FAULTS, ids=lambda failure: failure.message)
def test_what_says_something_of_the_model_is_kept(failure):
    trials = (Trial(batch_size=2, failure=failure),)
    record = msgspec.structs.replace(example(), trials=trials, rows=(Row(batch_size=2, failure=failure),))

    assert without_accidents(record) == record
