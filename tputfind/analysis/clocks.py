"""The error of each timing method, in one sentence with its size: pure functions of the figures.

A sentence about two methods claims no more than the figures support: a difference within the interval may be noise, and
one that is certainly below 1 % does not matter.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from tputfind.record import clocks
from tputfind.record.environment import Environment
from tputfind.record.record import HOST_BOUND_SHARE
from tputfind.record.types import NEGLIGIBLE_BYTES
from tputfind.stats import mean_interval
from tputfind.units import format_bytes, format_figure, format_ratio, format_share, format_share_up

NO_MATTER: Final = 0.01
_CONFIDENCE: Final = 0.99
"""Confidence of the intervals of differences; a table makes up to five comparisons."""
_NEARLY_ALL: Final = 0.9
_QUEUED: Final = 2.0
"""Calls that take this many times as long as a single one on an idle device wait in the launch queue."""
_QUEUED_SHARE: Final = 0.1
_AGREEING: Final = 0.05

_CPU: Final = (
    "On the CPU a call returns when its work is done: with or without synchronising is the same measurement, and "
    "events, CUDA graphs and pinned copies do not apply."
)
_CPU_PIPELINE: Final = (
    "On the CPU a call returns when its work is done: synchronising costs nothing there, and there are no events to "
    "read afterwards"
)


def method_sentences(found: clocks.Methods) -> tuple[str, ...]:
    cells = found.cells
    on_cpu = found.environment.can.is_cpu
    said = [_CPU] if on_cpu else list(_host_clock_alone(cells))
    said += [*_no_warm_up(cells), *_single_sample(cells)]
    said += [] if on_cpu else [*_waiting(cells), *_host_against_events(cells)]
    return (*said, *_copies(cells), *_graph(cells), *_others(found.environment))


def pipeline_sentences(found: clocks.Pipeline) -> tuple[str, ...]:
    if found.environment.can.is_cpu:
        return (f"{_CPU_PIPELINE}{_difference_on_the_cpu(found.cells)}.",)
    names = (found.specs[0].model, found.specs[1].model)
    return (*_cost_of_timing(found.cells), *_agreement(found.cells, names), *_others(found.environment))


class _Change(NamedTuple):
    """The relative difference of another mean from a base, and whether it is significant."""

    base: clocks.Figures
    other: clocks.Figures
    share: float
    kind: Literal["same", "unclear", "more", "less"]

    @property
    def shown(self) -> str:
        return format_share(abs(self.share))

    @property
    def sizes(self) -> str:
        return f"{_ms(self.other)} against {_ms(self.base)}"


_TurnsOf = Callable[[Sequence[float]], Sequence[Sequence[float]]]


def _change(
    base: clocks.Figures | None, other: clocks.Figures | None, turns_of: _TurnsOf = clocks.split_by_turn
) -> _Change | None:
    """Compare two means turn by turn, so that disturbances of both cancel; None if one is missing or the base is 0."""
    if base is None or other is None or base.mean_ms <= 0:
        return None
    share = other.mean_ms / base.mean_ms - 1
    if len(base.samples_ms) != len(other.samples_ms):
        return _Change(base, other, share, "unclear")
    differences = [(two - one) / base.mean_ms for one, two in zip(base.samples_ms, other.samples_ms, strict=True)]
    interval = mean_interval(turns_of(differences), _CONFIDENCE)
    half = math.inf if interval is None else (interval.high - interval.low) / 2
    if abs(share) + half <= NO_MATTER or half < abs(share) < NO_MATTER:
        return _Change(base, other, share, "same")
    return _Change(base, other, share, "unclear" if half >= abs(share) else "more" if share > 0 else "less")


def _change_of_wholes(cells: Sequence[clocks.StageCell], way: clocks.StageMethod) -> _Change | None:
    """Compare the times of a whole pipeline, untimed and timed by a method; each turn has one."""
    untimed, timed = (clocks.stage_figures(cells, "whole", one) for one in ("untimed", way))
    return _change(untimed, timed, lambda samples_ms: [[ms] for ms in samples_ms])


def _host_clock_alone(cells: Sequence[clocks.Cell]) -> Iterator[str]:
    alone, whole = clocks.figures_of(cells, "host_clock"), clocks.figures_of(cells, "host_clock_synchronised")
    if alone is None or whole is None or whole.mean_ms <= 0:
        return
    share, sizes = alone.mean_ms / whole.mean_ms, f"{_ms(alone)} of {_ms(whole)}"
    single = clocks.figures_of(cells, "submission")
    queued = "" if single is None else _describe_queue(alone, single)
    if share < _NEARLY_ALL:
        yield f"The host clock alone sees {format_share(share)} of the time ({sizes}){queued and f': {queued}'}."
    elif share > 2 - _NEARLY_ALL:
        yield f"The host clock alone sees {format_share(share)} of the time ({sizes}), which is not the batch's."
    elif queued:
        yield f"The host clock alone comes close here ({sizes}) only because the launch queue is full: {queued}."
    elif single is not None and single.mean_ms >= HOST_BOUND_SHARE * whole.mean_ms:
        yield f"The host clock alone comes close here ({sizes}) because a batch takes nearly as long to be submitted."
    else:
        yield f"The host clock alone comes close here ({sizes}), but it does not wait for the device."


def _describe_queue(alone: clocks.Figures, single: clocks.Figures) -> str:
    slow = sum(ms >= _QUEUED * single.mean_ms for ms in alone.samples_ms)
    if alone.mean_ms < _QUEUED * single.mean_ms or slow < _QUEUED_SHARE * len(alone.samples_ms):
        return ""
    return (
        f"{slow} of {len(alone.samples_ms)} calls waited behind those before them, and a single call to an idle device "
        f"returns after {_ms(single)}"
    )


def _no_warm_up(cells: Sequence[clocks.Cell]) -> Iterator[str]:
    warm = clocks.figures_of(cells, "host_clock_synchronised")
    cold = clocks.figures_of(cells, "host_clock_synchronised", "cold")
    if warm is None or cold is None or warm.mean_ms <= 0:
        return
    count, ratio = len(cold.samples_ms), cold.mean_ms / warm.mean_ms
    first = _first_call(cold.samples_ms[0], warm.mean_ms)
    if ratio >= 1 + NO_MATTER:
        size = format_ratio(ratio)
        yield f"No warm-up: the mean of {count} is {size} what it is warm, and the first call alone {first}."
    elif ratio > 1 - NO_MATTER:
        yield f"No warm-up does not matter to the mean of {count} here; the first call alone {first}."
    else:
        sizes = f"{_ms(cold)} against {_ms(warm)}"
        yield f"No warm-up: the mean of {count} is not longer for it ({sizes}); the first call {first}."


def _first_call(first_ms: float, warm_ms: float) -> str:
    ratio = first_ms / warm_ms
    if ratio >= 1 + NO_MATTER:
        return f"takes {format_ratio(ratio)} as long ({format_figure(first_ms)} ms)"
    return "takes about as long" if ratio > 1 - NO_MATTER else "takes less"


def _single_sample(cells: Sequence[clocks.Cell]) -> Iterator[str]:
    warm = clocks.figures_of(cells, "host_clock_synchronised")
    if warm is None or warm.mean_ms <= 0 or len(warm.samples_ms) < 2:
        return
    below = max(0.0, 1 - min(warm.samples_ms) / warm.mean_ms)
    above = max(0.0, max(warm.samples_ms) / warm.mean_ms - 1)
    count = len(warm.samples_ms)
    if max(below, above) < NO_MATTER:
        yield f"A single sample would do here: {count} batches all lie within 1 % of their mean."
    else:
        yield (
            f"A single sample may be off: of {count} batches the fastest takes {format_share(below)} less than the "
            f"mean, the slowest {format_share(above)} more."
        )


def _waiting(cells: Sequence[clocks.Cell]) -> Iterator[str]:
    change = _change(clocks.figures_of(cells, "events_at_end"), clocks.figures_of(cells, "events_waited"))
    if change is not None:
        yield {
            "same": f"Waiting after each batch or going on back to back does not matter here ({change.sizes}).",
            "unclear": f"Waiting after each batch makes no difference that stands out from the noise ({change.sizes}).",
            "more": f"Waiting after each batch makes it seem {change.shown} slower than back to back ({change.sizes}).",
            "less": f"Waiting after each batch makes it seem {change.shown} faster than back to back ({change.sizes}).",
        }[change.kind]


def _host_against_events(cells: Sequence[clocks.Cell]) -> Iterator[str]:
    change = _change(clocks.figures_of(cells, "events_waited"), clocks.figures_of(cells, "host_clock_synchronised"))
    if change is None:
        return
    host, sizes = "The synchronised host clock", f"{_ms(change.other)} and {_ms(change.base)}"
    if change.kind == "same":
        yield f"{host} and an event pair agree within 1 % ({sizes})."
    elif change.kind == "unclear":
        yield f"{host} and an event pair do not differ by more than the noise ({sizes})."
    else:
        yield f"{host} reads {change.shown} {change.kind} than an event pair around the call ({sizes})."


def _copies(cells: Sequence[clocks.Cell]) -> Iterator[str]:
    resident = clocks.figures_of(cells, "host_clock_synchronised")
    parts: list[str] = []
    for condition in ("pageable", "pinned"):
        cell = clocks.cell_of(cells, "host_clock_synchronised", condition)
        if cell is not None and cell.failure is not None:
            parts.append(f"from {condition} memory fails ({cell.failure.message})")
        change = _change(resident, cell.figures if cell else None)
        if change is not None:
            parts.append(f"from {condition} memory {_describe_addition(change)}")
    if parts:
        yield f"Copying the input inside the timed region: {', '.join(parts)}."


def _describe_addition(change: _Change) -> str:
    if change.kind == "more":
        return f"adds {change.shown}"
    if change.kind == "unclear" and abs(change.share) < NO_MATTER:
        return "adds nothing that stands out from the noise"
    if change.kind == "unclear":
        more = "adds" if change.share > 0 else "takes off"
        return f"{more} {change.shown}, which does not stand out from the noise"
    return {"same": "adds less than 1 %", "less": "adds nothing"}[change.kind]


def _graph(cells: Sequence[clocks.Cell]) -> Iterator[str]:
    cell, eager = clocks.cell_of(cells, "graph", "warm"), clocks.figures_of(cells, "events_at_end")
    if cell is not None and cell.failure is not None:
        yield f"There is no CUDA graph to compare with: it could not be captured and replayed ({cell.failure.message})."
    change = _change(eager, cell.figures if cell else None)
    if change is None:
        return
    sizes = f"{_ms(change.other)} instead of {_ms(change.base)}"
    single = clocks.figures_of(cells, "submission")
    if change.kind == "less" and single is not None and single.mean_ms >= HOST_BOUND_SHARE * change.base.mean_ms:
        yield f"Python holds the device up: as a CUDA graph the batch takes {sizes}."
    elif change.kind == "less":
        yield f"Launched as a whole, as a CUDA graph, the batch takes {change.shown} less: {sizes}."
    elif change.kind == "more":
        yield f"A CUDA graph gains nothing here: the batch takes {change.shown} more, {sizes}."
    elif change.kind == "same":
        yield f"A CUDA graph gains less than 1 % here ({sizes}): Python does not hold the device up."
    else:
        yield f"What a CUDA graph gains does not stand out from the noise here ({sizes})."


def _cost_of_timing(cells: Sequence[clocks.StageCell]) -> Iterator[str]:
    doings: dict[clocks.StageMethod, str] = {
        "synchronised": "Synchronising around each stage",
        "events": "Reading events afterwards",
    }
    for way, doing in doings.items():
        change = _change_of_wholes(cells, way)
        if change is not None:
            cost = {
                "more": f"makes the whole take {change.shown} longer",
                "same": "changes the whole by less than 1 %",
                "less": "costs the whole nothing here",
                "unclear": "costs the whole nothing that stands out from the noise",
            }[change.kind]
            yield f"{doing} {cost} ({change.sizes} not timed)."


def _difference_on_the_cpu(cells: Sequence[clocks.StageCell]) -> str:
    change = _change_of_wholes(cells, "synchronised")
    if change is None or change.kind == "same":
        return ""
    return f"; the wholes differ by {change.shown}, the noise of the machine"


def _agreement(cells: Sequence[clocks.StageCell], names: tuple[str, str]) -> Iterator[str]:
    """Yield how far the two methods of timing a model's stage agree; the host times its own work in both."""
    stages: tuple[clocks.Stage, clocks.Stage] = ("first", "second")
    pairs = [
        (name, clocks.stage_figures(cells, stage, "synchronised"), clocks.stage_figures(cells, stage, "events"))
        for name, stage in zip(names, stages, strict=True)
    ]
    known = [(name, host, events) for name, host, events in pairs if host and events and events.mean_ms > 0]
    if not known:
        return
    apart = max(abs(host.mean_ms / events.mean_ms - 1) for _, host, events in known)
    sizes = ", ".join(f"{name} {_ms(host)} and {_ms(events)}" for name, host, events in known)
    how = "agree within" if apart <= _AGREEING else "differ by up to"
    slower = apart > _AGREEING and all(host.mean_ms > events.mean_ms for _, host, events in known)
    why = "; a stage that begins on an idle device also waits for its own submission" if slower else ""
    yield f"The stage times {how} {format_share_up(apart)}, synchronised and by events: {sizes}{why}."


def _others(environment: Environment) -> Iterator[str]:
    held_bytes = environment.memory_of_others_bytes
    if held_bytes is not None and held_bytes > NEGLIGIBLE_BYTES:
        yield f"Other processes hold {format_bytes(held_bytes)} of the device's memory, and may take its time too."


def _ms(figures: clocks.Figures) -> str:
    return f"{format_figure(figures.mean_ms)} ms"
