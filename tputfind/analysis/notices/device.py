"""Notices of the device's health while rows were timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tputfind.analysis.answers import THROTTLED_SHARE, RowHealth, health
from tputfind.analysis.notices.words import batches, sizes
from tputfind.record.record import Notice, Record, Row

REASONS: Final = {
    "power_cap": "power limit",
    "hardware_slowdown": "hardware slowdown",
    "sync_boost": "sync boost group",
    "software_thermal": "temperature limit",
    "hardware_thermal": "thermal slowdown",
    "power_brake": "power brake",
}
_HEAT: Final = {"software_thermal", "hardware_thermal", "hardware_slowdown"}


def of_health(record: Record, timed: Sequence[Row]) -> Iterator[Notice]:
    """Notices of clocks that were held down, and of a GPU whose health could not be read."""
    seen = [(row, found) for row in timed if (found := health(row)) is not None]
    unseen = [row for row in timed if health(row) is None]
    can = record.environment.can
    if unseen and not (can.health or can.on_host):
        yield Notice(
            kind="health_unknown",
            seen=f"whether the device was throttled is not known at {batches(unseen)}",
            cause=f"clocks, heat and power of {record.environment.device} are not read",
            advice="look at them with its vendor's tool",
            batch_sizes=sizes(unseen),
        )
    elif unseen and record.environment.device_uuid is not None:
        yield Notice(
            kind="health_unknown",
            seen=f"whether the device was throttled is not known at {batches(unseen)}",
            cause="NVML cannot be read",
            advice="install nvidia-ml-py and NVIDIA's driver",
            batch_sizes=sizes(unseen),
        )
    slowed = [(row, found) for row, found in seen if found.throttled]
    if slowed:
        rows = [row for row, _ in slowed]
        shares = [item for _, found in slowed for item in found.slowed.items()]
        reasons = sorted({name for name, share in shares if share >= THROTTLED_SHARE})
        hot = any(name in _HEAT for name in reasons)
        held = _held(batches(rows), [found for _, found in slowed], brief=len(reasons) > 1)
        yield Notice(
            kind="throttled",
            seen=f"clocks were held down {held}",
            cause=" and ".join(REASONS.get(name, name) for name in reasons),
            advice="cool it better" if hot else "another limit gives other rates",
            batch_sizes=sizes(rows),
        )


def of_tests(record: Record) -> Iterator[Notice]:
    """Notices of what a test before the run found wrong with a device's clocks and counters."""
    environment = record.environment
    test = environment.clock_test
    if test is None:
        return
    if environment.clock == "host":
        yield Notice(
            kind="host_clock",
            seen=f"the host clock times {environment.device}, and each batch is waited for: {test.findings[0]}",
            cause="events that its torch backend does not have, or has wrong",
            advice="another version of its driver or of its package may have them right",
        )
    if not environment.can.memory_peaks:
        uncounted = [finding for finding in test.findings if "allocator" in finding]
        yield Notice(
            kind="memory_not_counted",
            seen=f"peaks of memory are left empty: {' '.join(uncounted) or 'its allocator does not tell them'}",
            cause="counters that its torch backend does not have, or has wrong",
            advice="the largest batch is tried all the same, and does not rest on them",
        )


def _held(rows: str, found: Sequence[RowHealth], *, brief: bool) -> str:
    """Say for how long clocks were held down, and how low; ``brief`` where several reasons need the room."""
    held = f"up to {max(max(each.slowed.values()) for each in found):.0%} of the time at {rows}"
    clocks = [each.sm_clock_mhz for each in found if each.sm_clock_mhz is not None]
    most = max((each.sm_clock_max_mhz for each in found if each.sm_clock_max_mhz is not None), default=None)
    if brief or not clocks or most is None:
        return held
    lower = min(clocks) / most - 1
    return f"{held}, {min(clocks):.0f} of {most:.0f} MHz ({lower:{'.0%' if lower < -0.005 else '.1%'}})"
