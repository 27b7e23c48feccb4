"""A pipeline of two models with work of the host between them, timed with and without stopping the host."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final, NamedTuple

from tputfind.clocks import Figures, PipelineTimes, Stage, StageCell, StageWay
from tputfind.errors import TputfindError
from tputfind.measure.devices import open_device
from tputfind.measure.devices.protocol import Device
from tputfind.measure.messages import TimePipeline
from tputfind.measure.methods import Step, failure_of, warm_up
from tputfind.measure.workload import Workload, inference
from tputfind.spec import Spec

_CALIBRATIONS: Final = 5
_TRIED: Final = 20_000


class _Pipeline(NamedTuple):
    device: Device
    first: Step
    work: Callable[[], None]
    second: Step


class _Loop(NamedTuple):
    """What one loop found: the samples of every stage that was timed, and one of the whole, in ms an iteration."""

    stages_ms: dict[Stage, list[float]]
    whole_ms: float


def time_pipeline(asked: TimePipeline, announce: Callable[[float], None]) -> PipelineTimes:
    """Build both models, calibrate the host's work, and time the pipeline in every way that the device has."""
    device = open_device(asked.specs[0].device)
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
        with inference():
            return PipelineTimes(cells=_in_turn(pipeline, asked, seconds, announce))
    except TputfindError:
        raise
    except BaseException as error:  # a model can raise anything, sys.exit too
        return PipelineTimes(failure=failure_of(error, device, asked.batch_size), failed_model=at_work)


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
    with inference():
        batch = workload.batch(batch_size)
        return batch, warm_up(device, batch, spec.warmup, announce)


def _in_turn(
    pipeline: _Pipeline, asked: TimePipeline, seconds: float, announce: Callable[[float], None]
) -> tuple[StageCell, ...]:
    """Run every loop in every round, each round in another order, so that clocks that change favour none.

    Args:
        pipeline: what is run.
        asked: how often.
        seconds: about what an iteration takes.
        announce: told what each loop takes.
    """
    on_cpu = pipeline.device.torch_device.type == "cpu"  # which has no events
    ways = [way for way in _LOOPS if way != "events" or not on_cpu]
    found: dict[StageWay, list[_Loop]] = {way: [] for way in ways}
    for number in range(asked.rounds):
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:
            announce(asked.repeats * seconds)
            if asked.drop:
                _LOOPS[way](pipeline, asked.drop)
            found[way].append(_LOOPS[way](pipeline, asked.repeats - asked.drop))
    return tuple(cell for way, rounds in found.items() for cell in _cells(way, rounds))


def _cells(way: StageWay, rounds: list[_Loop]) -> list[StageCell]:
    samples: dict[Stage, list[float]] = {
        stage: [sample for one in rounds for sample in one.stages_ms[stage]] for stage in rounds[0].stages_ms
    }
    samples["whole"] = [one.whole_ms for one in rounds]
    return [StageCell(stage=stage, way=way, figures=Figures.of(of_stage)) for stage, of_stage in samples.items()]


def _synchronised(pipeline: _Pipeline, iterations: int) -> _Loop:
    """Stop the host after every stage, and look at its clock."""
    device, first, work, second = pipeline
    stages_ms: dict[Stage, list[float]] = {"first": [], "work": [], "second": []}
    begin_ns = perf_counter_ns()
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
        for stage, span_ns in zip(
            stages_ms, (first_ns - start_ns, work_ns - first_ns, second_ns - work_ns), strict=True
        ):
            stages_ms[stage].append(span_ns / 1e6)
    whole_ms = _ended(device, begin_ns, iterations)
    del one, two
    return _Loop(stages_ms, whole_ms)


def _with_events(pipeline: _Pipeline, iterations: int) -> _Loop:
    """Mark where the models begin and end in the device's own order of work, and read the marks after the loop."""
    device, first, work, second = pipeline
    watch = device.stopwatch(4 * iterations)
    work_ms: list[float] = []
    device.synchronize()
    begin_ns = perf_counter_ns()
    for _ in range(iterations):
        watch.mark()
        one = first()
        watch.mark()
        start_ns = perf_counter_ns()
        work()
        work_ms.append((perf_counter_ns() - start_ns) / 1e6)
        watch.mark()
        two = second()
        watch.mark()
    whole_ms = _ended(device, begin_ns, iterations)
    del one, two
    spans_ms = watch.spans_ms()
    return _Loop({"first": spans_ms[::4], "work": work_ms, "second": spans_ms[2::4]}, whole_ms)


def _untimed(pipeline: _Pipeline, iterations: int) -> _Loop:
    """Run the pipeline as its user would, and time nothing but the whole."""
    device, first, work, second = pipeline
    begin_ns = perf_counter_ns()
    for _ in range(iterations):
        one = first()
        work()
        two = second()
    whole_ms = _ended(device, begin_ns, iterations)
    del one, two
    return _Loop({}, whole_ms)


def _ended(device: Device, begin_ns: int, iterations: int) -> float:
    """Wait for the device; return the milliseconds an iteration since the loop began."""
    device.synchronize()
    return (perf_counter_ns() - begin_ns) / 1e6 / iterations


_LOOPS: Final[dict[StageWay, Callable[[_Pipeline, int], _Loop]]] = {
    "synchronised": _synchronised,
    "events": _with_events,
    "untimed": _untimed,
}
