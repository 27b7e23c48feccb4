"""Measure the overhead of a StageTimer in a pipeline of short stages, and its accuracy. Prints; asserts nothing.

    python benchmarks/stages.py

The command above prints every figure. Run it on a quiet machine; it uses the GPU if there is one, else the host alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from tputfind.stages.timer import StageTimer

STAGES = ("detect", "classify", "track")
ITERATIONS = 200
ROUNDS = 9
STAGE_MS = 1.0
SPIN = """
extern "C" __global__ void spin(long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < nanoseconds);
}
"""


def main() -> None:
    """Print every figure."""
    on_gpu = torch.cuda.is_available()
    print(f"on {torch.cuda.get_device_name() if on_gpu else 'the host'}, torch {torch.__version__}:")
    work = spin_kernel() if on_gpu else busy_wait
    synchronize: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    overhead(work, synchronize)
    bare_costs(synchronize, on_gpu=on_gpu)
    agreement("busy wait" if not on_gpu else "spin kernel", work, synchronize)
    if on_gpu:
        x = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
        agreement("matmul", lambda: x @ x, synchronize)


def spin_kernel() -> Callable[[], object]:
    """Return a function that keeps the GPU busy for STAGE_MS, by its own global clock."""
    kernel = torch.cuda._compile_kernel(SPIN, "spin")  # noqa: SLF001  # the only way to a kernel of known duration
    return lambda: kernel((1, 1, 1), (1, 1, 1), (round(STAGE_MS * 1e6),))


def busy_wait() -> None:
    """Keep the host busy for STAGE_MS."""
    end_ns = time.perf_counter_ns() + round(STAGE_MS * 1e6)
    while time.perf_counter_ns() < end_ns:
        pass


def overhead(work: Callable[[], object], synchronize: Callable[[], None]) -> None:
    """Print the durations of a pipeline with and without the timer, in turn."""
    timer = StageTimer()

    def plain() -> None:
        for _ in range(ITERATIONS):
            for _ in STAGES:
                work()

    def timed() -> None:
        for _ in range(ITERATIONS):
            for stage in STAGES:
                with timer.stage(stage):
                    work()

    plain_s, timed_s = [], []
    for number in range(ROUNDS + 1):
        seconds = seconds_of(plain, synchronize), seconds_of(timed, synchronize)
        if number:  # the first round warms up
            plain_s.append(seconds[0])
            timed_s.append(seconds[1])
    without_ms, with_ms = (statistics.median(seconds) * 1000 for seconds in (plain_s, timed_s))
    stages = ITERATIONS * len(STAGES)
    ratios = [timed / plain for plain, timed in zip(plain_s, timed_s, strict=True)]
    print(f"  {stages} stages of {STAGE_MS:g} ms, medians of {ROUNDS} rounds in turn:")
    print(f"    without timer              {without_ms:9.2f} ms")
    print(f"    with timer                 {with_ms:9.2f} ms")
    print(f"    overhead                   {100 * (with_ms / without_ms - 1):9.3f} % of the medians")
    print(f"    of each round              {100 * (min(ratios) - 1):9.3f} to {100 * (max(ratios) - 1):.3f} %")
    print(f"    overhead a stage           {(with_ms - without_ms) * 1000 / stages:9.2f} us")
    print(timer.frame().to_string(index=False))


def seconds_of(work: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Return the seconds on the host clock from one idle state of the device to the next."""
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def bare_costs(synchronize: Callable[[], None], *, on_gpu: bool) -> None:
    """Print the host time of an empty block, without the time of the loop."""
    calls = 20_000

    def empty_loop() -> None:
        for _ in range(calls):
            pass

    for name, device in (("device stage", True), ("host stage", False)):
        if device and not on_gpu:
            continue
        timer = StageTimer()

        def blocks(timer: StageTimer = timer, device: bool = device) -> None:
            for _ in range(calls):
                with timer.stage("empty", device=device):
                    pass

        blocks()
        spent_s = statistics.median(seconds_of(blocks, synchronize) for _ in range(ROUNDS))
        loop_s = statistics.median(seconds_of(empty_loop, synchronize) for _ in range(ROUNDS))
        print(f"  an empty {name:<12}        {(spent_s - loop_s) / calls * 1e6:9.2f} us")


def agreement(name: str, work: Callable[[], object], synchronize: Callable[[], None]) -> None:
    """Print a stage's time next to that of the same calls between two synchronisations, in turn."""
    calls, staged_ms, plain_ms = 100, [], []

    def plain() -> None:
        for _ in range(calls):
            work()

    seconds_of(plain, synchronize)
    timer = StageTimer()
    for _ in range(ROUNDS):
        plain_ms.append(seconds_of(plain, synchronize) * 1000 / calls)
        timer.reset()
        for _ in range(calls):
            with timer.stage(name):
                work()
        timer.finish()
        (line,) = timer.stages()
        span_ms = line.host_ms if line.device_ms is None else line.device_ms
        assert span_ms is not None
        staged_ms.append(span_ms)
    staged, plain_time = statistics.median(staged_ms), statistics.median(plain_ms)
    print(
        f"  {name}: stage {staged:.4f} ms, synchronised {plain_time:.4f} ms, {100 * (staged / plain_time - 1):+.2f} %"
    )


if __name__ == "__main__":
    main()
