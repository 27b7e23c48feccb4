"""A run that must end within a budget."""

import time

import pytest
from msgspec.structs import replace
from support.command import TINY, run
from support.folders import MODELS

from tputfind.record.record import Edge


@pytest.mark.alone
def test_run_ends_within_its_budget_and_lists_omissions(tmp_path):
    start = time.perf_counter()
    ran = run(tmp_path, f"{MODELS}/plain.py:sleeps", "--max-batch", 64, "--max-noise", "0.3%", "--budget", "12s")
    seconds = time.perf_counter() - start
    record = ran.record()

    assert ran.status == 0, ran.err
    assert seconds < 12 + 0.64 + 2
    assert seconds > 8
    assert record.finished is not None
    assert "budget" in {row.ended_by for row in record.rows}
    (notice,) = [notice for notice in record.notices if notice.kind == "budget"]
    assert notice.cause == "--budget left too little time"
    assert notice.batch_sizes == tuple(row.batch_size for row in record.rows if row.ended_by == "budget")
    assert all(row.failure is None for row in record.rows)


@pytest.mark.alone
def test_long_search_is_cut_short_and_passed_batches_are_timed(tmp_path):
    start = time.perf_counter()
    ran = run(tmp_path, f"{MODELS}/plain.py:sleeps_longer", "--max-latency", "none", "--budget", "12s")
    seconds = time.perf_counter() - start
    record = ran.record()

    assert ran.status == 0, ran.err
    assert seconds < 12 + 3
    passed = max(trial.batch_size for trial in record.trials)
    edge = Edge(largest_batch=passed, limited_by="cut_short", closed=False)
    assert (replace(record.edge, memory_limit_bytes=None), record.safe) == (edge, None)
    assert record.finished is not None
    assert record.rows
    (notice,) = [notice for notice in record.notices if notice.kind == "budget"]
    assert notice.seen.startswith(f"the search stopped at batch {passed}")
    assert f"Largest batch  at least {passed}, the search was cut short" in ran.out


@pytest.mark.alone
def test_models_share_a_budget_and_the_first_leaves_the_next_its_part(tmp_path):
    models = [f"{MODELS}/plain.py:{name}" for name in ("sleeps", "sleeps_longer")]
    start = time.perf_counter()
    ran = run(tmp_path, *models, "--batch-sizes", "1,2,4,8", "--max-noise", "0.3%", "--budget", "16s")
    seconds = time.perf_counter() - start

    assert ran.status == 0, ran.err
    assert seconds < 16 + 3
    for name in ("plain-sleeps-*", "plain-sleeps_longer-*"):
        record = ran.record(name)
        assert record.finished is not None
        assert len(record.rows) >= 2
        assert record.wall_s > 4


def test_a_budget_that_ends_before_anything_was_timed_is_one_line(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:sleeps", "--max-batch", 4, "--budget", "1ms")

    assert ran.status == 2
    assert ran.err.splitlines()[-1] == "tputfind: --budget ended before a batch was timed (give it more time)"


@pytest.mark.parametrize(("factory", "hanging"), [("hangs_when_it_is_made", "the model"), ("hangs", "batch 1")])
def test_budget_that_ends_in_a_hanging_model_names_what_gave_no_answer(tmp_path, ask, factory, hanging):
    ran = ask(tmp_path, f"{MODELS}/plain.py:{factory}", "--budget", "9s")

    assert ran.status == 2
    line = ran.err.splitlines()[-1]
    assert f"--budget ended before a batch was timed: {hanging} gave no answer within" in line
    assert line.endswith("(give it more time, or see where it hangs)")


def test_model_of_several_that_budget_leaves_untimed_stays_unfinished(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:sleeps", f"{MODELS}/plain.py:hangs", "--max-batch", 1, "--budget", "9s")
    untimed = ran.record("plain-hangs-*")

    assert ran.status == 2
    assert "--budget ended before a batch was timed" in ran.err
    assert ran.record("plain-sleeps-*").rows[0].failure is None
    assert (untimed.rows, untimed.finished) == ((), None)
    assert "not known: the search was cut short; nothing was tried" in ran.out
    assert "the model fails" not in ran.out


def test_a_run_that_needs_less_than_its_budget_is_as_without_one(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:sleeps", "--max-batch", 2, "--max-noise", "50%", "--budget", "5min")
    record = ran.record()

    assert ran.status == 0, ran.err
    assert [(row.batch_size, row.ended_by) for row in record.rows] == [(1, "known"), (2, "known")]
    assert "budget" not in {notice.kind for notice in record.notices}


def test_time_of_a_run_includes_the_look_at_the_model(tmp_path):
    start = time.perf_counter()
    ran = run(tmp_path, "resnet18", *TINY, "--device", "cpu")

    assert (time.perf_counter() - start) / 2 < ran.record().wall_s
