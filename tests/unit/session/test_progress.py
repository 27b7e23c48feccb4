"""Texts, estimates and expectations of a run under way."""

import pytest
from msgspec.structs import replace
from support.records import CPU_CAN, TRACE, example, row
from support.searches import OUT_OF_MEMORY, SEARCHES

from tputfind.record.record import Compiled, Failure, Row, Timing, Trial
from tputfind.record.types import LARGEST_BATCH
from tputfind.search.forecast import FIRST_BATCH
from tputfind.session import expectations, progress
from tputfind.session.trials import OTHERS_TOLERANCE_BYTES

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


def test_lines_of_trials_and_timings_name_the_bracket_and_rows_to_follow():
    assert progress.question(1, 3) == "does batch 1 fit?"
    assert progress.question(244, 3, 61, 0) == "does batch 244 fit? looking above 61"
    assert progress.question(1, 3, 0, 61) == "does batch 1 fit? looking below 61"
    assert progress.question(2519, 3, 2518, 2600) == "does batch 2519 fit? looking between 2518 and 2600"
    assert progress.timing(2, 0, 3) == "timing batch 2, 3 more to follow"
    assert progress.timing(8, 0, 0) == "timing batch 8"
    assert progress.timing(4, 2, 1) == "timing batch 4 again, process 3"


@pytest.mark.parametrize(
    ("kind", "message", "said"),
    [
        ("out_of_memory", "CUDA out of memory", "does not fit: out of memory"),
        ("kernel_limit", "cuBLAS: execution failed (RuntimeError)", "does not fit: cuBLAS: execution failed"),
        ("died", "killed by SIGKILL", "does not fit: killed by SIGKILL"),
        ("died", "killed by SIGSEGV", "fails: killed by SIGSEGV"),
        ("error", "ValueError: mine", "fails: ValueError: mine"),
    ],
)
def test_verdict_on_a_batch_names_its_failure_or_the_limit_of_latency(kind, message, said):
    slow = Trial(batch_size=606, step_ms=1372.3)

    assert progress.verdict(Trial(batch_size=8, failure=Failure(kind=kind, message=message)), None) == said
    assert progress.verdict(slow, "latency") == "fits but is too slow: 1372 ms a step"
    assert progress.verdict(slow, None) == "fits"


def test_estimate_of_rows_takes_the_seconds_that_their_processes_took():
    assert expectations.seconds_of_rows(run_of(*rows(2, 1, 2, 4)), [1, 2, 4], 2) == 6.0
    assert expectations.seconds_of_rows(run_of(*rows(1, 1, 2, 4)), [1, 2, 4], 1) == 12.0  # this process and a third
    assert expectations.seconds_of_rows(run_of(), [1, 2, 4]) > expectations.seconds_of_rows(run_of(), [1]) > 0


EXACT = {"batches": 10, "processes": 1, "warmup": 5}
"""One process of 3 first steps, 5 warm-up steps, 10 batches back to back, and 10 alone if the device has events."""


@pytest.mark.parametrize(
    ("sizes", "host", "options", "expected_s"),
    [
        ([8], False, EXACT, 1 + 28 * 0.08),
        ([8], True, EXACT, 1 + 18 * 0.08),
        ([4], False, EXACT, 1 + 28 * 0.08),
        ([12], False, EXACT, 1 + 28 * 0.12),
        ([56], False, EXACT, 1 + 28 * 0.32),  # nearer to 64, which took 320 ms
        ([128], False, EXACT, 1 + 28 * 0.64),
        ([8, 12], False, EXACT, 2 + 28 * 0.2),
        ([8], False, EXACT | {"max_seconds": 2.0}, 1 + 2.0),
        ([800], False, EXACT | {"max_seconds": 2.0}, 1 + 4 * 4.0),  # the first steps and one batch
        ([8], False, {"slo_ms": None}, 1 + 2 / 3 + 3 * 0.08),  # windows of a third of a second
        ([8], False, {"slo_ms": None, "processes": 10}, 1 + 0.4),  # its share of four seconds
    ],
)
def test_estimate_of_a_first_row_follows_the_step_time_of_the_nearest_trial(sizes, host, options, expected_s):
    run = run_of()
    trials = (*run.trials, Trial(batch_size=64, step_ms=320.0), Trial(batch_size=12, step_ms=None))
    can = CPU_CAN if host else run.environment.can
    run = replace(
        run,
        trials=trials,
        spec=replace(run.spec, **{"warmup": 0, **options}),
        environment=replace(run.environment, can=can),
    )

    assert expectations.seconds_of_rows(run, sizes) == pytest.approx(expected_s)
    assert expectations.seconds_of_rows(replace(run, trials=trials[2:]), sizes) is None


