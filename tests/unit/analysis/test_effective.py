"""The batch size and accumulation that reach an effective batch fastest."""

from time import perf_counter

import msgspec
import pytest
from support.records import example, row

from tputfind.analysis.answers import reach, sizes_that_divide
from tputfind.record.record import Edge
from tputfind.record.spec import Spec
from tputfind.report.text import summary
from tputfind.session.stopping import contenders

MIB = 2**20


def record(*rows, **fields):
    spec = Spec(model="resnet50", phase="train", batches=100, processes=1, **fields)
    return msgspec.structs.replace(example(), spec=spec, rows=rows, edge=None)


def answer(found):
    return dict(summary(found))["Effective"]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1024, (128, 8, 8)), (64, (64, 1, 1)), (96, (32, 3, 3)), (300, (100, 3, 3)), (7, None)],
)
def test_reach_takes_the_fastest_row_that_divides_the_effective_batch(size, expected):
    timed = [row(32, 40.0), row(64, 60.0), row(100, 90.0), row(128, 100.0)]

    reached = reach(record(*timed), size)

    assert (reached and (reached.row.batch_size, reached.accumulate, reached.repeats)) == expected


def test_reach_of_an_accumulated_record_repeats_its_steps():
    reached = reach(record(row(16, 40.0), row(32, 60.0), accumulate=4), 256)

    assert (reached.row.batch_size, reached.accumulate, reached.repeats) == (32, 8, 2)
    assert reached.step_ms == pytest.approx(120.0)


def test_row_without_room_for_gradients_is_not_accumulated():
    """Room ends at the memory limit, or at the highest peak of a search; the peaks of the rows are 64 and 128 MiB."""
    weights = {"float32": 60 * MIB}
    rows = [msgspec.structs.replace(each, parameter_bytes=weights) for each in (row(32, 40.0), row(64, 60.0))]
    limited = record(*rows, memory_limit_bytes=124 * MIB)
    edge = Edge(largest_batch=64, limited_by="memory", fails_at=65)
    trained = [msgspec.structs.replace(each, gradient_bytes=0) for each in rows]

    assert reach(limited, 128).row.batch_size == 32
    assert reach(limited, 64).row.batch_size == 64
    assert reach(msgspec.structs.replace(record(*rows), edge=edge), 128).row.batch_size == 32
    assert reach(msgspec.structs.replace(record(*trained), edge=edge), 128).row.batch_size == 64


def test_answer_for_repeated_steps_gives_bounds_and_measuring_command():
    timed = (row(32, 40.0), row(64, 60.0))

    assert answer(record(*timed, effective_batch=256)) == (
        "256 a step: batch 64 x 4 accumulated, at least 1067 samples/s, at most 240.0 ms a step; "
        "--accumulate 4 --batch-sizes 64 measures it"
    )
    assert answer(record(*timed, effective_batch=64)) == "64 a step: batch 64, 1067 samples/s, 60.00 ms a step"
    assert "no batch size that was timed divides it" in answer(record(*timed, effective_batch=33))
    assert "--batch-sizes 11,33 do" in answer(record(*timed, effective_batch=33))
    assert "Effective" not in dict(summary(record(*timed)))


def test_divisors_of_the_largest_effective_batch_take_no_time():
    spec = Spec(model="resnet50", phase="train", effective_batch=2**31 - 1)
    begin_s = perf_counter()

    assert sizes_that_divide(spec, 2**31 - 2) == [1]
    assert perf_counter() - begin_s < 1


def test_run_times_the_largest_divisors_and_holds_their_row_for_an_answer():
    spec = Spec(model="resnet50", phase="train", effective_batch=1000, granularity=2)

    assert sizes_that_divide(spec, 300) == [200, 250]
    assert sizes_that_divide(spec, 1) == []
    assert sizes_that_divide(msgspec.structs.replace(spec, effective_batch=36, granularity=6), 2**31) == [18, 36]
    assert sizes_that_divide(Spec(model="resnet50"), 300) == []
    assert 50 in contenders(spec, (row(50, 60.0), row(64, 30.0), row(128, 40.0), row(256, 70.0)), None)
    assert 50 not in contenders(Spec(model="resnet50"), (row(50, 60.0), row(128, 40.0), row(256, 70.0)), None)
