"""The ways of timing one batch, and a pipeline, side by side: frozen values, and what is timed in which turn."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import fmean, median
from typing import Annotated, Final, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta

from tputfind.record.environment import Capabilities, Environment
from tputfind.record.record import Failure
from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.types import Amount, Count
from tputfind.stats import standard_deviation

SCHEMA: Final = 2
"""Raised when a field is added or changes its meaning."""
MOST_REPEATS: Final = 10_000
Repeats = Annotated[int, Meta(ge=1, le=MOST_REPEATS)]
Dropped = Annotated[int, Meta(ge=0, le=MOST_REPEATS)]
TimingMethod = Literal[
    "host_clock",
    "host_clock_synchronised",
    "events_waited",
    "events_at_end",
    "graph",
    "submission",
    "submission_and_device",
    "device_span",
]
Condition = Literal["warm", "cold", "pageable", "pinned"]
"""With warm-up and the input resident; without warm-up, in a fresh process, the first call included; warm, with the
input copied inside the timed region from pageable or from pinned memory of the host."""
Stage = Literal["first", "work", "second", "whole"]
StageMethod = Literal["synchronised", "events", "untimed"]

METHODS: Final[dict[TimingMethod, str]] = {
    "host_clock": "host clock alone",
    "host_clock_synchronised": "host clock, synchronised",
    "events_waited": "events, a wait per batch",
    "events_at_end": "events, read at the end",
    "graph": "CUDA graph replay",
}
BOUNDARIES: Final[dict[TimingMethod, str]] = {
    "submission": "submission",
    "submission_and_device": "submission + device",
    "device_span": "device span",
}
CONDITIONS: Final[dict[Condition, str]] = {
    "warm": "warm",
    "cold": "no warm-up",
    "pageable": "copy from pageable",
    "pinned": "copy from pinned",
}
STAGE_METHODS: Final[dict[StageMethod, str]] = {
    "synchronised": "synchronised",
    "events": "events read afterwards",
    "untimed": "not timed",
}


Loop = tuple[tuple[TimingMethod, ...], Condition]
"""What one loop answers: the ways that it times together, and the condition."""
HOST_CLOCK: Final[tuple[TimingMethod, ...]] = ("host_clock",)
GRAPH: Final[tuple[TimingMethod, ...]] = ("graph",)
_TURN: Final = 5
_FEWEST_TURNS: Final = 9


class Asked(NamedTuple):
    """What to time: a batch of one model, or a pipeline of two with CPU work of ``host_work_ms`` between them."""

    specs: tuple[Spec, ...]
    batch_size: int
    repeats: int
    drop: int
    host_work_ms: float
    can: Capabilities | None = None
    """What the device was found to do, once it was looked at."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one way found, in milliseconds a batch: the samples that count, in order of time, and their summary.

    ``std_ms`` is None of a single sample.
    """

    mean_ms: Amount
    median_ms: Amount
    std_ms: Amount | None
    samples_ms: Annotated[tuple[Amount, ...], Meta(min_length=1, max_length=MOST_REPEATS)]

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Self:
        """Summarise one sample or more."""
        return cls(
            mean_ms=fmean(samples_ms),
            median_ms=median(samples_ms),
            std_ms=standard_deviation(samples_ms),
            samples_ms=tuple(samples_ms),
        )


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One way of timing under one condition: its figures, or why there are none."""

    way: TimingMethod
    condition: Condition
    figures: Figures | None = None
    failure: Failure | None = None


class Methods(Result, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="methods"):
    """The ways of timing one batch of a model. A cell that is missing does not apply.

    ``drop`` of the ``repeats`` timings do not count, but for those without warm-up. ``started`` is ISO 8601, UTC.
    ``method`` is None in files of schema 1, which did not say it.
    """

    KIND = "clocks"
    schema: int = 1
    method: int | None = None
    tputfind: str
    command: str
    started: str
    spec: Spec
    environment: Environment
    input_shape: str
    batch_size: Count
    repeats: Repeats
    drop: Dropped
    cells: tuple[Cell, ...]
    sentences: tuple[str, ...] = ()


