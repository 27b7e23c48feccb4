"""The main job on one page: find the edge, time the rows, keep the record."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tputfind.analysis import notices
from tputfind.errors import BadRequest, ModelFailed, NoSuchDevice, NothingFits, TputfindError
from tputfind.processes.children import ChildFailed, Children
from tputfind.processes.messages import Inspect, Inspection
from tputfind.record import files
from tputfind.record.record import TRIAL_STEPS, Edge, Failure, FailureKind, Record, Row
from tputfind.record.spec import Spec, read_spec
from tputfind.record.types import LARGEST_BATCH
from tputfind.search.edge import find_edge
from tputfind.session import resume
from tputfind.session.catalogue import check_torchvision
from tputfind.session.health import memory_in_use_bytes
from tputfind.session.progress import Progress, Silent
from tputfind.session.session import Session, no_answer
from tputfind.session.trials import FIRST_TIMEOUT_S, TrialRunner
from tputfind.units import echoed
from tputfind.version import __version__

ROUNDS: Final = 3
"""Times the search is repeated when other processes allocate or free device memory during it."""


def find(
    model: str,
    *,
    output: str | Path | None = None,
    progress: Progress | None = None,
    trust_model_file: bool = False,
    **options: object,
) -> Record:
    """Find the largest batch of a model and time every batch size: the command line's main job, from Python.

    Args:
        model: a torchvision name, ``file.py:factory`` or ``package.module:factory``.
        output: a folder for the record; None saves nothing.
        progress: told what is being done.
        trust_model_file: load a file of a model or of weights even where that can run code of the file's.
        options: the command line's, with underscores: ``dtype="fp16"``, ``memory_limit="8GiB"``. Numbers are bytes,
            milliseconds (``max_latency``, ``slo``), seconds (``max_seconds``, ``min_seconds``, ``trial_timeout``) or,
            for ``max_noise`` and for ``headroom`` below 1, a share.

    Raises:
        TputfindError: the request, the device or the model does not allow it; ``NothingFits`` after saving the record.
    """
    spec = read_spec(model, options)
    if progress is not None and not all(callable(getattr(progress, name, None)) for name in ("doing", "did")):
        kind = type(progress).__name__
        raise BadRequest(
            f"progress: {echoed(progress)} is a {kind}, without methods doing(what, seconds_left), did(what)"
        )
    folder = None if output is None else files.path_of("output", output)
    if folder is not None:
        files.check_folder(folder)
    with Children(trust_model_file=trust_model_file) as children:
        inspection = inspect(spec, children)
        words = " ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
        record_file = record_file_of(folder, spec, inspection)
        begun = new_record(spec, inspection, f"find {model} {words}".strip())
        record_file.try_out(begun)
        record = measure(begun, children, record_file, progress or Silent())
        if record_file.problem is not None:
            warnings.warn(f"the record was not saved: {record_file.problem}", stacklevel=2)
        return record


def inspect(spec: Spec, children: Children) -> Inspection:
    """Return what the spec will be measured on; refuse what cannot be, before anything is measured."""
    if spec.source == "torchvision":
        check_torchvision(children)
    try:
        inspection = children.ask_one(Inspect(spec), Inspection, spec.trial_timeout_s or FIRST_TIMEOUT_S)
    except ChildFailed as death:
        raise ModelFailed(
            f"{spec.model} cannot be built: {death}", notices.advice(death.failure.kind, spec.mode)
        ) from None
    for package in inspection.imports:
        children.preload(package)
    others_bytes = memory_in_use_bytes(inspection.environment.device_uuid)
    environment = msgspec.structs.replace(inspection.environment, memory_of_others_bytes=others_bytes)
    # Refuses what --strict and --headroom do not allow.
    TrialRunner(children, spec, environment).memory_of_others_bytes()
    return msgspec.structs.replace(inspection, environment=environment)


def record_file_of(folder: Path | None, spec: Spec, inspection: Inspection) -> files.RecordFile:
    """Return what keeps the record of this run, or nothing.

    Its name in the folder says the model, the dtype, the device, and what else is not as it is by default.
    """
    name = spec.model.replace(".py:", "-").rpartition("/")[2]
    layout = () if spec.layout == "nchw" else (spec.layout,)
    parts = (name, spec.dtype, *layout, *spec.way, inspection.environment.device_name)
    return files.RecordFile(folder, "-".join(map(files.slug, parts)))


def new_record(spec: Spec, inspection: Inspection, command: str) -> Record:
    """Return the record of a run that has not measured anything yet."""
    return Record(
        tputfind=__version__,
        command=command,
        started=now(),
        spec=spec,
        environment=inspection.environment,
        input_shape=inspection.input_shape,
        parameters=inspection.parameters,
        source_sha256=inspection.source_sha256,
        caveats=inspection.caveats,
    )


def failed_record(record: Record, error: TputfindError) -> Record:
    """Return a record with one row that holds what kept anything from being measured, so that a list shows it too."""
    kind = _KINDS.get(type(error), "error")
    row = Row(
        batch_size=record.spec.smallest_batch,
        failure=Failure(kind=kind, message=error.message, traceback=error.traceback),
    )
    failed = msgspec.structs.replace(record, rows=(row,), finished=now())
    return msgspec.structs.replace(failed, notices=notices.of(failed))


_KINDS: Final[dict[type[TputfindError], FailureKind]] = {NoSuchDevice: "unsupported", NothingFits: "out_of_memory"}


def resumed_record(record: Record, spec: Spec, inspection: Inspection) -> Record:
    """Return a record that was cut short, ready to be gone on with; BadRecord where it is not the same question."""
    resume.check_same(record, spec, inspection)
    return msgspec.structs.replace(
        resume.without_accidents(record), spec=spec, edge=None, safe=None, resumed=(*record.resumed, now())
    )


def measure(record: Record, children: Children, record_file: files.RecordFile, progress: Progress) -> Record:
    """Search, time and record; ``record_file`` gets the record after every stage, so that what was measured is kept.

    What the record holds already is not measured again.

    Raises:
        ModelFailed: the model fails at the smallest batch.
        NothingFits: no batch fits; the record was saved.
        DeviceInUse: ``--strict``, and others hold memory of the device.
    """
    spec = record.spec
    runner = TrialRunner(children, spec, record.environment)
    session = Session(record, runner, record_file, progress)
    if spec.batch_sizes is None:
        edge = _search(session, runner, progress)
        session.grow(edge=edge)
        safe = _search_safe(session, runner, edge)
        session.grow(safe=safe)
        safe_batch = safe.largest_batch if safe else 0
        powers = _powers_of_two(edge.largest_batch)
        if spec.phase == "train":  # some cannot be trained on less
            powers = [power for power in powers if power >= spec.granularity]
        session.time(sorted({*powers, safe_batch} - {0}))
        session.look_around(edge)
    else:
        session.time(spec.batch_sizes)
    session.grow(finished=now())
    check_answered(session.record)
    return session.record


def check_answered(record: Record) -> None:
    """Raise what a record is about in which no row passed; errors as for ``measure``."""
    failures = [row.failure for row in record.rows]
    if None not in failures and failures and failures[0] is not None:
        raise no_answer(record.spec, record.rows[0].batch_size, failures[0])


def _search(session: Session, runner: TrialRunner, progress: Progress) -> Edge:
    """Find the edge; its largest batch has then been timed in full, in a process of its own, and soaked."""
    spec = session.record.spec
    for _ in range(ROUNDS):
        edge = find_edge(
            session.try_batch,
            session.prove,
            granularity=spec.granularity,
            max_batch=spec.max_batch or LARGEST_BATCH,
            linear=spec.search == "linear",
            first=session.first_batch,
            forecast=session.expected,
        )
        steady = session.stands(edge)
        if steady:
            break
        progress.did("other processes took or freed memory of the device: asking the edge again")
    if edge.largest_batch == 0 and not session.record.rows:
        smallest = min(session.record.trials, key=lambda trial: trial.batch_size)
        session.grow(rows=(Row(batch_size=smallest.batch_size, failure=smallest.failure),))
    soaked_batches = spec.soak if edge.largest_batch else 0
    return msgspec.structs.replace(
        edge,
        memory_limit_bytes=runner.memory_limit_bytes,
        soaked_batches=soaked_batches,
        steady=steady,
        expandable_forecast=session.expected_if_expandable() if edge.limited_by == "memory" else None,
    )


def _search_safe(session: Session, runner: TrialRunner, edge: Edge) -> Edge | None:
    """Find the largest batch with the headroom kept free; None where that was not asked for, or nothing fits at all.

    It is proven by its row and by as many steps, under the lowered limit, as the largest batch was timed for or soaked.
    """
    spec, limit_bytes, full = session.record.spec, runner.lowered_limit_bytes, session.row(edge.largest_batch)
    if limit_bytes is None or full is None or edge.largest_batch == 0:
        return None
    timed = len(full.device_ms) + len(full.latency_ms) + sum(timing.warmup_steps for timing in full.timings)
    steps = TRIAL_STEPS + max(spec.soak, timed)
    whole_bytes = runner.memory_limit_bytes or session.record.environment.memory_total_bytes or limit_bytes
    guess = edge.largest_batch * limit_bytes // whole_bytes if edge.limited_by == "memory" else edge.largest_batch
    safe = find_edge(
        lambda batch_size: session.try_batch(batch_size, memory_limit_bytes=limit_bytes),
        lambda batch_size: (
            session.try_batch(batch_size, steps=steps, memory_limit_bytes=limit_bytes) or session.time_alone(batch_size)
        ),
        granularity=spec.granularity,
        max_batch=edge.largest_batch,
        first=guess,
        forecast=partial(session.expected, memory_limit_bytes=limit_bytes),
    )
    if safe.limited_by == "cap":  # the largest batch itself leaves as much
        safe = edge
    soaked_batches = spec.soak if safe.largest_batch else 0
    return msgspec.structs.replace(safe, memory_limit_bytes=limit_bytes, soaked_batches=soaked_batches)


def _powers_of_two(largest: int) -> list[int]:
    return [2**exponent for exponent in range(largest.bit_length())]


def now() -> str:
    """Return the time of day as records have it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
