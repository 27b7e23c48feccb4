"""The plots of the device: its memory, what took it and its limits; its clock and its power. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from tputfind.analysis.answers import peak_bytes
from tputfind.record.record import Health, Record, Trial
from tputfind.report.charts.chart import (
    BATCH_SIZE,
    Axis,
    Chart,
    Level,
    Look,
    Point,
    Series,
    each_record,
    ok_rows,
    scale_of,
    title_of,
)
from tputfind.units import MIB, format_bytes, format_figure


def memory(records: Sequence[Record]) -> Chart:
    """Return peak memory against batch size with the limits; of one record the search's trials too."""

    def points(record: Record) -> Iterator[Point]:
        for row in ok_rows(record):
            peak = peak_bytes(record, row)
            if peak is not None:
                yield Point(x=row.batch_size, y=peak / MIB, text=format_bytes(peak))

    series = each_record(records, points)
    series += tuple(_trials(records[0])) if len(records) == 1 else ()
    levels = _limits(records) if series else ()
    values = [point.y for one in series for point in one.points]
    ends = f"Peaks go from {_mib(min(values))} to {_mib(max(values))}. {_limit_words(levels)}" if values else ""
    fell = any(one.look == "failed" for one in series)
    at_limit = " A trial that ran out of memory stands at the limit where its peak is not known." if fell else ""
    return Chart(
        kind="memory",
        title="Memory against batch size",
        about=title_of(records),
        words=f"{ends}{at_limit}",
        x=BATCH_SIZE,
        y=Axis(label="peak memory", scale=scale_of([*values, *(level.value for level in levels)], "log2"), unit="mib"),
        series=series,
        levels=levels,
    )


def _mib(mib: float) -> str:
    return format_bytes(round(mib * MIB))


def _limit_bytes(record: Record) -> int | None:
    """Return the memory that a record's batches had to do with; None if unknown."""
    found = record.edge.memory_limit_bytes if record.edge is not None else None
    return found or record.spec.memory_limit_bytes or record.environment.memory_total_bytes


def _limits(records: Sequence[Record]) -> tuple[Level, ...]:
    limits = {limit for record in records if (limit := _limit_bytes(record)) is not None}
    return tuple(Level(axis="y", value=limit / MIB, text=f"limit: {format_bytes(limit)}") for limit in sorted(limits))


def _limit_words(levels: Sequence[Level]) -> str:
    return f"A line across is the {' or '.join(level.text for level in levels)}." if levels else "No limit is known."


def _trials(record: Record) -> Iterator[Series]:
    """Yield the trials that passed, and those that did not; without a peak they ran out at the limit."""
    limit = _limit_bytes(record)
    fitted = [_trial_point(record, trial) for trial in record.trials if trial.failure is None]
    failed = [_trial_point(record, trial, limit) for trial in record.trials if trial.failure is not None]
    sides: tuple[tuple[str, Look, list[Point | None]], ...] = (
        ("trials that fitted", "fitted", fitted),
        ("trials that failed", "failed", failed),
    )
    for name, look, points in sides:
        known = tuple(point for point in points if point is not None)
        if known:
            yield Series(name=name, number=0, look=look, points=known)


def _trial_point(record: Record, trial: Trial, limit: int | None = None) -> Point | None:
    peak = peak_bytes(record, trial)
    if trial.failure is None:
        text = f"in its trial {format_bytes(peak or 0)}"
    else:
        peak = limit if peak is None and trial.failure.kind == "out_of_memory" else peak
        text = f"its trial failed: {trial.failure.kind.replace('_', ' ')}"
    return None if peak is None else Point(x=trial.batch_size, y=peak / MIB, text=text)


def clock(records: Sequence[Record]) -> Chart:
    """Return the SM clock of every throughput window."""
    chart = _over_windows(records, "clock", "SM clock over the run", "MHz", lambda seen: seen.sm_clock_mhz)
    highest = {t.health.sm_clock_max_mhz for one in records for row in one.rows for t in row.timings if t.health}
    levels = [Level(axis="y", value=mhz, text=f"highest clock: {mhz:g} MHz") for mhz in highest if mhz is not None]
    return msgspec.structs.replace(chart, levels=tuple(levels) if len(levels) == 1 else ())


def power(records: Sequence[Record]) -> Chart:
    """Return the power of every throughput window."""
    return _over_windows(records, "power", "Power over the run", "W", lambda seen: seen.power_w)


def _over_windows(
    records: Sequence[Record],
    kind: Literal["clock", "power"],
    title: str,
    unit: str,
    value_of: Callable[[Health], float | None],
) -> Chart:
    def points(record: Record) -> Iterator[Point]:
        for number, health in enumerate(_windows(record), 1):
            value = None if health is None else value_of(health)
            if value is not None:
                yield Point(x=number, y=value, text=f"{format_figure(value)} {unit}")

    series = each_record(records, points)
    values = [point.y for one in series for point in one.points]
    ends = f"From {format_figure(min(values))} to {format_figure(max(values))} {unit}. " if values else ""
    return Chart(
        kind=kind,
        title=title,
        about=title_of(records),
        words=f"{ends}A point is one process of a row: the first of every batch size, then the second, and so on.",
        x=Axis(label="throughput window, in order", scale="from_zero", reads="window {}"),
        y=Axis(label=unit, scale="from_zero"),
        series=series,
    )


def _windows(record: Record) -> Iterator[Health | None]:
    """Yield the device's health in every window, the first of each row, then the second, and so on.

    Rows take turns in this order, but for one that the search timed by itself, before the others: when a window was is
    not in the record.
    """
    rounds = max((len(row.timings) for row in record.rows), default=0)
    for number in range(rounds):
        yield from (row.timings[number].health for row in record.rows if number < len(row.timings))
