"""The environment of a record: the device, its capabilities and the software."""

from typing import Annotated, Any, Final, Literal

import msgspec

from tputfind.record.types import ASKED, FREE, TOLD, WORK, Bytes, CountFromZero

ACCELERATORS_PER_HOST: Final = 8


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities that a device reports.

    ``events``: it runs asynchronously, and events mark moments in its work; without them the host clock times the
    synchronised device, or the host itself. ``own_memory``: its memory is not the host's. ``memory_limit``: a process
    can be limited to less memory than the device has. ``allocator_trace``: its allocator logs its requests, on which
    forecasts rest. ``graphs``: it replays captured work. ``pinned_copies``: it overlaps copies from pinned host memory
    with compute. ``health``: its clocks, power and temperature can be read. ``memory_size``: it reports its total and
    free memory. ``memory_peaks``: its allocator counts peak use.
    """

    events: bool
    own_memory: bool
    memory_limit: bool
    allocator_trace: bool
    graphs: bool
    pinned_copies: bool
    health: bool
    memory_size: bool = True
    memory_peaks: bool = True

    @property
    def is_cpu(self) -> bool:
        return not self.own_memory


Clock = Literal["events", "host"]
"""The clock of device spans: events, or the host clock around a synchronised device."""


class ClockTest(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a known load by both clocks of a device before the run, in ms; None if a clock gave no reading.

    ``mark_ms`` is the time that an event itself takes on the device. ``findings`` are one line for each defect.
    """

    host_ms: float | None = None
    events_ms: float | None = None
    mark_ms: float | None = None
    findings: tuple[str, ...] = ()


class RankDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The device of one rank of a job. Unknown is None."""

    device: str
    device_name: str
    device_uuid: str | None = None
    memory_total_bytes: Bytes | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The device, host and software of a run. Unknown is None.

    ``memory_of_others_bytes`` is the device memory that other processes held before the run. ``clock`` and
    ``clock_test`` are those of a device whose clocks are tested before a run.
    """

    device: Annotated[str, ASKED]
    device_name: Annotated[str, WORK]
    device_uuid: Annotated[str | None, TOLD] = None
    memory_total_bytes: Annotated[Bytes | None, TOLD] = None
    memory_free_bytes: Annotated[Bytes | None, FREE] = None
    memory_of_others_bytes: Annotated[Bytes | None, FREE] = None
    compute_capability: Annotated[str | None, TOLD] = None
    driver: Annotated[str | None, TOLD] = None
    cuda: Annotated[str | None, TOLD] = None
    cudnn: Annotated[str | None, TOLD] = None
    torch: Annotated[str, TOLD]
    torchvision: Annotated[str | None, TOLD] = None
    timm: Annotated[str | None, TOLD] = None
    transformers: Annotated[str | None, TOLD] = None
    torchao: Annotated[str | None, TOLD] = None
    allocator_conf: Annotated[str | None, WORK] = None
    python: Annotated[str, TOLD]
    host: Annotated[str, TOLD]
    cpu_name: Annotated[str, TOLD]
    cpu_count: Annotated[CountFromZero, TOLD]
    torch_threads: Annotated[CountFromZero, TOLD]
    cores: Annotated[str | None, TOLD] = None
    """The host cores that the process was bound to, such as ``0-15+32-47``; None if it was not bound."""
    others: Annotated[tuple[RankDevice, ...], TOLD] = ()
    """The devices of the ranks from 1, if one model runs on several; ``device`` is that of rank 0."""
    can: Annotated[Capabilities, FREE] = msgspec.field(name="capabilities")
    clock: Annotated[Clock | None, TOLD] = None
    clock_test: Annotated[ClockTest | None, FREE] = None

    @property
    def device_uuids(self) -> tuple[str | None, ...]:
        return (self.device_uuid, *(other.device_uuid for other in self.others))

    @property
    def devices_per_host(self) -> int | None:
        """Devices like this on one host: eight accelerators, one CPU; None for a set of CPU cores."""
        if not self.can.is_cpu:
            return ACCELERATORS_PER_HOST
        return 1 if self.device == "cpu" else None


def unknown_environment(device: str = "", device_name: str = "", host: str = "") -> Environment:
    """Return the environment of a device that did not answer, of which no more is known than this."""
    blank: dict[str, Any] = dict.fromkeys(("torch", "python", "cpu_name"), "")
    can = Capabilities(**dict.fromkeys(Capabilities.__struct_fields__, False))
    return Environment(
        device=device, device_name=device_name, host=host, cpu_count=0, torch_threads=0, can=can, **blank
    )
