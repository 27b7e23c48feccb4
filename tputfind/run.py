"""The main job on one page: find the edge, time the rows, keep the record."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tputfind import __version__, estimate, files, notices
from tputfind.errors import BrokenInstall, ModelFailed, NothingFits, TputfindError
from tputfind.measure.children import REINSTALL, ChildDied, Children
from tputfind.measure.messages import Inspect, Inspection, TimeBatches, TryBatch
from tputfind.record import Edge, Failure, LimitedBy, Record, Row, Status, Trial
from tputfind.search.edge import find_edge
from tputfind.spec import LARGEST_BATCH, Spec, read_spec

CPU_MAX_LATENCY_MS: Final = 1000.0
"""On the CPU nobody waits for a batch larger than this, and going on to the end of memory would take hours."""

_LIMITS: Final[dict[Status, LimitedBy]] = {
    "out_of_memory": "memory",
    "index_limit": "index",
    "unsupported": "unsupported",
    "died": "died",
    "timeout": "died",
    "error": "error",
}


class Progress(Protocol):
    """Where a run tells what it is doing."""

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Something starts; ``seconds_left`` is a guess for the whole stage, or None."""

    def did(self, what: str) -> None:
        """Something has ended, so."""


class Silent:
    """Progress that nobody watches."""

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Say nothing."""

    def did(self, what: str) -> None:
        """Say nothing."""


def find(
    model: str, *, output: str | Path | None = None, progress: Progress | None = None, **options: object
) -> Record:
    """Find the largest batch of a model and time every batch size: the command line's main job, from Python.

    Args:
        model: a torchvision name, ``file.py:factory`` or ``package.module:factory``.
        output: a folder for the record; None saves nothing.
        progress: told what is being done.
        options: the command line's, with underscores: ``dtype="fp16"``, ``memory_limit="8GiB"``. Numbers are bytes,
            milliseconds (``max_latency``, ``slo``) or seconds (``max_seconds``).

    Raises:
        TputfindError: the request, the device or the model does not allow it; ``NothingFits`` after saving the record.
    """
    spec = read_spec(model, options)
    folder = None if output is None else Path(output)
    if folder is not None:
        files.check_folder(folder)
    with Children() as children:
        inspection = inspect(spec, children)
        words = " ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
        keeper = keeper_of(folder, spec, inspection)
        command = f"find {model} {words}".strip()
        record = measure(spec, inspection, children, command=command, keeper=keeper, progress=progress or Silent())
        if keeper.problem is not None:
            warnings.warn(f"the record was not saved: {keeper.problem}", stacklevel=2)
        return record


def check_torchvision(children: Children) -> None:
    """Raise BrokenInstall where torchvision does not work with the torch that is there."""
    problem = children.ready().torchvision_problem
    if problem:
        raise BrokenInstall(f"torchvision does not work with this torch: {problem}", REINSTALL)


def inspect(spec: Spec, children: Children) -> Inspection:
    """Return what the spec will be measured on; refuse what cannot be, before anything is measured."""
    if ":" not in spec.model:
        check_torchvision(children)
    try:
        return children.ask_one(Inspect(spec), Inspection)
    except ChildDied as death:
        raise ModelFailed(f"{spec.model} cannot be built: {death}") from None


def keeper_of(folder: Path | None, spec: Spec, inspection: Inspection) -> files.Keeper:
    """Return what keeps the record of this run: in the folder under model, dtype and device, or nowhere."""
    name = spec.model.replace(".py:", "-").rpartition("/")[2]
    parts = (name, spec.dtype, inspection.environment.device_name)
    return files.Keeper(folder, "-".join(map(files.slug, parts)))


def measure(
    spec: Spec, inspection: Inspection, children: Children, *, command: str, keeper: files.Keeper, progress: Progress
) -> Record:
    """Search, time and record; ``keeper`` gets the record after every stage, so that what was measured is kept.

    Raises:
        ModelFailed: the model fails at the smallest batch.
        NothingFits: no batch fits; the record was saved.
    """
    record = Record(
        tputfind=__version__,
        command=command,
        started=_now(),
        spec=spec,
        environment=inspection.environment,
        input_shape=inspection.input_shape,
        parameters=inspection.parameters,
    )
    run = _Run(record, children, keeper, progress)
    if spec.batch_sizes is None:
        run.time(_powers_of_two(run.search().largest_batch))
    else:
        run.time(spec.batch_sizes)
    record = run.finish()
    failures = [row.failure for row in record.rows]
    if None not in failures and failures[0] is not None:
        raise _no_answer(spec.model, record.rows[0].batch_size, failures[0])
    return record


class _Run:
    """One run under way: its record grows, and is saved whenever it has."""

    def __init__(self, record: Record, children: Children, keeper: files.Keeper, progress: Progress) -> None:
        self._start_s = time.perf_counter()
        self._record = record
        self._spec = record.spec
        self._children = children
        self._keeper = keeper
        self._progress = progress
        self._on_cpu = record.environment.device == "cpu"

    def search(self) -> Edge:
        """Find the edge; its largest batch has then been timed in full, in a process of its own."""
        edge = find_edge(
            self._try,
            self._prove,
            granularity=self._spec.granularity,
            max_batch=self._spec.max_batch or LARGEST_BATCH,
            linear=self._spec.search == "linear",
        )
        rows = self._record.rows
        if edge.largest_batch == 0 and not rows:
            smallest = self._record.trials[0]
            rows = (Row(batch_size=smallest.batch_size, failure=smallest.failure),)
        self._grow(edge=edge, rows=rows)
        return edge

    def time(self, batch_sizes: Sequence[int]) -> None:
        """Time batch sizes that have not been, several in a process where the device allows it.

        A row that fails behind others gets a second try, in a fresh process.
        """
        timed = {row.batch_size for row in self._record.rows}
        left = [batch_size for batch_size in batch_sizes if batch_size not in timed]
        while left:
            together = left[:1] if self._on_cpu else left
            left = left[self._time_together(together, left[len(together) :]) :]

    def finish(self) -> Record:
        """Say that the run is whole, save, and return the record."""
        self._grow(finished=_now())
        return self._record

    def _grow(self, **fields: object) -> None:
        """Add to the record, bring its notices up to date, and save it: it may be the last time."""
        grown = msgspec.structs.replace(self._record, wall_s=time.perf_counter() - self._start_s, **fields)
        self._record = msgspec.structs.replace(grown, notices=notices.of(grown))
        self._keeper.save(self._record)

    def _try(self, batch_size: int) -> LimitedBy | None:
        """Ask a fresh process whether a batch fits."""
        self._progress.doing(f"does batch {batch_size} fit?", self._seconds_of_search())
        start_s = time.perf_counter()
        try:
            trial = self._children.ask_one(TryBatch(self._spec, batch_size), Trial)
        except ChildDied as death:
            trial = Trial(batch_size=batch_size, failure=Failure(kind="died", message=death.message))
        trial = msgspec.structs.replace(trial, seconds=time.perf_counter() - start_s)
        self._stop_if_the_model_fails(batch_size, trial.failure)
        self._grow(trials=(*self._record.trials, trial))
        obstacle = self._obstacle(trial)
        self._progress.did(f"batch {batch_size} {_verdict(trial, obstacle)}")
        return obstacle

    def _seconds_of_search(self) -> float | None:
        passed = {trial.batch_size: self._obstacle(trial) is None for trial in self._record.trials}
        fits = max((batch_size for batch_size, fine in passed.items() if fine), default=0)
        fails = min((batch_size for batch_size, fine in passed.items() if not fine), default=0)
        return estimate.seconds_of_search(self._record, fits, fails)

    def _prove(self, batch_size: int) -> LimitedBy | None:
        """Time a batch in full in a fresh process; it counts as fitting only if all of that passes."""
        self._time_together([batch_size])
        (row,) = (row for row in self._record.rows if row.batch_size == batch_size)
        return None if row.failure is None else _LIMITS[row.failure.kind]

    def _time_together(self, batch_sizes: Sequence[int], later: Sequence[int] = ()) -> int:
        """Time batch sizes in one fresh process, keep each row as it comes, and return how many were settled.

        A row that fails first in its process has failed; behind others it is left unsettled. ``later`` batch sizes only
        add to the time left.
        """
        settled = 0
        with closing(self._children.ask(TimeBatches(self._spec, tuple(batch_sizes)), Row)) as answers:
            while settled < len(batch_sizes):
                ahead = (*batch_sizes[settled:], *later)
                self._progress.doing(f"timing batch {ahead[0]}", estimate.seconds_of_rows(self._record, ahead))
                try:
                    row = next(answers)
                except ChildDied as death:
                    row = Row(batch_size=ahead[0], failure=Failure(kind="died", message=death.message))
                self._progress.did(f"batch {row.batch_size}: {_result(row)}")
                if row.failure is not None and settled:
                    break
                self._stop_if_the_model_fails(row.batch_size, row.failure)
                self._grow(rows=tuple(sorted((*self._record.rows, row), key=lambda row: row.batch_size)))
                settled += 1
                if row.failure is not None:
                    break
        return settled

    def _stop_if_the_model_fails(self, batch_size: int, failure: Failure | None) -> None:
        """End the run where nothing has passed yet and it is not memory that stands in the way."""
        failures = (*(trial.failure for trial in self._record.trials), *(row.failure for row in self._record.rows))
        if failure is not None and None not in failures and not _for_want_of_memory(failure):
            raise _no_answer(self._spec.model, batch_size, failure)

    def _obstacle(self, trial: Trial) -> LimitedBy | None:
        if trial.failure is not None:
            return _LIMITS[trial.failure.kind]
        limit_ms = self._spec.max_latency_ms
        if limit_ms == "auto":
            limit_ms = CPU_MAX_LATENCY_MS if self._on_cpu else None
        slow = limit_ms is not None and trial.step_ms is not None and trial.step_ms > limit_ms
        # The smallest batch is let through however slow: a slow answer is better than none.
        return "latency" if slow and trial.batch_size > self._spec.granularity else None


_MEMORY: Final = re.compile(r"SIGKILL|memory|bad_alloc", re.IGNORECASE)
_ADVICE: Final[dict[Status, str]] = {
    "unsupported": "try another --dtype (amp-fp16 and amp-bf16 leave such operators in fp32) or --layout nchw",
    "error": "the traceback above is the model's own: does it take the input that it was given?",
    "died": "the model ended its process; run it by itself to see why",
}


def _for_want_of_memory(failure: Failure) -> bool:
    """A process that died may have died of it: by the kernel's SIGKILL, or saying so with its last words."""
    return failure.kind == "out_of_memory" or (failure.kind == "died" and bool(_MEMORY.search(failure.message)))


def _no_answer(model: str, batch_size: int, failure: Failure) -> TputfindError:
    """Return the error of a run in which nothing passed."""
    if _for_want_of_memory(failure):
        advice = "try a smaller dtype or input, or a device with more memory"
        return NothingFits(f"{model}: not even batch {batch_size} fits ({failure.message})", advice)
    advice = _ADVICE.get(failure.kind, "")
    return ModelFailed(f"{model} fails at batch {batch_size}: {failure.message}", advice, failure.traceback)


def _powers_of_two(largest: int) -> list[int]:
    return [2**exponent for exponent in range(largest.bit_length())]


def _verdict(trial: Trial, obstacle: LimitedBy | None) -> str:
    if trial.failure is not None:
        return f"does not fit: {_in_short(trial.failure)}"
    if obstacle == "latency":
        return f"fits but takes {trial.step_ms:.0f} ms"
    return "fits"


def _result(row: Row) -> str:
    if row.failure is not None:
        return _in_short(row.failure)
    return f"{row.samples_per_s:.1f} samples/s"


def _in_short(failure: Failure) -> str:
    """Say why; torch's own account of memory that ran out is several lines long."""
    return "out of memory" if failure.kind == "out_of_memory" else failure.message


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
