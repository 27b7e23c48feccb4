"""The ways of timing, measured in child processes: the story of `tputfind clocks` on one page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Final

import msgspec

from tputfind import __version__, mistakes, notices, run
from tputfind.clocks import (
    BOUNDARIES,
    CONDITIONS,
    METHODS,
    Asked,
    Cell,
    Condition,
    Methods,
    Pipeline,
    PipelineTimes,
    Way,
    figures_of,
    loops,
)
from tputfind.errors import ModelFailed, NothingFits, TputfindError
from tputfind.measure.bench import FIRST_TIMEOUT_S
from tputfind.measure.children import ChildFailed, Children
from tputfind.measure.failures import for_want_of_memory, of_misuse
from tputfind.measure.messages import TimeMethods, TimePipeline
from tputfind.record import Failure
from tputfind.report.progress import ShownProgress
from tputfind.spec import Spec

ROUNDS: Final = 7
"""The loops of a pipeline are run so often, in turn, so that what changes with time favours none."""


def measure(asked: Asked, children: Children, progress: ShownProgress) -> Methods | Pipeline:
    """Time one model in every way, or two of them as a pipeline, and say what each way gets wrong.

    Raises:
        TputfindError: the device or a model does not allow it.
    """
    return (_time_methods if len(asked.specs) == 1 else _time_pipeline)(asked, children, progress)


def _time_methods(asked: Asked, children: Children, progress: ShownProgress) -> Methods:
    """Time one model in every way: all that is warm in one process, each loop without warm-up in a fresh one."""
    (spec,) = asked.specs
    started = run.now()
    progress.about(spec.model)
    progress.doing("looking at the model and the device", None)
    inspection = run.inspect(spec, children)
    device = inspection.environment.device
    cells = _warm_cells(asked, device, children, progress)
    known = figures_of(cells, "host_clock_synchronised")
    expected_s = asked.repeats * known.mean_ms / 1000 if known else 0.0
    for ways, _ in loops(device, cold=True):
        progress.doing(f"{_named(ways)}, without warm-up", expected_s or None)
        cells += _cold_cells(asked, ways, expected_s, children)
    found = Methods(
        tputfind=__version__,
        command=shlex.join(["tputfind", *sys.argv[1:]]),
        started=started,
        spec=spec,
        environment=inspection.environment,
        input_shape=inspection.input_shape,
        batch_size=asked.batch_size,
        repeats=asked.repeats,
        drop=asked.drop,
        cells=tuple(cells),
    )
    return msgspec.structs.replace(found, sentences=mistakes.of_methods(found))


def _warm_cells(asked: Asked, device: str, children: Children, progress: ShownProgress) -> list[Cell]:
    """Ask one process for all that is warm. What it cannot do any more after a failure has failed of the same."""
    (spec,) = asked.specs
    question = TimeMethods(spec, asked.batch_size, asked.repeats, asked.drop)
    cells: list[Cell] = []
    failure: Failure | None = None
    with _ended(children.ask(question, Cell, _timeout_s(spec))) as answers:
        for ways, condition in loops(device, cold=False):
            progress.doing(f"{_named(ways)}, {CONDITIONS[condition]}", None)
            told = _told(answers, ways, condition, failure)
            failure = told[0].failure or failure
            cells += told
    _check(asked, cells)
    return cells


def _cold_cells(asked: Asked, ways: tuple[Way, ...], expected_s: float, children: Children) -> list[Cell]:
    (spec,) = asked.specs
    question = TimeMethods(spec, asked.batch_size, asked.repeats, asked.drop, ways, expected_s)
    with _ended(children.ask(question, Cell, _timeout_s(spec))) as answers:
        cells = _told(answers, ways, "cold", None)
    _check(asked, cells)
    return cells


@contextmanager
def _ended(answers: Generator[Cell]) -> Iterator[Iterator[Cell]]:
    """Give the answers of a process, and then see it to its end, which is not to be killed for having said all."""
    with closing(answers):
        yield answers
        with suppress(ChildFailed):
            next(answers, None)


def _told(answers: Iterator[Cell], ways: Sequence[Way], condition: Condition, before: Failure | None) -> list[Cell]:
    """Return the cells of one loop; those of a process that has ended have failed, of what ``before`` says if any."""
    failure = before or of_misuse()
    try:
        told = list(islice(answers, len(ways)))
    except ChildFailed as death:
        told, failure = [], death.failure
    whole = [(cell.way, cell.condition) for cell in told] == [(way, condition) for way in ways]
    return told if whole else [Cell(way=way, condition=condition, failure=failure) for way in ways]


def _check(asked: Asked, cells: Iterable[Cell]) -> None:
    """Raise the first failure of a plain batch; one with copies, or of the graph, is that cell's own."""
    plain = (cell for cell in cells if cell.condition in ("warm", "cold") and cell.way != "graph")
    failure = next((cell.failure for cell in plain if cell.failure is not None), None)
    if failure is not None:
        raise _no_answer(asked.specs[0].model, asked.batch_size, failure)


def _time_pipeline(asked: Asked, children: Children, progress: ShownProgress) -> Pipeline:
    first, second = asked.specs
    started = run.now()
    inspections = []
    for spec in (first, second):
        progress.about(spec.model)
        progress.doing("looking at the model and the device", None)
        inspections.append(run.inspect(spec, children))
    progress.about(f"{first.model}, CPU work, {second.model}")
    progress.doing(f"timing the pipeline, {ROUNDS} rounds", None)
    times = _pipeline_times(asked, children)
    if times.failure is not None:
        raise _no_answer(times.failed_model, asked.batch_size, times.failure)
    found = Pipeline(
        tputfind=__version__,
        command=shlex.join(["tputfind", *sys.argv[1:]]),
        started=started,
        specs=(first, second),
        environment=inspections[0].environment,
        input_shapes=(inspections[0].input_shape, inspections[1].input_shape),
        batch_size=asked.batch_size,
        repeats=asked.repeats,
        drop=asked.drop,
        rounds=ROUNDS,
        host_work_ms=asked.host_work_ms,
        cells=times.cells,
    )
    return msgspec.structs.replace(found, sentences=mistakes.of_pipeline(found))


def _pipeline_times(asked: Asked, children: Children) -> PipelineTimes:
    first, second = asked.specs
    question = TimePipeline((first, second), asked.batch_size, asked.repeats, asked.drop, ROUNDS, asked.host_work_ms)
    try:
        return children.ask_one(question, PipelineTimes, _timeout_s(first))
    except ChildFailed as death:
        return PipelineTimes(failure=death.failure, failed_model=f"{first.model} with {second.model}")


def _no_answer(model: str, batch_size: int, failure: Failure) -> TputfindError:
    if for_want_of_memory(failure):
        advice = "try a smaller --batch-size, dtype or input, or a device with more memory"
        return NothingFits(f"{model}: batch {batch_size} does not fit ({failure.message})", advice)
    advice = notices.ADVICE[failure.kind]
    return ModelFailed(f"{model} fails at batch {batch_size}: {failure.message}", advice, failure.traceback)


def _named(ways: Sequence[Way]) -> str:
    return (METHODS | BOUNDARIES)[ways[0]]


def _timeout_s(spec: Spec) -> float:
    return spec.trial_timeout_s or FIRST_TIMEOUT_S
