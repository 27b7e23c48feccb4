"""Jobs on the devices of this host: one queue, one job at a time per device; a device that fails is taken out."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tputfind.errors import BadRequest, BrokenInstall, ModelFailed, NoSuchDevice, TputfindError
from tputfind.processes.children import Children
from tputfind.processes.failures import ChildFailed
from tputfind.processes.messages import Inspection, TryDevice
from tputfind.record import identity
from tputfind.record.environment import Environment
from tputfind.record.files import RecordFile, slug
from tputfind.record.spec import Spec
from tputfind.runners import sweep
from tputfind.runners.devices import HostPlace, overlaps, places_of
from tputfind.runners.stations import Stations
from tputfind.runners.sweep import Job
from tputfind.runners.together import Alone, Together, busy_device, common_batch_sizes
from tputfind.session import run
from tputfind.session.inspect import inspect, new_record, record_file_of
from tputfind.session.outcome import error_of
from tputfind.session.progress import Progress
from tputfind.session.run import Measured

_TRY_S: Final = 120.0
"""Seconds that a device gets to multiply two small matrices in a fresh process."""
_SUSPICIOUS: Final = (ModelFailed, NoSuchDevice, BrokenInstall)
_MAY_BE_THE_DEVICE: Final = ("died", "timeout", "error", "kernel_limit")


class Devices(NamedTuple):
    """The requested devices, and whether each does every job: alone (``each``), and then all at once (``all_busy``)."""

    names: str
    each: bool = False
    all_busy: bool = False


class Task(NamedTuple):
    """A spec to measure: its number, and the only place for it, or None for any."""

    number: int
    spec: Spec
    place: HostPlace | None = None


class Outcome(NamedTuple):
    """The result of a task, and why its device failed; empty if the device works."""

    measured: Measured
    device_fails: str = ""


class Lost(NamedTuple):
    """A device that was taken out: the reason, the model and recipe of its task, and whether another took that."""

    place: HostPlace
    why: str
    subject: str
    handed_on: bool


class Host:
    """A job on the devices of this host. Iterate over ``measured`` once; ``lost`` are the devices that failed."""

    def __init__(
        self, job: Job, devices: Devices, progress: Callable[[str], Progress], *, trust_model_file: bool
    ) -> None:
        """Args: the job, its devices, and a function from a device's name to its progress listener; "" is the host."""
        self.lost: list[Lost] = []
        self.not_begun: list[str] = []
        self._job = job
        self._devices = devices
        self._progress = progress
        self._trust_model_file = trust_model_file
        budget_s = job.specs[0].budget_s
        self._end_s = math.inf if budget_s is None else time.monotonic() + budget_s
        self._stations = Stations(trust_model_file=trust_model_file)

    def measured(self) -> Iterator[Measured]:
        """Yield the result of each spec, or of each spec on each device, in their order.

        TputfindError if there is no such device, if none of the specs can be measured, or, after all results, for an
        error that ended the run; KeyboardInterrupt before the first measurement.
        """
        places, inspections = self._looked_at()
        for warning in overlaps(places) if self._devices.all_busy or not self._devices.each else ():
            self._did(warning)
        tasks = self._tasks(places)
        with self._stations:
            found: dict[int, Measured] = {}
            failure = None
            try:
                found.update(self._done(tasks, places, inspections))
            except TputfindError as error:
                failure = error
            yield from (found[number] for number in sorted(found))
            if failure is not None:
                raise failure
            if self._devices.all_busy and not self._stations.interrupted:
                for number in range(0, len(tasks), len(places)):
                    alone = [
                        Alone(place, found[number + at])
                        for at, place in enumerate(places)
                        if number + at in found and place.name not in {lost.place.name for lost in self.lost}
                    ]
                    left = (len(tasks) - number) // len(places)  # specs, this one included
                    yield from self._together(alone, (self._end_s - time.monotonic()) / left)

    def _looked_at(self) -> tuple[list[HostPlace], list[Inspection]]:
        """Return the places, and the inspection of each spec at the first place that works.

        A spec that cannot be measured there gets an inspection with the device's properties only.
        """
        progress = self._progress("")
        with Children(trust_model_file=self._trust_model_file) as children:
            children.end_within(self._job.specs[0].budget_s)
            progress.about("devices")
            progress.doing("looking for them", None)
            places = places_of(self._devices.names, children)
            if self._devices.all_busy and len(places) < 2:
                raise BadRequest("--all-busy needs two devices or more", f"--device {self._devices.names} is one")
            for number, place in enumerate(places, 1):
                specs = [msgspec.structs.replace(spec, device=place.name) for spec in self._job.specs]
                try:
                    known = sweep.known_inspections(sweep.inspect_specs(specs, children, progress))
                    break
                except _SUSPICIOUS:
                    if number == len(places) or not _device_failure(place, children):
                        raise
                    children.end_within(self._job.specs[0].budget_s)  # a look at a device has no end
        return places, known

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run, even if no measurement was cut short."""
        return self._stations.interrupted

    @property
    def problems(self) -> list[TputfindError]:
        """The errors to report: devices that were taken out, and specs that were not begun."""
        told: list[TputfindError] = []
        for lost in self.lost:
            again = "it was given to another" if lost.handed_on else "it was not measured there"
            why = f"{lost.place.name} was taken out: {lost.why}; it was at {lost.subject}, and {again}"
            told.append(NoSuchDevice(why))
        if self.not_begun and not self._stations.interrupted:
            told.append(
                NoSuchDevice(f"no device is left for {', '.join(self.not_begun)}", "see why each was taken out")
            )
        return told

    def _tasks(self, places: Sequence[HostPlace]) -> list[Task]:
        specs = self._job.specs
        if self._devices.each:
            pairs = [(spec, place) for spec in specs for place in places]
            return [Task(number, spec, place) for number, (spec, place) in enumerate(pairs)]
        busy = min(len(places), len(specs))
        return [Task(number, sweep.queue_spec(spec, busy)) for number, spec in enumerate(specs)]

    def _done(
        self, tasks: Sequence[Task], places: Sequence[HostPlace], inspections: Sequence[Inspection]
    ) -> Iterator[tuple[int, Measured]]:
        """Yield the result of each task by its number; with ``each``, devices work in turn, to be comparable."""
        end_s = (time.monotonic() + self._end_s) / 2 if self._devices.all_busy else self._end_s
        waiting, free = list(tasks), {place.name: place for place in places}
        busy: dict[str, Task] = {}
        handed: dict[int, Measured] = {}  # results until their devices were lost; another device begins anew
        while busy or waiting:
            at_once = 1 if self._devices.each else len(free) + len(busy)
            if not self._stations.interrupted:
                for task, place in _next(waiting, free, at_once - len(busy)):
                    waiting.remove(task)
                    del free[place.name]
                    busy[place.name] = task
                    left_s = (end_s - time.monotonic()) / math.ceil((len(waiting) + 1) / at_once)
                    inspection = inspections[task.number // (len(tasks) // len(inspections))]
                    job = partial(_measure, self._job, task, place, count=len(tasks), known=inspection, seconds=left_s)
                    children, listener = self._stations.children(place), self._progress(place.name)
                    self._stations.give(place, partial(job, children=children, progress=listener))
            if not busy:
                break
            done = self._stations.next_done()
            task = busy.pop(done.place.name)
            if isinstance(done.error, KeyboardInterrupt):
                waiting.append(task)
                continue
            if done.error is not None:
                raise done.error
            outcome = done.result
            assert isinstance(outcome, Outcome)
            kept = _keep_one(handed.pop(task.number, None), outcome.measured)
            if outcome.device_fails:
                handed_on = task.place is None and bool(free or busy)
                subject = f"{task.spec.model} {identity.name_of(task.spec)}"
                self.lost.append(Lost(done.place, outcome.device_fails, subject, handed_on))
                self._did(f"{done.place.name} fails and is taken out: {outcome.device_fails}")
                if handed_on:
                    handed[task.number] = kept
                    waiting.insert(0, task)
                    continue
            else:
                free[done.place.name] = done.place
            yield task.number, kept
        yield from handed.items()
        self.not_begun = [
            f"{task.spec.model} {identity.name_of(task.spec)}{'' if task.place is None else f' on {task.place.name}'}"
            for task in waiting
            if task.number not in handed
        ]

    def _together(self, alone: Sequence[Alone], seconds: float) -> Iterator[Measured]:
        """Make all devices do at once a job that each has done alone, within seconds; yield the record of each."""
        able = [one for one in alone if any(row.samples_per_s is not None for row in one.measured.record.rows)]
        if self._stations.interrupted:
            return
        sizes = common_batch_sizes(able)
        if len(able) < 2 or not sizes:
            self._did("all busy: not measured, since fewer than two devices did the job alone at one batch size")
            return
        asked = {"busy_devices": len(able), "batch_sizes": tuple(sorted(sizes))}
        devices = []
        for one in able:
            children = self._stations.children(one.place)
            children.end_within(None if seconds == math.inf else seconds)
            devices.append(busy_device(one, asked, self._job.command, children, self._progress(one.place.name)))
        together = Together(devices, self._stations, self._did)
        failure = None
        try:
            together.time_all(sizes)
        except TputfindError as error:
            failure = error
        interrupted = self._stations.interrupted
        if not interrupted and failure is None:
            together.finish()
            if not any(device.session.record.rows for device in devices):
                self._did(f"all busy: {able[0].measured.record.spec.model} was not measured, since --budget ended")
        for device in devices:
            record = device.session.record
            if record.rows:
                yield Measured(record, device.file, KeyboardInterrupt() if interrupted else error_of(record))
        if failure is not None:
            raise failure

    def _did(self, what: str) -> None:
        """Report the end of something that belongs to no device."""
        listener = self._progress("")
        listener.about("")
        listener.did(what)


def _next(waiting: Sequence[Task], free: Mapping[str, HostPlace], room: int) -> list[tuple[Task, HostPlace]]:
    """Return the tasks that begin now, with their places: each waiting task takes the first free place for it."""
    left = dict(free)
    pairs: list[tuple[Task, HostPlace]] = []
    for task in waiting:
        if len(pairs) >= room or not left:
            break
        place = next(iter(left.values())) if task.place is None else left.get(task.place.name)
        if place is not None:
            del left[place.name]
            pairs.append((task, place))
    return pairs


def _measure(
    job: Job,
    task: Task,
    place: HostPlace,
    *,
    children: Children,
    progress: Progress,
    count: int,
    known: Inspection,
    seconds: float,
) -> Outcome:
    """Measure a spec on a device, in the device's thread; a spec that the device cannot run becomes a failed row.

    The task has ``number + 1`` of ``count``, and ends within ``seconds``. ``known`` is the inspection from another
    device.
    """
    spec = msgspec.structs.replace(task.spec, device=place.name)
    progress.about(sweep.subject(spec, task.number + 1, count))
    progress.doing("looking at the model and the device", None)
    children.end_within(None if seconds == math.inf else seconds)
    begin_s = time.monotonic()
    try:
        inspection = inspect(spec, children)
    except TputfindError as refusal:
        environment = msgspec.structs.replace(known.environment, device=place.name)
        record = new_record(spec, msgspec.structs.replace(known, environment=environment), job.command)
        why = _device_failure(place, children) if isinstance(refusal, _SUSPICIOUS) else ""
        file = RecordFile.at(None) if why else _file_of(job.folder, spec, known, place)
        return Outcome(sweep.save_failure(record, file, refusal), why)
    file = _file_of(job.folder, spec, inspection, place)
    record = new_record(spec, inspection, job.command)
    record = msgspec.structs.replace(record, wall_s=time.monotonic() - begin_s)
    measured = run.measure(record, children, file, progress)
    if isinstance(measured.ended_by, KeyboardInterrupt):
        return Outcome(measured)
    if isinstance(measured.ended_by, TputfindError) and not measured.record.rows:
        measured = sweep.save_failure(measured.record, file, measured.ended_by)
    failures = [one.failure for one in measured.record.attempts if one.failure is not None]
    may_be_the_device = any(failure.kind in _MAY_BE_THE_DEVICE for failure in failures)
    return Outcome(measured, _device_failure(place, children) if may_be_the_device else "")


def _device_failure(place: HostPlace, children: Children) -> str:
    children.end_within(None)
    try:
        children.ask_one(TryDevice(place.name), Environment, _TRY_S)
    except ChildFailed as death:
        return f"a process that only multiplies two matrices there fails: {death.failure.message}"
    except TputfindError as refusal:
        return refusal.message
    return ""


def _keep_one(before: Measured | None, after: Measured) -> Measured:
    """Return the later result of a job, or the earlier one if that alone has rows; the other is removed."""
    if before is None:
        return after
    kept, lost = (after, before) if after.record.rows or not before.record.rows else (before, after)
    if lost.file.path is not None:
        with suppress(OSError):
            lost.file.path.unlink()
    return kept


def _file_of(folder: Path | None, spec: Spec, inspection: Inspection, place: HostPlace) -> RecordFile:
    return record_file_of(folder, spec, inspection, (slug(place.name),))
