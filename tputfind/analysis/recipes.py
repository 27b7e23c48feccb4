"""Recipes, from lists of dtypes, layouts and modes: which is best, and by how much."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, Literal

import msgspec

from tputfind.analysis.answers import (
    fastest,
    fastest_within_slo,
    format_latency,
    format_rate,
    is_single_process,
    none_within_slo,
    rate_ratio_interval,
    slo_of,
    throughput_interval,
)
from tputfind.record.identity import name_of
from tputfind.record.record import Record, Row
from tputfind.record.spec import Spec
from tputfind.record.types import DTYPES, LAYOUTS, MODES
from tputfind.stats import percentile

LISTED: Final = "dtype", "layout", "allocator", "mode", "instances"
Part = Literal["layout", "mode"]
_PLAIN: Final[dict[Part, str]] = {"layout": "nchw", "mode": "eager"}


def answers(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Yield the answers of one model's recipes; the smallest batch has one, because it shows the overhead of Python."""
    best = best_of(records)
    if best is None:
        if any(fastest(record.rows) for record in records):
            yield "Best recipe", f"no recipe {none_within_slo(records)}"
        return
    yield "Best recipe", _told_of(*best, records)
    timed = [{row.batch_size for row in record.rows if row.samples_per_s is not None} for record in records]
    smallest = min(set.intersection(*filter(None, timed)), default=None)
    if smallest is not None and smallest < best[1].batch_size:
        kept = [tuple(row for row in record.rows if row.batch_size == smallest) for record in records]
        of_smallest = [msgspec.structs.replace(one, rows=rows) for one, rows in zip(records, kept, strict=True)]
        at_smallest = best_of(of_smallest)
        if at_smallest is not None:
            yield f"At batch {smallest}", _told_of(*at_smallest, of_smallest)
    for part in ("mode", "layout"):
        compared = list(_speedup_lines(part, records))
        if compared:
            yield f"By {part}", "; ".join(compared)


def best_of(records: Sequence[Record]) -> tuple[Record, Row] | None:
    """Return the fastest record and row within the SLO, if any; of those that tie, the simplest, then smallest."""
    return min(_alike(records), key=lambda one: (simplicity(one[0].spec), one[1].batch_size), default=None)


def simplicity(spec: Spec) -> tuple[int, ...]:
    """Return a key that is smaller for simpler recipes: eager before graph before compiler, then the plainer dtype."""
    mode = MODES.index(spec.mode) if spec.mode in MODES else len(MODES)
    return mode, spec.instances, DTYPES.index(spec.dtype), LAYOUTS.index(spec.layout)


def _alike(records: Sequence[Record]) -> list[tuple[Record, Row]]:
    """Return the record and the row of the highest throughput within the SLO, and all that tie with it."""
    known = [(record, row) for record in records if (row := fastest_within_slo(record)) is not None]
    top = max((row for _, row in known), key=lambda row: row.samples_per_s or 0.0, default=None)
    return [(record, row) for record, row in known if top and (row is top or _is_tie(top, row))]


def names_of(records: Sequence[Record]) -> list[str]:
    """Name recipes by the parts that differ: ``nhwc eager``, ``plain`` if others only add words; empty if none do."""
    differing = [parts for parts in _parts(records) if len(set(parts)) > 1]
    names = [" ".join(filter(None, parts)) for parts in zip(*differing, strict=True)]
    plain = "instances=1" if all(name.startswith("instances=") for name in filter(None, names)) else "plain"
    return [name or plain for name in names] or [""] * len(records)


def common_of(records: Sequence[Record]) -> str:
    """Name the parts common to all recipes: ``fp16 nchw``; empty if there are none."""
    return " ".join(parts[0] for parts in _parts(records) if len(set(parts)) == 1)


def _parts(records: Sequence[Record]) -> list[tuple[str, ...]]:
    return list(zip_longest(*(name_of(record.spec).split() for record in records), fillvalue=""))


def _told_of(record: Record, row: Row, records: Sequence[Record]) -> str:
    plain = _like(record.spec, records, **_PLAIN)
    against = [] if plain in (None, record) else list(_speedups(record, plain, name_of(plain.spec)))
    alike = len(_alike(records))
    simplest = [f"the simplest of {alike} that tie within the noise"] if alike > 1 else []
    figures = f"{name_of(record.spec)}, batch {row.batch_size}: {format_rate(record, row)} samples/s"
    return ", ".join([figures, *_latency(record, row), *against, *simplest])


def _latency(record: Record, row: Row) -> Iterator[str]:
    latency_ms = percentile(row.latency_ms, record.spec.percentile)
    if record.spec.slo_ms is not None and latency_ms is not None:
        percent, _, limit = slo_of(record.spec).partition(" ")
        yield f"{percent} {format_latency(record, row, latency_ms)} ms {limit}"


def _speedup_lines(part: Part, records: Sequence[Record]) -> Iterator[str]:
    """Yield for every recipe its speedup over the same recipe with the plain layout or mode."""
    for record, name in zip(records, names_of(records), strict=True):
        plain = _like(record.spec, records, **{part: _PLAIN[part]})
        if plain not in (None, record):
            yield from (f"{name} {told}" for told in _speedups(record, plain, _PLAIN[part]))


def _like(spec: Spec, records: Sequence[Record], **parts: str) -> Record | None:
    """Return the record whose recipe differs from a spec's in these parts only, or None."""
    wanted = [parts.get(name, getattr(spec, name)) for name in LISTED]
    return next((one for one in records if [getattr(one.spec, name) for name in LISTED] == wanted), None)


def _speedups(record: Record, plain: Record, what: str) -> Iterator[str]:
    """Yield the throughput of a record's best batch over that of another's, if both have one within the SLO."""
    here, there = fastest_within_slo(record), fastest_within_slo(plain)
    if here is None or there is None:
        return
    ratio = (here.samples_per_s or 0.0) / (there.samples_per_s or 1.0)
    alike = _is_tie(here, there)
    times = f"{ratio:.2f}" if alike or f"{ratio:.2f}" != "1.00" else f"{ratio:.3f}"
    doubt = " (within the noise)" if alike else " (timed in one process)" if is_single_process(here, there) else ""
    yield f"{times} times {what}{doubt}"


def _is_tie(here: Row, there: Row) -> bool:
    """Whether the 95 % interval of two throughputs' ratio includes 1, or, if it is unknown, whether theirs overlap."""
    interval = rate_ratio_interval(here, there)
    if interval is not None:
        return interval.low <= 1 <= interval.high
    one, other = throughput_interval(here), throughput_interval(there)
    return one is not None and other is not None and one.low <= other.high and other.low <= one.high
