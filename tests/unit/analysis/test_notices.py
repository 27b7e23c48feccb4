"""Notices appear if and only if their condition holds."""

import pytest
from msgspec.structs import replace
from support.records import HEALTH, can_of, example, row, whole

from tputfind.analysis import notices
from tputfind.record.environment import ClockTest
from tputfind.record.record import Compiled, Failure, OutputCheck, Row, Setting, Trial
from tputfind.record.spec import Spec

GIB = 2**30
MIB = 2**20


def kinds(record) -> dict[str, tuple[int, ...]]:
    return {notice.kind: notice.batch_sizes for notice in whole(notices.of(record))}


def with_environment(record, **fields):
    return replace(record, environment=replace(record.environment, **fields))


def beside(record, *held: int):
    """Return the record with these bytes held by other processes at its trials, cyclically, and unknown at its rows."""
    trials = tuple(
        replace(trial, memory_of_others_bytes=held[number % len(held)]) for number, trial in enumerate(record.trials)
    )
    rows = tuple(replace(row, memory_of_others_bytes=None) for row in record.rows)
    return replace(record, trials=trials, rows=rows)


@pytest.mark.parametrize(
    ("held", "kind", "seen", "advice"),
    [
        ([30 * GIB], "memory_of_others", "30.0 GiB", "--strict"),
        ([0, 20 * GIB], "memory_of_others_changed", "0 MiB to 20.0 GiB", ""),
    ],
)
def test_memory_of_other_processes_gives_one_notice(held, kind, seen, advice):
    record = with_environment(beside(example(), *held), memory_of_others_bytes=held[0])

    (notice,) = [notice for notice in notices.of(record) if notice.kind.startswith("memory_of_others")]
    assert notice.kind == kind
    assert seen in notice.seen
    assert advice in notice.advice


def test_every_failure_kind_except_out_of_memory_is_reported_with_advice():
    for kind, advice in notices.ADVICE.items():
        trial = Trial(batch_size=77, failure=Failure(kind=kind, message="what it said"))
        record = replace(example(), trials=(trial,), rows=())

        told = [notice for notice in notices.of(record) if 77 in notice.batch_sizes]
        # An error without a traceback is the model's, but only its message can be inspected.
        expected = notices.ADVICE["died"] if kind == "error" else advice
        assert [notice.advice for notice in told] == ([] if kind == "out_of_memory" else [expected])
        assert all("what it said" in notice.seen for notice in told)


def test_unchecked_outputs_are_reported_by_reason():
    def row(index, **check):
        return replace(example().rows[index], output=OutputCheck(**check))

    rows = (
        row(0, result="unchecked", remark="one reason"),
        row(2, result="unchecked", remark="another"),
        row(3, result="not_finite"),
    )
    told = notices.of(replace(example(), rows=rows))

    assert [(n.cause, n.batch_sizes) for n in told if n.kind == "output_unchecked"] == [
        ("one reason", (1,)),
        ("another", (4,)),
    ]
    assert [n.batch_sizes for n in told if n.kind == "output_not_finite"] == [(5,)]


@pytest.mark.parametrize(
    ("size", "kind", "others", "limit_bytes", "told"),
    [
        (3, "out_of_memory", 0, None, True),
        (6, "out_of_memory", 0, None, False),  # beyond the largest
        (3, "unsupported", 0, None, False),  # reported by its own kind
        (3, "out_of_memory", GIB, None, False),  # other processes had taken memory
        (3, "out_of_memory", 0, GIB, False),  # under --headroom's limit
    ],
)
def test_smaller_batches_out_of_memory_are_reported(size, kind, others, limit_bytes, told):
    failure = Failure(kind=kind, message="it is full")
    trial = Trial(batch_size=size, failure=failure, memory_of_others_bytes=others, memory_limit_bytes=limit_bytes)
    record = replace(example(), trials=(*example().trials, trial))

    assert kinds(record).get("smaller_batches_fail") == ((3,) if told else None)


@pytest.mark.parametrize(
    ("trial", "edge", "others", "told"),
    [
        ({}, {}, 0, True),
        ({"steps": 3}, {}, 0, False),  # no more than a trial
        ({"memory_limit_bytes": GIB}, {}, 0, False),  # under another limit
        ({"batch_size": 4}, {}, 0, False),  # smaller than the largest
        ({"batch_size": 5}, {}, 0, False),  # the largest itself
        ({}, {"limited_by": "latency"}, 0, False),
        ({}, {"steady": False}, 0, False),
        ({}, {}, 2**20, False),  # other processes held more memory when rows were timed
    ],
)
def test_larger_batch_that_fits_longer_than_a_trial_is_reported(trial, edge, others, told):
    longer = Trial(**{"batch_size": 9, "steps": 20, "memory_of_others_bytes": 0} | trial)
    record = example()
    rows = tuple(replace(row, memory_of_others_bytes=others) for row in record.rows)
    record = replace(record, trials=(*record.trials, longer), edge=replace(record.edge, **edge), rows=rows)

    assert kinds(record).get("larger_batches_fit") == ((9,) if told else None)


