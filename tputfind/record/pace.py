"""What sets the pace of a row, and how far the throughput of one of its processes may lie from that of others."""

from statistics import fmean
from typing import Final

from tputfind.record.record import Row

HOST_BOUND_SHARE: Final = 0.80
"""trtexec warns from the same share of enqueue time on."""
_DOUBT_DEVICE_BOUND: Final = 0.02
_DOUBT_OTHER: Final = 0.45
"""Of 467 recorded processes of host-bound rows, some 95 % lay within the latter of the others of their row; of 510 of
device-bound rows, over 99 % lay within the former (``benchmarks/plan.py one``)."""


def host_bound(row: Row) -> bool | None:
    """Return whether the device waits for Python: submitting a batch takes 80 % of its span; None if unknown."""
    if not row.enqueue_ms or not row.device_ms:
        return None
    return fmean(row.enqueue_ms) >= HOST_BOUND_SHARE * fmean(row.device_ms)


def doubt_of_one_process(row: Row) -> float:
    """Return how far, as a share, the throughput of a row's first process may lie from that of others."""
    return _DOUBT_DEVICE_BOUND if host_bound(row) is False else _DOUBT_OTHER
