"""Work of fixed duration for a GPU, and the simplest way to time a model on it."""

import time
from collections.abc import Callable

SPIN_SOURCE = """
extern "C" __global__ void spin(long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < nanoseconds);
}
"""


def spin_kernel() -> Callable[[int], None]:
    """Return a kernel that runs for a number of nanoseconds by the GPU's global clock; it is already loaded."""
    import torch

    kernel = torch.cuda._compile_kernel(SPIN_SOURCE, "spin")

    def spin(nanoseconds: int) -> None:
        kernel((1, 1, 1), (1, 1, 1), (nanoseconds,))

    spin(1000)
    torch.cuda.synchronize()
    return spin


def loop_per_s(step: Callable[[], object], seconds: float) -> float:
    """Return the steps per second of a plain loop: host clock, one synchronisation at the end."""
    import torch

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(10):
            step()
        steps += 10
    torch.cuda.synchronize()
    return steps / (time.perf_counter() - start)
