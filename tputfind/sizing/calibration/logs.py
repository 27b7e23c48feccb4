"""Calibration with logs of a real server: its overheads, and the error of predicted latencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from tputfind.errors import BadRequest
from tputfind.record.record import Notice, Record
from tputfind.record.types import Amount, Count
from tputfind.sizing.calibration.overheads import (
    Bench,
    Estimate,
    Floats,
    Found,
    Log,
    batches_of,
    fit_to_batches,
    fit_to_latencies,
    steady,
)
from tputfind.sizing.engine.servers import Server
from tputfind.units import format_figure, printable

_FEWEST: Final = 100
_MOST_REQUESTS: Final = 10_000
"""Requests of a log that are used, from its beginning; more would take long for little gain."""
_HEAVY: Final = 0.65
"""Utilization above which logs are predicted, but not fitted."""
_MIDDLING: Final = 0.25
"""Least utilization of the busiest log; light load alone does not separate costs per batch from costs per request."""
_UNSURE: Final = 0.2
_OFF: Final = 0.1
_INTERVAL: Final = 0.025, 0.975
_LIKELY: Final = 0.05, 0.95
_SHARES: Final = 0.5, 0.95, 0.99
_SEEDS: Final = 3
_CLOCKS_MS: Final = 0.5
_LIMIT: Final = "--max-batch-size is the largest batch of the server, or --max-ongoing of a replica"
COLUMNS: Final = "sent", "answered", "begun", "ended"
"""Columns of a log; the last two go together, and may be missing."""


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """One overhead of a server, in ms, with its 95 % confidence interval."""

    value_ms: Amount
    low_ms: Amount
    high_ms: Amount


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of latencies, in ms."""

    p50_ms: Amount
    p95_ms: Amount
    p99_ms: Amount


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One log: observed latencies, and those predicted with the estimated overheads.

    ``load`` is its rate over that of the device with full batches. Overheads are estimated from the logs that are
    ``fitted``; the others have a heavier load, and show the error of the prediction.
    """

    name: str
    requests: Count
    rate_per_s: Amount
    load: Amount
    fitted: bool
    observed: Percentiles
    predicted: Percentiles

    @property
    def off(self) -> tuple[float, float, float]:
        """The relative errors of the predicted p50, p95 and p99; positive if predictions are too high."""
        pairs = zip(msgspec.structs.astuple(self.predicted), msgspec.structs.astuple(self.observed), strict=True)
        p50, p95, p99 = (predicted / observed - 1 for predicted, observed in pairs)
        return p50, p95, p99


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The overheads of a real server, estimated from its logs.

    ``beside`` is the time in transit, during which neither the queue nor the device is held up. ``found_by`` is whether
    the estimate rests on the start and end of batches, or on latencies alone.
    """

    per_batch: Overhead
    per_request: Overhead
    per_answer: Overhead
    beside: Overhead
    found_by: Literal["batches", "latencies"]
    runs: tuple[Run, ...]


class Calibration(NamedTuple):
    """Overheads of a server: the likeliest estimate, those of a fast and a slow server, and the evidence of logs."""

    estimate: Estimate
    faster: Estimate
    slower: Estimate
    observed: Observed


def log_of(name: str, columns: Mapping[str, Sequence[float]], lines: Sequence[str]) -> Log:
    """Return the log from its columns, in seconds; ``lines`` name the rows in errors.

    Raises:
        ValueError: there are too few rows, or times that contradict each other.
    """
    if len(lines) < _FEWEST:
        raise ValueError(f"{len(lines)} requests are too few: at least {_FEWEST} are needed")
    order = np.argsort(np.array(columns["sent"]), kind="stable")
    start = columns["sent"][int(order[0])]
    times = {word: (np.array(told)[order] - start) * 1000 for word, told in columns.items()}
    words = [word for word in ("sent", "begun", "ended", "answered") if word in times]
    for before, after in pairwise(words):
        early = np.flatnonzero(times[after] < times[before] - (_CLOCKS_MS if len(words) > len(COLUMNS[:2]) else 0))
        if len(early):
            raise ValueError(f"{lines[int(order[early[0]])]}: {after} before it was {before}")
    if times["sent"][-1] <= 0:
        raise ValueError("all requests were sent at the same time")
    if times["answered"].min() <= 0:
        raise ValueError("answers take no time")
    return Log(name, times["sent"], times["answered"], times.get("begun"), times.get("ended"))


