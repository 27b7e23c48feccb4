"""The measurement of ``tputfind clocks``: the timing methods compared in child processes."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from time import perf_counter

import msgspec

from tputfind.analysis.clocks import method_sentences, pipeline_sentences
from tputfind.errors import ModelFailed
from tputfind.processes.children import Children
from tputfind.processes.failures import ChildFailed, misuse_failure
from tputfind.processes.messages import TimeMethods, TimePipeline
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

    ``command`` is the command line that the result records.

    Raises:
        TputfindError: the device or a model does not allow it.
    """
    time = _time_methods if len(asked.specs) == 1 else _time_pipeline
    try:
        return time(asked, children, progress, command)
    except ModelFailed:
        found = [diagnosis_of(children, spec, asked.batch_size, asked.can).settings for spec in asked.specs]
        otherwise = tuple(msgspec.structs.replace(spec, **one) for spec, one in zip(asked.specs, found, strict=True))
        if otherwise == asked.specs:
            raise
        return time(asked._replace(specs=otherwise), children, progress, command)


def _time_methods(asked: clocks.Asked, children: Children, progress: Progress, command: str) -> clocks.Methods:
    """Time one model by every method: warm loops in one process, each loop without warm-up in a fresh process."""
    (spec,) = asked.specs
    started = now()
    progress.about(spec.model)
    progress.doing("looking at the model and the device", None)
    inspection = inspect(spec, children)
    can = inspection.environment.can
    spec = apply_inspection(spec, inspection)
    asked = asked._replace(can=can, specs=(spec,))
    cells = _warm_cells(asked, can, children, progress)
    known = clocks.figures_of(cells, "host_clock_synchronised")
    expected_s = asked.repeats * known.mean_ms / 1000 if known else 0.0
    for ways, condition in clocks.loops(can, cold=True):
        progress.doing(f"{(clocks.METHODS | clocks.BOUNDARIES)[ways[0]]}, without warm-up", expected_s or None)
        cold, _ = _time_in_one_process(asked, [(ways, condition)], children, None, expected_s)
        _check(asked, cold)
        cells += cold
    found = clocks.Methods(
        tputfind=__version__,
        command=command,
        started=started,
        spec=spec,
        environment=inspection.environment,
        input_shape=inspection.input_shape,
        batch_size=asked.batch_size,
        repeats=asked.repeats,
        drop=asked.drop,
        cells=tuple(cells),
    )
    return msgspec.structs.replace(found, sentences=method_sentences(found))


def _warm_cells(asked: clocks.Asked, can: Capabilities, children: Children, progress: Progress) -> list[clocks.Cell]:
    """Time all warm loops, in turn, in one process.

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
    return cells + uncaptured


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


def _time_pipeline(asked: clocks.Asked, children: Children, progress: Progress, command: str) -> clocks.Pipeline:
    first, second = asked.specs
    started = now()
    inspections = []
    for spec in (first, second):
        progress.about(spec.model)
        progress.doing("looking at the model and the device", None)
        inspections.append(inspect(spec, children))
    progress.about(f"{first.model}, CPU work, {second.model}")
    first, second = map(apply_inspection, asked.specs, inspections)
    asked = asked._replace(specs=(first, second), can=inspections[0].environment.can)
    times = _pipeline_times(asked, children, progress)
    if times.failure is not None:
        failed = msgspec.structs.replace(first, model=times.failed_model)
        raise no_answer(failed, asked.batch_size, times.failure, smallest=False)
    found = clocks.Pipeline(
        tputfind=__version__,
        command=command,
        started=started,
        specs=(first, second),
        environment=inspections[0].environment,
        input_shapes=(inspections[0].input_shape, inspections[1].input_shape),
        batch_size=asked.batch_size,
        repeats=asked.repeats,
        drop=asked.drop,
        host_work_ms=asked.host_work_ms,
        cells=times.cells,
    )
    return msgspec.structs.replace(found, sentences=pipeline_sentences(found))


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
