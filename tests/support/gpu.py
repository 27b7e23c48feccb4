"""Work of a known duration for a GPU, and the plainest way to time a model on one."""

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
    """A kernel that ends so many nanoseconds after it began, by the GPU's own global clock; it is loaded already."""
    import torch

    kernel = torch.cuda._compile_kernel(SPIN_SOURCE, "spin")

    def spin(nanoseconds: int) -> None:
        kernel((1, 1, 1), (1, 1, 1), (nanoseconds,))

    spin(1000)
    torch.cuda.synchronize()
    return spin


def loop_per_s(step: Callable[[], object], seconds: float) -> float:
    """Steps per second of a plain loop: no marks, the host clock, one synchronisation at the end."""
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