@pytest.mark.parametrize(("seen", "cause"), [((), "memory is fragmented"), (("grows",), "memory grows with each step")])
def test_smaller_row_out_of_memory_is_reported_with_its_cause(seen, cause):
    failed = Row(batch_size=3, failure=Failure(kind="out_of_memory", message="it is full"))
    rows = tuple(replace(row, seen=seen) for row in example().rows)
    record = replace(example(), rows=(*rows, failed))

    (notice,) = [notice for notice in notices.of(record) if notice.kind == "smaller_batches_fail"]
    assert notice.seen == "batch 3 ran out of memory, though 5 fits"
    assert notice.cause == cause


def told(record, kind):
    """Return the notice of a kind, or None."""
    return next((notice for notice in whole(notices.of(record)) if notice.kind == kind), None)


def changed(row, **fields):
    """Return the row with all its timings changed."""
    timings = tuple(replace(timing, **fields) for timing in row.timings)
    return replace(row, timings=timings)


@pytest.mark.parametrize(("retries", "expected"), [(None, False), (0, False), (239, False), (240, True), (250, True)])
def test_allocator_retries_in_every_batch_are_reported_but_not_a_few(retries, expected):
    busy = replace(row(4, 5.0, batches=100), allocator_retries=retries)
    assert busy.steps == 240  # a hundred in each window, and forty before them
    rows = (row(1, 4.0), busy)
    notice = told(replace(example(), rows=rows), "allocator_retries")

    assert (notice is not None) is expected
    if notice:
        assert notice.batch_sizes == (4,)
        assert f"retried {retries} times" in notice.seen
        expandable = replace(example(), rows=rows, spec=replace(example().spec, allocator="expandable"))
        assert "--allocator" in notice.advice
        assert "--allocator" not in told(expandable, "allocator_retries").advice


@pytest.mark.parametrize(
    ("into_ms", "out_ms", "expected"),
    [(4.0, 0.1, "80%"), (3.9, 3.9, None), (0.1, 6.0, "120%"), (None, None, None), (None, 5.0, "100%")],
)
def test_row_is_copy_bound_if_longer_copy_takes_80_percent(into_ms, out_ms, expected):
    rows = (row(1, 4.0), changed(row(8, 5.0), copy_in_ms=into_ms, copy_out_ms=out_ms))
    notice = told(replace(example(), rows=rows), "copy_bound")

    assert (notice and (notice.batch_sizes, f"takes {expected} of the time" in notice.seen)) == (
        expected and ((8,), True)
    )


@pytest.mark.parametrize(("graphs", "breaks", "expected"), [(1, 0, False), (2, 0, True), (1, 3, True), (3, 2, True)])
def test_partly_compiled_step_is_reported_with_most_graphs_of_any_process(graphs, breaks, expected):
    compiled, whole_step = Compiled(seconds=1.0, graphs=graphs, breaks=breaks), Compiled(seconds=1.0, graphs=1)
    one = row(8, 5.0)
    timings = tuple(replace(one.timings[0], compiled=each) for each in (whole_step, compiled, whole_step, None))
    rows = (row(1, 4.0), replace(one, timings=timings))
    record = replace(example(), rows=rows, spec=replace(example().spec, mode="compile"))
    notice = told(record, "graph_breaks")

    assert (notice is not None) is expected
    own_parts = told(replace(record, spec=example().spec), "graph_breaks")  # a model that compiles parts of itself
    assert (own_parts is not None) is (breaks > 0)
    if notice:
        assert notice.batch_sizes == (8,)
        assert notice.seen.endswith(f"graphs made: {graphs}")


def test_too_few_latencies_for_slo_percentile_are_reported():
    record = example()
    rows = (changed(row(1, 4.0), latency_ms=(1.0,) * 99), changed(row(4, 4.0), latency_ms=(1.0,) * 98), row(8, 4.0))
    record = replace(record, rows=rows)
    notice = told(record, "few_latency_samples")

    assert record.spec.percentile == 99
    assert notice.batch_sizes == (1, 4)
    assert notice.cause == "it needs 100 latency batches, not 98"
    assert notice.advice == "--batches 100, or lower --percentile"
    free = replace(record, spec=replace(record.spec, slo_ms=None))
    assert told(free, "few_latency_samples") is None


def test_host_bound_advice_depends_on_mode_and_phase():
    def advice(**fields):
        record = replace(example(), rows=(row(1, 4.0, enqueue_ms=3.2),))
        record = replace(record, spec=replace(record.spec, **fields))
        return told(record, "host_bound").advice

    assert advice() == "try a larger batch, --mode cudagraph or compile"
    assert advice(mode="compile") == "try a larger batch or --mode cudagraph"
    assert advice(phase="train", dtype="bf16") == "try a larger batch or --mode compile"
    assert advice(phase="train", dtype="bf16", mode="compile") == "try a larger batch"
    assert advice(phase="train", dtype="bf16", parallel="ddp", gpus=2) == "try a larger batch"


def test_default_latency_limit_is_reported_only_if_it_ended_the_search():
    def record(limited_by, limit):
        edge = replace(example().edge, limited_by=limited_by)
        return replace(example(), edge=edge, spec=replace(example().spec, max_latency_ms=limit))

    assert "batches from 6 on," in told(record("latency", "auto"), "default_latency_limit").seen
    assert told(record("memory", "auto"), "default_latency_limit") is None
    assert told(record("latency", 500.0), "default_latency_limit") is None
    assert told(replace(example(), edge=None), "default_latency_limit") is None


