"""CUDA: events on the stream, the caching allocator's counters, and its memory fraction as the limit."""

import ctypes
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, cast
from uuid import UUID

import torch
from msgspec.structs import replace

from tputfind.errors import NoSuchDevice
from tputfind.processes.failures import said
from tputfind.record.environment import Capabilities, Environment
from tputfind.record.trace import Trace
from tputfind.worker.devices import cuda_allocator
from tputfind.worker.devices.accelerator import HINT, NVIDIA, SHORT_BYTES, Accelerator, Events, left_for_allocator
from tputfind.worker.devices.host import software
from tputfind.worker.devices.protocol import MemoryUse

_CAPABILITIES: Final = dict.fromkeys(("tf32", "bf16", "amp-bf16", "int8"), (8, 0)) | {"fp8": (8, 9)}
_POWER_CAP: Final = 0x4
"""NVML's bit for a clock reduced by the power limit; both names of the function return it."""

_MPS_DAEMON: Final = "the daemon of NVIDIA's multi-process service (nvidia-cuda-mps-control -d)"
_MPS_ENABLED: Final = 133
"""CU_DEVICE_ATTRIBUTE_MPS_ENABLED of cuda.h. The driver's handle of a device is its number."""

_OTHER_BUILD: Final = "this build of torch is for other GPUs (torch.cuda.get_arch_list()): install one for this GPU"