class StageCell(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline, or the whole of it, timed in one way. The whole has one sample a turn."""

    stage: Stage
    way: StageMethod
    figures: Figures


class PipelineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a process found of a pipeline in one turn, or the failure that ended it, and which model's that was."""

    cells: tuple[StageCell, ...] = ()
    failure: Failure | None = None
    failed_model: str = ""


class Pipeline(Result, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pipeline"):
    """A pipeline of two models with CPU work between them, timed in several ways in turn; fields as of ``Methods``.

    ``host_work_ms`` is what the CPU work was asked to take; what it took is among the cells.
    """

    KIND = "clocks"
    schema: int = 1
    method: int | None = None
    tputfind: str
    command: str
    started: str
    specs: tuple[Spec, Spec]
    environment: Environment
    input_shapes: tuple[str, str]
    batch_size: Count
    repeats: Repeats
    drop: Dropped
    host_work_ms: Amount
    cells: tuple[StageCell, ...]
    sentences: tuple[str, ...] = ()


def loops(can: Capabilities, *, cold: bool) -> list[Loop]:
    """Return what is to be timed on a device, in order.

    Where the host computes, one loop under its clock answers all there is. A device without events is timed by the host
    clock alone.
    """
    of_events = ("events_waited", "events_at_end")
    together: list[tuple[TimingMethod, ...]] = [
        *((way,) for way in METHODS if way != "graph" and (can.events or way not in of_events)),
        tuple(BOUNDARIES),
    ]
    if can.on_host:
        together = [("host_clock", "host_clock_synchronised", "submission_and_device")]
    if cold:
        return [(ways, "cold") for ways in together]
    conditions: tuple[Condition, ...] = ("warm", "pageable", *(("pinned",) if can.pinned_copies else ()))
    planned = [(ways, condition) for condition in conditions for ways in together]
    planned = [(ways, condition) for ways, condition in planned if condition == "warm" or ways != tuple(BOUNDARIES)]
    if can.graphs:
        planned += [(GRAPH, condition) for condition in conditions]
    return planned


def is_plain(way: TimingMethod, condition: Condition) -> bool:
    """Return whether it is the model as it is that is timed: neither a graph, nor with copies."""
    return way != "graph" and condition in ("warm", "cold")


def turn_counts(timings: int) -> list[int]:
    """Return how many timings a way takes in each of its turns.

    What is compared is timed in turn, a few batches at a time, so that a host or clocks that change within seconds
    favour none: five a turn, but at least nine turns where there are nine timings.
    """
    turns = max(min(timings, _FEWEST_TURNS), timings // _TURN)
    return [timings * (number + 1) // turns - timings * number // turns for number in range(turns)]


def by_turn(samples_ms: Sequence[float]) -> list[Sequence[float]]:
    """Return the samples of each turn, of samples that were taken as ``turn_counts`` says."""
    counts = turn_counts(len(samples_ms))
    return [samples_ms[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]


def schedule(planned: Sequence[Loop], repeats: int, drop: int) -> list[list[tuple[Loop, int]]]:
    """Return what is to be run in each turn, and for how many timings.

    Before the turns every loop takes the timings that will not count. The host clock alone takes all of its own there:
    how far the launch queue fills is part of what it shows. So does what is cold, which is warm after it. Each turn of
    the others begins with another loop.
    """
    in_turn = [(ways, condition) for ways, condition in planned if ways != HOST_CLOCK and condition != "cold"]
    first = [(loop, drop if loop in in_turn else repeats) for loop in planned]
    turns = [[(loop, count) for loop, count in first if count]]
    for number, count in enumerate(turn_counts(repeats - drop) if in_turn else []):
        begin = number % len(in_turn)
        turns.append([(loop, count) for loop in in_turn[begin:] + in_turn[:begin]])
    return turns


def cell_of(cells: Iterable[Cell], way: TimingMethod, condition: Condition) -> Cell | None:
    """Return the cell of a way and a condition, or None where it does not apply."""
    return next((cell for cell in cells if (cell.way, cell.condition) == (way, condition)), None)


def figures_of(cells: Iterable[Cell], way: TimingMethod, condition: Condition = "warm") -> Figures | None:
    """Return the figures of a way and a condition, or None where there are none."""
    cell = cell_of(cells, way, condition)
    return None if cell is None else cell.figures


def stage_figures(cells: Iterable[StageCell], stage: Stage, way: StageMethod) -> Figures | None:
    """Return the figures of a stage timed in one way, or None where it is not."""
    return next((cell.figures for cell in cells if (cell.stage, cell.way) == (stage, way)), None)
