"""The whole tool on the CPU, against memory that really runs out.

Limits lie halfway between two multiples of the sample, which is a block that glibc maps separately: near a multiple,
what Python and the C library map for themselves would decide, and smaller blocks leave gaps in the heap.
"""

import subprocess
import sys

import pytest
from support import bare
from support.command import EDGE, QUICK
from support.folders import MODELS

MIB = 2**20
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")


@linux_only
def test_edge_matches_arithmetic(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:blocks_of_their_own", "--memory-limit", "752MiB", *EDGE)
    ran = ask(tmp_path, *asked)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert record.edge.largest_batch == 23
    assert record.edge.limited_by == "memory"
    assert record.edge.fails_at == record.edge.largest_batch + 1
    verdicts = {trial.batch_size: trial.failure for trial in record.trials}
    assert verdicts[record.edge.largest_batch] is None
    assert verdicts[record.edge.fails_at].kind in ("out_of_memory", "died")
    timed = [row.batch_size for row in record.rows if row.status == "ok"]
    assert timed == sorted({*(2**power for power in range(11) if 2**power <= timed[-1]), record.edge.largest_batch})


@linux_only
def test_counting_up_finds_the_same_edge(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:blocks_of_their_own", "--memory-limit", "528MiB", "--search", "linear", *QUICK)
    edge = ask(tmp_path, *asked).record().edge

    assert (edge.largest_batch, edge.fails_at, edge.limited_by) == (16, 17, "memory")


@linux_only
def test_line_through_peaks_finds_bisection_edge_in_fewer_trials(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:blocks_of_their_own", "--memory-limit", "2064MiB", *EDGE)
    forecast = ask(tmp_path, *asked).record()
    bisected = ask(tmp_path, *asked, "--search", "bisect", "--output", "bisected/results")
    bisected = bisected._replace(folder=tmp_path / "bisected").record()

    assert forecast.spec.search == "forecast"
    assert forecast.edge == bisected.edge
    assert forecast.edge.largest_batch == 64
    assert len(forecast.trials) < len(bisected.trials)
    assert all(trial.trace is None for trial in forecast.trials)


@linux_only
def test_memory_that_grows_after_the_trial_is_caught_by_the_full_run(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:takes_more_later", "--memory-limit", "528MiB", *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert record.edge.largest_batch == 8
    largest = next(row for row in record.rows if row.batch_size == record.edge.largest_batch)
    assert largest.status == "ok"
    assert any(notice.kind == "failed_when_timed" for notice in record.notices)


def test_cpu_search_ends_at_one_second_steps_by_default(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:slow_above_4", "--granularity", 4, *QUICK)

    record = ran.record()
    assert (record.edge.limited_by, record.edge.largest_batch) == ("latency", 4)
    first = next(notice.kind for notice in record.notices if notice.kind != "host_busy")
    assert first == "default_latency_limit"


@linux_only
def test_named_batch_size_that_does_not_fit_keeps_its_row_beside_peaks(tmp_path, ask):
    asked = (f"{MODELS}/plain.py:blocks_of_their_own", "--batch-sizes", "64,1,8", "--memory-limit", "528MiB", *QUICK)
    ran = ask(tmp_path, *asked)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert [(row.batch_size, row.status) for row in record.rows] == [(1, "ok"), (8, "ok"), (64, "out_of_memory")]
    assert record.trials == ()
    assert "out of memory" in ran.out
    small, large = (row.peak_reserved_bytes for row in record.rows[:2])
    assert small is None or 32 * MIB <= small <= 34 * MIB
    assert 256 * MIB <= large <= 258 * MIB


_BLOCKS_UNDER_A_LIMIT = """
import os
import torch
from tputfind.worker.devices.cpu import Cpu
for size in (1, 62_000, 100_000):
    if os.fork() == 0:
        break
    os.wait()
else:
    os._exit(0)
before = [torch.empty(size, dtype=torch.uint8) for _ in range(1000)]
del before[::2]
device, blocks = Cpu(), []
device.limit_memory(16 * 2**20)
try:
    while True:
        blocks.append(torch.empty(60_000, dtype=torch.uint8))
except RuntimeError:
    count = len(blocks)
device.lift_limit()
print(count, flush=True)
os._exit(0)
"""


@linux_only
def test_memory_limit_leaves_out_heap_that_was_free_before():
    program = [sys.executable, "-c", _BLOCKS_UNDER_A_LIMIT]
    done = subprocess.run(program, env=bare.ENVIRONMENT, capture_output=True, text=True, check=True)
    unused, *freed = map(int, done.stdout.split())

    assert freed == pytest.approx([unused] * 2, abs=4)  # 500 freed blocks would hold as many


@linux_only
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("exits", "exited with status 1"),
        ("starts_a_thread", "new thread"),
        ("waits", "a thread cannot allocate memory: RuntimeError"),
    ],
)
def test_lack_of_memory_that_no_exception_tells_is_lack_of_memory(tmp_path, ask, model, message):
    ran = ask(tmp_path, f"{MODELS}/at_the_edge.py:{model}", "--memory-limit", "420.5MiB", *EDGE)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert record.edge.limited_by == "memory"
    assert 40 < record.edge.largest_batch < 140
    failures = [trial.failure for trial in record.trials if trial.failure is not None]
    assert any(message in failure.message for failure in failures)
    assert {failure.kind for failure in failures} == {"out_of_memory"}


@linux_only
@pytest.mark.parametrize(
    ("model", "limited_by"), [("returns_nothing", {"memory", "wrong_output"}), ("returns_half", {"wrong_output"})]
)
def test_batch_whose_output_lacks_samples_for_want_of_memory_does_not_fit(tmp_path, ask, model, limited_by):
    ran = ask(tmp_path, f"{MODELS}/at_the_edge.py:{model}", "--memory-limit", "256.5MiB", *EDGE)

    assert ran.status == 0, ran.err
    edge = ran.record().edge
    assert edge.limited_by in limited_by
    assert 78 < edge.largest_batch < 86  # three times 1 MiB a sample


def test_batch_that_returns_nothing_is_a_limit(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/at_the_edge.py:returns_64_at_most", *EDGE)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.fails_at, record.edge.limited_by) == (64, 65, "wrong_output")
    assert {trial.returned for trial in record.trials if trial.failure is not None} == {0}


def test_fewer_outputs_than_samples_with_free_memory_are_no_limit(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/at_the_edge.py:looks_up_once", "--max-batch", 32, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, {row.failure for row in record.rows}) == (32, {None})
    (notice,) = [notice for notice in record.notices if "10 for 16" in notice.cause]
    assert notice.batch_sizes == (16,)


def test_outputs_that_differ_from_call_to_call_are_not_wrong(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/at_the_edge.py:sums_at_times", "--batch-sizes", "16,17,18", *QUICK)

    assert ran.status == 0, ran.err
    assert {row.failure for row in ran.record().rows} == {None}


def test_checks_that_fail_alike_have_one_notice(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/at_the_edge.py:keeps_outputs", "--batch-sizes", "8,16,32", *QUICK)

    assert ran.status == 0, ran.err
    (notice,) = [notice for notice in ran.record().notices if notice.kind == "output_unchecked"]
    assert notice.batch_sizes == (8, 16, 32)
    assert notice.cause.startswith("the check failed: RuntimeError: stack expects each tensor to be equal size")
