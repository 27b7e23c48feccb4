"""The CPU time that other processes use on the host while one of ours is timed, from the counters of Linux."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from tputfind.processes.cores import here

LEAST_WINDOW_S: Final = 0.2
"""Minimum window in seconds: the counters rise in steps of 10 ms, too coarse for less."""
_BUSY: Final = (0, 1, 2, 5, 6, 7)
"""Columns of a processor in /proc/stat: user, nice, system, irq, softirq, and steal (time that the hypervisor took)."""


class Reading(NamedTuple):
    """CPU seconds at a moment of the monotonic clock: ``busy_s`` of all processes on our cores, ``own_s`` of ours."""

    at_s: float
    busy_s: float
    own_s: float


def reading(cores: frozenset[int] | None = None, server_pid: int | None = None) -> Reading | None:
    """Return the current counters of cores, by default all that we may run on; None if the system does not show them.

    ``server_pid`` is the only child of this process that counts as ours, with its descendants; None if all children do.
    """
    try:
        # Read first at both ends of a window, so that the two windows have the same length.
        own_s = sum(map(_processor_s, _own_processes(server_pid)))
        return Reading(time.monotonic(), _busy_s(here() if cores is None else cores), own_s)
    except (OSError, ValueError, IndexError, psutil.Error):
        return None


def cores_of_others(begin: Reading, end: Reading) -> float | None:
    """Return the mean number of cores that others kept busy; None if the readings are too close or stand still."""
    window_s = end.at_s - begin.at_s
    busy_s, own_s = end.busy_s - begin.busy_s, end.own_s - begin.own_s
    if window_s < LEAST_WINDOW_S or (busy_s == 0 < own_s):  # a sandbox may show counters that stand still
        return None
    return max(0.0, busy_s - own_s) / window_s


class HostWatch:
    def __init__(self, *, on_host: bool, cores: frozenset[int] | None = None, server_pid: int | None = None) -> None:
        """Args: on_host is whether the host computes (if not, ``end`` returns None); the others as for ``reading``."""
        self._on_host = on_host
        self._which = cores, server_pid
        self._begin: Reading | None = None

    def begin(self) -> None:
        self._begin = reading(*self._which) if self._on_host else None

    def end(self) -> float | None:
        """Return the mean number of cores that other processes kept busy since ``begin``; None if unknown."""
        begin, self._begin = self._begin, None
        end = None if begin is None else reading(*self._which)
        return None if begin is None or end is None else cores_of_others(begin, end)


def _own_processes(server_pid: int | None) -> list[psutil.Process]:
    """Return this process and its descendants, or with ``server_pid`` this process, that child and its descendants."""
    own = psutil.Process()
    server = own if server_pid is None else psutil.Process(server_pid)
    return list({own, server, *server.children(recursive=True)})


def _processor_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its ended children; 0 if the process has ended."""
    with suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:4])
    return 0.0


def _busy_s(cores: frozenset[int]) -> float:
    ours = {f"cpu{number}" for number in cores}
    lines = map(str.split, Path("/proc/stat").read_text().splitlines())
    ticks = sum(int(counts[column]) for name, *counts in lines if name in ours for column in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
