"""The time of a run by part, from its record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.folders import record_paths
from support.records import example, row

from tputfind.record.files import load_record
from tputfind.record.record import Compiled
from tputfind.report.text import seconds_spent

RECORDS = record_paths("nvidia-h200/kinds/*.json")


def timed(*, seconds: float = 10.0, wall_s: float = 30.0, **fields):
    """Return a record with two trials of 3 s each and one row: 2 s of batches, 1 s of latencies, 1.5 s of warm-up."""
    one = row(8, 20.0)
    timing = replace(one.timings[0], device_ms=(20.0,) * 100, latency_ms=(10.0,) * 100, warmup_s=1.5, **fields)
    record = example()
    return replace(
        record,
        wall_s=wall_s,
        trials=tuple(replace(trial, seconds=3.0) for trial in record.trials[:2]),
        rows=(replace(one, timings=(timing,), seconds=seconds),),
    )


def test_seconds_spent_lists_every_part_and_remainder_is_starting_and_saving():
    spent = seconds_spent(timed(compiled=Compiled(seconds=4.0, graphs=1)))

    assert spent == pytest.approx(
        {
            "search": 6.0,
            "warm-up": 1.5,
            "timing": 3.0,
            "compiling": 4.0,
            "building and checks": 1.5,
            "starting and saving": 14.0,
        }
    )


@pytest.mark.parametrize(("one_window", "timing_s"), [(True, 2.0), (False, 3.0)])
def test_one_window_that_gives_both_is_counted_once(one_window, timing_s):
    assert seconds_spent(timed(one_window=one_window))["timing"] == pytest.approx(timing_s)


def test_rows_of_one_device_by_itself_count_as_rows():
    record = timed()
    spent = seconds_spent(record)
    both = seconds_spent(replace(record, single_rows=record.rows))

    assert both["timing"] == pytest.approx(2 * spent["timing"])
    assert both["starting and saving"] == pytest.approx(spent["starting and saving"] - 10.0)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_seconds_spent_in_recorded_run_add_up_to_wall_time(path):
    record = load_record(path)

    assert sum(seconds_spent(record).values()) == pytest.approx(record.wall_s, rel=0.01)


@given(st.floats(0, 100), st.floats(0, 100))
def test_no_part_is_below_zero(seconds, wall_s):
    assert all(part > 0 for part in seconds_spent(timed(seconds=seconds, wall_s=wall_s)).values())