def calibrate(record: Record, server: Server, cap: int, logs: Sequence[Log], seed: int) -> Calibration:
    """Return the overheads of a server from its logs, each of one device like that of the record.

    ``server`` has no overheads and no limit on its queue, because all requests of a log were answered.

    Raises:
        BadRequest: the logs are too few or too light, or do not fit the record.
    """
    logs = [log.cut(slice(_MOST_REQUESTS)) for log in logs]
    bench = Bench(record, server, cap, seed)
    most_per_s = 1000 * bench.service().per_ms(cap)
    light = [log for log in logs if log.rate_per_s <= _HEAVY * most_per_s]
    _check(bench, logs, light, most_per_s)
    direct = all(log.begun_ms is not None for log in light)
    by_their_batches = fit_to_batches(bench, light) if direct else None
    found = by_their_batches or fit_to_latencies(bench, light)
    lows, highs = np.maximum(np.quantile(found.draws, _INTERVAL, axis=0), 0).tolist()
    each = zip(Estimate._fields, found.estimate, lows, highs, strict=True)
    observed = Observed(
        **{name: Overhead(value_ms=value, low_ms=low, high_ms=high) for name, value, low, high in each},
        found_by="batches" if by_their_batches else "latencies",
        runs=tuple(
            Run(
                name=printable(log.name),
                requests=len(log.sent_ms),
                rate_per_s=log.rate_per_s,
                load=log.rate_per_s / most_per_s,
                fitted=log.rate_per_s <= _HEAVY * most_per_s,
                observed=_percentiles([log.latency_ms]),
                predicted=_percentiles(
                    [bench.latencies_ms(log.sent_ms, found.estimate, (seed,)) for seed in range(_SEEDS)]
                ),
            )
            for log in logs
        ),
    )
    faster, slower = _extremes(bench, found)
    return Calibration(found.estimate, faster, slower, observed)


def _check(bench: Bench, logs: Sequence[Log], light: Sequence[Log], most_per_s: float) -> None:
    """Raise BadRequest if the logs cannot determine the overheads."""
    middling = f"log about {format_figure(most_per_s / 2)} requests/s too: half of what the device can do"
    for log in logs:
        name = f"--observed {printable(log.name)}"
        if log.rate_per_s >= most_per_s:
            raise BadRequest(
                f"{name}: {log.rate_per_s / most_per_s:.0%} of what one device can do by the record",
                f"log one device; {_LIMIT}",
            )
        if log.begun_ms is not None and (largest := int(batches_of(log).sizes.max())) > bench.cap:
            raise BadRequest(
                f"{name}: has batches of {largest}, and {bench.cap} is the largest here", f"{_LIMIT}; measure it too"
            )
    if not light:
        raise BadRequest(f"--observed: no log has {_HEAVY:.0%} or less of what the device can do", middling)
    heaviest = max(log.rate_per_s for log in light) / most_per_s
    if heaviest < _MIDDLING:
        raise BadRequest(
            f"--observed: {heaviest:.0%} of what the device can do is too light a load to separate the overhead "
            "of a batch from that of a request",
            f"{middling}; times are in seconds",
        )


def _extremes(bench: Bench, found: Found) -> list[Estimate]:
    """Return the overheads of a fast and of a slow server, which bound the time of full batches with 90 %.

    Raises:
        BadRequest: the two are too far apart.
    """
    full_ms = found.draws[:, 0] + bench.cap * found.draws[:, 1]
    low_ms, high_ms = np.quantile(full_ms, _LIKELY)
    if (high_ms - low_ms) / 2 > _UNSURE * bench.service().mean_ms(bench.cap):
        raise BadRequest(
            f"--observed: what the server adds to a batch of {bench.cap} lies anywhere from {max(0.0, low_ms):.3g} to "
            f"{high_ms:.3g} ms",
            "log more requests, or a load at which batches are larger; or plan with a smaller --max-batch-size",
        )
    order = np.argsort(full_ms)
    picked = [found.draws[order[int(share * len(order))]] for share in _LIKELY]
    return [Estimate(*np.maximum(draw, 0).tolist()) for draw in picked]


def _percentiles(latencies: Sequence[Floats]) -> Percentiles:
    p50, p95, p99 = np.mean([np.quantile(steady(one), _SHARES) for one in latencies], axis=0).tolist()
    return Percentiles(p50_ms=p50, p95_ms=p95, p99_ms=p99)


def notices_of_logs(observed: Observed) -> Iterator[Notice]:
    """Yield a notice if predictions are far off the logs."""
    off = [run for run in observed.runs if abs(run.off[2]) > _OFF]
    if off:
        worst = max(off, key=lambda run: abs(run.off[2]))
        yield Notice(
            kind="observed_off",
            seen=f"predicted p99 of {worst.name} is {worst.off[2]:+.0%} off",
            cause="the server may batch by another rule than simulated, or its model run slower than the record's",
            advice="check --batcher, --delay and --max-batch-size; log when batches began and ended",
        )
