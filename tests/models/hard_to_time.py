"""Models that some timing methods cannot measure, or whose duration is fixed: each is a factory."""

import torch
from torch import nn

SPIN_MS = 5


def small_inputs(batch_size: int) -> torch.Tensor:
    return torch.randn(batch_size, 16)


class Spins(nn.Module):
    """Keeps the GPU busy for a fixed number of milliseconds, by the GPU's global clock."""

    source = """
    extern "C" __global__ void spin(long long nanoseconds) {
        unsigned long long begin, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
        do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < nanoseconds);
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernel = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kernel is None:
            self.kernel = torch.cuda._compile_kernel(self.source, "spin")
        self.kernel((1, 1, 1), (1, 1, 1), (SPIN_MS * 1_000_000,))
        return x


def spins():
    return Spins(), small_inputs


def one_sample_many_times():
    """Return inputs that cannot be written to: all samples share the same memory."""
    return nn.Linear(16, 4), lambda batch_size: torch.randn(1, 16).expand(batch_size, 16)
