"""The error of a run without a passed trial gives the next step."""

from typing import get_args

import pytest
from msgspec.structs import replace
from support.records import example

from tputfind.analysis.notices import ADVICE
from tputfind.errors import (
    BadRequest,
    BrokenInstall,
    DeviceInUse,
    ModelFailed,
    NoSuchDevice,
    NothingFits,
    OutOfTime,
)
from tputfind.processes.messages import Refusal
from tputfind.record.record import Failure, FailureKind, LimitedBy, Row, Trial
from tputfind.record.spec import Spec, read_spec
from tputfind.session.outcome import (
    LIMITS,
    check_batch_size_counts,
    error_of,
    failed_record,
    judge_output,
    no_answer,
    obstacle,
)
from tputfind.session.resume import can_go_on

RAISES = Failure(kind="error", message="RuntimeError: Expected 3D or 4D input", traceback="...")


@pytest.mark.parametrize("model", ["net.py:make", "resnet18"])
def test_input_size_beginning_with_batch_of_1_hints_to_omit_it(model):
    error = no_answer(read_spec(model, {"input_size": "1x3x32x32"}), 1, RAISES)

    assert error.hint == "--input-size is one sample, without the batch axis: write 3x32x32 if the 1 is a batch"


def test_host_out_of_memory_does_not_advise_a_larger_device():
    error = no_answer(read_spec("net.py:make", {}), 1, Failure(kind="host_memory", message="MemoryError"))

    assert isinstance(error, NothingFits)
    assert error.hint == ADVICE["host_memory"]


UNSUPPORTED = Failure(kind="unsupported", message="no kernel", traceback="...")
COMPILED = {"dtype": "bf16", "layout": "nhwc", "mode": "compile", "phase": "train", "device": "cpu"}
CANNOT = "cannot do --dtype {} --layout {} on {}: no kernel"


def by(failure, model="net.py:make", **options):
    return read_spec(model, options), failure


OWN_STEP = replace(read_spec("net.py:step", {}), phase="step", dtype="own")


@pytest.mark.parametrize(
    ("spec", "failure", "expected"),
    [
        (*by(UNSUPPORTED, "resnet18"), (NoSuchDevice, CANNOT.format("fp32", "nchw", "this device"), True, "")),
        (*by(UNSUPPORTED), (ModelFailed, "fails at batch 4: no kernel", True, "...")),
        (OWN_STEP, UNSUPPORTED, (ModelFailed, "fails at batch 4: no kernel", True, "...")),
        *(
            (*by(UNSUPPORTED, **{option: COMPILED[option]}), (NoSuchDevice, "cannot do --dtype", True, "..."))
            for option in ("dtype", "layout", "mode")
        ),
        (
            *by(UNSUPPORTED, **COMPILED),
            (NoSuchDevice, CANNOT.format("bf16", "nhwc --mode compile --phase train", "cpu"), True, "..."),
        ),
        (*by(RAISES), (ModelFailed, f"fails at batch 4: {RAISES.message}", True, "...")),
        (*by(replace(RAISES, traceback="")), (ModelFailed, "fails at batch 4", False, "")),
        (*by(RAISES, "resnet18"), (ModelFailed, "fails at batch 4", True, "...")),
        (*by(RAISES, "resnet18", image_size=8), (BadRequest, "does not take an input of that size", True, "")),
        (*by(RAISES, input_size="3x8x8"), (ModelFailed, "fails at batch 4", True, "...")),
    ],
)
def test_error_of_a_run_names_the_cause_and_shows_tracebacks_of_own_code(spec, failure, expected):
    error = no_answer(spec, 4, failure)

    kind, says, hint, traceback = expected
    assert (type(error), bool(error.hint), error.traceback) == (kind, hint, traceback)
    assert error.message.startswith(f"{spec.model} {says}")


