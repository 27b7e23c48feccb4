"""Safe batches with headroom, and batches soaked for longer.

Limits lie between two multiples of the sample, as in ``test_search``.
"""

import sys

import pytest
from support.command import QUICK
from support.folders import MODELS

from tputfind.record.record import TRIAL_STEPS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")
ASKED = (f"{MODELS}/plain.py:blocks_of_their_own", "--memory-limit", "272MiB", *QUICK)


def test_headroom_gives_a_safe_batch_below_the_largest(tmp_path, ask):
    ran = ask(tmp_path, *ASKED, "--headroom", "25%")

    assert ran.status == 0, ran.err
    record = ran.record()
    assert record.edge.largest_batch == 8
    assert record.safe.largest_batch == 6
    assert record.safe.fails_at == record.safe.largest_batch + 1
    limit_bytes = record.safe.memory_limit_bytes
    under_it = [trial for trial in record.trials if trial.memory_limit_bytes == limit_bytes]
    assert {trial.batch_size: trial.failure is None for trial in under_it}[record.safe.fails_at] is False
    proof = max(under_it, key=lambda trial: trial.steps)
    row, largest = (
        next(row for row in record.rows if row.batch_size == edge.largest_batch) for edge in (record.safe, record.edge)
    )
    assert (proof.batch_size, proof.failure) == (record.safe.largest_batch, None)
    assert proof.steps == TRIAL_STEPS + largest.steps
    assert "Safe batch     6, with 25% of the memory kept" in ran.out
    assert row.status == "ok"


def test_largest_batch_is_safe_if_memory_is_not_the_limit(tmp_path, ask):
    ran = ask(tmp_path, *ASKED, "--max-batch", 5, "--headroom", "25%")

    record = ran.record()
    assert (record.edge.largest_batch, record.safe.largest_batch) == (5, 5)
    assert record.safe.limited_by == "cap"
    assert sum(trial.memory_limit_bytes == record.safe.memory_limit_bytes for trial in record.trials) == 2


def test_headroom_names_a_safe_batch_within_a_budget_too(tmp_path, ask):
    ran = ask(tmp_path, *ASKED, "--headroom", "25%", "--budget", "5min")
    record = ran.record()

    assert ran.status == 0, ran.err
    assert record.safe.largest_batch == 6
    assert record.row(record.safe.largest_batch) is not None


def test_headroom_exceeding_memory_is_refused(tmp_path, ask):
    ran = ask(tmp_path, *ASKED, "--headroom", "1GiB")

    assert ran.status == 2
    assert "--headroom 1.0 GiB leaves nothing of the 272 MiB" in ran.err


def test_soak_catches_workload_that_grows_at_its_fiftieth_step(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:takes_more_at_the_fiftieth", "--memory-limit", "272MiB", *QUICK)
    ran = ask(tmp_path, *asked, "--soak", 60)  # eight samples fit at first

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.soaked_batches) == (4, 60)
    soaks = {trial.batch_size: trial.failure for trial in record.trials if trial.steps == 63}
    assert "Largest batch  4, soaked for 60 batches, batch" in ran.out
    assert soaks[4] is None
    assert soaks[record.edge.fails_at].kind == "out_of_memory"
    assert "failed_when_soaked" in {notice.kind for notice in record.notices}


def test_the_safe_batch_is_soaked_too(tmp_path, ask):
    ran = ask(tmp_path, *ASKED, "--headroom", "128MiB", "--soak", 40)

    record = ran.record()
    assert (record.edge.soaked_batches, record.safe.soaked_batches) == (40, 40)
    assert (record.edge.largest_batch, record.safe.largest_batch) == (8, 4)
    assert "Safe batch 4, soaked for 40 batches, with 128 MiB of the memory kept" in " ".join(ran.out.split())
    assert any(
        trial.steps >= 43 and trial.memory_limit_bytes == record.safe.memory_limit_bytes for trial in record.trials
    )