@pytest.mark.parametrize(
    "otherwise",
    [
        {"device": "cuda:0"},
        {"limit_bytes": GIB},
        {"limited_by": "cap"},
        {"total_bytes": None},
        {"free_bytes": None},
        {},
    ],
)
def test_search_of_host_memory_reports_available_memory(otherwise):
    case = {"device": "cpu", "limit_bytes": None, "limited_by": "memory", "total_bytes": 32 * GIB} | otherwise
    record = with_environment(
        beside(example(), None),
        device=case["device"],
        can=can_of(case["device"]),
        memory_total_bytes=case["total_bytes"],
        memory_free_bytes=case.get("free_bytes", 20 * GIB),
        memory_of_others_bytes=None,
    )
    edge = replace(record.edge, limited_by=case["limited_by"])
    spec = replace(record.spec, memory_limit_bytes=case["limit_bytes"])
    notice = told(replace(record, edge=edge, spec=spec), "memory_of_others")

    assert (notice is None) is bool(otherwise)
    if notice:
        assert notice.seen == "the search took up to 20.0 GiB, all that was free of 32.0 GiB"
        assert notice.cause == "other processes hold the rest"
    assert told(replace(record, edge=None), "memory_of_others") is None


@pytest.mark.parametrize(
    ("held", "before", "steady", "expected"),
    [
        ((0, 16 * MIB), 0, True, None),
        ((0, 16 * MIB + 1), 0, True, "the largest batch are of that moment"),
        ((0, 16 * MIB), 0, False, "the largest batch is uncertain"),
        ((16 * MIB,), 16 * MIB, True, None),
        ((16 * MIB + 1,), 16 * MIB + 1, True, "the largest batch is for what is left"),
        ((None,), None, False, None),
    ],
)
def test_other_memory_above_16_mib_is_reported_or_any_for_unsteady_edge(held, before, steady, expected):
    record = with_environment(beside(example(), *held), memory_of_others_bytes=before)
    record = replace(record, edge=replace(record.edge, steady=steady))
    causes = [notice.cause for notice in notices.of(record) if notice.kind.startswith("memory_of_others")]

    assert len(causes) == (expected is not None)
    assert all(expected in cause for cause in causes)
    searched = replace(record, edge=None)
    assert ("memory_of_others_changed" in kinds(searched)) is (held == (0, 16 * MIB + 1))


@pytest.mark.parametrize(("others", "expected"), [(16 * MIB, True), (16 * MIB + 1, False)])
def test_constant_memory_of_other_processes_does_not_explain_smaller_failures(others, expected):
    failure = Failure(kind="out_of_memory", message="it is full")
    trials = tuple(Trial(batch_size=size, failure=failure, memory_of_others_bytes=others) for size in (4, 3))
    record = replace(example(), trials=(*example().trials, *trials))

    assert kinds(record).get("smaller_batches_fail") == ((3, 4) if expected else None)


@pytest.mark.parametrize(("forecast", "fewer"), [(None, False), (5, True)])
def test_expandable_segments_are_advised_only_with_a_forecast(forecast, fewer):
    longer = [Trial(batch_size=size, steps=20, memory_of_others_bytes=0) for size in (9, 12, 10, 5)]
    failed = Trial(batch_size=20, steps=20, failure=Failure(kind="out_of_memory", message="it is full"))
    edge = replace(example().edge, expandable_forecast=forecast)
    record = replace(example(), trials=(*example().trials, *longer, failed), edge=edge)
    notice = told(record, "larger_batches_fit")

    assert notice.batch_sizes == (12,)
    assert ("--allocator expandable" in notice.advice) is fewer


@pytest.mark.parametrize(("forecast", "expected"), [(None, False), (104, False), (105, True)])
def test_fragmentation_is_reported_from_5_percent_with_the_set_limit(forecast, expected):
    edge = replace(example().edge, largest_batch=100, expandable_forecast=forecast, memory_limit_bytes=8 * GIB)
    record = replace(example(), edge=edge, rows=(row(100, 5.0),))
    notice = told(record, "fragmentation")

    assert (notice and "100 MiB of 200 MiB" in notice.seen) == (expected or None)
    assert (notice and "--allocator expandable is forecast to fit batch 105" in notice.advice) == (expected or None)
    unknown = replace(row(100, 5.0), peak_allocated_bytes=None)
    assert told(replace(record, rows=(unknown,)), "fragmentation") is None
    assert told(replace(record, rows=(row(1, 5.0),)), "fragmentation") is None


@pytest.mark.parametrize(
    ("mode", "kind", "eager"),
    [
        ("compile", "unsupported", True),
        ("cudagraph", "wrong_output", True),
        ("compile", "died", False),
        ("eager", "unsupported", False),
    ],
)
def test_eager_mode_is_advised_if_another_mode_may_be_the_cause(mode, kind, eager):
    assert (notices.advice(kind, Spec(model="resnet18", mode=mode)) == "--mode eager runs the model as it is") is eager


def test_advice_for_an_own_step_names_no_option_that_it_refuses():
    step = Spec(model="net.py:step", phase="step", dtype="own")

    assert not any("--dtype" in notices.advice(kind, step) for kind in ("unsupported", "kernel_limit"))


def failed(kind, message="it is said so"):
    return Failure(kind=kind, message=message)


