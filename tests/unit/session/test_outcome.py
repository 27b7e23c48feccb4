"""The error of a run without a passed trial gives the next step."""

from typing import get_args

import pytest

from tputfind.analysis.notices import ADVICE
from tputfind.errors import NothingFits
from tputfind.record.record import Failure, FailureKind, LimitedBy
from tputfind.record.spec import read_spec
from tputfind.session.outcome import LIMITS, no_answer

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
