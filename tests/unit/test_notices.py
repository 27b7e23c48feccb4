"""What a reader must know is said where it is so, and only there."""

from __future__ import annotations

import msgspec
import pytest
from support.records import example, row

from tputfind import notices
from tputfind.record import Failure, OutputCheck, Row, Trial

GIB = 2**30


def kinds(record) -> dict[str, tuple[int, ...]]:
    return {notice.kind: notice.batch_sizes for notice in notices.of(record)}


def with_environment(record, **fields):
    return msgspec.structs.replace(record, environment=msgspec.structs.replace(record.environment, **fields))


def beside(record, *held: int):
    """The record with these bytes held by others at its trials, in turn, and by nobody known at its rows."""
    trials = tuple(
        msgspec.structs.replace(trial, memory_of_others_bytes=held[number % len(held)])
        for number, trial in enumerate(record.trials)
    )
    rows = tuple(msgspec.structs.replace(row, memory_of_others_bytes=None) for row in record.rows)
    return msgspec.structs.replace(record, trials=trials, rows=rows)


def test_memory_that_others_held_throughout_is_told_once():
    record = with_environment(beside(example(), 30 * GIB), memory_of_others_bytes=30 * GIB)

    (notice,) = [notice for notice in notices.of(record) if notice.kind.startswith("memory_of_others")]
    assert notice.kind == "memory_of_others"
    assert "30.0 GiB" in notice.seen
    assert "--strict" in notice.advice


def test_memory_that_others_took_meanwhile_is_told_with_both_ends():
    record = with_environment(beside(example(), 0, 20 * GIB), memory_of_others_bytes=0)

    (notice,) = [notice for notice in notices.of(record) if notice.kind.startswith("memory_of_others")]
    assert notice.kind == "memory_of_others_changed"
    assert "0 MiB to 20.0 GiB" in notice.seen


def test_a_device_of_ones_own_or_one_that_cannot_tell_needs_no_notice():
    alone = with_environment(beside(example(), 0, 2**20), memory_of_others_bytes=0)
    unknown = with_environment(beside(example(), None), memory_of_others_bytes=None)

    assert not any(kind.startswith("memory_of_others") for kind in {**kinds(alone), **kinds(unknown)})


def test_every_kind_of_failure_but_lack_of_memory_is_told_with_its_advice():
    for kind, advice in notices.ADVICE.items():
        trial = Trial(batch_size=77, failure=Failure(kind=kind, message="what it said"))
        record = msgspec.structs.replace(example(), trials=(trial,), rows=())

        told = [notice for notice in notices.of(record) if 77 in notice.batch_sizes]
        assert [notice.advice for notice in told] == ([] if kind == "out_of_memory" else [advice])
        assert all("what it said" in notice.seen for notice in told)


def test_a_batch_that_failed_when_it_was_soaked_is_told_even_if_it_was_for_memory():
    soak = Trial(batch_size=5, steps=53, failure=Failure(kind="out_of_memory", message="it is full"))
    record = msgspec.structs.replace(example(), trials=(*example().trials, soak))

    assert kinds(record)["failed_when_soaked"] == (5,)


def test_a_wrong_output_is_told_though_the_trial_passed():
    wrong = Row(batch_size=5, failure=Failure(kind="wrong_output", message="sample 4 differs"))
    record = msgspec.structs.replace(example(), rows=(*example().rows[:3], wrong))

    assert kinds(record)["row_wrong_output"] == (5,)


def test_outputs_that_were_not_checked_are_told_by_reason():
    def row(index, **check):
        return msgspec.structs.replace(example().rows[index], output=OutputCheck(**check))

    rows = (
        row(0, result="unchecked", remark="one reason"),
        row(2, result="unchecked", remark="another"),
        row(3, result="not_finite"),
    )
    told = notices.of(msgspec.structs.replace(example(), rows=rows))

    assert [(n.cause, n.batch_sizes) for n in told if n.kind == "output_unchecked"] == [
        ("one reason", (1,)),
        ("another", (4,)),
    ]
    assert [n.batch_sizes for n in told if n.kind == "output_not_finite"] == [(5,)]


