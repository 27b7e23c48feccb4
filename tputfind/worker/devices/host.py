"""What is the same for every device of a machine: its processor, its memory, its software."""

import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import psutil
import torch


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


class MemoryLimit(NamedTuple):
    """The least limit of nested control groups, and the least that any of them has left; None without a limit."""

    limit_bytes: int | None
    left_bytes: int | None


class _Files(NamedTuple):
    """Names of the files that tell of a group's memory."""

    limits: tuple[str, ...]
    usage: str
    file_cache: str
    """The field of ``memory.stat`` with the file cache that the kernel gives back before anything else."""


_V1: Final = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_V2: Final = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")
_UNLIMITED_BYTES: Final = 2**60
"""v1 says that a group has no limit by one of nearly 2^63 bytes, rounded to pages."""


def memory_limit(root: Path = Path("/")) -> MemoryLimit:
    """Return what control groups leave this process of the host's memory.

    A group is held to its own limit and to those of all groups above it, up to the root of what is mounted: systemd
    slices, Slurm steps and Kubernetes pods set theirs above the group of the process.

    Args:
        root: the folder that holds ``proc`` and the mounts.
    """
    limits, left = [], []
    for folder, files in _groups(root):
        sizes = [size for name in files.limits if (size := _number(folder / name)) is not None]
        if not sizes or min(sizes) >= _UNLIMITED_BYTES:
            continue
        limit_bytes = min(sizes)
        limits.append(limit_bytes)
        used_bytes = _number(folder / files.usage) or 0
        held_bytes = max(0, used_bytes - _field(folder / "memory.stat", files.file_cache))
        left.append(max(0, limit_bytes - held_bytes))
    return MemoryLimit(min(limits, default=None), min(left, default=None))


def _groups(root: Path) -> Iterator[tuple[Path, _Files]]:
    """Yield the folder of each control group that holds this process, with the names of its files."""
    own = _own_paths(_text(root / "proc/self/cgroup"))
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, what = line.partition(" - ")
        fields, filesystem = mount.split(), what.split()
        if len(fields) < 5 or len(filesystem) < 3:
            continue
        is_v1 = filesystem[0] == "cgroup" and "memory" in filesystem[2].split(",")
        if not is_v1 and filesystem[0] != "cgroup2":
            continue
        path = own.get("memory" if is_v1 else "")
        if path is None:
            continue
        top = root / _unescaped(fields[4]).lstrip("/")
        parts = _below(path, _unescaped(fields[3]))
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth]), _V1 if is_v1 else _V2


def _own_paths(text: str) -> dict[str, str]:
    """Return the path of this process's group by controller, from ``/proc/self/cgroup``; that of v2 has no name."""
    paths = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[""] = path
        paths |= {controller: path for controller in controllers.split(",") if controller}
    return paths


def _below(path: str, mounted: str) -> tuple[str, ...]:
    """Return the folders that lead from a mount, which shows the group ``mounted``, to the group of this process.

    A container may see its own group at the root of the mount, and a path from outside in ``/proc/self/cgroup``: then
    the root of the mount is all there is.
    """
    own, top = PurePosixPath(path), PurePosixPath(mounted)
    inside = own.is_relative_to(top) and ".." not in (*own.parts, *top.parts)
    return own.relative_to(top).parts if inside else ()


def _unescaped(text: str) -> str:
    """Return a path of ``/proc/self/mountinfo``, where blanks stand as octal numbers: proc(5)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number in a file; None without the file, or if it says ``max``."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _field(path: Path, name: str) -> int:
    """Return a field of a file of names and numbers; 0 without it."""
    lines = (line.split() for line in _text(path).splitlines())
    return next((int(line[1]) for line in lines if len(line) == 2 and line[0] == name and line[1].isdecimal()), 0)
