"""Faults on a real GPU: each costs one trial at most and is named correctly."""

import subprocess
import time

import pytest
from support.command import ENVIRONMENT, command, run
from support.folders import MODELS
from support.tenants import taking_all_but

from tputfind.processes.children import Children
from tputfind.processes.messages import ListDevices
from tputfind.record.environment import Environment
from tputfind.session.health import memory_in_use_bytes

QUICK = ("--batches", 10, "--warmup", 1, "--device", "cuda")
GIB = 2**30


def in_use_bytes(uuid: str) -> int:
    count = memory_in_use_bytes(uuid)
    assert count is not None
    return count


@pytest.mark.parametrize(
    ("factory", "limited_by", "message"),
    [
        ("looks_up_what_is_not_there", "kernel", "triggered: indexSelectSmallIndex: srcIndex < srcSelectDimSize ("),
        ("writes_out_of_bounds", "kernel", "CUDA: illegal memory access ("),
        ("launches_too_many_threads", "kernel", "CUDA: "),
        ("multiplies_on_a_full_card", "memory", "CUBLAS_STATUS_ALLOC_FAILED"),
    ],
)
def test_a_fault_of_the_device_costs_one_trial_and_is_called_by_its_name(tmp_path, factory, limited_by, message):
    ran = run(tmp_path, f"{MODELS}/cuda_faults.py:{factory}", "--max-batch", 16, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    print(f"{factory}: {[(t.batch_size, t.failure and t.failure.message) for t in record.trials]}")
    assert (record.edge.largest_batch, record.edge.fails_at, record.edge.limited_by) == (4, 5, limited_by)
    failures = [trial.failure for trial in record.trials if trial.failure is not None]
    assert any(message in failure.message for failure in failures)
    assert {failure.kind for failure in failures} == {"out_of_memory" if limited_by == "memory" else "kernel_limit"}
    assert [row.status for row in record.rows] == ["ok", "ok", "ok"]


def test_rows_after_a_poisoned_one_are_measured_all_the_same(tmp_path):
    factory = "looks_up_what_is_not_there"
    ran = run(tmp_path, f"{MODELS}/cuda_faults.py:{factory}", "--batch-sizes", "2,4,8,9", *QUICK)

    assert [row.status for row in ran.record().rows] == ["ok", "ok", "kernel_limit", "kernel_limit"]


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_batch_refused_by_a_library_is_a_named_kernel_limit(tmp_path, dtype):
    factory = "attends_with_a_mask"
    ran = run(tmp_path, f"{MODELS}/cuda_faults.py:{factory}", "--dtype", dtype, "--max-batch", 5000, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    failures = [(t.batch_size, t.failure.message) for t in record.trials if t.failure]
    print(record.edge, failures)
    if record.edge.limited_by == "cap":
        pytest.skip("this library takes as many matrices at once")
    assert record.edge.limited_by == "kernel"
    words = failures[-1][1].partition(" (")[0]  # such as "cuBLAS: execution failed"
    assert f"kernel limit at batch {record.edge.fails_at}: {words}" in " ".join(ran.out.split())


def test_kernel_error_at_smallest_batch_is_the_error_of_the_model(tmp_path):
    ran = run(tmp_path, f"{MODELS}/cuda_faults.py:always_writes_out_of_bounds", "--no-save", "--quiet", *QUICK)

    assert ran.status == 5
    assert "CUDA: illegal memory access" in ran.err


def test_inputs_too_large_for_the_host_are_host_memory_limit(tmp_path):
    ran = run(tmp_path, f"{MODELS}/plain.py:inputs_fill_the_host_above_4", "--max-batch", 16, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert (record.edge.largest_batch, record.edge.limited_by) == (4, "host_memory")
    assert "the host's memory ran out at batch 5" in " ".join(ran.out.split())


def test_an_operator_that_ends_at_2_to_the_31_elements_is_an_index_limit(tmp_path):
    ran = run(tmp_path, f"{MODELS}/cuda_faults.py:pools", "--dtype", "fp16", "--max-batch", 600, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    print(record.edge, [t.failure.message for t in record.trials if t.failure])
    assert (record.edge.largest_batch, record.edge.fails_at, record.edge.limited_by) == (511, 512, "index")
    assert "more memory will not help" in " ".join(ran.out.split())


def test_an_index_that_overflows_in_silence_is_a_wrong_output(tmp_path):
    ran = run(tmp_path, f"{MODELS}/cuda_faults.py:counts_in_32_bits", "--dtype", "fp16", "--max-batch", 600, *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    print(record.edge, [(row.batch_size, row.status) for row in record.rows])
    assert (record.edge.largest_batch, record.edge.fails_at, record.edge.limited_by) == (512, 513, "wrong_output")
    assert all((row.status == "ok") == (row.batch_size <= 512) for row in record.rows)


def test_memory_that_others_hold_is_told_and_refused_where_that_is_asked(tmp_path):
    with taking_all_but(6 * GIB):
        told = run(tmp_path, "resnet18", "--batch-sizes", 8, *QUICK)
        refused = run(tmp_path, "resnet18", "--batch-sizes", 8, "--strict", "--no-save", *QUICK)
    alone = run(tmp_path, "resnet18", "--batch-sizes", 8, "--strict", "--no-save", *QUICK)

    assert told.status == 0, told.err
    environment = told.record().environment
    left = environment.memory_total_bytes - environment.memory_of_others_bytes
    assert 6 * GIB <= left < 6 * GIB + 2**26
    assert "memory_of_others" in {notice.kind for notice in told.record().notices}
    assert (refused.status, alone.status) == (3, 0), alone.err
    assert "other processes hold" in refused.err


def test_the_edge_is_asked_again_where_others_free_memory_meanwhile(tmp_path):
    asked = ("resnet18", "--dtype", "fp16", *QUICK)
    with taking_all_but(2 * GIB, freeing_later=2 * GIB) as free_some:
        process = subprocess.Popen(
            [*command(), *map(str, asked)], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "does not fit" in line:
                break
        freed = free_some()
        lines += process.stderr
        process.wait()
        (tmp_path / "again").mkdir()
        again = run(tmp_path / "again", *asked).record()

    assert process.returncode == 0, lines
    import tputfind

    record = tputfind.load_record(next((tmp_path / "results").glob("*.json")))
    print(f"free at last {freed}: edge {record.edge}, measured anew {again.edge}; {len(record.trials)} trials")
    assert record.edge == again.edge
    assert "memory_of_others_changed" in {notice.kind for notice in record.notices}
    assert any("asking the edge again" in line for line in lines)


def test_headroom_finds_the_edge_of_a_smaller_limit(tmp_path):
    (tmp_path / "safe").mkdir()
    (tmp_path / "small").mkdir()
    asked = ("resnet18", "--dtype", "fp16", *QUICK)
    record = run(tmp_path / "safe", *asked, "--memory-limit", "4GiB", "--headroom", "1GiB", "--soak", 20).record()
    small = run(tmp_path / "small", *asked, "--memory-limit", "3GiB").record()

    print(f"4 GiB {record.edge}, of them 1 GiB free {record.safe}, 3 GiB {small.edge}")
    assert record.safe.largest_batch == pytest.approx(small.edge.largest_batch, abs=1)
    assert (record.safe.memory_limit_bytes, record.safe.soaked_batches) == (3 * GIB, 20)


def test_no_memory_of_the_device_outlives_a_killed_parent(tmp_path):
    with Children() as children:
        uuid = next(iter(children.ask(ListDevices(), Environment))).device_uuid
    before = in_use_bytes(uuid)
    process = subprocess.Popen(
        [*command(), "resnet18", "--batch-sizes", "2048", "--batches", "100000", "--device", "cuda"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while (held := in_use_bytes(uuid)) < before + 2 * GIB and time.monotonic() < deadline:
        time.sleep(0.1)
    process.kill()
    process.wait()
    killed = time.monotonic()
    while in_use_bytes(uuid) > before + 2**24 and time.monotonic() < killed + 10:
        time.sleep(0.02)

    print(f"held {held - before} bytes, free {time.monotonic() - killed:.2f} s after the parent was killed")
    assert held >= before + 2 * GIB
    assert in_use_bytes(uuid) <= before + 2**24
