"""Models that fail on a GPU like real ones: each is a factory for ``cuda_faults.py:NAME``."""

import torch
from torch import nn

SAMPLE = (64, 256, 256)
"""2^22 elements: 512 samples reach 2^31."""


def small_inputs(batch_size: int) -> torch.Tensor:
    return torch.randn(batch_size, 64)


def large_inputs(batch_size: int) -> torch.Tensor:
    return torch.empty(batch_size, *SAMPLE, dtype=torch.float16, device="cuda").normal_()


class LooksUpWhatIsNotThere(nn.Module):
    """A device-side assertion of torch's own, above 4 samples."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table(torch.arange(len(x), device=x.device))


class WritesOutOfBounds(nn.Module):
    """An illegal memory access above a batch size."""

    source = 'extern "C" __global__ void bad(long long address) { *(volatile int*)address = 1; }'

    def __init__(self, largest: int) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.largest:
            torch.cuda._compile_kernel(self.source, "bad")((1, 1, 1), (1, 1, 1), (16,))
        return x * 2


class LaunchesTooManyThreads(nn.Module):
    """A launch that the driver refuses, above 4 samples."""

    source = 'extern "C" __global__ void idle() {}'

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 4:
            torch.cuda._compile_kernel(self.source, "idle")((1, 1, 1), (4096, 1, 1), ())
        return x * 2


class AttendsWithAMask(nn.Module):
    """A transformer encoder with a padding mask: on an H200 with torch 2.11, cuBLAS fails at batch 4097."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=mask)


class MultipliesOnAFullCard(nn.Module):
    """Computes the first matrix product of the process; above 4 samples almost no memory is left for cuBLAS."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 4:
            step = 2**30
            while step >= 2**21:
                if torch.cuda.mem_get_info()[0] - step < 32 * 2**20:
                    step //= 2
                else:
                    torch.cuda.caching_allocator_alloc(step)
        return x @ x.T if len(x) > 4 else x * 2


class CountsIn32Bits(nn.Module):
    """Doubles its input with a kernel whose index is an int; an overflow raises no error."""

    source = """
    extern "C" __global__ void twice(const unsigned short* from, unsigned short* to, long long count) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= 0 && i < count) to[i] = from[i];
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernel = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kernel is None:
            self.kernel = torch.cuda._compile_kernel(self.source, "twice")
        y = torch.zeros_like(x)
        self.kernel(((x.numel() + 255) // 256, 1, 1), (256, 1, 1), (x, y, x.numel()))
        return y


def with_inputs(make, inputs=small_inputs):
    """Return a factory of a model that ``make`` returns, and of inputs."""
    return lambda: (make(), inputs)


def masked_inputs(batch_size: int) -> dict[str, torch.Tensor]:
    x = torch.zeros(batch_size, 256, 512, device="cuda")
    return {"x": x, "mask": torch.zeros(batch_size, 256, dtype=torch.bool, device="cuda")}


looks_up_what_is_not_there = with_inputs(LooksUpWhatIsNotThere)
writes_out_of_bounds = with_inputs(lambda: WritesOutOfBounds(4))
always_writes_out_of_bounds = with_inputs(lambda: WritesOutOfBounds(0))
launches_too_many_threads = with_inputs(LaunchesTooManyThreads)
attends_with_a_mask = with_inputs(AttendsWithAMask, masked_inputs)
multiplies_on_a_full_card = with_inputs(MultipliesOnAFullCard)
counts_in_32_bits = with_inputs(CountsIn32Bits, large_inputs)
pools = with_inputs(lambda: nn.AvgPool2d(3, 1, 1), large_inputs)
