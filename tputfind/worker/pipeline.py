"""A pipeline of two models with work of the host between them, timed with and without stopping the host."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Final, NamedTuple

from tputfind.errors import TputfindError
from tputfind.processes.messages import TimePipeline
from tputfind.record.choices import GRAD_MODES
from tputfind.record.clocks import Figures, PipelineTimes, Stage, StageCell, StageMethod, turn_counts
from tputfind.record.spec import Spec
from tputfind.stages.timer import StageTimer
from tputfind.worker.clocks import Step, warmed_s
from tputfind.worker.devices import failure_of, open_device
from tputfind.worker.devices.protocol import Device
from tputfind.worker.workload import Workload, inference

_CALIBRATIONS: Final = 5
_TRIED: Final = 20_000


class _Pipeline(NamedTuple):
    device: Device
    first: Step
    work: Callable[[], None]
    second: Step


class _Loop(NamedTuple):
    """Iterations timed by one method, and what reads the samples of every stage, in ms, after them."""

    run: Callable[[], None]
    samples_ms: Callable[[], dict[Stage, list[float]]]


def time_pipeline(asked: TimePipeline, announce: Callable[[float], None]) -> Iterator[PipelineTimes]:
    """Build both models, calibrate the host's work, and time the pipeline in every way that the device has.

    Yields what each turn found, or last of all a failure.
    """
    device = open_device(asked.specs[0].device, asked.can)
    at_work = asked.specs[0].model
    try:
        device.limit_memory(asked.specs[0].memory_limit_bytes)
        first, first_s = _resident(asked.specs[0], device, asked.batch_size, announce)
        at_work = asked.specs[1].model
        second, second_s = _resident(asked.specs[1], device, asked.batch_size, announce)
        at_work = " with ".join(spec.model for spec in asked.specs)
        pipeline = _Pipeline(device, first, host_work(asked.host_work_ms), second)
        seconds = first_s + asked.host_work_ms / 1000 + second_s
        gc.collect()
        gc.freeze()  # as for a single model
        with inference(max((spec.grad_mode for spec in asked.specs), key=GRAD_MODES.index)):
            for cells in _in_turn(pipeline, asked, seconds, announce):
                yield PipelineTimes(cells=cells)
    except TputfindError:
        raise
    except GeneratorExit:
        raise
    except BaseException as error:  # a model can raise anything, sys.exit too
        yield PipelineTimes(failure=failure_of(error, device, asked.batch_size), failed_model=at_work)


def host_work(milliseconds: float) -> Callable[[], None]:
    """Return work for the host that takes about so long: arithmetic in Python, the same amount at every call."""
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


def _resident(spec: Spec, device: Device, batch_size: int, announce: Callable[[float], None]) -> tuple[Step, float]:
    """Return the step of a model, warmed up, and about how many seconds it takes."""
    workload = Workload(spec, device.torch_device)
    with inference(spec.grad_mode):
        batch = workload.batch(batch_size)
        workload.check_samples(batch)
        return batch, warmed_s(device, batch, spec, announce)


def _in_turn(
    pipeline: _Pipeline, asked: TimePipeline, seconds: float, announce: Callable[[float], None]
) -> Iterator[tuple[StageCell, ...]]:
    """Time every way in every turn, each turn in another order, so that what changes with time favours none.

    Args:
        pipeline: what is run.
        asked: how often.
        seconds: about what an iteration takes.
        announce: told what each loop takes.
    """
    ways = [way for way in _LOOPS if way != "events" or pipeline.device.capabilities.events]
    if asked.drop:
        for way in ways:
            announce((asked.drop + 1) * seconds)
            _timed(pipeline, way, asked.drop)
    for number, count in enumerate(turn_counts(asked.repeats - asked.drop)):
        begin = number % len(ways)
        cells: list[StageCell] = []
        for way in ways[begin:] + ways[:begin]:
            announce((count + 1) * seconds)
            cells += [
                StageCell(stage=stage, way=way, figures=Figures.of(samples_ms))
                for stage, samples_ms in _timed(pipeline, way, count).items()
            ]
        yield tuple(cells)


def _timed(pipeline: _Pipeline, way: StageMethod, iterations: int) -> dict[Stage, list[float]]:
    """Run a loop, and return the samples of its stages and one of the whole, in ms an iteration.

    The whole lies between two marks in the device's own order of work. The first stands behind an iteration that
    leads in: with what the host is ahead of the device at both ends, that is as long as many iterations in a row.
    """
    lead_in, loop = _LOOPS[way](pipeline, 1), _LOOPS[way](pipeline, iterations)
    watch = pipeline.device.stopwatch(2)
    lead_in.run()
    watch.mark()
    loop.run()
    watch.mark()
    (whole_ms,) = watch.spans_ms()
    return {**loop.samples_ms(), "whole": [whole_ms / iterations]}


def _synchronised(pipeline: _Pipeline, iterations: int) -> _Loop:
    """Stop the host after every stage, and look at its clock."""
    device, first, work, second = pipeline
    stages_ms: dict[Stage, list[float]] = {"first": [], "work": [], "second": []}

    def run() -> None:
        for _ in range(iterations):
            start_ns = perf_counter_ns()
            one = first()
            device.synchronize()
            first_ns = perf_counter_ns()
            work()
            work_ns = perf_counter_ns()
            two = second()
            device.synchronize()
            second_ns = perf_counter_ns()
            spans_ns = (first_ns - start_ns, work_ns - first_ns, second_ns - work_ns)
            for stage, span_ns in zip(stages_ms, spans_ns, strict=True):
                stages_ms[stage].append(span_ns / 1e6)
        del one, two

    return _Loop(run, lambda: stages_ms)


def _with_events(pipeline: _Pipeline, iterations: int) -> _Loop:
    """Time the stages with StageTimer, as a user would: nothing waits, and its marks are read after the loop."""
    device, first, work, second = pipeline
    timer = StageTimer(device.torch_device)
    work_ms: list[float] = []

    def run() -> None:
        for _ in range(iterations):
            with timer.stage("first"):
                one = first()
            with timer.stage("work", device=False):
                start_ns = perf_counter_ns()
                work()
                work_ms.append((perf_counter_ns() - start_ns) / 1e6)
            with timer.stage("second"):
                two = second()
        del one, two

    def samples_ms() -> dict[Stage, list[float]]:
        timer.finish()
        return {"first": timer.samples_ms("first"), "work": work_ms, "second": timer.samples_ms("second")}

    return _Loop(run, samples_ms)


def _untimed(pipeline: _Pipeline, iterations: int) -> _Loop:
    """Run the pipeline as its user would, and time nothing but the whole."""
    _, first, work, second = pipeline

    def run() -> None:
        for _ in range(iterations):
            one = first()
            work()
            two = second()
        del one, two

    return _Loop(run, dict)


_LOOPS: Final[dict[StageMethod, Callable[[_Pipeline, int], _Loop]]] = {
    "synchronised": _synchronised,
    "events": _with_events,
    "untimed": _untimed,
}
