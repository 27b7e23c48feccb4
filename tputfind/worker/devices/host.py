"""What is the same for every device of a machine: its processor, its software."""

import os
import platform
from importlib import metadata
from pathlib import Path

import psutil
import torch

from tputfind.worker.devices.control_groups import memory_limit


def software() -> dict[str, str | int | None]:
    """Return the fields of ``Environment`` that do not depend on the device.

    The host is told by its system, kernel series and architecture, not by its name: records are there to be shared.
    """
    kernel = ".".join(platform.release().split(".")[:2])
    return {
        "torch": str(torch.__version__),
        "torchvision": version_of("torchvision"),
        "timm": version_of("timm"),
        "transformers": version_of("transformers"),
        "python": platform.python_version(),
        "host": f"{platform.system()} {kernel} {platform.machine()}",
        "cpu_name": cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "torch_threads": torch.get_num_threads(),
    }


def host_memory() -> tuple[int, int]:
    """Return total and available bytes of this machine, or of the control groups that it is confined to."""
    machine = psutil.virtual_memory()
    limit_bytes, left_bytes = memory_limit()
    if limit_bytes is None or left_bytes is None:
        return machine.total, machine.available
    return min(machine.total, limit_bytes), min(machine.available, left_bytes)


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Return the processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
