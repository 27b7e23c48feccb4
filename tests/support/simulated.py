"""A simulated device that drives the project's own search on a fake clock. It is a model, and measures nothing.

A ``Shape`` gives the memory and the time of a model by batch size. A ``Device`` runs it, with memory by
``search.allocator``, which the forecasts use too, so that they look better here than on a real device. All layers
above are the project's own: ``SimulatedChildren`` answers the questions that ``Children`` sends to fresh processes.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from support.records import CUDA_CAN
from tputfind.errors import OutOfTime, TputfindError
from tputfind.processes import failures, messages
from tputfind.processes.children import Children
from tputfind.processes.failures import ChildFailed, Circumstances, Passed, exception_failure
from tputfind.processes.messages import Plan, TimeBatches, Timed, TryBatch
from tputfind.record.environment import Environment
from tputfind.record.files import RecordFile
from tputfind.record.record import Edge, Failure, LimitedBy, Record, Row, Timing, Trial
from tputfind.record.spec import Spec
from tputfind.record.trace import MOST_EVENTS, Event, Trace, pack_events
from tputfind.search.allocator import Block, CachingAllocator
from tputfind.session import run
from tputfind.session.outcome import LIMITS
from tputfind.session.progress import Silent
from tputfind.session.session import Session
from tputfind.session.trials import TrialRunner
from tputfind.units import GIB

MIB: Final = 2**20
HOST_BYTES: Final = 128 * GIB
NUMBERS_PER_S: Final = 1.3e8
"""Random numbers per second that the user's function draws on the host."""
HOST_IDLE_BYTES: Final = 2 * GIB
COPIED_SAMPLES: Final = 64
"""Samples made by the user's function if the rest of a batch are copies."""
_CONTEXT_BYTES: Final = 549 * MIB
_KERNELS_BYTES: Final = 658 * MIB
"""Bytes held outside the allocator before the first step, and from then on."""
_UNREACHABLE_BYTES: Final = 1 * MIB
"""Bytes that the driver cannot allocate: the last MiB."""
_OVERFLOW_BYTES: Final = 2**60
_REFUSED_SHARE: Final = 0.25
"""Fraction of a step's time up to a request that passes before it is refused: the host runs ahead of the device."""
_ROW_STEPS: Final = 5
"""Steps of a row that the allocator sees; later steps repeat them."""
_WARM_UP_S: Final = 0.3
_PATIENCE: Final = 3
_ENDLESS_S: Final = 1e9


class Request(NamedTuple):
    """A request of a step; ``lives`` counts the later requests until its release: 0 is at once, None is at the end."""

    size: int
    lives: int | None = 1


class Limit(NamedTuple):
    """A limit other than memory on batch sizes above ``above``: an exception with a text, or an endless step."""

    above: int
    text: str
    sticky: bool = False
    """Whether the device is unusable afterwards in this process."""
    hangs: bool = False
    at: float = 0.5
    """Fraction of the requests of a step before it."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model: its memory and its time as functions of the batch size. Sizes are bytes."""

    name: str
    family: str
    step: Callable[[int], Sequence[Request]]
    weights: tuple[int, ...] = (100 * MIB,)
    inputs: Callable[[int], Sequence[int]] = lambda batch_size: (600_000 * batch_size,)
    start_s: float = 1.2
    """Seconds until the model of a fresh process is on the device."""
    load_s: float = 0.4
    """Additional seconds of the first step."""
    compile_s: float = 0.0
    base_ms: float = 5.0
    gb_per_s: float = 150.0
    """Speed at which a step moves all its requests; ``base_ms`` is the least step time."""
    step_ms: Callable[[int], float] | None = None
    """The step time, if it does not follow its requests."""
    host_numbers: float = 0.0
    """Numbers per sample that the user's function draws on the host; 0 if inputs are made on the device."""
    host_s: float = 0.0
    """Additional seconds of that function per sample."""
    host_copies: float = 1.5
    """Number of copies of its inputs that it holds, as fp32."""
    copyable: bool = True
    """Whether the axis of its samples can be detected."""
    limits: tuple[Limit, ...] = ()
    traced: bool = True
    granularity: int = 1
    """Other batch sizes than its multiples fail."""

    def milliseconds(self, batch_size: int) -> float:
        if self.step_ms is not None:
            return max(self.base_ms, self.step_ms(batch_size))
        moved = sum(request.size for request in self.step(batch_size))
        return max(self.base_ms, moved / self.gb_per_s / 1e6)