def test_failures_of_one_kind_share_a_notice_with_smallest_batch_message():
    trials = tuple(Trial(batch_size=size, failure=failed("died", f"at {size}")) for size in (64, 16, 32))
    notice = told(replace(example(), trials=trials, rows=()), "trial_died")

    assert notice.batch_sizes == (16, 32, 64)
    assert notice.seen.endswith(": at 16")
    assert notice.cause == "a crash, an exit, or no host memory"
    assert notice.advice == notices.ADVICE["died"]


def test_kernel_limit_notice_is_plain_and_no_crash():
    message = "cuBLAS: execution failed (RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `x`)"
    trials = (Trial(batch_size=4097, failure=failed("kernel_limit", message)),)
    notice = told(replace(example(), trials=trials, rows=()), "trial_kernel_limit")

    assert notice.seen == "batch 4097 failed in a trial: cuBLAS: execution failed"
    assert (notice.cause, notice.advice) == ("a kernel cannot do this size", notices.ADVICE["kernel_limit"])


def test_host_out_of_memory_is_reported_but_not_device_out_of_memory():
    message = "killed by SIGKILL while it made the inputs of batch 8 on the host"
    trials = tuple(
        Trial(batch_size=size, failure=failed(kind, message))
        for size, kind in ((8, "host_memory"), (16, "out_of_memory"))
    )
    record = replace(example(), trials=trials, rows=())

    assert told(record, "trial_host_memory").seen.startswith(f"batch 8 failed in a trial: {message[:40]}")
    assert told(record, "trial_host_memory").cause == "the host's memory is full"
    assert told(record, "trial_out_of_memory") is None


@pytest.mark.parametrize(
    ("kind", "limit_bytes", "expected"),
    [
        ("out_of_memory", 18 * GIB, None),  # caused by the lower limit
        ("died", 18 * GIB, (4,)),
        ("out_of_memory", None, (4,)),
        ("died", None, (4,)),
    ],
)
def test_out_of_memory_soak_counts_unless_under_a_lower_limit(kind, limit_bytes, expected):
    soak = Trial(batch_size=4, steps=4, memory_limit_bytes=limit_bytes, failure=failed(kind))
    record = replace(example(), trials=(*example().trials, soak))
    notice = told(record, "failed_when_soaked")

    assert (notice and notice.batch_sizes) == expected
    if notice:
        assert notice.cause == "a trial is only a few steps"
        assert notice.advice == "do not deploy it"
    assert told(replace(record, edge=None), "failed_when_soaked").batch_sizes == (4,)


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ("died", 2, "failed_when_timed"),
        ("out_of_memory", 5, "failed_when_timed"),
        ("died", 8, None),  # already reported by its trial
        ("out_of_memory", 8, None),
        ("died", 77, "row_died"),
        ("out_of_memory", 77, None),
        ("wrong_output", 8, "row_wrong_output"),
        ("wrong_output", 5, "row_wrong_output"),  # its trial passed
    ],
)
def test_failed_row_is_reported_unless_trial_failed_or_memory_ran_out(kind, size, expected):
    record = replace(example(), rows=(row(1, 4.0), Row(batch_size=size, failure=failed(kind))))
    found = [notice.kind for notice in whole(notices.of(record)) if notice.batch_sizes == (size,)]

    assert found == ([expected] if expected else [])


def test_smaller_output_of_a_trial_may_be_an_error_that_the_model_caught():
    message = "batch 52 returned 0 values, and batch 44 1"
    record = replace(example(), trials=(Trial(batch_size=52, failure=failed("wrong_output", message)),), rows=())

    assert "the model caught an error" in told(record, "trial_wrong_output").cause


def test_error_of_timed_rows_is_one_notice_that_says_it_came_after_the_trial():
    def failing(*sizes):
        rows = tuple(Row(batch_size=size, failure=failed("error")) for size in sizes)
        return told(replace(example(), rows=(row(1, 4.0), *rows)), "row_error")

    both, untried = failing(2, 77), failing(77)

    assert (both.batch_sizes, both.cause) == ((2, 77), "the model fails after more steps than a trial has")
    assert (untried.batch_sizes, untried.cause) == ((77,), "the model fails")
    assert failing(8) is None  # its trial failed


def test_step_that_fails_late_is_not_called_a_model():
    spec = replace(example().spec, phase="step", model="train.py:step")
    record = replace(example(), spec=spec, rows=(row(1, 4.0), Row(batch_size=2, failure=failed("error"))))

    assert told(record, "row_error").cause == "the step fails after more steps than a trial has"


@pytest.mark.parametrize(
    ("phase", "dtype", "overflows"),
    [
        *(("train", "own", False), ("train", "bf16", False), ("train", "amp-fp16", True)),
        *(("infer", "fp32", False), ("infer", "bf16", False), ("infer", "fp16", True), ("infer", "amp-fp16", True)),
    ],
)
def test_not_finite_loss_or_output_blames_only_dtype_of_small_range(phase, dtype, overflows):
    of_values = {"loss_not_finite", "output_not_finite", "output_unchecked"}
    kind = "loss_not_finite" if phase == "train" else "output_not_finite"
    one = replace(row(4, 5.0), output=OutputCheck(result="not_finite"))
    record = replace(example(), rows=(one,), spec=replace(example().spec, phase=phase, dtype=dtype))

    assert of_values & {*kinds(record)} == {kind}
    assert ("the dtype overflows" in told(record, kind).cause) is overflows
    assert phase == "infer" or told(record, kind).cause.startswith("training diverged, or ")
    finite = replace(record, rows=(row(4, 5.0), replace(row(8, 5.0), output=None)))
    assert not of_values & {*kinds(finite)}