def test_run_without_a_passed_row_has_the_error_of_its_first():
    full = Row(batch_size=2, failure=Failure(kind="out_of_memory", message="it is full"))
    raises = Row(batch_size=4, failure=RAISES)

    assert "not even batch 2 fits" in error_of(replace(example(), rows=(full, raises))).message
    assert isinstance(error_of(replace(example(), rows=(raises, full))), ModelFailed)
    assert error_of(replace(example(), rows=(full, Row(batch_size=8)))) is None
    assert error_of(replace(example(), rows=())) is None


def without_host_memory():
    error = NothingFits("it is gone")
    error.kind = "host_memory"
    return error


@pytest.mark.parametrize(
    ("error", "given", "kind"),
    [
        (NoSuchDevice("it is gone", traceback="..."), None, "unsupported"),
        (NothingFits("it is gone"), None, "out_of_memory"),
        (BadRequest("it is gone"), None, "error"),
        (NothingFits("it is gone"), "died", "died"),
        (Refusal.of(without_host_memory()).make_error(), None, "host_memory"),
        (no_answer(Spec(model="resnet18"), 4, Failure(kind="died", message="it is gone")), None, "died"),
        (no_answer(Spec(model="resnet18"), 4, Failure(kind="kernel_limit", message="it is gone")), None, "error"),
    ],
)
def test_record_of_a_run_that_failed_has_one_row_with_the_error(error, given, kind):
    record = replace(example(), spec=replace(example().spec, granularity=4), finished=None)

    failed = failed_record(record, error, given)

    failure = Failure(kind=kind, message=error.message, traceback=error.traceback)
    assert failed.rows == (Row(batch_size=4, failure=failure),)
    assert failed.finished is not None
    assert {size for notice in failed.notices for size in notice.batch_sizes} <= {4}  # none of rows before


@pytest.mark.parametrize(
    "error",
    [
        OutOfTime("--budget ended"),
        DeviceInUse("other processes hold 1 GiB"),
        BrokenInstall("the measuring process does not start"),
    ],
)
def test_failed_record_of_run_that_never_began_can_be_resumed(error):
    record = replace(example(), rows=(), finished=None)

    assert failed_record(record, error).rows == ()
    assert can_go_on(failed_record(record, error))
    assert failed_record(record, error, "timeout").rows[0].failure.kind == "timeout"


@pytest.mark.parametrize(
    ("batch_size", "step_ms", "limit_ms", "own_memory", "expected"),
    [
        *((8, 1001.0, "auto", own_memory, limit) for own_memory, limit in ((True, None), (False, "latency"))),
        (8, 1000.0, "auto", False, None),
        (8, 1001.0, 1002.0, False, None),
        (8, 6.0, 5.0, True, "latency"),
        (4, 6.0, 5.0, True, None),  # the smallest batch
        (8, None, 5.0, True, None),
    ],
)
def test_batch_above_the_smallest_must_meet_the_maximum_latency(batch_size, step_ms, limit_ms, own_memory, expected):
    environment = replace(example().environment, can=replace(example().environment.can, own_memory=own_memory))
    spec = replace(example().spec, max_latency_ms=limit_ms, granularity=4)
    record = replace(example(), environment=environment, spec=spec)

    assert obstacle(record, Trial(batch_size=batch_size, step_ms=step_ms)) == expected


MILLION = 2**20
GIB = 2**30


