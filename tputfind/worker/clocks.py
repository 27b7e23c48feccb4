"""Times one batch, or a pipeline of two models, by every method, including wrong ones, to compare the methods."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from time import perf_counter_ns
from typing import Final, NamedTuple

from tputfind.errors import BadRequest, TputfindError
from tputfind.processes.failures import CannotRunSo
from tputfind.processes.messages import TimeMethods
from tputfind.record import clocks
from tputfind.record.spec import Spec
from tputfind.record.types import GRAD_MODES
from tputfind.stages.timer import StageTimer
from tputfind.worker.batch import Batch
from tputfind.worker.devices import failure_of, open_device
from tputfind.worker.devices.protocol import Device
from tputfind.worker.loops import Work, back_to_back, one_at_a_time
from tputfind.worker.modes.cudagraph import capture_graph
from tputfind.worker.own_step import make_workload
from tputfind.worker.warm_up import warm_up
from tputfind.worker.workload import inference

_WARM_UP_S: Final = 1.0
"""Minimum seconds of a warm-up, in which an idle device clocks up."""
_WARMUP_STEPS: Final = 10
_LEAD_IN: Final = 1
"""Untimed batches before each turn."""
Step = Callable[[], object]
Samples = Sequence[Sequence[float]]
"""Milliseconds per batch, for each method that a loop measures."""


def time_methods(question: TimeMethods, announce: Callable[[float], None]) -> Iterator[clocks.Cell]:
    """Yield the cells, turn by turn.

    If a loop with copies fails and the process can continue, only that loop ends. Any other failure ends the timing.
    """
    asked = question.asked
    device = open_device(asked.specs[0].device, asked.can)
    timed = _Timed(question, device, announce)
    failed: set[clocks.Loop] = set()
    for turn in clocks.schedule(question.loops, asked.repeats, asked.drop):
        for loop, count in turn:
            if loop in failed:
                continue
            ways, condition = loop
            try:
                samples = timed.run(ways, condition, count)
            except TputfindError:
                raise
            except BaseException as error:  # a model can raise anything, even SystemExit
                failure = failure_of(error, device, asked.batch_size)
                yield from (clocks.Cell(way=way, condition=condition, failure=failure) for way in ways)
                if clocks.is_plain(ways[0], condition) or ways == clocks.GRAPH or not device.usable():
                    return
                failed.add(loop)
            else:
                for way, of_way in zip(ways, samples, strict=True):
                    yield clocks.Cell(way=way, condition=condition, figures=clocks.Figures.of(of_way))


def warmed_s(device: Device, work: Work, spec: Spec, announce: Callable[[float], None]) -> float:
    """Warm a step up; return its approximate time in seconds."""
    steps = _WARMUP_STEPS if spec.warmup is None else spec.warmup
    return warm_up(device, work, announce, seconds=_WARM_UP_S, steps=steps) / 1000


class _Timed:
    """Times the batch of one request on its device; makes batch, graph and copies when they are first needed."""

    def __init__(self, question: TimeMethods, device: Device, announce: Callable[[float], None]) -> None:
        self._spec = question.asked.specs[0]
        self._batch_size = question.asked.batch_size
        self._expected_s = question.expected_s
        self._device = device
        self._announce = announce
        self._warm: dict[tuple[bool, clocks.Condition], tuple[Work, float]] = {}

    def run(self, ways: Sequence[clocks.TimingMethod], condition: clocks.Condition, count: int) -> Samples:
        """Run one loop of ``count`` timings, after warm-up and a lead-in batch unless the condition is ``cold``."""
        loop = _LOOPS[ways[0]]
        batch = self._batch  # made outside of inference mode, as a user would
        with inference(self._spec.grad_mode):
            if condition == "cold":
                self._announce(self._expected_s)
                samples = loop(self._device, _work_of(batch, batch), count, 0)
            else:
                work, seconds = self._warm_work(condition, graph=ways == clocks.GRAPH)
                self._announce((count + _LEAD_IN) * seconds)
                samples = loop(self._device, work, count, _LEAD_IN)
            self._device.synchronize()
        return samples if len(samples) == len(ways) else [samples[0]] * len(ways)

    @cached_property
    def _batch(self) -> Batch:
        self._device.limit_memory(self._spec.memory_limit_bytes)
        workload = make_workload(self._spec, self._device.torch_device)
        with inference(self._spec.grad_mode):
            batch = workload.batch(self._batch_size)
        workload.check_samples(batch)
        gc.collect()
        gc.freeze()  # garbage collections in a loop then scan the objects of the steps only, not all of torch
        return batch

    @cached_property
    def _replay(self) -> Step:
        return capture_graph(self._batch)

    def _warm_work(self, condition: clocks.Condition, *, graph: bool) -> tuple[Work, float]:
        """Return a warmed-up step of this condition, and its approximate time in seconds."""
        if (graph, condition) not in self._warm:
            work = _work_of(self._replay if graph else self._batch, self._batch)
            if condition != "warm":
                step = self._feeding(work.step, pinned=condition == "pinned")
                work = Work(step, step)
            self._warm[graph, condition] = work, warmed_s(self._device, work, self._spec, self._announce)
        return self._warm[graph, condition]

    def _feeding(self, step: Step, *, pinned: bool) -> Step:
        if not self._batch.shapes:
            raise CannotRunSo("a step without tensors as inputs copies nothing")
        try:
            feed = self._batch.feed_from_host(pinned=pinned)
        except BadRequest as whole:
            raise CannotRunSo(whole.message) from None

        def feed_and_step() -> object:
            feed()
            return step()

        return feed_and_step


def _work_of(step: Step, batch: Batch) -> Work:
    return Work(step, step, restore=lambda: batch.restore)


def _lead_in(device: Device, work: Work, batches: int) -> None:
    for _ in range(batches):
        work.fresh_step()
    device.synchronize()


def _host_clock(device: Device, work: Work, repeats: int, lead_in: int) -> Samples:
    """Read the host clock around the call: the time to submit, or to wait for earlier work."""
    _lead_in(device, work, lead_in)
    spans_ms: list[float] = []
    for _ in range(repeats):
        work.restore_inputs()
        start_ns = perf_counter_ns()
        output = work.step()
        spans_ms.append((perf_counter_ns() - start_ns) / 1e6)
    device.synchronize()
    del output
    return [spans_ms]


def _host_clock_with_sync(device: Device, work: Work, repeats: int, lead_in: int) -> Samples:
    """Read the host clock from the call to the synchronised output: the latency of a row."""
    _lead_in(device, work, lead_in)
    return [one_at_a_time(device, work.step, repeats, restore=work.restore()).synchronised_ms]


def _events_with_waits(device: Device, work: Work, repeats: int, lead_in: int) -> Samples:
    """Record a pair of events around the call; the host waits for the second event before it continues."""
    watches = [device.stopwatch(2) for _ in range(repeats)]
    _lead_in(device, work, lead_in)
    spans_ms: list[float] = []
    for watch in watches:
        work.restore_inputs()
        watch.mark()
        output = work.step()
        watch.mark()
        spans_ms += watch.spans_ms()
    del output
    return [spans_ms]


def _events_at_end(device: Device, work: Work, repeats: int, lead_in: int) -> Samples:
    """Record marks between batches submitted back to back, and read them at the end: the throughput of a row.

    The host does not wait after the lead-in, so that the device is busy at the first mark.
    """
    restore = work.restore()
    marks = repeats + 1 if restore is None else 2 * repeats
    return [back_to_back(work.step, device.stopwatch(marks), repeats, lead_in, restore)]


def _boundaries(device: Device, work: Work, repeats: int, lead_in: int) -> Samples:
    """Time the same batches, each on an idle device, in three ways: submission, synchronised output, device."""
    watches = [device.stopwatch(2) for _ in range(repeats)]
    _lead_in(device, work, lead_in)
    singles = one_at_a_time(device, work.step, repeats, stopwatches=watches, restore=work.restore())
    device_ms = [span_ms for watch in watches for span_ms in watch.spans_ms()]
    return singles.submission_ms, singles.synchronised_ms, device_ms


_LOOPS: Final[Mapping[clocks.TimingMethod, Callable[[Device, Work, int, int], Samples]]] = {
    "host_clock": _host_clock,
    "host_clock_synchronised": _host_clock_with_sync,
    "events_waited": _events_with_waits,
    "events_at_end": _events_at_end,
    "graph": _events_at_end,
    "submission": _boundaries,
}
"""The loops by the first method that they measure; the last two arguments count timings and lead-in batches."""


_CALIBRATIONS: Final = 5
_TRIED: Final = 20_000
_STAGES: Final[tuple[clocks.Stage, ...]] = ("first", "work", "second")
_WAYS: Final[tuple[clocks.StageMethod, ...]] = ("synchronised", "events", "untimed")


class _Pipeline(NamedTuple):
    device: Device
    first: Step
    work: Callable[[], None]
    second: Step


def time_pipeline(asked: clocks.Asked, announce: Callable[[float], None]) -> Iterator[clocks.PipelineTimes]:
    """Time the pipeline by each method that the device supports; yield the times of each turn, at last any failure."""
    device = open_device(asked.specs[0].device, asked.can)
    at_work = asked.specs[0].model
    try:
        device.limit_memory(asked.specs[0].memory_limit_bytes)
        first, first_s = _load_model(asked.specs[0], device, asked.batch_size, announce)
        at_work = asked.specs[1].model
        second, second_s = _load_model(asked.specs[1], device, asked.batch_size, announce)
        at_work = " with ".join(spec.model for spec in asked.specs)
        pipeline = _Pipeline(device, first, host_work(asked.host_work_ms), second)
        seconds = first_s + asked.host_work_ms / 1000 + second_s
        gc.collect()
        gc.freeze()  # as for a single model
        with inference(max((spec.grad_mode for spec in asked.specs), key=GRAD_MODES.index)):
            for cells in _time_in_turns(pipeline, asked, seconds, announce):
                yield clocks.PipelineTimes(cells=cells)
    except (TputfindError, GeneratorExit):
        raise
    except BaseException as error:  # a model can raise anything, even SystemExit
        yield clocks.PipelineTimes(failure=failure_of(error, device, asked.batch_size), failed_model=at_work)


def host_work(milliseconds: float) -> Callable[[], None]:
    """Return a function that keeps the host busy for about this time: a fixed amount of arithmetic in Python."""
    fastest_ns = min(_arithmetic_ns(_TRIED) for _ in range(_CALIBRATIONS))
    count = max(1, round(_TRIED * milliseconds * 1e6 / fastest_ns))

    def work() -> None:
        _arithmetic_ns(count)

    return work


def _arithmetic_ns(count: int) -> int:
    start_ns = perf_counter_ns()
    number = 1
    for _ in range(count):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
    return perf_counter_ns() - start_ns


def _load_model(spec: Spec, device: Device, batch_size: int, announce: Callable[[float], None]) -> tuple[Step, float]:
    workload = make_workload(spec, device.torch_device)
    with inference(spec.grad_mode):
        batch = workload.batch(batch_size)
        workload.check_samples(batch)
        return batch, warmed_s(device, Work(batch, batch), spec, announce)


def _time_in_turns(
    pipeline: _Pipeline, asked: clocks.Asked, iteration_s: float, announce: Callable[[float], None]
) -> Iterator[tuple[clocks.StageCell, ...]]:
    """Time by every method in every turn, in a rotating order, so that drift favours no method."""
    ways = [way for way in _WAYS if way != "events" or pipeline.device.capabilities.events]
    if asked.drop:
        for way in ways:
            announce((asked.drop + 1) * iteration_s)
            _time_iterations(pipeline, way, asked.drop)
    for number, count in enumerate(clocks.turn_counts(asked.repeats - asked.drop)):
        begin = number % len(ways)
        cells: list[clocks.StageCell] = []
        for way in ways[begin:] + ways[:begin]:
            announce((count + 1) * iteration_s)
            cells += [
                clocks.StageCell(stage=stage, way=way, figures=clocks.Figures.of(samples_ms))
                for stage, samples_ms in _time_iterations(pipeline, way, count).items()
            ]
        yield tuple(cells)


def _time_iterations(pipeline: _Pipeline, way: clocks.StageMethod, iterations: int) -> dict[clocks.Stage, list[float]]:
    """Run the pipeline; return the samples of its stages and one of the whole, in ms per iteration.

    "synchronised" makes the host wait after each model and reads the host clock. "events" times the models with
    StageTimer, as a user would. "untimed" only times the whole.
    """
    device, first, work, second = pipeline
    timer, host_ms = StageTimer(device.torch_device), dict[clocks.Stage, list[float]]()

    @contextmanager
    def time_by_host_clock(stage: clocks.Stage) -> Iterator[None]:
        start_ns = perf_counter_ns()
        yield
        if stage != "work":
            device.synchronize()
        host_ms.setdefault(stage, []).append((perf_counter_ns() - start_ns) / 1e6)

    def time_stage(stage: clocks.Stage) -> AbstractContextManager[None]:
        if way == "untimed":
            return nullcontext()
        return timer.stage(stage) if way == "events" and stage != "work" else time_by_host_clock(stage)

    def run(count: int) -> None:
        for _ in range(count):
            with time_stage("first"):
                one = first()
            with time_stage("work"):
                work()
            with time_stage("second"):
                two = second()
        del one, two

    # The whole lies between two marks in the device's own order of work. The first follows a lead-in iteration. The
    # host is then equally far ahead of the device at both marks, as between iterations of a long run.
    watch = device.stopwatch(2)
    run(1)
    timer.reset()
    host_ms.clear()
    watch.mark()
    run(iterations)
    watch.mark()
    (whole_ms,) = watch.spans_ms()
    timer.finish()
    stages_ms = {stage: host_ms.get(stage) or timer.samples_ms(stage) for stage in _STAGES}
    return {stage: samples for stage, samples in stages_ms.items() if samples} | {"whole": [whole_ms / iterations]}
