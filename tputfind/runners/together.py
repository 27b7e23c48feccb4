"""The same job on all devices at once: each has a session, and their processes meet at a barrier."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from tputfind.errors import OutOfTime
from tputfind.processes.children import Children
from tputfind.record.files import RecordFile, slug
from tputfind.record.record import Trial
from tputfind.runners.devices import HostPlace
from tputfind.runners.stations import Stations
from tputfind.session import stopping
from tputfind.session.barrier import Meeting, Seat
from tputfind.session.inspect import now, stem_of
from tputfind.session.progress import Progress
from tputfind.session.run import Measured
from tputfind.session.session import Session
from tputfind.session.trials import TrialRunner


class Alone(NamedTuple):
    """A device, and its measurement alone."""

    place: HostPlace
    measured: Measured


class BusyDevice(NamedTuple):
    """A device, its session while all devices are busy, its file, and the trials of its measurement alone."""

    place: HostPlace
    session: Session
    file: RecordFile
    trials: tuple[Trial, ...]


def common_batch_sizes(alone: Iterable[Alone]) -> list[int]:
    """Return the batch sizes that ran on each device alone; those that decide the answers come first."""
    records = [one.measured.record for one in alone]
    timed = [{row.batch_size for row in record.rows if row.samples_per_s is not None} for record in records]
    first = {record.edge.largest_batch for record in records if record.edge is not None}
    first |= {size for one in records for size in stopping.contenders(one.spec, one.rows, one.edge)}
    return sorted(set.intersection(*timed), key=lambda size: (size not in first, size)) if timed else []


def busy_device(
    alone: Alone, spec_fields: dict[str, object], command: str, children: Children, progress: Progress
) -> BusyDevice:
    """Return a device with an empty session for the measurement while all are busy."""
    before = alone.measured.record
    spec = msgspec.structs.replace(before.spec, load="all_busy", max_batch=None, headroom=None, soak=0, **spec_fields)
    fields = {"started": now(), "finished": None, "resumed": (), "wall_s": 0.0, "command": command}
    left_out = {"trials": (), "edge": None, "safe": None, "rows": (), "notices": ()}
    record = msgspec.structs.replace(before, spec=spec, **fields, **left_out)
    # The file lies in the folder of the device's record alone; without such a file, the record is not saved.
    folder = None if alone.measured.file.path is None else alone.measured.file.path.parent
    file = RecordFile(folder, stem_of(spec, record.environment, (slug(spec.device), "all-busy")))
    progress.about(spec.model)
    runner = TrialRunner(children, spec, record.environment)
    return BusyDevice(alone.place, Session(record, runner, file, progress), file, before.trials)


class Together:
    def __init__(self, devices: Sequence[BusyDevice], stations: Stations, did: Callable[[str], None]) -> None:
        """Args: the devices, the stations that run them, and a function that reports what has ended."""
        self._devices = devices
        self._stations = stations
        self._did = did
        self._late = False

    def time_all(self, batch_sizes: Iterable[int]) -> None:
        """Time every batch size until all rows have ended, or the run is interrupted or out of time.

        A batch size that works on only one device is not timed any more.
        """
        for size in batch_sizes:
            while len(able := self._working_devices(size)) > 1 and any(_wants_more(one.session, size) for one in able):
                if not self._time(size, able):
                    return

    def finish(self) -> None:
        """Record that the measurement is finished, and that the budget ended the unfinished rows if it is over.

        A record without rows is left as it is, and not saved.
        """
        for one in self._devices:
            if not one.session.record.rows:
                continue
            if self._late:
                one.session.finish()
            else:
                one.session.update(finished=now())

    def _working_devices(self, batch_size: int) -> list[BusyDevice]:
        rows = [(one, one.session.row(batch_size)) for one in self._devices]
        return [one for one, row in rows if row is None or row.failure is None]

    def _time(self, batch_size: int, able: Sequence[BusyDevice]) -> bool:
        """Time a batch size in one more process of each of these devices; return False if the measurement must end."""
        meeting = Meeting(len(self._devices))
        for one, seat in zip(self._devices, meeting.seats, strict=True):
            if one in able:
                self._stations.give(one.place, partial(_time_one, one, batch_size, seat))
            else:
                seat.leave()
        done = [self._stations.next_done(meeting) for _ in able]
        errors = [one.error for one in done if one.error is not None]
        self._late = any(isinstance(error, OutOfTime) for error in errors)
        for error in errors:
            if not isinstance(error, (KeyboardInterrupt, OutOfTime)):
                raise error
        if not errors:
            rows = [(one.place.name, row) for one in self._devices if (row := one.session.row(batch_size)) is not None]
            rates = [f"{name} {row.samples_per_s:.1f}" for name, row in rows if row.samples_per_s]
            number = max(len(row.timings) for _, row in rows)
            self._did(f"all busy: batch {batch_size}: {', '.join(rates)} samples/s, process {number}")
        return not errors


def _wants_more(session: Session, batch_size: int) -> bool:
    row = session.row(batch_size)
    return row is None or stopping.wants_more(session.record.spec, row)


def _time_one(device: BusyDevice, batch_size: int, seat: Seat) -> None:
    try:
        device.session.time_beside_others(batch_size, seat, device.trials)
    finally:
        seat.leave()
