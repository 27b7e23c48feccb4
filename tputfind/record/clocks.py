"""Results of ``tputfind clocks`` as frozen values, and the schedule in which the timing methods take turns."""

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
from tputfind.record.types import METHOD, Amount, Count
from tputfind.stats import standard_deviation

SCHEMA: Final = 1
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
"""``warm``: after warm-up, with the input on the device. ``cold``: in a fresh process without warm-up, the first call
included. ``pageable`` and ``pinned``: warm, with a copy of the input from that kind of host memory inside the timed
region."""
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
"""The timing methods that one loop serves at once, and its condition."""
HOST_CLOCK: Final[tuple[TimingMethod, ...]] = ("host_clock",)
GRAPH: Final[tuple[TimingMethod, ...]] = ("graph",)
_TURN: Final = 5
_FEWEST_TURNS: Final = 9


class Asked(NamedTuple):
    """A request to time a batch of one model, or a pipeline of two with CPU work; the first ``drop`` do not count."""

    specs: tuple[Spec, ...]
    batch_size: int
    repeats: int
    drop: int
    host_work_ms: float
    can: Capabilities | None = None
    """The device's capabilities; None until it was examined."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one timing method, in ms per batch: the samples that count, in order of time, and their summary."""

    mean_ms: Amount
    median_ms: Amount
    std_ms: Amount | None
    samples_ms: Annotated[tuple[Amount, ...], Meta(min_length=1, max_length=MOST_REPEATS)]

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Self:
        return cls(
            mean_ms=fmean(samples_ms),
            median_ms=median(samples_ms),
            std_ms=standard_deviation(samples_ms),
            samples_ms=tuple(samples_ms),
        )


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One timing method under one condition: its figures, or the failure."""

    way: TimingMethod
    condition: Condition
    figures: Figures | None = None
    failure: Failure | None = None


class Methods(Result, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="methods"):
    """The timing methods for one batch of a model. A missing cell does not apply.

    The first ``drop`` of the ``repeats`` timings are left out, except without warm-up. ``started`` is ISO 8601, UTC.
    """

    KIND = "clocks"
    schema: int = SCHEMA
    method: int = METHOD
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
    """One stage of a pipeline, or the whole, timed by one method. The whole has one sample per turn."""

    stage: Stage
    way: StageMethod
    figures: Figures


class PipelineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one process for a pipeline in one turn, or the failure that ended it and the model that failed."""

    cells: tuple[StageCell, ...] = ()
    failure: Failure | None = None
    failed_model: str = ""


class Pipeline(Result, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pipeline"):
    """A pipeline of two models with CPU work between them, timed in turn; the cells have the measured CPU work."""

    KIND = "clocks"
    schema: int = SCHEMA
    method: int = METHOD
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
    """Return the loops to run on a device, in order; on the CPU, one loop with the host clock serves every method."""
    of_events = ("events_waited", "events_at_end")
    together: list[tuple[TimingMethod, ...]] = [
        *((way,) for way in METHODS if way != "graph" and (can.events or way not in of_events)),
        tuple(BOUNDARIES),
    ]
    if can.is_cpu:
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
    """Return whether the unmodified model is timed: no graph, no copies."""
    return way != "graph" and condition in ("warm", "cold")


def turn_counts(timings: int) -> list[int]:
    """Return how many timings a method takes in each of its turns.

    Methods take turns of a few batches, so that a host or clocks that drift within seconds favour no method: five
    timings per turn, but at least nine turns if there are nine timings.
    """
    turns = max(min(timings, _FEWEST_TURNS), timings // _TURN)
    return [timings * (number + 1) // turns - timings * number // turns for number in range(turns)]


def split_by_turn(samples_ms: Sequence[float]) -> list[Sequence[float]]:
    """Return the samples split by turn, as ``turn_counts`` divides them."""
    counts = turn_counts(len(samples_ms))
    return [samples_ms[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]


def schedule(planned: Sequence[Loop], repeats: int, drop: int) -> list[list[tuple[Loop, int]]]:
    """Return for each turn the loops to run, each with its number of timings.

    An opening turn takes the timings that are dropped. The loops of the host clock alone take all their timings there,
    because the filling of the launch queue is part of their result; so do cold loops, which are warm afterwards. Each
    later turn begins with another loop.
    """
    in_turn = [(ways, condition) for ways, condition in planned if ways != HOST_CLOCK and condition != "cold"]
    first = [(loop, drop if loop in in_turn else repeats) for loop in planned]
    turns = [[(loop, count) for loop, count in first if count]]
    for number, count in enumerate(turn_counts(repeats - drop) if in_turn else []):
        begin = number % len(in_turn)
        turns.append([(loop, count) for loop in in_turn[begin:] + in_turn[:begin]])
    return turns


def cell_of(cells: Iterable[Cell], way: TimingMethod, condition: Condition) -> Cell | None:
    return next((cell for cell in cells if (cell.way, cell.condition) == (way, condition)), None)


def figures_of(cells: Iterable[Cell], way: TimingMethod, condition: Condition = "warm") -> Figures | None:
    cell = cell_of(cells, way, condition)
    return None if cell is None else cell.figures


def stage_figures(cells: Iterable[StageCell], stage: Stage, way: StageMethod) -> Figures | None:
    return next((cell.figures for cell in cells if (cell.stage, cell.way) == (stage, way)), None)