def test_estimate_of_a_first_row_includes_compiling_at_the_nearest_trial():
    run = run_of()
    compiled = tuple(replace(trial, compiled=Compiled(seconds=30.0, graphs=1)) for trial in run.trials)

    eager_s, compiled_s = (
        expectations.seconds_of_rows(replace(run, trials=trials), [8, 16]) for trials in (run.trials, compiled)
    )

    assert compiled_s == pytest.approx(eager_s + 2 * 30.0)
    # The process of a trial that goes on to time its batch has compiled it.
    assert expectations.seconds_of_rows(replace(run, trials=compiled), [8, 16], compiled=True) == eager_s


@pytest.mark.parametrize(
    ("fits", "fails", "options", "expected_s"),
    [
        (8, 0, {}, None),
        (8, 8, {}, None),
        (8, 9, {}, 2.0),  # at least one trial
        (8, 16, {}, 6.0),
        (8, 17, {}, 8.0),
        (8, 16, {"granularity": 4}, 2.0),
        (8, 16, {"search": "linear"}, None),
        (8, 16, {"trace": TRACE}, 4.0),
        (8, 9, {"trace": TRACE}, 2.0),
        (8, 16, {"trace": TRACE, "search": "bisect"}, 6.0),
    ],
)
def test_estimate_of_a_search_is_halvings_or_two_trials_by_forecast(fits, fails, options, expected_s):
    fields = dict(options)
    last = Trial(batch_size=16, seconds=0.5, trace=fields.pop("trace", None))
    run = run_of()
    trials = (Trial(batch_size=1, seconds=5.0), Trial(batch_size=8, seconds=2.0), last)
    run = replace(run, trials=trials, spec=replace(run.spec, **fields))

    assert expectations.seconds_of_search(run, fits, fails) == expected_s


@pytest.mark.parametrize(
    ("search", "traces", "sizes", "expected"),
    [
        ("forecast", True, (), FIRST_BATCH),
        ("forecast", True, (8, 128), 128),
        ("forecast", True, (8,), FIRST_BATCH),
        ("forecast", False, (), None),
        ("bisect", True, (), None),
        ("bisect", True, (8, 4), 8),
        ("linear", True, (8,), None),
    ],
)
def test_search_begins_at_the_largest_timed_batch_or_where_forecasts_are_good(search, traces, sizes, expected):
    run = run_of(*(row(size, 5.0) for size in sizes), Row(batch_size=512, failure=Failure(kind="died", message="")))
    can = replace(run.environment.can, allocator_trace=traces)
    run = replace(run, spec=replace(run.spec, search=search), environment=replace(run.environment, can=can))

    assert expectations.first_batch(run) == expected


def test_only_trials_with_as_much_memory_as_now_are_answers():
    memory = {"memory_limit_bytes": 100, "memory_of_others_bytes": 50}
    trials = (
        Trial(batch_size=1, **memory),
        Trial(batch_size=4, step_ms=6.0, **memory),
        Trial(batch_size=8, failure=OUT_OF_MEMORY, **memory),
        Trial(batch_size=16, failure=Failure(kind="died", message=""), **memory),
        Trial(batch_size=2, **memory | {"memory_limit_bytes": None}),
        Trial(batch_size=3, **memory | {"memory_of_others_bytes": 51 + OTHERS_TOLERANCE_BYTES}),
    )
    run = replace(run_of(), trials=trials)
    run = replace(run, spec=replace(run.spec, max_latency_ms=5.0))
    known = expectations.known(run, 100, 50)

    assert expectations.answers(run, 100, 50) == {1: None, 4: "latency", 8: "memory", 16: "died"}
    assert (known.answers, known.trials) == ({1: True, 4: False, 8: False}, list(trials[:5]))
    assert known.memory_bytes == run.environment.memory_total_bytes - 50
    assert (known.limit_bytes, known.granularity, known.max_batch) == (100, 1, LARGEST_BATCH)
    host = replace(run, environment=replace(run.environment, can=CPU_CAN), spec=replace(run.spec, max_batch=9))
    known = expectations.known(host, None, None)
    assert (known.memory_bytes, known.most_ms, known.max_batch) == (None, 5.0, 9)


def test_expandable_segments_promise_a_larger_batch_unless_they_were_in_use():
    searched = SEARCHES["swin_t fp16 8GiB"]

    def expected(limit_bytes, *trials, **options):
        run = run_of()
        run = replace(run, trials=trials, spec=replace(run.spec, **options))
        return expectations.edge_if_expandable(run, expectations.known(run, limit_bytes, 0))

    *others, last = trials = searched.taken()
    full = Trial(batch_size=1024, memory_limit_bytes=searched.limit_bytes, failure=OUT_OF_MEMORY)
    in_use = replace(last, trace=replace(last.trace, expandable=True))
    found = expected(searched.limit_bytes, *trials)
    assert searched.edge < found < 1.2 * searched.edge
    assert expected(searched.limit_bytes, full, *trials) == found  # it was full with the other segments
    assert expected(searched.limit_bytes, *others, replace(last, trace=None)) is not None
    assert expected(searched.limit_bytes, *others, in_use) is None
    assert expected(searched.limit_bytes) is None
    assert expected(2**60, *trials) is None  # no limit in sight
    assert expected(2**60, *trials, max_batch=10**9) == 10**9
