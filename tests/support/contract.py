"""The contract of every device: ``PYTHONPATH=.:tests python tests/support/contract.py cpu`` checks it."""

import subprocess
import sys
import time
from collections.abc import Mapping

import torch

from tputfind.record.types import DTYPES
from tputfind.worker.devices import all_devices, failure_of, open_device

MIB = 2**20


def check(name: str, limit_mib: int = 3072, environment: Mapping[str, str] | None = None, finds: str = "") -> None:
    """Run the contract in a fresh process, whose test of clocks ``finds`` a defect, or none.

    Raises:
        AssertionError: the contract is violated, or the test of clocks finds something else.
    """
    command = [sys.executable, __file__, name, str(limit_mib)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert (ran.returncode, ran.stdout.strip()) == (0, finds), ran.stdout + ran.stderr


def main(name: str, limit_bytes: int = 3072 * MIB) -> None:
    """Open a device, and test all operations of a measurement in order, as far as its capabilities promise them."""
    device = open_device(name)
    device.choose_allocator(None)
    device.test_clocks()
    described, can = device.environment(), device.capabilities
    assert described.device in {one.environment().device for one in all_devices()}
    assert name in (described.device, described.device.partition(":")[0], "accelerator")
    assert described.device_name
    assert described.torch == torch.__version__
    assert described.can == can
    assert described.clock is None or (described.clock == "events") == can.events
    for finding in () if described.clock_test is None else described.clock_test.findings:
        print(finding)
    assert device.refusal("fp32") is None
    assert all(isinstance(device.refusal(dtype), str | None) for dtype in DTYPES)

    device.limit_memory(limit_bytes if can.memory_limit else None)
    device.record_allocations()
    matrix = torch.ones(512, 512, device=device.torch_device)
    assert device.first_step(lambda: matrix @ matrix).shape == matrix.shape
    trace = device.trace(4, complete=True)
    assert trace is None or trace.batch_size == 4
    times(device, matrix)
    if can.memory_peaks:
        memory(device)
    if can.memory_limit:
        ceiling(device, limit_bytes)
    assert device.usable()


def times(device, matrix) -> None:
    """Spans between marks are device times, add up to the whole, and grow with the work; reading clears them."""
    device.synchronize()
    stopwatch = device.stopwatch(4)
    begun_s = time.perf_counter()
    stopwatch.mark()
    for steps in (1, 1, 200):
        for _ in range(steps):
            matrix @ matrix
        stopwatch.mark()
    spans_ms = stopwatch.spans_ms()
    device.synchronize()
    elapsed_ms = (time.perf_counter() - begun_s) * 1000
    assert len(spans_ms) == 3
    assert all(span_ms >= 0 for span_ms in spans_ms)
    assert 0.5 * elapsed_ms < sum(spans_ms) <= elapsed_ms * 1.02
    assert spans_ms[2] > spans_ms[1]
    for _ in range(2):
        stopwatch.mark()
        matrix @ matrix
    again_ms = stopwatch.spans_ms()
    assert len(again_ms) == 1
    assert again_ms[0] < spans_ms[2]


def memory(device) -> None:
    """A peak covers the memory used since the last reset."""
    device.reset_memory_use()
    before_bytes = device.allocated_bytes()
    held = torch.ones(64 * MIB, device=device.torch_device)
    device.synchronize()
    used = device.memory_use()
    assert used.peak_allocated_bytes is None or used.peak_allocated_bytes >= 0.9 * held.nbytes
    assert used.peak_reserved_bytes is None or used.peak_reserved_bytes >= 0.9 * held.nbytes
    assert before_bytes is None or device.allocated_bytes() - before_bytes >= held.nbytes
    assert not device.memory_is_short()


def ceiling(device, limit_bytes) -> None:
    """An allocation over the limit is out of memory, and a later one succeeds."""
    held = []
    try:
        while sum(part.nbytes for part in held) <= limit_bytes:
            held.append(torch.ones(64 * MIB, device=device.torch_device))
            device.check_limit()
    except (RuntimeError, MemoryError) as error:
        held.clear()
        assert failure_of(error, device, 1).kind == "out_of_memory"
    else:
        raise AssertionError("more fitted than the limit")
    device.lift_limit()
    assert torch.ones(MIB, device=device.torch_device).sum() == MIB


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) * MIB if len(sys.argv) > 2 else 3072 * MIB)