def test_cut_short_rows_are_reported_with_their_fewest_batches():
    rows = (
        row(1, 4.0),
        changed(row(2, 4.0), device_ms=(4.0,) * 30),
        changed(row(4, 4.0), latency_ms=(4.0,) * 20),
        changed(row(8, 4.0), device_ms=(4.0,) * 50),
    )
    record = replace(example(), rows=rows)
    notice = told(record, "cut_short")

    assert record.spec.batches == 100
    assert notice.batch_sizes == (2, 4, 8)
    assert notice.seen == "as few as 30 of 100 batches and 20 of 100 latency batches were timed at batch 2, 4, 8"
    assert notice.advice == "raise --max-seconds"


def test_only_the_cut_short_window_of_two_is_reported():
    short_of_latencies = (changed(row(4, 4.0), latency_ms=(4.0,) * 56),)
    short_of_batches = (changed(row(4, 4.0), device_ms=(4.0,) * 56),)
    seen = [told(replace(example(), rows=rows), "cut_short").seen for rows in (short_of_latencies, short_of_batches)]

    assert seen == [
        "as few as 56 of 100 latency batches were timed at batch 4",
        "as few as 56 of 100 batches were timed at batch 4",
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"batches": 50}, None),
        ({"batches": 51}, "as few as 50 of 51 batches and 50 of 51 latency batches"),
        ({"batches": None, "thorough": True}, "as few as 50 of 100 batches and 50 of 100 latency batches"),
        ({"batches": None}, None),
    ],
)
def test_cut_short_is_judged_against_requested_batches(asked, expected):
    spec = replace(example().spec, **asked)
    notice = told(replace(example(), spec=spec, rows=(row(4, 5.0, batches=50),)), "cut_short")

    assert (notice is None) is (expected is None)
    if notice:
        assert notice.seen.startswith(expected)


def under_budget(*sizes, early=(), finished="2026-11-20T12:01:00+00:00", **fields):
    """Return the budget notice of a record with rows of these sizes, some ended by it; None if it has none."""
    ends = {True: "budget", False: "known"}
    rows = tuple(replace(row(size, 5.0), ended_by=ends[size in early]) for size in sizes)
    asked = {"budget_s": 90.0, "batches": None, "headroom": None, "batch_sizes": None} | fields.pop("spec", {})
    spec = replace(example().spec, **asked)
    return told(replace(example(), spec=spec, rows=rows, finished=finished, **fields), "budget")


def test_rows_left_out_by_a_budget_are_listed():
    longer = under_budget(1, 2, 4, 5, early=(2, 5))
    missing = under_budget(1, 5)
    searching = under_budget(1, 2, early=(2,), edge=None, safe=None)

    assert (longer.seen, longer.batch_sizes) == ("batch 2, 5 timed briefly", (2, 5))
    assert longer.cause == "--budget left too little time"
    assert (missing.seen, missing.batch_sizes) == ("batch 2, 4 not timed", ())
    assert searching.seen == "the search stopped at batch 5; batch 4 not timed; batch 2 timed briefly"


def test_soak_and_safe_batch_left_out_by_a_budget_are_listed():
    edge = replace(example().edge, closed=True)
    found = under_budget(1, 2, 4, 5, edge=edge, safe=None, spec={"soak": 99, "headroom": 0.1})

    assert found.seen == "batch 5 not soaked; no safe batch sought"
    soaked = replace(edge, soaked_batches=99)
    assert under_budget(1, 2, 4, 5, edge=soaked, spec={"soak": 99, "headroom": 0.1}) is None


def test_budget_that_ends_before_a_search_names_the_largest_row_that_ran():
    assert under_budget(64, edge=None, safe=None).seen.startswith("the search stopped at batch ")
    assert under_budget(64, edge=None, safe=None, trials=()).seen.startswith("no larger batch sought;")


def test_search_stopped_by_a_budget_names_one_end():
    slow = Trial(batch_size=45, step_ms=1400.0)  # it fits, but exceeds the latency limit
    edge = replace(example().edge, largest_batch=23, fails_at=34, limited_by="latency", closed=False)
    spec = {"max_latency_ms": "auto"}
    found = {"edge": edge, "safe": None, "trials": (*example().trials, slow)}

    assert under_budget(1, 2, 4, 8, 16, spec=spec, **found).seen == "the search stopped at batch 23"
    limit = told(replace(example(), spec=replace(example().spec, **spec), **found), "default_latency_limit")
    assert limit.seen.startswith("batches from 34 on")
    assert "stopped" not in limit.seen


def test_headroom_without_known_largest_batch_has_notice():
    record = replace(example(), edge=replace(example().edge, closed=False), safe=None)

    assert told(record, "no_safe_batch").advice == "--max-batch 5 seeks one up to there"
    assert told(example(), "no_safe_batch") is None
    assert told(replace(record, spec=replace(record.spec, headroom=None)), "no_safe_batch") is None


