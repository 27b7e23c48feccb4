"""The largest batch found on a real GPU is the true one."""

import time

import pytest
from support.command import QUICK, measured, run
from support.folders import MODELS
from support.tenants import taking_all_but

from tputfind.processes.children import Children
from tputfind.processes.messages import TimeBatches, Timed, TryBatch
from tputfind.record.record import Trial

GIB = 2**30


def edge_of(folder, *arguments):
    return measured(folder, *arguments, *QUICK, "--device", "cuda")


def test_the_edge_is_the_same_in_three_runs_and_holds_twice_in_fresh_processes(tmp_path):
    asked = ("resnet18", "--dtype", "fp16", "--memory-limit", "3GiB")
    records = [edge_of(tmp_path / str(number), *asked) for number in range(3)]

    edges = {record.edge for record in records}
    assert len(edges) == 1, edges
    (edge,) = edges
    assert edge.limited_by == "memory"
    assert edge.fails_at == edge.largest_batch + 1
    spec = records[0].spec
    with Children() as children:
        for _ in range(2):
            (fits,) = children.ask(TryBatch(spec, edge.largest_batch), Trial)
            (fails,) = children.ask(TryBatch(spec, edge.fails_at), Trial)
            assert fits.failure is None
            assert fails.failure is not None
            assert fails.failure.kind == "out_of_memory"


@pytest.mark.parametrize("model", ["resnet18", "vit_b_16"])
def test_a_memory_limit_finds_the_edge_of_a_card_of_that_size(tmp_path, model):
    """A second process leaves 4 GiB of the card free, so the search without a limit sees a card of that size."""
    limit_bytes = 4 * GIB
    limited = edge_of(tmp_path / "limited", model, "--dtype", "fp16", "--memory-limit", "4GiB")
    with taking_all_but(limit_bytes):
        real = edge_of(tmp_path / "real", model, "--dtype", "fp16")

    print(f"{model}: --memory-limit 4GiB {limited.edge.largest_batch}, a card with 4 GiB {real.edge.largest_batch}")
    assert limited.edge.largest_batch == pytest.approx(real.edge.largest_batch, rel=0.01)


def test_a_larger_limit_finds_a_larger_edge_and_a_known_size_the_computed_one(tmp_path):
    edges = [
        edge_of(tmp_path / str(size), f"{MODELS}/plain.py:four_mebibytes", "--memory-limit", f"{size}GiB")
        for size in (2, 4)
    ]

    small, large = (record.edge.largest_batch for record in edges)
    # Doubling the memory adds 2 GiB, at 4 MiB a sample; the allocator rounds to 2 MiB.
    assert large - small == pytest.approx(512, abs=1)
    taken = [
        next(row for row in record.rows if row.batch_size == record.edge.largest_batch).peak_reserved_bytes
        for record in edges
    ]
    assert taken[0] < 2 * GIB
    assert taken[1] < 4 * GIB


def test_a_limit_below_the_context_fits_nothing(tmp_path):
    ran = run(tmp_path, "resnet18", "--memory-limit", "300MiB", *QUICK, "--device", "cuda")

    assert ran.status == 4
    assert "context and libraries take" in ran.err


def test_a_row_that_runs_out_of_memory_among_others_is_kept_and_the_others_stand(tmp_path):
    record = edge_of(tmp_path, "resnet18", "--batch-sizes", "1,8,4000,16000", "--memory-limit", "3GiB")

    assert [row.status for row in record.rows] == ["ok", "ok", "out_of_memory", "out_of_memory"]


def test_the_row_after_a_trial_takes_the_memory_that_the_trial_took(tmp_path):
    record = edge_of(tmp_path, "resnet18", "--dtype", "fp16", "--max-batch", "256", "--search", "bisect")

    trials = {trial.batch_size: trial.peak_allocated_bytes for trial in record.trials}
    both = [row for row in record.rows if row.batch_size in trials]
    assert len(both) >= 3
    for row in both:
        assert row.peak_allocated_bytes == pytest.approx(trials[row.batch_size], rel=0.01)


def test_memory_is_free_again_after_a_child_was_killed():
    from tputfind.record.spec import read_spec
    from tputfind.session import stopping

    spec = read_spec("resnet18", {"device": "cuda", "batches": "100000", "max_seconds": "60"})
    with Children() as children:
        (before,) = children.ask(TryBatch(spec, 8), Trial)
        rows = children.ask(TimeBatches(spec, stopping.process_plan(spec, 0), (1, 256)), Timed)
        time.sleep(3)
        rows.close()
        (after,) = children.ask(TryBatch(spec, 8), Trial)

    assert (before.failure, after.failure) == (None, None)


def test_outputs_are_checked_on_a_full_card(tmp_path):
    """A kernel that CUDA loads at its first call fails for good in its process if it has no room."""
    record = edge_of(tmp_path, f"{MODELS}/unforeseen.py:wide_contrastive")

    print("wide_contrastive:", [(row.batch_size, row.output) for row in record.rows])
    assert not [row.batch_size for row in record.rows if row.output and "the check failed" in row.output.remark]
