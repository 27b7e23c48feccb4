"""Texts and estimates of a run under way."""

from msgspec.structs import replace
from support.records import example

from tputfind.record.record import Row, Timing, Trial
from tputfind.session import expectations, progress

PACES_MS = (10.0, 20.0, 15.0)


def rows(processes: int, *sizes: int) -> tuple[Row, ...]:
    """Return rows of equal throughput whose processes took two seconds each and differ too much to be known."""
    return tuple(
        Row(
            batch_size=size,
            timings=tuple(
                Timing(device_ms=(size * ms,), latency_ms=(size * ms,), ended_by="full") for ms in PACES_MS[:processes]
            ),
            seconds=2.0 * processes,
        )
        for size in sizes
    )


def run_of(*timed: Row):
    trial = Trial(batch_size=8, step_ms=80.0, seconds=1.0)
    spec = replace(example().spec, processes=None, batches=None, thorough=False, batch_sizes=None, max_noise=None)
    return replace(example(), spec=spec, rows=timed, trials=(trial,), edge=None, safe=None, finished=None)


def test_trial_question_names_batch_sizes_that_enclose_the_edge():
    assert progress.question(1, 3) == "does batch 1 fit?"
    assert progress.question(244, 3, 61, 0) == "does batch 244 fit? looking above 61"
    assert progress.question(1, 3, 0, 61) == "does batch 1 fit? looking below 61"
    assert progress.question(2519, 3, 2518, 2600) == "does batch 2519 fit? looking between 2518 and 2600"


def test_timing_line_names_remaining_rows_or_reason_for_another_process():
    assert progress.timing(2, 0, 3) == "timing batch 2, 3 more to follow"
    assert progress.timing(8, 0, 0) == "timing batch 8"
    assert progress.timing(4, 2, 1) == "timing batch 4 again, process 3: answers may rest on it"


def test_estimate_of_rows_takes_the_seconds_that_their_processes_took():
    assert expectations.seconds_of_rows(run_of(*rows(2, 1, 2, 4)), [1, 2, 4], 2) == 6.0


def test_estimate_of_rows_includes_the_least_processes_of_answers():
    assert expectations.seconds_of_rows(run_of(*rows(1, 1, 2, 4)), [1, 2, 4], 1) == 12.0  # this process and a third


def test_estimate_of_the_first_rows_grows_with_the_rows_to_follow():
    run = run_of()

    assert expectations.seconds_of_rows(run, [1, 2, 4]) > expectations.seconds_of_rows(run, [1]) > 0