class Cuda(Accelerator):
    """One NVIDIA GPU, or an AMD GPU under ROCm, which is untested."""

    def __init__(self, index: int) -> None:
        nvidia = torch.version.hip is None
        can = Capabilities(
            events=True,
            own_memory=True,
            memory_limit=True,
            allocator_trace=nvidia,  # forecasts replay NVIDIA's allocator, and place segments as its driver does
            graphs=True,
            pinned_copies=True,
            health=nvidia,  # by NVML
        )
        super().__init__("cuda", index, can)
        self._outside_before_bytes = self._used_bytes()
        if self._outside_before_bytes is None:  # what the context takes of a limit is then not known
            self.capabilities = replace(can, memory_limit=False)
        self._conf = self._allocator_conf()
        self._recorder: cuda_allocator.Recorder | None = None

    def test_clocks(self) -> None:
        """Open the device; CUDA events were tested against kernels of known duration (tests/gpu/test_timing.py).

        It is counted even if it is hidden, full, or exclusive to another process, or this torch has no kernels for it.
        """
        try:
            self.synchronize()
            torch.ones(1, device=self.torch_device).add_(1)
            self.synchronize()
        except RuntimeError as error:
            hint = _OTHER_BUILD if "no kernel image" in f"{error}" else HINT
            raise NoSuchDevice(f"{self.torch_device} does not open: {said(error)}", hint) from None

    def environment(self) -> Environment:
        properties = torch.cuda.get_device_properties(self._index)
        free: int | None = None
        total = properties.total_memory
        with suppress(RuntimeError):  # it is listed, and does not open: others have filled it, or own it
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
            allocator_conf=self._conf,
            can=self.capabilities,
            **cast("Any", fields),
        )

    def choose_allocator(self, name: str | None) -> None:
        if name is not None:
            self._conf = cuda_allocator.switch_segments(self._conf, expandable=name == "expandable")
            cuda_allocator.apply_conf(self._conf)

    def refusal(self, dtype: str) -> str | None:
        """Return why the GPU cannot compute in ``dtype``: its compute capability is too low, or it is not NVIDIA's."""
        if torch.version.hip is not None:
            return NVIDIA.get(dtype)
        capability = torch.cuda.get_device_capability(self._index)
        needed = _CAPABILITIES.get(dtype, capability)
        if capability < needed:
            has, needs = (".".join(map(str, one)) for one in (capability, needed))
            return f"it needs compute capability {needs}, and this device has {has}"
        return None

    def sharing_refusal(self) -> str | None:
        """Return that the multi-process service is missing; None if it runs the contexts of this device."""
        enabled = ctypes.c_int(0)
        with suppress(OSError, AttributeError):  # under ROCm
            get_attribute = ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute
            get_attribute(ctypes.byref(enabled), _MPS_ENABLED, self._index)
        return None if enabled.value else f"{super().sharing_refusal()} unless {_MPS_DAEMON} runs"

    def limit_memory(self, limit_bytes: int | None, *, by_module: bool = True) -> None:
        self._limit_bytes = limit_bytes
        self._by_module = by_module
        self.make_current()
        torch.cuda.synchronize(self._index)
        if limit_bytes is not None:
            self._give_allocator_the_rest()

    def record_allocations(self) -> None:
        if not self.capabilities.allocator_trace:
            return
        expandable = cuda_allocator.is_expandable(self._conf)
        if self._outside_before_bytes is None or expandable is None:
            return
        self._recorder = recorder = cuda_allocator.Recorder(self._index, expandable=expandable)
        recorder.outside(self._outside_bytes())
        if self._limit_bytes is None and self._by_module:
            cuda_allocator.once_before_every_module(lambda: recorder.outside(self._outside_bytes()))

    def trace(self, batch_size: int, *, complete: bool) -> Trace | None:
        if self._recorder is None or not self.usable():
            return None
        outside_bytes = self._outside_bytes()
        if complete:
            self._recorder.outside(outside_bytes)
        left_bytes = torch.cuda.mem_get_info(self._index)[0] + torch.cuda.memory_reserved(self._index)
        memory_bytes = self._limit_bytes or left_bytes + outside_bytes
        capped = self._limit_bytes is not None
        return self._recorder.trace(batch_size, memory_bytes, capped=capped, complete=complete)

    def memory_is_short(self) -> bool:
        try:
            left = torch.cuda.mem_get_info(self._index)[0]
            if self._limit_bytes is not None:
                used = self._outside_bytes() + torch.cuda.memory_reserved(self._index)
                left = min(left, self._limit_bytes - used)
        except RuntimeError:  # the context is unusable
            return False
        return left < SHORT_BYTES

    def clock_under_power_limit(self) -> float:
        """Return the clock as a fraction of its maximum if NVML reports a power limit, else 1.

        NVML reports the reasons of this moment: call it right after the work.
        """
        if not self.capabilities.health:
            return 1.0
        try:
            import pynvml

            handle = self._nvml_handle
            try:
                reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
            except Exception:  # the function's name on drivers before R535
                reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            if not reasons & _POWER_CAP:
                return 1.0
            clocks = (pynvml.nvmlDeviceGetClockInfo, pynvml.nvmlDeviceGetMaxClockInfo)
            now, highest = (ask(handle, pynvml.NVML_CLOCK_SM) for ask in clocks)
            return float(now / highest)
        except Exception:  # ImportError, or whatever NVML raises where driver, library or GPU are not as it expects
            return 1.0

    def stopwatch(self, marks: int) -> Events:
        return Events(lambda: torch.cuda.Event(enable_timing=True), marks)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._index)

    def reset_memory_use(self) -> None:
        torch.cuda.synchronize(self._index)
        torch.cuda.empty_cache()
        if self._recorder is not None:
            self._recorder.reset()
        torch.cuda.reset_peak_memory_stats(self._index)
        torch.cuda.reset_accumulated_memory_stats(self._index)

    def memory_use(self) -> MemoryUse:
        return MemoryUse(
            peak_allocated_bytes=torch.cuda.max_memory_allocated(self._index),
            peak_reserved_bytes=torch.cuda.max_memory_reserved(self._index),
            allocator_retries=torch.cuda.memory_stats(self._index).get("num_alloc_retries", 0),
        )

    def _used_bytes(self) -> int | None:
        """Return the device's used bytes from NVML, which needs no context; None if NVML fails."""
        try:
            if torch.version.hip is not None:
                return torch.cuda.device_memory_used(self._index)
            import pynvml

            return int(pynvml.nvmlDeviceGetMemoryInfo(self._nvml_handle).used)
        except Exception:  # ImportError, or whatever NVML raises where the driver's library is missing
            return None

    @cached_property
    def _nvml_handle(self) -> Any:
        """NVML's handle of the device, by its UUID: NVML counts devices by their slots, and CUDA by their speed."""
        import pynvml

        driver, device, octets = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), (ctypes.c_ubyte * 16)()
        driver.cuInit(0)  # opens no context
        driver.cuDeviceGet(ctypes.byref(device), self._index)
        driver.cuDeviceGetUuid_v2(octets, device)
        pynvml.nvmlInit()
        name = UUID(bytes=bytes(octets))
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{name}")
        except pynvml.NVMLError:
            return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{name}")

    def _outside_bytes(self) -> int:
        used = self._used_bytes()
        if used is None or self._outside_before_bytes is None:
            if self._limit_bytes is not None:
                raise RuntimeError("NVML does not answer any more, so what counts against --memory-limit is not known")
            return 0
        return max(0, used - self._outside_before_bytes - torch.cuda.memory_reserved(self._index))

    def _give_allocator_the_rest(self) -> None:
        assert self._limit_bytes is not None
        outside, reserved = self._outside_bytes(), torch.cuda.memory_reserved(self._index)
        if self._recorder is not None:
            self._recorder.outside(outside)
        share_bytes = left_for_allocator(self._limit_bytes, outside, reserved)
        share = share_bytes / torch.cuda.get_device_properties(self._index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), self._index)


def _driver_version() -> str | None:
    """Return the version of NVIDIA's driver; None if NVML does not load."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # ImportError, or whatever NVML raises where the driver's library is missing
        return None
