"""Largest batches, within a budget on the CPU, of models that do not grow as small batches suggest."""

from pathlib import Path

import pytest
from support.command import EDGE, QUICK

MODEL = f"{Path(__file__).parents[1]}/models/unforeseen.py"
MIB = 2**20


def asked(record):
    """Return the batch sizes of the trials in order; check that none is over 16 times the largest passed before."""
    passed, sizes = 0, []
    for trial in record.trials:
        assert not passed or trial.batch_size <= 16 * passed
        sizes.append(trial.batch_size)
        passed = max(passed, trial.batch_size if trial.failure is None else 0)
    return sizes


def check_tried(edge, record):
    """Check that both sides of an edge were tried, by trials or rows with matching outcomes."""
    passed = {one.batch_size: one.failure is None for one in (*record.rows, *record.trials)}
    passed |= {row.batch_size: False for row in record.rows if row.failure is not None}
    assert passed[edge.largest_batch]
    assert not passed[edge.fails_at]


def test_memory_of_a_computable_model_is_filled_within_a_budget(tmp_path, ask):
    ran = ask(tmp_path, f"{MODEL}:slow_inputs", "--memory-limit", "256MiB", "--budget", "60s", *EDGE)
    record = ran.record()

    assert ran.status == 0, ran.err
    assert record.edge.closed
    assert record.edge.limited_by == "memory"
    assert 256 / 5 < record.edge.largest_batch < 256 / 3
    assert len(asked(record)) <= 14
    check_tried(record.edge, record)


def test_memory_that_grows_with_the_square_ends_a_search_within_a_budget(tmp_path, ask):
    ran = ask(tmp_path, f"{MODEL}:contrastive", "--memory-limit", "256MiB", "--budget", "60s", *EDGE)
    record = ran.record()

    assert ran.status == 0, ran.err
    assert record.edge.limited_by == "memory"
    assert 4000 < record.edge.largest_batch < 8200
    assert record.edge.fails_at - record.edge.largest_batch <= 0.05 * record.edge.largest_batch
    assert max(asked(record)) < 70_000
    check_tried(record.edge, record)
    if not record.edge.closed:
        assert f"between {record.edge.largest_batch} and {record.edge.fails_at - 1}, batch" in " ".join(ran.out.split())


@pytest.mark.parametrize("more", [("--budget", "60s"), ("--trial-timeout", "4s")])
def test_timed_out_batch_is_reported_and_search_continues_below(tmp_path, ask, more):
    ran = ask(tmp_path, f"{MODEL}:stalls", "--max-latency", "none", *more, *QUICK)
    record = ran.record()
    edge = record.edge

    assert ran.status == 0, ran.err
    assert (edge.limited_by, edge.closed) == ("timeout", False)
    assert 64 <= edge.largest_batch <= 100 < edge.fails_at <= 150
    assert f"batch {edge.fails_at} is too slow to know: no answer within" in ran.err
    assert f"at least {edge.largest_batch}, batch {edge.fails_at}: no answer within" in " ".join(ran.out.split())
    assert {trial.failure.kind for trial in record.trials if trial.failure is not None} == {"timeout"}
    check_tried(edge, record)


def test_edge_without_row_is_reported_as_not_yet_timed(tmp_path, ask):
    asked = ("--max-latency", "none", "--max-batch", 16, "--batches", 10, "--budget", "12s")
    ran = ask(tmp_path, f"{MODEL}:slow_to_time", *asked)
    record = ran.record()

    assert ran.status == 0, ran.err
    assert (record.edge.largest_batch, record.edge.limited_by, record.edge.closed) == (16, "cap", True)
    assert record.row(16) is None
    assert "16, not tried further: --max-batch; not yet timed in full" in " ".join(ran.out.split())
