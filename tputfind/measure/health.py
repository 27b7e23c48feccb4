"""What the parent can see of a GPU from outside, through NVML, without opening it."""

from __future__ import annotations

from functools import cache
from typing import Any


def memory_in_use_bytes(device_uuid: str | None) -> int | None:
    """Return what processes hold of a GPU's memory, without what the driver keeps for itself.

    Between two children of ours, all of it is others'. None where NVML or the GPU is not there, or too old to tell.

    Args:
        device_uuid: as ``Environment.device_uuid`` has it; None for a device that is no GPU.
    """
    if device_uuid is None:
        return None
    try:
        nvml, handle = _opened(device_uuid)
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    except Exception:  # ImportError, or whatever NVML raises where driver, library or GPU are not as it expects
        return None


@cache
def _opened(device_uuid: str) -> tuple[Any, Any]:
    import pynvml

    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(device_uuid)
