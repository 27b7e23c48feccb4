"""A pipeline of two models with work of the host between them, timed with and without stopping the host."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns
from typing import Final, NamedTuple

from tputfind.errors import TputfindError
from tputfind.processes.messages import TimePipeline
from tputfind.record.clocks import Figures, PipelineTimes, Stage, StageCell, StageMethod, turn_counts
from tputfind.record.spec import Spec
from tputfind.record.types import GRAD_MODES
from tputfind.stages.timer import StageTimer
from tputfind.worker.clocks import Step, warmed_s
from tputfind.worker.devices import failure_of, open_device
from tputfind.worker.devices.protocol import Device
from tputfind.worker.own_step import make_workload
from tputfind.worker.workload import inference

_CALIBRATIONS: Final = 5
_TRIED: Final = 20_000
_STAGES: Final[tuple[Stage, ...]] = ("first", "work", "second")
_WAYS: Final[tuple[StageMethod, ...]] = ("synchronised", "events", "untimed")


class _Pipeline(NamedTuple):
    device: Device
    first: Step
    work: Callable[[], None]
    second: Step


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
    workload = make_workload(spec, device.torch_device)
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
    ways = [way for way in _WAYS if way != "events" or pipeline.device.capabilities.events]
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
    """Run the pipeline, and return the samples of its stages and one of the whole, in ms an iteration.

    "synchronised" stops the host after each model, and reads the host's clock; "events" times the models with
    StageTimer, as a user would; "untimed" times nothing but the whole.
    """
    device, first, work, second = pipeline
    timer, host_ms = StageTimer(device.torch_device), dict[Stage, list[float]]()

    @contextmanager
    def by_host_clock(stage: Stage) -> Iterator[None]:
        start_ns = perf_counter_ns()
        yield
        if stage != "work":
            device.synchronize()
        host_ms.setdefault(stage, []).append((perf_counter_ns() - start_ns) / 1e6)

    def timed(stage: Stage) -> AbstractContextManager[None]:
        if way == "untimed":
            return nullcontext()
        return timer.stage(stage) if way == "events" and stage != "work" else by_host_clock(stage)

    def run(count: int) -> None:
        for _ in range(count):
            with timed("first"):
                one = first()
            with timed("work"):
                work()
            with timed("second"):
                two = second()
        del one, two

    # The whole lies between two marks in the device's own order of work. The first stands behind an iteration that
    # leads in: with what the host is ahead of the device at both ends, that is as long as many iterations in a row.
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
