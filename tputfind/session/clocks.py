"""The measurement of ``tputfind clocks``: the timing methods compared in child processes."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any

import msgspec

from tputfind.analysis.clocks import method_sentences, pipeline_sentences
from tputfind.errors import ModelFailed
from tputfind.processes.children import Children
from tputfind.processes.failures import ChildFailed, misuse_failure
from tputfind.processes.messages import Inspection, TimeMethods, TimePipeline
from tputfind.record import clocks
from tputfind.record.environment import Capabilities
from tputfind.record.record import Failure
from tputfind.record.spec import Spec
from tputfind.session.inspect import apply_inspection, inspect, now
from tputfind.session.outcome import no_answer
from tputfind.session.progress import Progress
from tputfind.session.trials import FIRST_TIMEOUT_S, diagnosis_of
from tputfind.version import __version__


def measure(
    asked: clocks.Asked, children: Children, progress: Progress, command: str
) -> clocks.Methods | clocks.Pipeline:
    """Time one model by every method, or two models as a pipeline, and state the error of each method.

    ``command`` is the command line that the result records. TputfindError if the device or a model does not allow it.
    """
    try:
        return _measure(asked, children, progress, command)
    except ModelFailed:
        found = [diagnosis_of(children, spec, asked.batch_size, asked.can).settings for spec in asked.specs]
        otherwise = tuple(msgspec.structs.replace(spec, **one) for spec, one in zip(asked.specs, found, strict=True))
        if otherwise == asked.specs:
            raise
        return _measure(asked._replace(specs=otherwise), children, progress, command)


def _measure(
    asked: clocks.Asked, children: Children, progress: Progress, command: str
) -> clocks.Methods | clocks.Pipeline:
    started, inspections = now(), list[Inspection]()
    for spec in asked.specs:
        progress.about(spec.model)
        progress.doing("looking at the model and the device", None)
        inspections.append(inspect(spec, children))
    environment, shapes = inspections[0].environment, [one.input_shape for one in inspections]
    asked = asked._replace(specs=tuple(map(apply_inspection, asked.specs, inspections)), can=environment.can)
    fields: dict[str, Any] = {
        "tputfind": __version__,
        "command": command,
        "started": started,
        "environment": environment,
        "batch_size": asked.batch_size,
        "repeats": asked.repeats,
        "drop": asked.drop,
    }
    if len(asked.specs) == 1:
        cells = tuple(_method_cells(asked, environment.can, children, progress))
        methods = clocks.Methods(spec=asked.specs[0], input_shape=shapes[0], cells=cells, **fields)
        return msgspec.structs.replace(methods, sentences=method_sentences(methods))
    first, second = asked.specs
    progress.about(f"{first.model}, CPU work, {second.model}")
    times = _pipeline_times(asked, children, progress)
    if times.failure is not None:
        failed = msgspec.structs.replace(first, model=times.failed_model)
        raise no_answer(failed, asked.batch_size, times.failure, smallest=False)
    fields |= {"specs": (first, second), "input_shapes": (shapes[0], shapes[1]), "host_work_ms": asked.host_work_ms}
    pipeline = clocks.Pipeline(cells=times.cells, **fields)
    return msgspec.structs.replace(pipeline, sentences=pipeline_sentences(pipeline))


def _method_cells(asked: clocks.Asked, can: Capabilities, children: Children, progress: Progress) -> list[clocks.Cell]:
    """Time all warm loops, in turn, in one process, then each loop without warm-up in a fresh process.

    A separate process first tries to capture the model as a CUDA graph: a failed capture may leave its process with a
    slower allocator, and all compared times must come from one process in one state. If the timing process ends early,
    another process times again without copies and graphs, and the results of the first are dropped.
    """
    planned = clocks.loops(can, cold=False)
    graphs = [loop for loop in planned if loop[0] == clocks.GRAPH]
    uncaptured: list[clocks.Cell] = []
    if graphs:
        progress.doing("trying to capture it", None)
        once = asked._replace(repeats=1, drop=0)
        tried, _ = _time_in_one_process(once, graphs[:1], children)
        if (failure := tried[0].failure) is not None:
            planned = [loop for loop in planned if loop not in graphs]
            uncaptured = [clocks.Cell(way="graph", condition=condition, failure=failure) for _, condition in graphs]
    cells, may_be_the_others = _time_in_one_process(asked, planned, children, progress)
    failure = _failure(cells)
    if failure is not None and may_be_the_others:
        plain = [(ways, condition) for ways, condition in planned if clocks.is_plain(ways[0], condition)]
        again, _ = _time_in_one_process(asked, plain, children, progress)
        ended = msgspec.structs.replace(failure, message=f"their process ended: {failure.message}")
        others = (cell for cell in cells if not clocks.is_plain(cell.way, cell.condition))
        cells = [*again, *(clocks.Cell(way=cell.way, condition=cell.condition, failure=ended) for cell in others)]
    _check(asked, cells)
    cells += uncaptured
    known = clocks.figures_of(cells, "host_clock_synchronised")
    expected_s = asked.repeats * known.mean_ms / 1000 if known else 0.0
    for ways, condition in clocks.loops(can, cold=True):
        progress.doing(f"{(clocks.METHODS | clocks.BOUNDARIES)[ways[0]]}, without warm-up", expected_s or None)
        cold, _ = _time_in_one_process(asked, [(ways, condition)], children, None, expected_s)
        _check(asked, cold)
        cells += cold
    return cells


def _time_in_one_process(
    asked: clocks.Asked,
    planned: Sequence[clocks.Loop],
    children: Children,
    progress: Progress | None = None,
    expected_s: float = 0.0,
) -> tuple[list[clocks.Cell], bool]:
    """Time methods in one process; return a cell for each, and whether copies or a graph may have ended the process.

    Cells that the process did not finish before it failed have the same failure.
    """
    (spec,) = asked.specs
    question = TimeMethods(asked, tuple(planned), expected_s)
    turns = clocks.schedule(planned, asked.repeats, asked.drop)
    share = _Share(progress, "every way in turn", sum(len(ways) for turn in turns for (ways, _), _ in turn))
    told: dict[tuple[clocks.TimingMethod, clocks.Condition], list[clocks.Cell]] = {}
    failure: Failure | None = None
    own = False
    try:
        with closing(children.ask(question, clocks.Cell, _timeout_s(spec))) as answers:
            for cell in answers:
                told.setdefault((cell.way, cell.condition), []).append(cell)
                share.add_one()
                if cell.failure is not None:
                    failure = cell.failure
                    own = clocks.is_plain(cell.way, cell.condition) and failure.kind != "out_of_memory"
    except ChildFailed as death:
        failure, own = death.failure, death.failure.kind == "timeout"
    cells = [
        _join_turns(asked, way, condition, told.get((way, condition), []), failure or misuse_failure())
        for ways, condition in planned
        for way in ways
    ]
    worked = any(of_way[0].failure is None for key, of_way in told.items() if clocks.is_plain(*key))
    others = any(not clocks.is_plain(ways[0], condition) for ways, condition in planned)
    return cells, worked and others and not own


def _join_turns(
    asked: clocks.Asked,
    way: clocks.TimingMethod,
    condition: clocks.Condition,
    turns: Sequence[clocks.Cell],
    otherwise: Failure,
) -> clocks.Cell:
    """Return the turns of a method as one cell, without the dropped samples; failed if there are too few samples."""
    failure = next((cell.failure for cell in turns if cell.failure is not None), None)
    samples_ms = [ms for cell in turns if cell.figures is not None for ms in cell.figures.samples_ms]
    if failure is not None or len(samples_ms) < asked.repeats:
        return clocks.Cell(way=way, condition=condition, failure=failure or otherwise)
    counted = samples_ms if condition == "cold" else samples_ms[asked.drop :]
    return clocks.Cell(way=way, condition=condition, figures=clocks.Figures.of(counted))


class _Share:
    def __init__(self, progress: Progress | None, what: str, whole: int) -> None:
        self._progress = progress
        self._what = what
        self._whole = whole
        self._done = 0
        self._begin = perf_counter()
        if progress is not None:
            progress.doing(what, None)

    def add_one(self) -> None:
        before, self._done = 10 * self._done // self._whole, self._done + 1
        tenths = 10 * self._done // self._whole
        if self._progress is not None and before < tenths < 10:
            left_s = (perf_counter() - self._begin) * (self._whole / self._done - 1)
            self._progress.doing(f"{self._what}, {10 * tenths} % done", left_s)


def _check(asked: clocks.Asked, cells: Iterable[clocks.Cell]) -> None:
    failure = _failure(cells)
    if failure is not None:
        raise no_answer(asked.specs[0], asked.batch_size, failure, smallest=False)


def _failure(cells: Iterable[clocks.Cell]) -> Failure | None:
    """Return the first failure of the plain model; a failure with copies or of a graph counts for its own cell only."""
    plain = (cell for cell in cells if clocks.is_plain(cell.way, cell.condition))
    return next((cell.failure for cell in plain if cell.failure is not None), None)


def _pipeline_times(asked: clocks.Asked, children: Children, progress: Progress) -> clocks.PipelineTimes:
    first, second = asked.specs
    turns = len(clocks.turn_counts(asked.repeats - asked.drop))
    share = _Share(progress, "timing the pipeline, every way in turn", turns)
    found: dict[tuple[clocks.Stage, clocks.StageMethod], list[float]] = {}
    failure, done = misuse_failure(), 0
    try:
        with closing(children.ask(TimePipeline(asked), clocks.PipelineTimes, _timeout_s(first))) as answers:
            for turn in answers:
                if turn.failure is not None:
                    return turn
                for cell in turn.cells:
                    found.setdefault((cell.stage, cell.way), []).extend(cell.figures.samples_ms)
                done += 1
                share.add_one()
    except ChildFailed as death:
        failure = death.failure
    if done < turns:
        return clocks.PipelineTimes(failure=failure, failed_model=f"{first.model} with {second.model}")
    return clocks.PipelineTimes(
        cells=tuple(
            clocks.StageCell(stage=stage, way=way, figures=clocks.Figures.of(samples_ms))
            for (stage, way), samples_ms in found.items()
        )
    )


def _timeout_s(spec: Spec) -> float:
    return spec.trial_timeout_s or FIRST_TIMEOUT_S
