"""The properties of a machine that all its devices share: processor, memory, software, clock."""

import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import pairwise
from pathlib import Path, PurePosixPath
from time import perf_counter_ns
from typing import Final, NamedTuple

import psutil
import torch


class HostClock:
    """Marks taken with the host clock, each after ``synchronize``, by which the device has done all submitted work."""

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize
        self._marks_ns: list[int] = []

    def mark(self) -> None:
        self._synchronize()
        self._marks_ns.append(perf_counter_ns())

    def spans_ms(self) -> list[float]:
        marks_ns, self._marks_ns = self._marks_ns, []
        return [(late - early) / 1e6 for early, late in pairwise(marks_ns)]


def software() -> dict[str, str | int | None]:
    """Return the fields of ``Environment`` that do not depend on the device.

    The host is described by system, kernel series and architecture, not by name, because records may be shared.
    """
    kernel = ".".join(platform.release().split(".")[:2])
    return {
        "torch": str(torch.__version__),
        **{name: version_of(name) for name in ("torchvision", "timm", "transformers", "torchao")},
        "python": platform.python_version(),
        "host": f"{platform.system()} {kernel} {platform.machine()}",
        "cpu_name": cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
    }


def host_memory() -> tuple[int, int]:
    """Return the total and available bytes of this machine, or of its control groups if they allow less."""
    machine = psutil.virtual_memory()
    limit_bytes, left_bytes = memory_limit()
    if limit_bytes is None or left_bytes is None:
        return machine.total, machine.available
    return min(machine.total, limit_bytes), min(machine.available, left_bytes)


def core_wait_s() -> float:
    """Return the total seconds that this thread has waited for a core; 0 if the kernel does not count them."""
    fields = _text(Path("/proc/thread-self/schedstat")).split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()  # the last two start a program


def status_bytes(field: str) -> int | None:
    """Return a field of /proc/self/status in bytes; None if the file or the field is missing."""
    lines = _text(Path("/proc/self/status")).splitlines()
    sizes = (line.split() for line in lines if line.startswith(f"{field}:"))
    return next((int(size[1]) * 1024 for size in sizes), None)


class MemoryLimit(NamedTuple):
    """The smallest limit of nested control groups, and the smallest remainder of any of them; None without a limit."""

    limit_bytes: int | None
    left_bytes: int | None


class _Files(NamedTuple):
    limits: tuple[str, ...]
    usage: str
    file_cache: str
    """The field of ``memory.stat`` with the file cache that the kernel reclaims first."""


_V1: Final = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_V2: Final = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")
_UNLIMITED_BYTES: Final = 2**60
"""Limits from here on mean no limit: v1 writes nearly 2^63 bytes, rounded to pages."""


def memory_limit(root: Path = Path("/")) -> MemoryLimit:
    """Return the host memory that control groups allow this process, and the remainder of it.

    A group is limited by itself and by all groups above it, up to the root of the mount: systemd slices, Slurm steps
    and Kubernetes pods set their limits above the group of the process. ``root`` holds ``proc`` and the mounts.
    """
    limits, left = [], []
    for folder, is_v1 in _groups(root, "memory"):
        files = _V1 if is_v1 else _V2
        sizes = [size for name in files.limits if (size := _number(folder / name)) is not None]
        if not sizes or min(sizes) >= _UNLIMITED_BYTES:
            continue
        limit_bytes = min(sizes)
        limits.append(limit_bytes)
        used_bytes = _number(folder / files.usage) or 0
        held_bytes = max(0, used_bytes - _field(folder / "memory.stat", files.file_cache))
        left.append(max(0, limit_bytes - held_bytes))
    return MemoryLimit(min(limits, default=None), min(left, default=None))


def core_quota(root: Path = Path("/")) -> float | None:
    """Return the number of cores whose time control groups allow this process; None without a limit.

    Containers set it (``docker run --cpus 4``); the process still sees all cores. ``root`` is as for ``memory_limit``.
    """
    quotas = []
    for folder, is_v1 in _groups(root, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_v1 else ("cpu.max",)
        words = " ".join(_text(folder / name) for name in names).split()
        if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of each control group that contains this process, and whether it is of version 1."""
    own = _own_paths(_text(root / "proc/self/cgroup"))
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, what = line.partition(" - ")
        fields, filesystem = mount.split(), what.split()
        if len(fields) < 5 or len(filesystem) < 3:
            continue
        is_v1 = filesystem[0] == "cgroup" and controller in filesystem[2].split(",")
        if not is_v1 and filesystem[0] != "cgroup2":
            continue
        path = own.get(controller if is_v1 else "")
        if path is None:
            continue
        top = root / _unescape(fields[4]).lstrip("/")
        parts = _below(path, _unescape(fields[3]))
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth]), is_v1


def _own_paths(text: str) -> dict[str, str]:
    """Return the path of this process's group by controller, from ``/proc/self/cgroup``; the key of v2 is empty."""
    paths = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[""] = path
        paths |= {controller: path for controller in controllers.split(",") if controller}
    return paths


def _below(path: str, mounted: str) -> tuple[str, ...]:
    """Return the folders from a mount, whose root is the group ``mounted``, to the group of this process.

    In a container the mount's root may be the process's own group, while ``/proc/self/cgroup`` has a path from outside:
    then there are no folders.
    """
    own, top = PurePosixPath(path), PurePosixPath(mounted)
    inside = own.is_relative_to(top) and ".." not in (*own.parts, *top.parts)
    return own.relative_to(top).parts if inside else ()


def _unescape(text: str) -> str:
    """Return a path of ``/proc/self/mountinfo`` with its octal escapes decoded: proc(5)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number in a file; None if the file is missing or says ``max``."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _field(path: Path, name: str) -> int:
    """Return a field of a file of names and numbers; 0 if it is missing."""
    lines = (line.split() for line in _text(path).splitlines())
    return next((int(line[1]) for line in lines if len(line) == 2 and line[0] == name and line[1].isdecimal()), 0)
