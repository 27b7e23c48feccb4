"""What the parent can see of a GPU from outside, through NVML, without opening it."""

from __future__ import annotations

from functools import cache
from time import monotonic, sleep
from typing import Any, Final

SETTLE_S: Final = 2.0
"""A driver may take a moment to give back what a process held that has ended."""


def memory_in_use_bytes(device_uuid: str | None, expected_bytes: int) -> int | None:
    """Return what processes hold of a GPU's memory, without what the driver keeps for itself.

    Between two children of ours, all of it is others'. None where NVML or the GPU is not there, or too old to tell.

    Args:
        device_uuid: as ``Environment.device_uuid`` has it; None for a device that is no GPU.
        expected_bytes: more than this is looked at again, for up to SETTLE_S, before it is believed.
    """
    if device_uuid is None:
        return None
    give_up = monotonic() + SETTLE_S
    try:
        nvml, handle = _opened(device_uuid)
        while True:
            used_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
            if used_bytes <= expected_bytes or monotonic() > give_up:
                return used_bytes
            sleep(0.01)
    except Exception:  # ImportError, or whatever NVML raises where driver, library or GPU are not as it expects
        return None


@cache
def _opened(device_uuid: str) -> tuple[Any, Any]:
    import pynvml

    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(device_uuid)
