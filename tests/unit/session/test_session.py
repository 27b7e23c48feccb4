from __future__ import annotations

import msgspec
import pytest
from support.records import example
from support.searches import OUT_OF_MEMORY, SEARCHES

from tputfind.record.files import RecordFile
from tputfind.record.record import TRIAL_STEPS, Edge, Trial
from tputfind.session.progress import Silent
from tputfind.session.session import Session

SEARCHED = SEARCHES["densenet121 fp32 24GiB"]
SMALLER, LARGER = 1311, 1903
"""What is forecast of it: the one does not fit, the other does."""
EDGE = Edge(
    largest_batch=SEARCHED.edge,
    limited_by="memory",
    fails_at=SEARCHED.edge + 1,
    memory_limit_bytes=SEARCHED.limit_bytes,
)


class Oracle:
    """Answers trials, and notes which it was asked."""

    memory_limit_bytes = SEARCHED.limit_bytes

    def __init__(self, fails, step_ms):
        self.asked = []
        self._fails = fails
        self._step_ms = step_ms

    def memory_of_others_bytes(self):
        return 0

    def try_batch(self, batch_size, passed, *, steps, memory_limit_bytes, taken):
        self.asked.append((batch_size, steps))
        self.told_of = taken
        return Trial(
            batch_size=batch_size,
            steps=steps,
            step_ms=self._step_ms,
            memory_limit_bytes=memory_limit_bytes,
            failure=OUT_OF_MEMORY if batch_size in self._fails else None,
        )


def looked(*fails, edge=EDGE, step_ms=100.0, **options):
    """Return the record after looking around an edge where these batch sizes fail, and what was asked."""
    spec = msgspec.structs.replace(example().spec, **{"soak": 0, "memory_limit_bytes": SEARCHED.limit_bytes, **options})
    record = msgspec.structs.replace(example(), spec=spec, trials=SEARCHED.taken(), edge=edge, safe=None, rows=())
    oracle = Oracle(fails, step_ms)
    session = Session(record, oracle, RecordFile(None, ""), Silent())
    session.probe_non_monotonic(edge)
    return session.record, oracle.asked


def test_a_run_that_is_gone_on_with_waits_as_long_as_the_trials_of_its_record_let_expect():
    spec = msgspec.structs.replace(example().spec, memory_limit_bytes=SEARCHED.limit_bytes)
    record = msgspec.structs.replace(example(), spec=spec, trials=SEARCHED.taken(), rows=())
    oracle = Oracle([], 100.0)
    Session(record, oracle, RecordFile(None, ""), Silent()).try_batch(10**6)

    assert oracle.told_of == record.trials


def test_a_smaller_batch_that_is_expected_to_fail_and_a_larger_one_expected_to_fit_are_tried_and_told():
    record, asked = looked(SMALLER)

    assert asked == [(SMALLER, TRIAL_STEPS), (LARGER, TRIAL_STEPS), (LARGER, 20)]
    told = {notice.kind: (notice.batch_sizes, notice.seen) for notice in record.notices}
    assert told["smaller_batches_fail"] == ((SMALLER,), f"batch {SMALLER} ran out of memory, though 1663 fits")
    assert told["larger_batches_fit"] == ((LARGER,), f"batch {LARGER} lasted 20 steps, though 1664 ran out of memory")


def test_a_larger_batch_lasts_as_long_as_answers_are_soaked_for():
    _, asked = looked(SMALLER, soak=50)

    assert asked[-1] == (LARGER, TRIAL_STEPS + 50)


def test_a_forecast_that_is_wrong_of_the_smaller_batch_is_not_asked_for_a_larger_one():
    record, asked = looked()

    assert asked == [(SMALLER, TRIAL_STEPS)]
    assert not {"smaller_batches_fail", "larger_batches_fit"} & {notice.kind for notice in record.notices}


def test_a_larger_batch_that_fails_its_trial_is_not_told():
    record, asked = looked(SMALLER, LARGER)

    assert asked == [(SMALLER, TRIAL_STEPS), (LARGER, TRIAL_STEPS)]
    assert {notice.kind for notice in record.notices if LARGER in notice.batch_sizes} == set()


def test_a_larger_batch_is_not_run_for_longer_than_a_row_may_take():
    _, asked = looked(SMALLER, step_ms=4000.0, max_seconds=60.0)

    assert asked == [(SMALLER, TRIAL_STEPS), (LARGER, TRIAL_STEPS)]


@pytest.mark.parametrize(
    ("edge", "options"),
    [
        (msgspec.structs.replace(EDGE, limited_by="latency"), {}),
        (msgspec.structs.replace(EDGE, largest_batch=0, fails_at=1), {}),
        (msgspec.structs.replace(EDGE, largest_batch=1600, fails_at=1601), {}),  # rows failed where trials pass
        (EDGE, {"search": "bisect"}),
    ],
)
def test_nothing_is_tried_around_an_edge_that_the_forecast_does_not_explain(edge, options):
    _, asked = looked(SMALLER, edge=edge, **options)

    assert asked == []