@pytest.mark.parametrize(("wall_s", "seen"), [(60.0, None), (88.0, "the search stopped at batch 5")])
def test_search_stopped_by_timeout_within_budget_has_no_budget_notice(wall_s, seen):
    edge = replace(example().edge, limited_by="timeout", closed=False)

    notice = under_budget(1, 2, 4, 5, edge=edge, safe=None, wall_s=wall_s)
    assert (notice and notice.seen) == seen


def test_named_batch_sizes_left_out_by_a_budget_are_listed():
    named = {"spec": {"batch_sizes": (3, 7, 9), "soak": 0}, "edge": None, "safe": None, "trials": ()}

    assert under_budget(3, 7, early=(7,), **named).seen == "batch 9 not timed; batch 7 timed briefly"
    assert under_budget(3, 7, 9, **named) is None


def test_run_within_its_budget_has_no_budget_notice():
    slow = Trial(batch_size=8, step_ms=2000.0)  # it passes, but exceeds the latency limit
    limited = replace(example().edge, limited_by="latency")

    assert under_budget(1, 2, 4, 5) is None
    assert under_budget(1, 2, 4, 5, trials=(*example().trials[:3], slow), edge=limited) is None
    assert under_budget(1, 2, 4, 5, trials=(*example().trials, Trial(batch_size=9, steps=20))) is None  # a probe
    assert under_budget(1, 2, finished=None) is None
    assert under_budget(1, 2, spec={"budget_s": None}) is None


@pytest.mark.parametrize(("ended_by", "expected"), [(None, True), ("budget", False), ("beside", False)])
def test_row_ended_by_the_run_is_not_unfinished(ended_by, expected):
    spec = replace(example().spec, processes=3, batches=None, budget_s=90.0)
    once = replace(row(4, 5.0), ended_by=ended_by)

    assert ("unfinished" in kinds(replace(example(), spec=spec, rows=(once,)))) is expected


@pytest.mark.parametrize(("slowest_ms", "grows"), [(16.0, False), (16.1, True)])
def test_host_bound_notice_gives_fraction_and_whether_time_grows(slowest_ms, grows):
    rows = (row(1, 4.0, enqueue_ms=3.2), row(64, slowest_ms, enqueue_ms=slowest_ms), row(128, 200.0, enqueue_ms=1.0))
    notice = told(replace(example(), rows=rows), "host_bound")

    assert notice.batch_sizes == (1, 64)
    assert notice.seen.startswith("submitting takes 80% to 100% of the time")
    assert ("a profiler says where" in notice.advice) is grows
    assert ("the model's own code" in notice.cause) is grows


def test_notices_that_change_decisions_come_first():
    failing = (
        Trial(batch_size=7, failure=failed("wrong_output")),
        Trial(batch_size=3, failure=failed("out_of_memory"), memory_of_others_bytes=0),
        Trial(batch_size=9, failure=failed("died")),
    )
    spec = replace(example().spec, slo_ms=20.0)
    record = with_environment(
        replace(example(), spec=spec, trials=(*example().trials, *failing)), memory_of_others_bytes=GIB
    )

    assert list(kinds(record)) == [
        "trial_wrong_output",
        "smaller_batches_fail",
        "failed_when_timed",
        "trial_died",
        "memory_of_others_changed",
        "host_bound",
        "few_latency_samples",
        "cut_short",
    ]


@pytest.mark.parametrize("kind", list(notices.ADVICE))
@pytest.mark.parametrize("message", ["RuntimeError: " + "word " * 100, "x" * 300, "One. Two.", "CUDA_" * 50])
def test_long_failure_message_is_cut_to_fit_a_notice(kind, message):
    trials = tuple(Trial(batch_size=size, failure=failed(kind, message)) for size in (128, 20480, 4096, 1048576))
    record = replace(example(), trials=trials, rows=())
    soaked = replace(record, trials=tuple(replace(trial, steps=1000) for trial in trials))

    assert kinds(soaked)["failed_when_soaked"] == (128, 4096, 20480, 1048576)
    assert kind == "out_of_memory" or kinds(record)[f"trial_{kind}"] == (128, 4096, 20480, 1048576)


@pytest.mark.parametrize("reasons", [("power_cap", "software_thermal"), ("power_cap", "sync_boost")])
def test_two_throttle_reasons_fit_on_two_lines(reasons):
    slowed = replace(HEALTH, slowed=dict.fromkeys(reasons, 1.0))
    rows = tuple(changed(row(size, 5.0), health=slowed) for size in (16, 256, 4096, 16384, 22208))

    assert kinds(replace(example(), rows=rows))["throttled"] == (16, 256, 4096, 16384, 22208)


def test_many_rows_are_named_by_their_number_and_their_ends():
    rows = tuple(row(2**power, 4.0, enqueue_ms=3.9) for power in range(21))

    notice = told(replace(example(), rows=rows), "host_bound")

    assert "at 21 batch sizes (1 to 1048576)" in notice.seen


def busy(record, *cores: float | None):
    """Return the record on a CPU with 2 cores; other processes kept ``cores`` busy while its rows were timed."""
    rows = tuple(
        replace(row, timings=tuple(replace(timing, others_busy_cores=each) for timing in row.timings))
        for row, each in zip((row for row in record.rows if row.failure is None), cores, strict=True)
    )
    return with_environment(replace(record, rows=rows), cpu_count=2)