class Clock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class _FakeTime:
    """The module ``time`` with the simulated clock."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic = self.perf_counter = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextmanager
def installed(clock: Clock) -> Iterator[None]:
    """Make the whole package read this clock."""
    fakes = {id(time): _FakeTime(clock), id(time.monotonic): clock, id(time.perf_counter): clock}
    places = [
        (module, name)
        for path, module in list(sys.modules.items())
        if path.startswith("tputfind.")
        for name in ("time", "monotonic", "perf_counter")
        if id(getattr(module, name, None)) in fakes
    ]
    before = [getattr(module, name) for module, name in places]
    for module, name in places:
        setattr(module, name, fakes[id(getattr(module, name))])
    try:
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


class Asked(NamedTuple):
    """A trial or a timing of a batch size that ended at ``at_s``, since the start of the search."""

    batch_size: int
    outcome: str
    seconds: float
    at_s: float
    what: str = "trial"
    fresh: bool = True


@dataclass
class Device:
    """A device with its memory and its host; it records all questions."""

    memory_gib: int
    copies_inputs: bool = False
    """Whether inputs beyond ``COPIED_SAMPLES`` are copies made on the device."""
    clock: Clock = field(default_factory=Clock)
    processes: int = 0
    host_peak_bytes: float = 0.0
    asked: list[Asked] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        """Device memory visible to a process: slightly less than its nominal size."""
        return int(0.9897 * self.memory_gib * GIB) // (2 * MIB) * 2 * MIB

    def start(self, shape: Shape, limit_bytes: int | None, way: Way) -> Process:
        self.processes += 1
        return Process(self, shape, limit_bytes, way)


class Way:
    """Receives the time that a process spends, and its announcements."""

    def spend(self, seconds: float) -> None:
        """Let time pass."""

    def announce(self, busy_s: float) -> None:
        """Announce that the next silence may last longer."""


class _OutOfMemory(RuntimeError):
    pass


class _Killed(Exception):
    """The kernel killed the process because the host's memory ran out."""


