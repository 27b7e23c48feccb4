"""CUDA: events on the stream, the caching allocator's counters, and its limit as the memory ceiling."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, cast

import torch

from tputfind.measure.devices.host import software
from tputfind.measure.devices.protocol import PeakMemory
from tputfind.record import Environment
from tputfind.units import format_bytes

_TF32_CAPABILITY: Final = (8, 0)


class EventStopwatch:
    """Marks recorded as CUDA events on the current stream: recording one makes neither host nor device wait.

    Spans are taken between neighbours, because ``elapsed_time`` returns a float32 of milliseconds, which over a whole
    window would be good to some microseconds only.
    """

    def __init__(self, marks: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(marks)]  # type: ignore[no-untyped-call]
        self._marked = 0

    def mark(self) -> None:
        """Record the next event."""
        self._events[self._marked].record()
        self._marked += 1

    def spans_ms(self) -> list[float]:
        """Wait for the last event and return the milliseconds between consecutive ones."""
        events = self._events[: self._marked]
        events[-1].synchronize()
        return [early.elapsed_time(late) for early, late in pairwise(events)]


class Cuda:
    """One NVIDIA GPU (or AMD GPU under ROCm, which is untested)."""

    under_a_ceiling = False
    shares_processes = True

    def __init__(self, index: int) -> None:
        self._index = index
        self._limit_bytes: int | None = None
        self._outside_before_bytes = 0
        self.torch_device = torch.device("cuda", index)

    def environment(self) -> Environment:
        """Describe the GPU."""
        properties = torch.cuda.get_device_properties(self._index)
        free, total = torch.cuda.mem_get_info(self._index)
        fields = software()
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return Environment(
            device=str(self.torch_device),
            device_name=properties.name,
            device_uuid=f"GPU-{properties.uuid}",
            memory_total_bytes=total,
            memory_free_bytes=free,
            compute_capability=f"{properties.major}.{properties.minor}",
            driver=_driver_version(),
            cuda=torch.version.cuda or torch.version.hip,
            cudnn=None if cudnn is None else str(cudnn),
            allocator_conf=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
            **cast("Any", fields),
        )

    def refusal(self, dtype: str) -> str | None:
        """TF32 and bfloat16 arithmetic came with compute capability 8.0."""
        capability = torch.cuda.get_device_capability(self._index)
        if dtype in ("tf32", "bf16", "amp-bf16") and torch.version.hip is None and capability < _TF32_CAPABILITY:
            return f"it needs compute capability 8.0, and this device has {capability[0]}.{capability[1]}"
        return None

    def limit_memory(self, limit_bytes: int | None) -> None:
        """Make the device current, note what others hold, give the allocator what the context leaves of the limit."""
        self._limit_bytes = limit_bytes
        if limit_bytes is not None:
            self._outside_before_bytes = torch.cuda.device_memory_used(self._index)
        torch.cuda.set_device(self._index)
        torch.cuda.synchronize(self._index)
        if limit_bytes is not None:
            self._give_allocator_the_rest()

    def settle_limit(self, small_step: Callable[[], object]) -> None:
        """Load kernels and library handles by a small step, so that they too count against the limit."""
        if self._limit_bytes is not None:
            small_step()
            self.synchronize()
            torch.cuda.empty_cache()
            self._give_allocator_the_rest()

    def check_limit(self) -> None:
        """Raise where context, libraries and the allocator's peak together passed the limit."""
        if self._limit_bytes is not None:
            taken = self._outside_bytes() + torch.cuda.max_memory_reserved(self._index)
            if taken > self._limit_bytes:
                raise self._out_of_memory(f"{format_bytes(taken)} taken")

    def lift_limit(self) -> None:
        """The limit binds the device's memory only, which no report needs."""

    def stopwatch(self, marks: int) -> EventStopwatch:
        """Return a stopwatch of CUDA events."""
        return EventStopwatch(marks)

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._index)

    def reset_peak(self) -> None:
        """Return cached memory to the device and set the counters of peaks to what is in use."""
        torch.cuda.synchronize(self._index)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._index)

    def peak(self) -> PeakMemory:
        """Return the allocator's peaks: memory of live tensors, and memory taken from the device."""
        return PeakMemory(
            torch.cuda.max_memory_allocated(self._index),
            torch.cuda.max_memory_reserved(self._index),
        )

    def _outside_bytes(self) -> int:
        """Return what this process holds of the device beside the allocator: context, kernels, library handles."""
        used = torch.cuda.device_memory_used(self._index) - self._outside_before_bytes
        return max(0, used - torch.cuda.memory_reserved(self._index))

    def _give_allocator_the_rest(self) -> None:
        assert self._limit_bytes is not None
        outside = self._outside_bytes()
        share = (self._limit_bytes - outside) / torch.cuda.get_device_properties(self._index).total_memory
        if share <= 0:
            raise self._out_of_memory(f"context and libraries alone take {format_bytes(outside)}")
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), self._index)

    def _out_of_memory(self, what: str) -> torch.OutOfMemoryError:
        assert self._limit_bytes is not None
        return torch.OutOfMemoryError(f"out of memory: {what} of the limit of {format_bytes(self._limit_bytes)}")


def _driver_version() -> str | None:
    """Return the version of NVIDIA's driver, or None where NVML is not there."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError, or whatever NVML raises where the driver's library is missing
        return None
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    finally:
        pynvml.nvmlShutdown()
