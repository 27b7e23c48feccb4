"""Names of sets of the host's cores: ``0-3``, ``0-3+8``, or ``node0`` for the cores of a NUMA node."""

import os
import re
from collections.abc import Collection, Iterable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

from tputfind.errors import BadRequest, NoSuchDevice

_CPUS: Final = Path("/sys/devices/system/cpu")
_NODES: Final = Path("/sys/devices/system/node")
_RANGE: Final = re.compile("([0-9]+)-([0-9]+)")
_TOO_LONG: Final = re.compile("[0-9]{6}")


def here() -> frozenset[int]:
    """Return the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def is_host(name: str) -> bool:
    """Return whether a device name stands for the host's processors or some of their cores."""
    return name.partition(":")[0] == "cpu"


def device_cores(name: str) -> frozenset[int] | None:
    """Return the cores of a device such as ``cpu:0-3``; None if the device is not a set of cores.

    BadRequest if a range counts down; NoSuchDevice if this process may not run on a core, or there is no such node.
    """
    kind, _, cores = name.partition(":")
    if kind != "cpu" or not cores:
        return None
    allowed = here()
    node = re.fullmatch("node([0-9]+)", cores)
    if node is not None:
        found = _read_file(_NODES / f"node{int(node[1])}/cpulist") & allowed
        if not found:
            raise NoSuchDevice(f"there is no {name} here: {_nodes_here()}", _hint(allowed))
        return found
    for low, high in _RANGE.findall(cores):
        if int(low) > int(high):
            raise BadRequest(f"--device {name}: {low}-{high} counts down", f"write cpu:{high}-{low}")
    asked = read(cores)
    if missing := asked - allowed:
        raise NoSuchDevice(
            f"there is no {name} here: core {text(missing)} is not among {text(allowed)}", _hint(allowed)
        )
    return asked


def read(cores: str, separator: str = "+") -> frozenset[int]:
    """Parse a text such as ``0-3+8`` into a set of cores; raise ValueError if it is none."""
    if _TOO_LONG.search(cores):
        raise ValueError(f"no host has so many cores: {cores}")
    ends = (part.partition("-") for part in cores.strip().split(separator) if part)
    return frozenset(core for low, _, high in ends for core in range(int(low), int(high or low) + 1))


def text(cores: Collection[int]) -> str:
    """Format cores as ``read`` parses them."""
    runs = groupby(enumerate(sorted(cores)), key=lambda numbered: numbered[1] - numbered[0])
    ranges = [[core for _, core in run] for _, run in runs]
    return "+".join(f"{one[0]}" if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in ranges)


def split(cores: frozenset[int], parts: int) -> list[frozenset[int]]:
    """Split cores into parts; the threads of one physical core stay together if there are as many physical cores.

    If there are fewer cores than parts, each part has all cores.
    """
    physical = list(dict.fromkeys(_siblings(core) & cores for core in sorted(cores)))
    units = physical if len(physical) >= parts else [frozenset({core}) for core in sorted(cores)]
    if len(units) < parts:
        return [cores] * parts
    ends = [len(units) * number // parts for number in range(parts + 1)]
    return [frozenset().union(*units[low:high]) for low, high in pairwise(ends)]


def _siblings(core: int) -> frozenset[int]:
    """Return the cores that are threads of the same physical core, itself included."""
    return _read_file(_CPUS / f"cpu{core}/topology/thread_siblings_list") | {core}


def _read_file(path: Path) -> frozenset[int]:
    """Return the cores that a kernel file lists; an empty set if the file is missing or unreadable."""
    try:
        return read(path.read_text(), ",")
    except (OSError, ValueError):
        return frozenset()


def _nodes_here() -> str:
    numbers = sorted(int(path.name.removeprefix("node")) for path in _NODES.glob("node[0-9]*"))
    if not numbers:
        return "this system names no NUMA nodes"
    return f"the nodes are {', '.join(f'node{number}' for number in numbers)}"


def _hint(allowed: Iterable[int]) -> str:
    return f"name some of the cores {text(sorted(allowed))}, such as cpu:{min(allowed)}"
