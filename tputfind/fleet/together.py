"""The same job on all devices at once: each batch size in processes that start and end their windows together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from tputfind.analysis import fleet, notices
from tputfind.errors import OutOfTime
from tputfind.fleet.devices import Place
from tputfind.fleet.stations import Done, Work
from tputfind.processes.children import Children
from tputfind.record.files import RecordFile, slug
from tputfind.record.record import Record, Row, merged
from tputfind.record.spec import Spec
from tputfind.session import plan
from tputfind.session.inspect import now, stem_of
from tputfind.session.meeting import Meeting, Seat
from tputfind.session.progress import Progress
from tputfind.session.run import Measured
from tputfind.session.trials import TrialRunner


class Alone(NamedTuple):
    """A device, and what it did alone."""

    place: Place
    measured: Measured


class Crew(Protocol):
    """Who has devices work and hears what comes of it."""

    def all_done(self, works: Mapping[str, tuple[Place, Work]], meeting: Meeting) -> dict[str, Done]:
        """Have each place do its work, all at once, and return what came of each when all have ended."""

    def did(self, what: str) -> None:
        """Say what has ended."""


class Together:
    """One job on several devices at once: the records of all grow, and each is saved whenever it has."""

    def __init__(self, alone: Sequence[Alone], command: str) -> None:
        self._places = {one.place.name: one.place for one in alone}
        self._trials = {one.place.name: one.measured.record.trials for one in alone}
        self._start_s = time.monotonic()
        self._late = False
        timed = [{row.batch_size for row in one.measured.record.rows if row.samples_per_s is not None} for one in alone]
        first = {size for one in alone for size in _of_answers(one.measured.record)}
        self.sizes = sorted(set.intersection(*timed), key=lambda size: (size not in first, size)) if timed else []
        self.records = {one.place.name: self._begun(one.measured.record, command) for one in alone}
        self.files = {one.place.name: _file_beside(one.measured, self.records[one.place.name]) for one in alone}

    def time_all(self, crew: Crew) -> None:
        """Time every batch size that ran on each device alone, until all are known or somebody had enough.

        Those that the answers rest on come first. One that works on a single device only is not timed any more.
        """
        for batch_size in self.sizes:
            while len(able := self._able(batch_size)) > 1 and any(self._wants_more(one, batch_size) for one in able):
                if not self._time(batch_size, crew):
                    return

    def finish(self) -> None:
        """Say that nothing more is measured; where the budget was over, it ended the rows that are not known by now."""
        for name, record in self.records.items():
            rows = plan.ended(record.spec, record.rows, None, over=True) if self._late else record.rows
            self._keep(name, rows=rows, finished=now())

    def _begun(self, alone: Record, command: str) -> Record:
        """Return the record of a device that is busy as all are, in which nothing has been measured yet."""
        spec = msgspec.structs.replace(
            alone.spec,
            load="all_busy",
            busy_devices=len(self._places),
            batch_sizes=tuple(sorted(self.sizes)) or None,
            max_batch=None,
            headroom=None,
            soak=0,
        )
        fields = {"started": now(), "finished": None, "resumed": (), "wall_s": 0.0, "command": command}
        left_out = {"trials": (), "edge": None, "safe": None, "rows": (), "notices": ()}
        return msgspec.structs.replace(alone, spec=spec, **fields, **left_out)

    def _able(self, batch_size: int) -> list[str]:
        """Return the devices on which a batch size has not failed."""
        rows = {name: record.row(batch_size) for name, record in self.records.items()}
        return [name for name, row in rows.items() if row is None or row.failure is None]

    def _wants_more(self, name: str, batch_size: int) -> bool:
        row = self.records[name].row(batch_size)
        return row is None or plan.wants_more(self.records[name].spec, row)

    def _time(self, batch_size: int, crew: Crew) -> bool:
        """Time a batch size in one more process of each device on which it has not failed; False ends all."""
        able = self._able(batch_size)
        number = max((len(row.timings) for _, row in self._rows(batch_size)), default=0)
        meeting = Meeting(len(able))
        seats = {name: Seat(meeting) for name in able}
        works = {
            name: (
                self._places[name],
                partial(
                    _time_one,
                    record=msgspec.structs.replace(self.records[name], trials=self._trials[name]),
                    batch_size=batch_size,
                    number=number,
                    seat=seat,
                ),
            )
            for name, seat in seats.items()
        }
        done = crew.all_done(works, meeting)
        spans = {name: _busy_span(seats.get(name)) for name in self.records}
        for name, one in done.items():
            if isinstance(one.result, Row):
                others = [span for other, span in spans.items() if other != name]
                self._add(name, _with_share(one.result, seats[name], others))
        errors = [one.error for one in done.values() if one.error is not None]
        self._late = any(isinstance(error, OutOfTime) for error in errors)
        for error in errors:
            if not isinstance(error, (KeyboardInterrupt, OutOfTime)):
                raise error
        complete = not errors
        rates = [f"{name} {row.samples_per_s:.1f}" for name, row in self._rows(batch_size) if row.samples_per_s]
        if complete:
            crew.did(f"all busy: batch {batch_size}: {', '.join(rates)} samples/s, process {number + 1}")
        return complete

    def _rows(self, batch_size: int) -> list[tuple[str, Row]]:
        return [(name, row) for name, record in self.records.items() if (row := record.row(batch_size)) is not None]

    def _add(self, name: str, row: Row) -> None:
        record = self.records[name]
        before = record.row(row.batch_size)
        whole = row if before is None else merged(before, row)
        whole = msgspec.structs.replace(whole, ended_by=plan.ended_by(record.spec, whole))
        others = (other for other in record.rows if other is not before)
        self._keep(name, rows=tuple(sorted((*others, whole), key=lambda row: row.batch_size)))

    def _keep(self, name: str, **fields: object) -> None:
        wall_s = time.monotonic() - self._start_s
        grown = msgspec.structs.replace(self.records[name], wall_s=wall_s, **fields)
        self.records[name] = msgspec.structs.replace(grown, notices=notices.of(grown))
        self.files[name].save(self.records[name])


def _of_answers(record: Record) -> set[int]:
    """Return the batch sizes that the answers of a record rest on."""
    largest = set() if record.edge is None else {record.edge.largest_batch}
    return plan.contenders(record.spec, record.rows, record.edge) | largest


def _time_one(
    children: Children, progress: Progress, *, record: Record, batch_size: int, number: int, seat: Seat
) -> Row:
    """Time a batch size in one process, in the thread of its device."""
    spec: Spec = record.spec
    progress.about(spec.model)
    progress.doing(f"timing batch {batch_size} with all devices busy, process {number + 1}", None)
    try:
        runner = TrialRunner(children, spec, record.environment)
        planned = plan.of_process(spec, number)
        (row,) = runner.time_batches((batch_size,), number, planned, None, record.trials, seat=seat)
    finally:
        seat.leave(time.monotonic())
    return row


def _busy_span(seat: Seat | None) -> tuple[float, float] | None:
    if seat is None or seat.busy_from_s is None or seat.busy_until_s is None:
        return None
    return seat.busy_from_s, seat.busy_until_s


def _with_share(row: Row, seat: Seat, others: Sequence[tuple[float, float] | None]) -> Row:
    share = None if seat.window_s is None else fleet.all_busy_share_of_window(seat.window_s, others)
    timings = tuple(msgspec.structs.replace(timing, all_busy_share=share) for timing in row.timings)
    return msgspec.structs.replace(row, timings=timings)


def _file_beside(alone: Measured, record: Record) -> RecordFile:
    """Return the file of a record that lies where the record of the device alone does; none where that lies nowhere."""
    folder = None if alone.file.path is None else alone.file.path.parent
    more = (slug(record.spec.device), "all-busy")
    return RecordFile(folder, stem_of(record.spec, record.environment, more))
