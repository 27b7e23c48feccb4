"""How busy others keep the host's processors while a process of ours times on them, as Linux counts it."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from tputfind.processes.cores import here

LEAST_WINDOW_S: Final = 0.2
"""The counters rise in steps of 10 ms: over less than this they tell nothing."""
_BUSY: Final = (0, 1, 2, 5, 6, 7)
"""Columns of a processor in /proc/stat: user, nice, system, irq, softirq, and what a hypervisor gave to others."""


class Reading(NamedTuple):
    """Processor seconds up to a moment of the monotonic clock: of all that ran on our cores, and of our own."""

    at_s: float
    busy_s: float
    own_s: float


def reading(cores: frozenset[int] | None = None, server_pid: int | None = None) -> Reading | None:
    """Return the counters of cores as they are now; None where the system does not show them.

    Args:
        cores: None for all that this process may run on.
        server_pid: the one of this process's children that is ours with all its own; None where all are.
    """
    try:
        # First at either end of a window, which is then of one length.
        own_s = sum(map(_processor_s, _own_processes(server_pid)))
        return Reading(time.monotonic(), _busy_s(here() if cores is None else cores), own_s)
    except (OSError, ValueError, IndexError, psutil.Error):
        return None


def cores_of_others(begin: Reading, end: Reading) -> float | None:
    """Return how many cores others kept busy between two readings; None where they are too close to tell."""
    window_s = end.at_s - begin.at_s
    busy_s, own_s = end.busy_s - begin.busy_s, end.own_s - begin.own_s
    if window_s < LEAST_WINDOW_S or (busy_s == 0 < own_s):  # a sandbox may show counters that stand still
        return None
    return max(0.0, busy_s - own_s) / window_s


class HostWatch:
    """Reads the counters at both ends of a window."""

    def __init__(self, *, on_host: bool, cores: frozenset[int] | None = None, server_pid: int | None = None) -> None:
        """Take whether the host computes, elsewhere nothing is read; for the rest see ``reading``."""
        self._on_host = on_host
        self._which = cores, server_pid
        self._begin: Reading | None = None

    def begin(self) -> None:
        """A window begins."""
        self._begin = reading(*self._which) if self._on_host else None

    def end(self) -> float | None:
        """Return how many cores others kept busy since ``begin``; None where that is not known."""
        begin, self._begin = self._begin, None
        end = None if begin is None else reading(*self._which)
        return None if begin is None or end is None else cores_of_others(begin, end)


def _own_processes(server_pid: int | None) -> list[psutil.Process]:
    """Return this process and what it started, or one of these, with what that started."""
    own = psutil.Process()
    server = own if server_pid is None else psutil.Process(server_pid)
    return list({own, server, *server.children(recursive=True)})


def _processor_s(process: psutil.Process) -> float:
    """Return what a process took, and those of its children that have ended; 0 for one that ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:4])
    return 0.0


def _busy_s(cores: frozenset[int]) -> float:
    ours = {f"cpu{number}" for number in cores}
    lines = map(str.split, Path("/proc/stat").read_text().splitlines())
    ticks = sum(int(counts[column]) for name, *counts in lines if name in ours for column in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