def test_host_busy_notice_comes_first_and_in_plain_words():
    found = notices.of(busy(example(), 1.2, 1.6, 1.4))

    assert notices.of(example())[0].kind != "host_busy"
    assert (found[0].kind, found[0].batch_sizes) == ("host_busy", (1, 4, 5))
    assert (found[0].seen, found[0].cause, found[0].advice) == (
        "other processes kept 1.2 to 1.6 of 2 cores busy while this was measured",
        "they take time from the model, and rates are too low",
        "measure on a quiet machine, or with fewer threads: OMP_NUM_THREADS=1",
    )


@pytest.mark.parametrize(("threads", "fewer"), [(2, ", or with fewer threads: OMP_NUM_THREADS=1"), (1, ""), (0, "")])
def test_host_busy_notice_advises_fewer_threads_only_if_there_are_several(threads, fewer):
    record = with_environment(busy(example(), 1.2, 1.6, 1.4), torch_threads=threads)

    assert notices.of(record)[0].advice == f"measure on a quiet machine{fewer}"


def failing(message: str, traceback: str = ""):
    """Return the notice of a batch that failed in a trial."""
    failure = Failure(kind="error", message=message, traceback=traceback)
    trial = Trial(batch_size=77, failure=failure)
    record = replace(example(), trials=(trial,), rows=())
    (notice,) = whole([notice for notice in notices.of(record) if 77 in notice.batch_sizes])
    return notice


def test_failure_notice_of_a_kept_traceback_names_the_command_that_shows_it():
    assert failing("ValueError: no", "Traceback ...").advice == (
        "tputfind report RECORD --traceback shows its traceback"
    )
    assert failing("ValueError: no").advice == "run the model by itself at that batch to see why"


