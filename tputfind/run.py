"""The main job on one page: find the edge, time the rows, keep the record."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tputfind import __version__, files, notices
from tputfind.errors import BrokenInstall, ModelFailed, NothingFits
from tputfind.measure.children import ChildDied, Children
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
    if output is not None:
        files.check_folder(Path(output))
    with Children() as children:
        inspection = inspect(spec, children)
        words = " ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
        keeper = Keeper(None if output is None else Path(output), spec, inspection)
        command = f"find {model} {words}".strip()
        return measure(spec, inspection, children, command=command, keeper=keeper, progress=progress or Silent())


def inspect(spec: Spec, children: Children) -> Inspection:
    """Return what the spec will be measured on; refuse what cannot be, before anything is measured."""
    problem = children.ready().torchvision_problem
    if problem and ":" not in spec.model:
        raise BrokenInstall(
            f"torchvision does not work with this torch: {problem}",
            "install the pair that goes together: pip install --upgrade --force-reinstall torch torchvision",
        )
    try:
        (inspection,) = children.ask(Inspect(spec), Inspection)
    except ChildDied as death:
        raise ModelFailed(f"{spec.model} cannot be built: {death}") from None
    return inspection


class Keeper:
    """Keeps a record as it grows: in ``record``, and in a folder if there is one, under the name ``stem``."""

    def __init__(self, folder: Path | None, spec: Spec, inspection: Inspection) -> None:
        name = spec.model.replace(".py:", "-").rpartition("/")[2]
        parts = (name, spec.dtype, inspection.environment.device_name)
        self._folder = folder
        self._wanted = "-".join(map(files.slug, parts))
        self.stem: Path | None = None
        self.record: Record | None = None

    def save(self, record: Record) -> None:
        """Write the record whole; the first time under a name that was free."""
        self.record = record
        if self._folder is None:
            return
        if self.stem is None:
            self.stem = files.claim_stem(self._folder, self._wanted)
        files.write_whole(self.stem.with_name(f"{self.stem.name}.json"), record.to_json())


def measure(
    spec: Spec, inspection: Inspection, children: Children, *, command: str, keeper: Keeper, progress: Progress
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
    if all(row.failure for row in record.rows):
        smallest = record.rows[0]
        assert smallest.failure is not None
        raise NothingFits(
            f"{spec.model}: not even batch {smallest.batch_size} fits ({smallest.failure.message})",
            "try a smaller dtype or input, or a device with more memory",
        )
    return record


class _Run:
    """One run under way: its record grows, and is saved whenever it has."""

    def __init__(self, record: Record, children: Children, keeper: Keeper, progress: Progress) -> None:
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
        self._grow(edge=edge, rows=_in_order(rows))
        return edge

    def time(self, batch_sizes: Sequence[int]) -> None:
        """Time batch sizes that have not been, several in a process where the device allows it.

        A row that fails behind others gets a second try, in a fresh process.
        """
        timed = {row.batch_size for row in self._record.rows}
        left = [batch_size for batch_size in batch_sizes if batch_size not in timed]
        while left:
            together = left[:1] if self._on_cpu else left
            rows = self._timed(together, left[len(together) :])
            if rows[-1].failure is not None and len(rows) > 1:
                rows.pop()
            for row in rows:
                self._stop_if_the_model_fails(row.batch_size, row.failure)
            self._grow(rows=_in_order((*self._record.rows, *rows)))
            left = left[len(rows) :]

    def finish(self) -> Record:
        """Add the notices and the times, save, and return the record."""
        self._grow(
            notices=notices.of(self._record),
            finished=_now(),
            wall_s=time.perf_counter() - self._start_s,
        )
        return self._record

    def _grow(self, **fields: object) -> None:
        self._record = msgspec.structs.replace(self._record, **fields)
        self._keeper.save(self._record)

    def _try(self, batch_size: int) -> LimitedBy | None:
        """Ask a fresh process whether a batch fits."""
        self._progress.doing(f"does batch {batch_size} fit?", self._seconds_of_search())
        start_s = time.perf_counter()
        try:
            (trial,) = self._children.ask(TryBatch(self._spec, batch_size), Trial)
        except (ChildDied, ValueError) as death:
            trial = Trial(batch_size=batch_size, failure=Failure(kind="died", message=str(death)))
        trial = msgspec.structs.replace(trial, seconds=time.perf_counter() - start_s)
        self._stop_if_the_model_fails(batch_size, trial.failure)
        self._grow(trials=(*self._record.trials, trial))
        obstacle = self._obstacle(trial)
        self._progress.did(f"batch {batch_size} {_verdict(trial, obstacle)}")
        return obstacle

    def _prove(self, batch_size: int) -> LimitedBy | None:
        """Time a batch in full in a fresh process; it counts as fitting only if all of that passes."""
        (row,) = self._timed([batch_size])
        self._grow(rows=(*self._record.rows, row))
        return None if row.failure is None else _LIMITS[row.failure.kind]

    def _timed(self, batch_sizes: Sequence[int], later: Sequence[int] = ()) -> list[Row]:
        """Time batch sizes in one fresh process, up to the first that fails; ``later`` ones come after."""
        rows: list[Row] = []
        self._announce((*batch_sizes, *later))
        try:
            for row in self._children.ask(TimeBatches(self._spec, tuple(batch_sizes)), Row):
                rows.append(row)
                rate = row.samples_per_s
                self._progress.did(f"batch {row.batch_size}: {row.status if rate is None else f'{rate:.1f} samples/s'}")
                if row.failure is None and len(rows) < len(batch_sizes):
                    self._announce((*batch_sizes[len(rows) :], *later))
        except ChildDied as death:
            rows.append(Row(batch_size=batch_sizes[len(rows)], failure=Failure(kind="died", message=str(death))))
        return rows

    def _announce(self, batch_sizes: Sequence[int]) -> None:
        self._progress.doing(f"timing batch {batch_sizes[0]}", self._seconds_for(batch_sizes))

    def _seconds_of_search(self) -> float | None:
        """Guess how long the trials will still take; None while nothing has failed and the end is not in sight."""
        trials = self._record.trials
        fits = max((trial.batch_size for trial in trials if self._obstacle(trial) is None), default=0)
        fails = min((trial.batch_size for trial in trials if self._obstacle(trial) is not None), default=0)
        steps = (fails - fits) // self._spec.granularity
        if fails <= fits or self._spec.search == "linear":
            return None
        return max(1, steps - 1).bit_length() * trials[-1].seconds

    def _seconds_for(self, batch_sizes: Iterable[int]) -> float | None:
        """Guess how long the rows will take, from the trials' step times."""
        known = [(trial.batch_size, trial.step_ms) for trial in self._record.trials if trial.step_ms is not None]
        if not known:
            return None
        spec, total_s = self._spec, 0.0
        for batch_size in batch_sizes:
            near, step_ms = min(known, key=lambda pair: abs(pair[0] - batch_size))
            step_s = step_ms / 1000 * max(1.0, batch_size / near)
            windows_s = step_s * (spec.batches + spec.latency_batches)
            total_s += 1 + step_s * spec.warmup + min(windows_s, max(spec.max_seconds, 20 * step_s))
        return total_s

    def _stop_if_the_model_fails(self, batch_size: int, failure: Failure | None) -> None:
        """End the run where nothing has passed yet and it is not memory that stands in the way."""
        failures = (*(trial.failure for trial in self._record.trials), *(row.failure for row in self._record.rows))
        passed = None in failures
        if failure is not None and not passed and failure.kind not in ("out_of_memory", "died"):
            raise ModelFailed(
                f"{self._spec.model} fails at batch {batch_size}: {failure.message}",
                _ADVICE.get(failure.kind, ""),
                failure.traceback,
            )

    def _obstacle(self, trial: Trial) -> LimitedBy | None:
        if trial.failure is not None:
            return _LIMITS[trial.failure.kind]
        limit_ms = self._spec.max_latency_ms
        if limit_ms == "auto":
            limit_ms = CPU_MAX_LATENCY_MS if self._on_cpu else None
        slow = limit_ms is not None and trial.step_ms is not None and trial.step_ms > limit_ms
        # The smallest batch is let through however slow: a slow answer is better than none.
        return "latency" if slow and trial.batch_size > self._spec.granularity else None


_ADVICE: Final[dict[Status, str]] = {
    "unsupported": "try another --dtype (amp-fp16 and amp-bf16 leave such operators in fp32) or --layout nchw",
    "error": "the traceback above is the model's own: does it take the input that it was given?",
}


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Return the command as the user typed it, for the record."""
    import shlex

    return shlex.join(["tputfind", *(sys.argv[1:] if arguments is None else arguments)])


def _powers_of_two(largest: int) -> list[int]:
    return [2**exponent for exponent in range(largest.bit_length())]


def _in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: row.batch_size))


def _verdict(trial: Trial, obstacle: LimitedBy | None) -> str:
    if trial.failure is not None:
        out_of_memory = trial.failure.kind == "out_of_memory"
        return f"does not fit: {'out of memory' if out_of_memory else trial.failure.message}"
    if obstacle == "latency":
        return f"fits but takes {trial.step_ms:.0f} ms"
    return "fits"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
