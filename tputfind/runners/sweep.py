"""Several specs measured one after another: all are inspected first, and a failure of one does not end the list."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tputfind.analysis.recipes import LISTED
from tputfind.errors import NoSuchDevice, TputfindError
from tputfind.processes.children import Children
from tputfind.processes.messages import Inspection
from tputfind.record import identity
from tputfind.record.files import RecordFile
from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.session import outcome, resume, run
from tputfind.session.inspect import inspect, new_record, record_file_of
from tputfind.session.progress import Progress
from tputfind.session.run import Measured


class Job(NamedTuple):
    """The specs to measure, the ``folder`` of their records (None saves none), and the ``command`` of the request.

    ``resumed`` is a record to resume and its file; there is then only one spec. The ``first`` batch sizes are timed
    before the largest batch is searched for, the first of them in full.
    """

    specs: Sequence[Spec]
    folder: Path | None
    command: str
    resumed: tuple[Record, Path] | None = None
    first: Sequence[int] = ()


def each_recipe(options: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield the options of every combination of the lists among them, in the order of their values."""
    lists = {name: _values(value) for name in LISTED if (value := options.get(name)) is not None}
    for values in itertools.product(*(dict.fromkeys(values) for values in lists.values())):
        yield {**options, **dict(zip(lists, values, strict=True))}


def _values(value: object) -> Sequence[object]:
    """Return the values of an option: a text is split at commas, a sequence is returned as it is."""
    if isinstance(value, str):
        return value.split(",")
    return value if isinstance(value, (list, tuple)) and value else [value]


def queue_spec(spec: Spec, busy: int) -> Spec:
    """Return the spec with the number of devices of its host that work at once, each at its own job."""
    return msgspec.structs.replace(spec, load="queue", busy_devices=busy) if busy > 1 else spec


def sweep(job: Job, children: Children, progress: Progress) -> Iterator[Measured]:
    """Yield the result of each spec in turn; end after an interruption.

    A spec that the device cannot run does not end the list: it becomes a record with one failed row. TputfindError if
    none can be measured, or a record not be saved; KeyboardInterrupt before the first measurement.
    """
    budget_s = job.specs[0].budget_s  # the same for all specs: it is the command's
    end_s = None if budget_s is None else time.monotonic() + budget_s
    children.end_within(budget_s)
    begin_s = time.monotonic()
    inspections = inspect_specs(job.specs, children, progress)
    looked_s = (time.monotonic() - begin_s) / len(job.specs)
    known = known_inspections(inspections)
    record_files = [_file_of(job, spec, one) for spec, one in zip(job.specs, known, strict=True)]
    for number, (spec, inspection, file) in enumerate(zip(job.specs, inspections, record_files, strict=True), 1):
        progress.about(subject(spec, number, len(job.specs)))
        if end_s is not None:
            children.end_within((end_s - time.monotonic()) / (len(job.specs) - number + 1))
        if isinstance(inspection, NoSuchDevice):
            yield save_failure(new_record(spec, known[number - 1], job.command), file, inspection)
            continue
        record = new_record(spec, inspection, job.command)
        if job.resumed is not None:
            record = resume.resumed_record(job.resumed[0], spec, inspection)
        record = msgspec.structs.replace(record, wall_s=record.wall_s + looked_s)
        measured = run.measure(record, children, file, progress, job.first)
        if isinstance(measured.ended_by, TputfindError) and len(job.specs) > 1 and not measured.record.rows:
            measured = save_failure(measured.record, file, measured.ended_by)
        yield measured
        if isinstance(measured.ended_by, KeyboardInterrupt):
            return


def save_failure(record: Record, file: RecordFile, error: TputfindError) -> Measured:
    """Return the result of a spec that cannot be measured: its saved ``failed_record``."""
    record = outcome.failed_record(record, error)
    file.save(record)
    return Measured(record, file, error)


def _file_of(job: Job, spec: Spec, inspection: Inspection) -> RecordFile:
    if job.resumed is None:
        return record_file_of(job.folder, spec, inspection)
    return RecordFile.at(job.resumed[1] if job.folder else None)


def known_inspections(inspections: Sequence[Inspection | NoSuchDevice]) -> list[Inspection]:
    """Return the inspection of each spec; for one that cannot be measured, the properties of the device only."""
    looked_at = next(one for one in inspections if isinstance(one, Inspection))
    elsewhere = Inspection(environment=looked_at.environment, input_shape="", parameters=None)
    return [one if isinstance(one, Inspection) else elsewhere for one in inspections]


def inspect_specs(specs: Sequence[Spec], children: Children, progress: Progress) -> list[Inspection | NoSuchDevice]:
    """Return the inspection of each spec, or the error if its device does not support it.

    TputfindError if none of them can be measured, or a request is wrong.
    """
    found: list[Inspection | NoSuchDevice] = []
    for number, spec in enumerate(specs, 1):
        progress.about(subject(spec, number, len(specs)))
        progress.doing("looking at the model and the device", None)
        try:
            found.append(inspect(spec, children))
        except NoSuchDevice as refusal:
            found.append(refusal)
    refusals = [one for one in found if isinstance(one, NoSuchDevice)]
    if len(refusals) == len(found):
        raise refusals[0]
    return found


def subject(spec: Spec, number: int, count: int) -> str:
    """Return the label of a measurement: the model; with several specs also its number and the recipe."""
    return spec.model if count == 1 else f"{number}/{count} {spec.model} {identity.name_of(spec)}"
