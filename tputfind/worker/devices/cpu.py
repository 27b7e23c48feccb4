"""The CPU: host clock, resident memory, and a limit on the address space."""

import ctypes
import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import torch

from tputfind.errors import BadRequest
from tputfind.record.environment import Capabilities, Environment
from tputfind.worker.devices.host import HostClock, host_memory, software, status_bytes
from tputfind.worker.devices.protocol import Device, MemoryUse

_ROOM_BYTES: Final = 2**23
_SHORT_BYTES: Final = 64 * 2**20
_LARGEST_BLOCK_BYTES: Final = 2**16
"""Size of the first blocks that are taken from the heap; glibc maps blocks of 128 KiB or more separately."""
_SMALLEST_BLOCK_BYTES: Final = 2**10


def _room_for_objects() -> list[bytes]:
    """Return objects that reserve room for Python's small objects in the idle process as long as they live.

    Python takes memory for small objects in blocks of a mebibyte, so their part of a memory limit would be a matter of
    luck. One object in every 64 KiB prevents the release of the free rest.
    """
    each, kept = 512, 2**16
    return [bytes(each - 40) for _ in range(_ROOM_BYTES // each)][:: kept // each]


class _HeapUse(ctypes.Structure):
    """The result of glibc's ``mallinfo2``: ten numbers.

    The fifth is the bytes of the blocks that are mapped separately, the eighth and ninth those of the used and the free
    blocks of the heap.
    """

    _fields_ = (("numbers", ctypes.c_size_t * 10),)


def _heap_use() -> Sequence[int] | None:
    """Return the numbers of ``mallinfo2``; None if the C library does not have it."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _HeapUse
    numbers: Sequence[int] = library.mallinfo2().numbers
    return numbers


def _take_free_heap() -> None:
    """Allocate the free blocks of the heap for good, so that all further memory counts; only glibc tells of them.

    A forked process inherits other free blocks than a fresh one has. They belong to the address space of the idle
    process, so that a step that uses them would take less memory than it needs.
    """
    use = _heap_use()
    if use is None:
        return
    library = ctypes.CDLL(None)
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes, library.sbrk.argtypes = [ctypes.c_void_p], [ctypes.c_ssize_t]
    end, left_bytes = library.sbrk(0), use[8]
    size = _LARGEST_BLOCK_BYTES
    while size >= _SMALLEST_BLOCK_BYTES and left_bytes > 0:
        block = library.malloc(size)
        if library.sbrk(0) == end:
            left_bytes -= size
        else:  # no free block is as large: the heap grew, and shrinks again
            library.free(block)
            library.malloc_trim(0)
            end = library.sbrk(0)
            size //= 2


class Cpu(Device):
    """The processor that the children run on, or a set of its cores.

    Memory is the address space beyond that of the idle process, limited by ``RLIMIT_AS``. Without a limit from the
    user, the limit is the machine's available memory, so that the kernel does not kill processes.
    """

    torch_device = torch.device("cpu")
    capabilities = Capabilities(
        events=False,
        own_memory=False,
        memory_limit=True,
        allocator_trace=False,
        graphs=False,
        pinned_copies=False,
        health=False,
    )

    def __init__(self, name: str = "cpu", cores: frozenset[int] | None = None) -> None:
        """Restrict this process to the cores from now on, if any are given, and measure the idle process's memory."""
        self._name = name
        if cores is not None:
            os.sched_setaffinity(0, cores)  # before torch starts its threads, which inherit it
            torch.set_num_threads(min(torch.get_num_threads(), len(cores)))
        self.under_a_ceiling = False
        self._short_from_bytes = 0
        torch.ones(2**20).add_(1)  # starts torch's threads, whose stacks belong to the idle process
        self._room = _room_for_objects()
        _take_free_heap()
        self._idle_resident_bytes = status_bytes("VmRSS")
        self._idle_address_bytes = status_bytes("VmSize")
        self._starting_peak_bytes = status_bytes("VmPeak") or 0

    def environment(self) -> Environment:
        fields = software()
        total, available = host_memory()
        return Environment(
            device=self._name,
            device_name=str(fields["cpu_name"]),
            memory_total_bytes=total,
            memory_free_bytes=available,
            can=self.capabilities,
            **cast("Any", fields),
        )

    def choose_allocator(self, name: str | None) -> None:
        if name is not None:
            raise BadRequest(f"--allocator {name}: only CUDA's memory has segments to choose")

    def refusal(self, dtype: str) -> str | None:
        """Return why the CPU cannot compute in ``dtype``: TF32 and fp8 are formats of GPUs."""
        return {"tf32": "TF32 is a format of NVIDIA GPUs", "fp8": "torchao computes in fp8 on GPUs"}.get(dtype)

    def limit_memory(self, limit_bytes: int | None, *, by_module: bool = True) -> None:  # noqa: ARG002  # exact anyway
        """Limit the address space to that of the idle process plus ``limit_bytes``, or plus the available memory
        without a limit.
        """
        limit_bytes = limit_bytes or host_memory()[1]
        ceiling = (self._idle_address_bytes or 0) + limit_bytes
        self._short_from_bytes = ceiling - max(_SHORT_BYTES, limit_bytes // 10)
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (ceiling if hard < 0 else min(ceiling, hard), hard))
        self.under_a_ceiling = True

    def lift_limit(self) -> None:
        if self.under_a_ceiling:
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))

    def memory_is_short(self) -> bool:
        """Return whether the peak of the address space came near the limit; the peak excludes a refused request."""
        peak_bytes = status_bytes("VmPeak")
        return self.under_a_ceiling and peak_bytes is not None and peak_bytes > self._short_from_bytes

    def stopwatch(self, marks: int) -> HostClock:  # noqa: ARG002  # the list grows as it needs
        """Return a stopwatch on the host clock: on the CPU, work is done when its call returns."""
        return HostClock()

    def allocated_bytes(self) -> int | None:
        """Return the bytes that the C library has given out; tensors are among them."""
        use = _heap_use()
        return None if use is None else use[4] + use[7]

    def reset_memory_use(self) -> None:
        """Set the high-water mark of resident memory to the current resident memory (proc(5), clear_refs)."""
        with suppress(OSError):  # else the mark covers the whole process, which times only one batch size
            Path("/proc/self/clear_refs").write_text("5")

    def memory_use(self) -> MemoryUse:
        """Return the peaks of resident memory and of address space, both beyond the idle process.

        glibc first maps more for a thread than it keeps, and Linux never lowers the peak of the address space. A peak
        below the one at the start of the threads is therefore unknown.
        """
        address_bytes = status_bytes("VmPeak") or 0
        known = address_bytes > self._starting_peak_bytes
        return MemoryUse(
            peak_allocated_bytes=_beyond(status_bytes("VmHWM"), self._idle_resident_bytes),
            peak_reserved_bytes=_beyond(address_bytes, self._idle_address_bytes) if known else None,
            allocator_retries=None,
        )


def _beyond(peak_bytes: int | None, idle_bytes: int | None) -> int | None:
    return None if peak_bytes is None or idle_bytes is None else max(0, peak_bytes - idle_bytes)
