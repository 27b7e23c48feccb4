"""The error of a run without a passed trial gives the next step."""

from typing import get_args

import pytest
from msgspec.structs import replace
from support.records import example

from tputfind.analysis.notices import ADVICE
from tputfind.errors import NothingFits
from tputfind.record.record import Failure, FailureKind, LimitedBy, Trial
from tputfind.record.spec import read_spec
from tputfind.session.outcome import LIMITS, judge_output, no_answer

RAISES = Failure(kind="error", message="RuntimeError: Expected 3D or 4D input", traceback="...")


@pytest.mark.parametrize("model", ["net.py:make", "resnet18"])
def test_input_size_beginning_with_batch_of_1_hints_to_omit_it(model):
    error = no_answer(read_spec(model, {"input_size": "1x3x32x32"}), 1, RAISES)

    assert error.hint == "--input-size is one sample, without the batch axis: write 3x32x32 if the 1 is a batch"


def test_host_out_of_memory_does_not_advise_a_larger_device():
    error = no_answer(read_spec("net.py:make", {}), 1, Failure(kind="host_memory", message="MemoryError"))

    assert isinstance(error, NothingFits)
    assert error.hint == ADVICE["host_memory"]


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


def test_output_of_a_failed_trial_is_not_judged():
    trials = tuple(Trial(batch_size=size, returned=size) for size in (1, 4, 16))
    tried = Trial(batch_size=64, failure=RAISES)

    assert judge_output(replace(example(), trials=trials), tried) == tried