CAUSED = [
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmStridedBatchedEx(handle, opa, m)`",
    "RuntimeError: The expanded size of the tensor (7) must match the existing size (5) at non-singleton dimension 1",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear with a non-contiguous input",
    "torch.nn.modules.module.ModuleAttributeError: 'BertForSequenceClassification' has no attribute 'classifier2'",
]


@pytest.mark.parametrize("message", CAUSED)
def test_failure_notice_quotes_a_message_of_a_line_and_a_half_whole(message):
    assert failing(message, "Traceback ...").seen == f"batch 77 failed in a trial: {message}"


def test_failure_notice_of_a_long_message_keeps_its_class_and_its_cause():
    message = (
        f"RuntimeError: Error(s) in loading state_dict for Net: {'layer.weight, ' * 30}size mismatch for head.bias"
    )

    seen = failing(message, "Traceback ...").seen

    assert seen.startswith("batch 77 failed in a trial: RuntimeError: Error(s) in loading state_dict")
    assert seen.endswith("size mismatch for head.bias")
    begin, end = seen.split(" ... ")
    assert message.startswith(f"{begin.partition(': ')[2]} ")  # only whole words
    assert message.endswith(f" {end}")


def test_failure_notice_of_a_short_first_sentence_keeps_the_cause_after_it():
    message = f"RuntimeError: it failed. {'The reason for this is long and is given here, ' * 6}size mismatch"

    seen = failing(message, "Traceback ...").seen

    assert seen.startswith("batch 77 failed in a trial: RuntimeError: it failed. The reason")
    assert seen.endswith("size mismatch")


def test_failure_notice_of_many_sentences_keeps_first_sentences_whole():
    first = "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    message = f"{first}. {'GPU 0 has a total capacity of 79.18 GiB of which 14.75 GiB is free. ' * 4}"

    seen = failing(message, "Traceback ...").seen

    assert first in seen
    assert seen.endswith(("is free", "20.00 GiB"))


@pytest.mark.parametrize("message", ["W" * 480, f"ValueError: {'x' * 30} {'y' * 400} end", "a. " * 100])
def test_failure_notice_of_odd_messages_keeps_both_ends_on_a_few_lines(message):
    seen = failing(message, "Traceback ...").seen.removeprefix("batch 77 failed in a trial: ")

    assert message.startswith(seen.partition(" ... ")[0])
    assert len(seen) >= 60


@pytest.mark.parametrize(
    ("cores", "seen"),
    [((0.1, 1.6, None), ["other processes kept 1.6 of 2 cores busy at batch 4"]), ((0.05, 0.29, None), [])],
)
def test_rows_beside_daemons_alone_are_excluded_from_host_busy_notice(cores, seen):
    found = notices.of(busy(example(), *cores))

    assert [notice.seen for notice in found if notice.kind == "host_busy"] == seen


@pytest.mark.parametrize(("model", "said"), [("net.py:net", True), ("Net (live)", True), ("hf:bert", False)])
def test_repeated_user_inputs_are_reported_for_rows_or_trials_alone(model, said):
    spec = replace(example().spec, model=model, granularity=3)
    trials = (Trial(batch_size=976, step_ms=1.0, seen=("inputs_repeated",)), Trial(batch_size=60, step_ms=1.0))
    tried = replace(example(), spec=spec, trials=trials, rows=())
    timed = replace(tried, rows=(replace(row(96, 4.0), seen=("inputs_repeated",)),))

    found = [[one for one in notices.of(record) if one.kind == "inputs_repeated"] for record in (tried, timed)]

    assert [bool(each) for each in found] == [said, said]
    for each, sizes in zip(found, [(), (96,)], strict=True):
        assert all(one.seen == "batches above 63 repeat 63 samples" and one.batch_sizes == sizes for one in each)


@pytest.mark.parametrize(
    ("dtype", "capability", "advice"),
    [
        ("fp32", "9.0", "--dtype tf32"),
        ("tf32", "9.0", "leave the line out"),
        ("amp-bf16", "9.0", "leave the line out"),
        ("fp32", None, "leave the line out"),
    ],
)
def test_settings_of_a_model_file_are_named_with_what_became_of_them(dtype, capability, advice):
    names = ("torch.backends.cuda.matmul.allow_tf32", "torch.set_float32_matmul_precision()", "torch.c", "torch.d")
    settings = tuple(Setting(name=name, value="torch.high", kept=False) for name in names)
    record = replace(example(), spec=replace(example().spec, dtype=dtype), settings=settings)
    record = replace(record, environment=replace(record.environment, compute_capability=capability))
    kept = replace(record, settings=(replace(settings[0], kept=True),))

    overridden = told(record, "settings_overridden")
    assert "cuda.matmul.allow_tf32 = high, set_float32_matmul_precision = high and 2 more" in overridden.seen
    assert dtype in overridden.cause
    assert overridden.advice.startswith(advice)
    assert "and 1 more" in told(replace(record, settings=settings[1:]), "settings_overridden").seen
    assert told(kept, "settings_kept").seen.endswith("sets cuda.matmul.allow_tf32 = high")
    assert told(record, "settings_kept") is told(kept, "settings_overridden") is None


@pytest.mark.parametrize(
    ("dtype", "held", "kind", "named"),
    [
        ("fp16", {"float16": 90, "int8": 10}, "dtypes", "by size: int8 10%"),
        ("fp16", {"float16": 90}, None, ""),
        ("fp32", {"float32": 60, "complex64": 30, "int8": 10}, "dtypes", "complex64 30%, int8 10%"),
        ("own", {"float16": 90, "int8": 10}, None, ""),
        ("int8", {"bfloat16": 20, "int8": 80}, "quantized", "int8 80%, the rest bfloat16"),
    ],
)
def test_parameters_that_the_dtype_did_not_convert_are_named(dtype, held, kind, named):
    rows = (replace(row(1, 4.0), parameter_bytes=held),)
    record = replace(example(), spec=replace(example().spec, dtype=dtype), rows=rows)

    found = [notice for notice in whole(notices.of(record)) if notice.kind in ("dtypes", "quantized")]
    assert [notice.kind for notice in found] == ([kind] if kind else [])
    assert all(named in notice.seen and dtype in f"{notice.seen} {notice.cause}" for notice in found)


LOSS, OPTIMIZER, BOTH = (
    "the loss is a stand-in",
    "the optimizer (sgd) is a stand-in",
    "the loss and the optimizer (sgd)",
)


@pytest.mark.parametrize(
    ("model", "options", "seen", "expected"),
    [
        ("net.py:make", {}, ["loss_stand_in"], (BOTH, ["under the name loss", "--optimizer names"])),
        ("net.py:make", {"optimizer": "adamw"}, ["loss_stand_in"], (LOSS, ["under the name loss"])),
        ("net.py:make", {}, ["loss_stand_in", "own_optimizers"], (LOSS, ["under the name loss"])),
        ("net.py:make", {}, [], (OPTIMIZER, ["--optimizer names"])),
        ("net.py:make", {"optimizer": "sgd"}, [], (None, [])),
        ("net.py:make", {"phase": "infer"}, ["loss_stand_in"], (None, [])),
        ("hf:bert", {}, ["loss_stand_in"], (LOSS, ["config.json"])),
        ("hf:bert", {}, [], (None, [])),
        ("resnet18", {}, ["loss_stand_in"], (None, [])),
    ],
)
def test_training_with_stand_ins_says_what_stands_in(model, options, seen, expected):
    spec = Spec(**{"model": model, "dtype": "bf16", "phase": "train", **options})
    notice = told(replace(example(), spec=spec, rows=(replace(row(1, 4.0), seen=tuple(seen)),)), "stand_ins")

    said, advised = expected
    assert (notice is None) == (said is None)
    assert notice is None or notice.seen.startswith(said)
    assert all(words in notice.advice for words in advised)
    assert notice is None or len(notice.advice.split("; ")) == len(advised)


def test_defects_that_the_test_of_clocks_found_are_told():
    events, allocator = "its events read 3.21 ms of what takes 9.87 ms", "its allocator does not count a tensor"
    test = ClockTest(findings=(events, allocator))
    can = replace(example().environment.can, memory_peaks=False)
    by_host = with_environment(example(), clock="host", clock_test=test)
    uncounted = with_environment(example(), clock="events", clock_test=test, can=can)
    unknown = with_environment(uncounted, clock_test=ClockTest())

    assert told(by_host, "host_clock").cause == events
    assert told(uncounted, "memory_not_counted").cause == allocator
    assert "does not report" in told(unknown, "memory_not_counted").cause
    assert told(by_host, "memory_not_counted") is told(uncounted, "host_clock") is None
    assert "host_clock" not in kinds(with_environment(by_host, clock_test=None))