class Process:
    """A process of the simulated device; it can run several batch sizes in sequence."""

    def __init__(self, device: Device, shape: Shape, limit_bytes: int | None, way: Way) -> None:
        self.usable = True
        self._device, self._shape, self._way = device, shape, way
        self._chance = random.Random(f"{shape.name} {device.memory_gib} {device.processes}")
        self._limit_bytes = limit_bytes
        self._reach_bytes = limit_bytes or device.total_bytes - _UNREACHABLE_BYTES
        self._allocator = CachingAllocator(0, capped=limit_bytes is not None)
        self._events: list[Event] = []
        self._held: list[Block | None] = []
        self._batch: list[int] = []
        self._output: list[int] = []
        self._fixed = 0
        self._fixed_events = 0
        self._way.spend(shape.start_s * max(0.5, self._chance.gauss(1, 0.08)))
        self._loaded = False

    def trial(self, batch_size: int, steps: int, passed: Passed | None, smallest: int) -> Trial:
        """Return the trial of some steps, like the worker's ``_try_batch``."""
        trial = Trial(batch_size=batch_size, steps=steps, memory_limit_bytes=self._limit_bytes)
        try:
            self.load(batch_size)
            step_ms = self.run_steps(batch_size, steps)
        except RuntimeError as error:
            failure = self._failure(error, batch_size, passed, smallest)
            return msgspec.structs.replace(trial, failure=failure, trace=self.trace(batch_size, complete=False))
        return msgspec.structs.replace(
            trial,
            step_ms=step_ms,
            peak_allocated_bytes=self._allocator.peak_allocated_bytes,
            peak_reserved_bytes=self._allocator.peak_reserved_bytes,
            trace=self.trace(batch_size, complete=True),
        )

    def row(self, batch_size: int, plan: Plan, number: int, passed: Passed | None, smallest: int) -> Iterator[Timed]:
        """Yield the answers of one process that times a batch size, like the worker's ``_time_batches``."""
        begun_s = self._device.clock()
        try:
            self.load(batch_size)
            step_ms = self.run_steps(batch_size, _ROW_STEPS) * self._chance.gauss(1, 0.002)
        except RuntimeError as error:
            failure = self._failure(error, batch_size, passed, smallest)
            yield Timed(row=Row(batch_size=batch_size, failure=failure, seconds=self._device.clock() - begun_s))
            return
        step_s = step_ms / 1000
        self._spend(min(_WARM_UP_S, 30 * step_s))
        yield Timed(window="begins", at_s=self._device.clock())
        count = max(plan.batches, int(plan.window_s / step_s))
        count = max(plan.least_batches, min(count, int(plan.max_seconds / step_s)))
        self._way.announce(count * step_s)
        self._spend(count * step_s)
        yield Timed(window="ended", at_s=self._device.clock())
        latencies = max(1, min(plan.latency_batches, int(plan.window_s / step_s)))
        self._way.announce(latencies * step_s)
        self._spend(latencies * step_s)
        timing = Timing(
            device_ms=tuple(round(step_ms * self._chance.gauss(1, 0.001), 6) for _ in range(count)),
            latency_ms=tuple(round(step_ms * self._chance.gauss(1.01, 0.001), 6) for _ in range(latencies)),
            enqueue_ms=(round(min(0.95 * step_ms, 0.95 * self._shape.base_ms), 6),) * latencies,
            first_step_ms=step_ms + 1000 * self._shape.load_s,
            warmup_steps=_ROW_STEPS,
            warmup_s=min(_WARM_UP_S, 30 * step_s),
            steady=True,
            ended_by="full",
        )
        if number == 0:
            self._spend(2 * step_s)  # checks the outputs
        row = Row(
            batch_size=batch_size,
            timings=(timing,),
            peak_allocated_bytes=self._allocator.peak_allocated_bytes,
            peak_reserved_bytes=self._allocator.peak_reserved_bytes,
            allocator_retries=0,
            seconds=self._device.clock() - begun_s,
        )
        yield Timed(row=row)

    def load(self, batch_size: int) -> None:
        """Make the inputs of a batch and put them on the device; earlier ones are released."""
        shape = self._shape
        if not self._loaded:
            self._outside(_CONTEXT_BYTES)
            for size in shape.weights:
                self._allocate(size)
            self._fixed, self._fixed_events, self._loaded = len(self._held), len(self._events), True
        for number in (*self._batch, *self._output):
            self._release(number)
        if self._batch:  # as good as a fresh process
            self._allocator.empty_cache()
            del self._held[self._fixed :]
            del self._events[self._fixed_events :]
            self._allocator.peak_reserved_bytes = self._allocator.reserved_bytes
            self._allocator.peak_allocated_bytes = self._allocator.allocated_bytes
        self._batch, self._output = [], []
        self._make_inputs(batch_size)
        self._batch = [self._allocate(size) for size in shape.inputs(batch_size)]

    def run_steps(self, batch_size: int, steps: int) -> float:
        shape = self._shape
        if batch_size % shape.granularity:
            raise RuntimeError(f"shape '[-1, {shape.granularity}]' is invalid for input of size {batch_size}")
        if any(limit.hangs and batch_size > limit.above for limit in shape.limits):
            self._spend(_ENDLESS_S)
        passed = [limit for limit in shape.limits if batch_size > limit.above and not limit.hangs]
        requests, step_ms = shape.step(batch_size), shape.milliseconds(batch_size)
        self._outside(_KERNELS_BYTES)
        for number in range(steps):
            self._run_step(requests, step_ms / 1000, passed)
            self._spend(step_ms / 1000 + (shape.compile_s + shape.load_s if number == 0 else 0.0))
            if number == 0:
                self._way.announce(steps * step_ms / 1000)
        return step_ms * self._chance.gauss(1, 0.003)

    def trace(self, batch_size: int, *, complete: bool) -> Trace | None:
        """Return the requests to the allocator, or None without a trace."""
        events = self._events
        if not complete:
            ends = [number for number, event in enumerate(events, 1) if event.kind in ("refused", "outside")]
            events = events[: max(ends, default=0)]
        if not self._shape.traced or not self.usable or len(events) > MOST_EVENTS:
            return None
        return Trace(
            batch_size=batch_size,
            fixed=self._fixed,
            memory_bytes=self._limit_bytes or self._device.total_bytes,
            capped=self._limit_bytes is not None,
            expandable=False,
            complete=complete,
            packed=pack_events(events),
        )

    def _run_step(self, requests: Sequence[Request], step_s: float, limits: Sequence[Limit]) -> None:
        """Send the requests of a step to the allocator; the last is its output, alive during the next step."""
        ends: dict[int, list[int]] = {}
        last: list[int] = []
        for place, (size, lives) in enumerate(requests):
            if limits and place >= limits[0].at * len(requests):
                self.usable = not limits[0].sticky
                raise RuntimeError(limits[0].text)
            try:
                number = self._allocate(size, workspace=lives == 0)
            except RuntimeError:
                self._spend(_REFUSED_SHARE * step_s * place / len(requests))
                raise
            if place == len(requests) - 1:
                for before in self._output:
                    self._release(before)
                self._output = [number]
            elif lives == 0:
                self._release(number)
            elif lives is None:
                last.append(number)
            else:
                ends.setdefault(place + lives, []).append(number)
            for ended in ends.pop(place, ()):
                self._release(ended)
        for number in (*(number for numbers in ends.values() for number in numbers), *last):
            self._release(number)

    def _make_inputs(self, batch_size: int) -> None:
        """Spend the time and the host memory of the user's function."""
        shape, device = self._shape, self._device
        made = min(batch_size, COPIED_SAMPLES) if device.copies_inputs and shape.copyable else batch_size
        seconds = made * (shape.host_numbers / NUMBERS_PER_S + shape.host_s)
        held = HOST_IDLE_BYTES + 4 * shape.host_numbers * shape.host_copies * made
        device.host_peak_bytes = max(device.host_peak_bytes, min(held, HOST_BYTES))
        if held > HOST_BYTES:
            self._spend(seconds * HOST_BYTES / held)
            raise _Killed
        self._spend(seconds)

    def _allocate(self, size: int, *, workspace: bool = False) -> int:
        """Return the number of an allocation, or None for a refused workspace, which is optional."""
        size = max(1, size)
        if size >= _OVERFLOW_BYTES:
            raise RuntimeError(f"Storage size calculation overflowed with sizes=[{size}]")
        block = self._allocator.allocate(size)
        if block is None:
            self._events.append(Event("refused", size))
            if workspace:
                return -1
            raise _OutOfMemory(f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. It is full.")
        self._events.append(Event("allocate", size))
        self._held.append(block)
        return len(self._held) - 1

    def _release(self, number: int) -> None:
        block = self._held[number] if number >= 0 else None
        if block is not None:
            self._held[number] = None
            self._allocator.release(block)
            self._events.append(Event("release", number))

    def _outside(self, size: int) -> None:
        """Record the memory that the process holds outside the allocator from now on."""
        self._events.append(Event("outside", size))
        self._allocator.limit_bytes = self._reach_bytes - size
        if self._allocator.reserved_bytes > self._allocator.limit_bytes:
            self._allocator.empty_cache()
        if self._allocator.reserved_bytes > self._allocator.limit_bytes:
            raise _OutOfMemory("CUDA error: out of memory")

    def _failure(self, error: RuntimeError, batch_size: int, passed: Passed | None, smallest: int) -> Failure:
        values: dict[str, Any] = {
            "batch_size": batch_size,
            "passed": passed,
            "memory_is_short": isinstance(error, _OutOfMemory),
            "smaller_untried": batch_size > smallest,
            "own_memory": True,
        }
        fields = {name: value for name, value in values.items() if name in Circumstances._fields}
        return msgspec.structs.replace(exception_failure(error, Circumstances(**fields)), traceback="")

    def _spend(self, seconds: float) -> None:
        self._way.spend(seconds)


class SimulatedChildren(Children):
    """Answers the questions to fresh processes by a model of one device and one shape."""

    def __init__(self, device: Device, shape: Shape) -> None:
        super().__init__()
        self.device, self.shape = device, shape
        self.begun_s = device.clock()
        self._silent_until_s: float | None = None
        self._timeout_s: float | None = None

    def close(self) -> None:
        """Close the pipes; no process is running."""
        for end in (self._interrupted, self._interrupting):
            with suppress(OSError):
                end.close()

    def ask(
        self,
        question: Any,
        answer_type: Any,
        timeout_s: float | None = None,
        gate: int | None = None,
        group: Any = None,
    ) -> Generator[Any]:
        """Yield the answers; errors like ``Children.ask``."""
        self._timeout_s = timeout_s
        self.announce(0.0)
        if type(question).__name__ == "Diagnose":  # older versions lack it
            yield messages.Diagnosis(granularity=self.shape.granularity if self.shape.granularity > 1 else None)
        elif isinstance(question, TryBatch):
            yield from self._trial(question)
        elif isinstance(question, TimeBatches):
            yield from self._rows(question)
        else:
            raise NotImplementedError(f"the simulated device does not answer {type(question).__name__}")

    def spend(self, seconds: float) -> None:
        """Let time pass; raise at the deadline or when the silence lasts too long."""
        clock = self.device.clock
        silent_s = _ENDLESS_S if self._silent_until_s is None else self._silent_until_s
        deadline_s = min(_ENDLESS_S, self._deadline_s)
        until_s = min(silent_s, deadline_s)
        if clock.now_s + seconds < until_s:
            clock.now_s += seconds
            return
        clock.now_s = max(clock.now_s, until_s)
        if until_s == deadline_s:
            raise OutOfTime("--budget ended before a batch was timed", "give it more time")
        raise ChildFailed(failures.silence_failure(self._timeout_s or 0.0))

    def announce(self, busy_s: float) -> None:
        """Announce that the next silence may last longer."""
        timeout_s = self._timeout_s
        self._silent_until_s = None if timeout_s is None else self.device.clock() + timeout_s + _PATIENCE * busy_s

    def _trial(self, question: TryBatch) -> Iterator[Trial | Timed]:
        """Yield the trial; if it is to go on and the batch fits, yield the answers of its row too."""
        size, smallest = question.batch_size, question.spec.smallest_batch
        with self._record_question(size, "trial") as outcome:
            process = self._start(question)
            trial = process.trial(size, question.steps, question.passed, smallest)
            outcome.append("fits" if trial.failure is None else trial.failure.kind)
        if question.then is None:
            yield trial
            return
        yield Timed(trial=trial)
        if trial.failure is None and not self.shape.compile_s:
            with self._record_question(size, "row") as outcome:
                yield from _row(process.row(size, question.then, 0, question.passed, smallest), outcome)

    def _rows(self, question: TimeBatches) -> Iterator[Timed]:
        process: Process | None = None
        passed, smallest = question.passed, question.spec.smallest_batch
        for batch_size in question.batch_sizes:
            with self._record_question(batch_size, "row") as outcome:
                process = process or self._start(question)
                row = process.row(batch_size, question.plan, question.number, passed, smallest)
                for timed in _row(row, outcome):
                    if timed.row is not None:
                        passed = Passed(batch_size, timed.row.peak_reserved_bytes)
                    yield timed
            if outcome[-1:] != ["fits"] or self.shape.compile_s:
                return

    def _start(self, question: TryBatch | TimeBatches) -> Process:
        limit_bytes = question.memory_limit_bytes or question.spec.memory_limit_bytes
        return self.device.start(self.shape, limit_bytes, self)  # type: ignore[arg-type]  # it has both methods

    @contextmanager
    def _record_question(self, batch_size: int, what: str) -> Iterator[list[str]]:
        outcome: list[str] = []
        begun_s = self.device.clock()
        try:
            yield outcome
        except _Killed:
            outcome.append("host_memory")
            failure = failures.death_failure(-signal.SIGKILL, "", f"made the inputs of batch {batch_size} on the host")
            raise ChildFailed(failure) from None
        except ChildFailed as failed:
            outcome.append(failed.failure.kind)
            raise
        except OutOfTime:
            outcome.append("out of time")
            raise
        finally:
            now_s = self.device.clock()
            word = outcome[-1] if outcome else "left"
            self.device.asked.append(Asked(batch_size, word, now_s - begun_s, now_s - self.begun_s, what))


def _row(answers: Iterable[Timed], outcome: list[str]) -> Iterator[Timed]:
    for timed in answers:
        if timed.row is not None:
            outcome.append("fits" if timed.row.failure is None else timed.row.failure.kind)
        yield timed


def fits(device: Device, shape: Shape, batch_size: int, steps: int = 3) -> LimitedBy | None:
    """Return the limit that a batch size meets, or None if it fits; no time passes, and no state is kept."""
    apart = Device(device.memory_gib, device.copies_inputs)
    try:
        trial = Process(apart, shape, None, Way()).trial(batch_size, steps, Passed(1, None), 1)
    except _Killed:
        return "host_memory"
    hangs = any(limit.hangs and batch_size > limit.above for limit in shape.limits)
    if trial.failure is None and hangs:
        return "timeout"
    return None if trial.failure is None else LIMITS[trial.failure.kind]


def record_of(device: Device, shape: Shape, **options: Any) -> Record:
    environment = Environment(
        device="cuda:0",
        device_name=f"Simulated {device.memory_gib} GiB (a model)",
        memory_total_bytes=device.total_bytes,
        memory_free_bytes=device.total_bytes - _UNREACHABLE_BYTES,
        memory_of_others_bytes=0,
        torch="simulated",
        python="3.11",
        host="simulated",
        cpu_name="simulated",
        cpu_count=16,
        torch_threads=16,
        can=CUDA_CAN,
    )
    return Record(
        tputfind="0",
        command="simulated",
        started="2026-01-01T00:00:00+00:00",
        spec=Spec(model=f"shapes.py:{shape.name.replace(' ', '_')}", **options),
        environment=environment,
        input_shape="1",
    )


class _Searching(Session):
    """A session for a search without rows."""

    def try_to_time(self, batch_size: int) -> LimitedBy | None:
        """Try the batch size without timing it."""
        return self.try_batch(batch_size)

    def prove(self, batch_size: int) -> LimitedBy | None:
        """Accept the trial as proof."""
        return None


class Searched(NamedTuple):
    """Outcome of a search or a run: its edge (None if not found in time), the record, and the error that ended it."""

    edge: Edge | None
    record: Record
    error: Exception | None = None


def search(device: Device, shape: Shape, most_s: float | None = 900.0, **options: Any) -> Searched:
    """Run the search only, like ``tputfind``; a trial beyond ``most_s`` ends it."""
    record = record_of(device, shape, **options)
    with installed(device.clock), SimulatedChildren(device, shape) as children:
        children.end_within(most_s)
        runner = TrialRunner(children, record.spec, record.environment)
        session = _Searching(record, runner, RecordFile(None, ""), Silent())
        found: list[Edge] = []
        try:
            until_it_runs = getattr(session, "until_it_runs", lambda work: work())  # older versions lack it
            until_it_runs(lambda: found.append(run._search(session, Silent())))
        except TputfindError as error:  # OutOfTime, or no batch fits: the message of the run
            return Searched(None, session.record, error)
        return Searched(found[-1], session.record)


def measure(device: Device, shape: Shape, *, budget_s: float, start_s: float = 8.0, **options: Any) -> Searched:
    """Run the whole command under a budget; its start takes ``start_s``."""
    record = record_of(device, shape, budget_s=budget_s, **options)
    with installed(device.clock), SimulatedChildren(device, shape) as children:
        children.end_within(budget_s)
        device.clock.now_s += start_s
        measured = run.measure(record, children, RecordFile(None, ""), Silent())
    error = measured.ended_by if isinstance(measured.ended_by, Exception) else None
    return Searched(measured.record.edge, measured.record, error)