@pytest.mark.parametrize(
    ("batch_size", "step_ms", "grown", "options", "counts"),
    [
        (MILLION, 1.99, MILLION - 2, {}, False),
        (MILLION, 2.0, 0, {}, True),
        (MILLION, 1.0, MILLION - 1, {}, True),
        (MILLION - 1, 1.0, 0, {}, True),
        (MILLION, 1.0, 0, {"phase": "infer"}, True),
        (MILLION, None, 0, {}, True),
        (MILLION, 1.0, None, {}, True),
        (MILLION, 1.0, 0, {"failure": RAISES}, True),
    ],
)
def test_step_that_ignores_its_batch_size_is_refused(batch_size, step_ms, grown, options, counts):
    spec = replace(example().spec, model="net.py:step", phase=options.get("phase", "step"), dtype="fp32")
    small = Trial(batch_size=1, step_ms=1.0, peak_allocated_bytes=100)
    between = Trial(batch_size=64, step_ms=1.0, peak_allocated_bytes=100)
    record = replace(example(), spec=spec, trials=(replace(small, failure=RAISES), between, small))
    peak_bytes = None if grown is None else 100 + grown
    tried = Trial(
        batch_size=batch_size, step_ms=step_ms, peak_allocated_bytes=peak_bytes, failure=options.get("failure")
    )

    check_batch_size_counts(replace(record, trials=()), tried)
    if counts:
        check_batch_size_counts(record, tried)
        return
    with pytest.raises(BadRequest, match=f"batch size {MILLION} takes neither more time nor more memory than 1 "):
        check_batch_size_counts(record, tried)


def test_every_kind_of_failure_is_a_limit_of_the_search():
    assert set(LIMITS) == set(get_args(FailureKind))
    assert set(LIMITS.values()) | {"latency", "cap", "cut_short"} == set(get_args(LimitedBy))


@pytest.mark.parametrize("options", [{"input_size": "3x32x32"}, {"input_size": "1"}, {}])
def test_other_shapes_have_no_batch_axis_to_leave_out(options):
    assert "batch axis" not in no_answer(read_spec("net.py:make", options), 1, RAISES).hint


@pytest.mark.parametrize(
    ("below", "returned", "fails"),
    [
        ({1: 10, 4: 40, 16: 160}, 640, False),
        ({1: 10, 4: 40, 16: 160}, 480, False),
        ({1: 10, 4: 40, 16: 160}, 479, True),
        ({1: 10, 4: 40, 16: 160}, 0, True),
        ({1: 10, 4: 40, 16: 160}, None, False),
        ({1: 110, 4: 140, 16: 260}, 320, True),  # 100 values do not depend on the batch
        ({4: 40, 16: 160}, 0, False),
        ({1: 10, 4: 40, 16: 150}, 0, False),
        ({1: 10, 4: 10, 16: 10}, 10, False),
        ({1: None, 4: 40, 16: 160}, 0, False),
    ],
)
def test_output_is_wrong_if_it_is_far_smaller_than_smaller_batches_let_expect(below, returned, fails):
    trials = tuple(Trial(batch_size=size, returned=count) for size, count in below.items())
    tried = Trial(batch_size=64, returned=returned)

    judged = judge_output(replace(example(), trials=trials), tried)

    message = f"batch 64 returned {returned} values, and batch 16 {below[16]}"
    assert judged == (replace(tried, failure=Failure(kind="wrong_output", message=message)) if fails else tried)


@pytest.mark.parametrize(
    ("returned", "limit_bytes", "peaks", "fails"),
    [
        (32, 720 * GIB, True, False),
        (32, 710 * GIB, True, True),  # 640 GiB would fill nine tenths of it
        (32, 720 * GIB, False, True),
        (0, 720 * GIB, True, True),
    ],
)
def test_smaller_output_is_wrong_only_if_empty_or_memory_was_nearly_full(returned, limit_bytes, peaks, fails):
    peak_bytes = {size: size * 10 * GIB if peaks else None for size in (1, 4, 16)}
    trials = tuple(
        Trial(batch_size=size, returned=size, peak_reserved_bytes=count, peak_allocated_bytes=count)
        for size, count in peak_bytes.items()
    )
    tried = Trial(batch_size=64, returned=returned, memory_limit_bytes=limit_bytes)

    judged = judge_output(replace(example(), trials=trials), tried)

    assert (judged.failure is not None) == fails


def test_output_of_a_failed_trial_is_not_judged():
    trials = tuple(Trial(batch_size=size, returned=size) for size in (1, 4, 16))
    tried = Trial(batch_size=64, failure=RAISES)

    assert judge_output(replace(example(), trials=trials), tried) == tried