def test_memory_in_pieces_is_told_where_other_segments_are_forecast_to_fit_much_more():
    def record(forecast):
        return msgspec.structs.replace(
            example(), edge=msgspec.structs.replace(example().edge, expandable_forecast=forecast)
        )

    (notice,) = [notice for notice in notices.of(record(6)) if notice.kind == "fragmentation"]
    assert "5 MiB of 24.0 GiB" in notice.seen
    assert "--allocator expandable" in notice.advice
    assert "forecast to fit 6 instead" in notice.advice
    assert not any("fragmentation" in kinds(record(forecast)) for forecast in (None, 0, 5))


@pytest.mark.parametrize(
    ("size", "kind", "others", "limit_bytes", "told"),
    [
        (3, "out_of_memory", 0, None, True),
        (6, "out_of_memory", 0, None, False),  # beyond the largest
        (3, "unsupported", 0, None, False),  # told as what it is
        (3, "out_of_memory", GIB, None, False),  # others had taken memory
        (3, "out_of_memory", 0, GIB, False),  # under --headroom's limit
    ],
)
def test_smaller_batches_that_ran_out_of_memory_are_told(size, kind, others, limit_bytes, told):
    failure = Failure(kind=kind, message="it is full")
    trial = Trial(batch_size=size, failure=failure, memory_of_others_bytes=others, memory_limit_bytes=limit_bytes)
    record = msgspec.structs.replace(example(), trials=(*example().trials, trial))

    assert kinds(record).get("smaller_batches_fail") == ((3,) if told else None)


@pytest.mark.parametrize(
    ("size", "steps", "others", "limit_bytes", "told"),
    [
        (9, 20, 0, None, True),
        (9, 3, 0, None, False),  # no more than a trial
        (9, 20, 0, GIB, False),  # under another limit
        (4, 20, 0, None, False),  # smaller than the largest
    ],
)
def test_a_larger_batch_that_fits_again_for_longer_than_a_trial_is_told(size, steps, others, limit_bytes, told):
    trial = Trial(batch_size=size, steps=steps, memory_of_others_bytes=others, memory_limit_bytes=limit_bytes)
    record = msgspec.structs.replace(example(), trials=(*example().trials, trial))

    assert kinds(record).get("larger_batches_fit") == ((size,) if told else None)


def lasted(**edge):
    """Return a record of which batch 9 lasted 20 steps, and the edge was this."""
    trial = Trial(batch_size=9, steps=20, memory_of_others_bytes=0)
    edge = msgspec.structs.replace(example().edge, **edge)
    return msgspec.structs.replace(example(), trials=(*example().trials, trial), edge=edge)


def test_a_larger_batch_is_said_to_fit_only_where_memory_set_a_steady_edge():
    assert "larger_batches_fit" in kinds(lasted())
    assert "larger_batches_fit" not in kinds(lasted(limited_by="latency"))
    assert "larger_batches_fit" not in kinds(lasted(steady=False))


def test_a_larger_batch_that_others_had_left_room_for_is_not_said_to_fit():
    record = lasted()
    rows = [msgspec.structs.replace(row, memory_of_others_bytes=2**20) for row in record.rows]

    assert "larger_batches_fit" not in kinds(msgspec.structs.replace(record, rows=tuple(rows)))


def test_a_smaller_row_that_ran_out_of_memory_is_told():
    row = Row(batch_size=3, failure=Failure(kind="out_of_memory", message="it is full"))
    record = msgspec.structs.replace(example(), rows=(*example().rows, row))

    (notice,) = [notice for notice in notices.of(record) if notice.kind == "smaller_batches_fail"]
    assert notice.seen == "batch 3 ran out of memory, though 5 fits"


@pytest.mark.parametrize(("slowest_ms", "cause"), [(5.0, "to launch its kernels"), (50.0, "the model's own code")])
def test_a_step_whose_submission_takes_longer_with_the_batch_is_not_told_to_launch_kernels_alone(slowest_ms, cause):
    rows = (row(1, 4.0, enqueue_ms=3.9), row(64, slowest_ms, enqueue_ms=slowest_ms))
    record = msgspec.structs.replace(example(), rows=rows)

    (notice,) = [notice for notice in notices.of(record) if notice.kind == "host_bound"]
    assert cause in notice.cause
    assert notice.batch_sizes == (1, 64)
