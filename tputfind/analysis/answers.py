"""The answers of a record: which batch to deploy. Pure functions of its rows."""

from collections.abc import Iterable, Sequence
from math import inf, isqrt
from typing import Final, Literal, NamedTuple

from tputfind import stats
from tputfind.record.environment import Capabilities
from tputfind.record.record import Edge, Record, Row, Trial, check_record
from tputfind.record.spec import Spec
from tputfind.record.types import REPEATABILITY
from tputfind.units import format_about, format_estimate

Best = Literal["fastest", "knee", "largest"]
Answer = Literal[Best, "safe"]
KNEE_SHARE: Final = 0.95
PROVISIONAL_SHARE: Final = 0.25
"""Relative half-width of the throughput from which the answer to deploy is provisional."""
THROTTLED_SHARE: Final = 0.01
"""Clocks reduced for a smaller fraction of the window change no figure visibly."""


class RowHealth(NamedTuple):
    """The device over all windows of a row. Unknown is None; ``slowed`` as in ``Health``, for all windows together."""

    sm_clock_mhz: float | None
    sm_clock_max_mhz: float | None
    power_w: float | None
    energy_mj_per_sample: float | None
    temperature_c: float | None
    slowed: dict[str, float]

    @property
    def throttled(self) -> bool:
        return any(share >= THROTTLED_SHARE for share in self.slowed.values())


def compile_s(record: Record, row: Row) -> float | None:
    """Return the longest compile time of a row's step in any process, in seconds; None without compilation."""
    trials = [trial.compiled for trial in record.trials if trial.batch_size == row.batch_size]
    compiled = [*trials, *(timing.compiled for timing in row.timings)]
    return max((one.seconds for one in compiled if one is not None), default=None)


def fastest(rows: Sequence[Row]) -> Row | None:
    """Return the row of the highest throughput, the smallest batch among equals; None if no row was timed."""
    timed = [row for row in rows if row.samples_per_s is not None]
    return max(timed, key=lambda row: (row.samples_per_s or 0.0, -row.batch_size), default=None)


def knee(rows: Sequence[Row]) -> Row | None:
    """Return the smallest batch with 95 % of the best throughput; None for one row: larger batches might gain."""
    timed = [row.samples_per_s for row in rows if row.samples_per_s is not None]
    if len(timed) < 2:
        return None
    enough = KNEE_SHARE * max(timed)
    return min((row for row in rows if (row.samples_per_s or 0.0) >= enough), key=lambda row: row.batch_size)


def gaps_near(record: Record, best: Row) -> list[int]:
    """Return the batch sizes between the fastest row and the next timed ones, of a run that was cut short.

    Any of them may be faster.
    """
    whole = record.finished is not None and record.spec.budget_s is None
    if whole or record.spec.batch_sizes is not None:
        return []
    known = [row.batch_size for row in record.rows]
    below = max((size for size in known if size < best.batch_size), default=0)
    above = min((size for size in known if size > best.batch_size), default=inf)
    return [
        size for size in record.spec.sizes_up_to(record.largest_batch) if below < size < above and size not in known
    ]


def answers(record: Record) -> list[tuple[Answer, Row]]:
    """Return the rows that answer a question, each with the name of its answer; untimed rows are left out."""
    timed = [row for row in record.rows if row.samples_per_s is not None]
    named: tuple[tuple[Answer, Row | None], ...] = (
        ("fastest", fastest(timed)),
        ("knee", knee(timed)),
        ("largest", _row_of(record.edge, timed)),
        ("safe", _row_of(record.safe, timed)),
    )
    return [(name, row) for name, row in named if row is not None]


def _row_of(edge: Edge | None, rows: Sequence[Row]) -> Row | None:
    largest = edge.largest_batch if edge is not None and edge.closed else None
    return next((row for row in rows if row.batch_size == largest), None)


def largest_of(edge: Edge | None) -> str:
    """Return the largest batch as text, ``≥976`` if larger ones may fit; empty if there was no search."""
    if edge is None:
        return ""
    return f"{'' if edge.closed and edge.limited_by != 'cap' else '≥'}{edge.largest_batch}"


def best_under(rows: Sequence[Row], slo_ms: float, percent: float) -> Row | None:
    """Return the fastest row whose latency percentile meets the SLO; one with too few samples for it does not count."""
    known = [(row, stats.percentile(row.latency_ms, percent)) for row in rows]
    return fastest([row for row, latency_ms in known if latency_ms is not None and latency_ms <= slo_ms])


def deployable(record: Record) -> tuple[Row, ...]:
    """Return the rows up to the safe batch, if one of them was timed; else all."""
    most = record.safe.largest_batch if record.safe is not None else 0
    safe = tuple(row for row in record.rows if row.samples_per_s is not None and row.batch_size <= most)
    return safe or record.rows


def fastest_within_slo(record: Record) -> Row | None:
    """Return the row of the highest throughput among the deployable ones that meet the record's SLO, if it has one."""
    spec, rows = record.spec, deployable(record)
    return fastest(rows) if spec.slo_ms is None else best_under(rows, spec.slo_ms, spec.percentile)


def slo_of(spec: Spec) -> str:
    """Name the SLO of a spec, ``p99 within --slo 20 ms``; empty without an SLO."""
    return "" if spec.slo_ms is None else f"p{spec.percentile:g} within --slo {spec.slo_ms:.10g} ms"


def none_within_slo(records: Sequence[Record]) -> str:
    """Return the predicate that no row fulfils: ``has p99 within --slo 20 ms``, or ``is known to have`` it."""
    late = all(too_late(record.spec, row) for record in records for row in record.rows)
    return f"{'has' if late else 'is known to have'} {slo_of(records[0].spec)}"


def too_late(spec: Spec, row: Row) -> bool:
    """Whether the median latency, or a lower percentile that is asked for, is above the SLO, and so all higher ones."""
    return (stats.percentile(row.latency_ms, min(50, spec.percentile)) or 0.0) > (spec.slo_ms or inf)


def to_deploy(record: Record) -> Row | None:
    """Return the row of the batch to deploy: the best that meets the SLO if there is one, else the knee.

    Among rows within 5 % of the best, the knee is the smallest: it has the lowest latency and takes the least memory.
    Rows above the safe batch do not count, if others were timed. None if no row was timed or meets the SLO.

    Raises:
        BadRequest: ``record`` is not a Record.
    """
    check_record("record", record)
    if record.spec.slo_ms is not None:
        return fastest_within_slo(record)
    return knee(deployable(record)) or fastest(deployable(record))


def peak_bytes(record: Record, measured: Row | Trial) -> int | None:
    """Return the bytes that a memory limit counts: reserved ones, or on the host address space, or resident ones."""
    return needed_bytes(record.environment.can, measured.peak_allocated_bytes, measured.peak_reserved_bytes)


def needed_bytes(can: Capabilities, allocated_bytes: int | None, reserved_bytes: int | None) -> int | None:
    """Return which of the two peaks of a device with these capabilities is the memory needed: see ``peak_bytes``."""
    return reserved_bytes if reserved_bytes is not None or can.own_memory else allocated_bytes


def throughput_interval(row: Row) -> stats.Interval | None:
    """Return the confidence interval of the throughput, in samples/s; None if there are too few samples.

    ``REPEATABILITY`` is added, which samples cannot show. The throughput is its middle, so that it may reach below 0.
    """
    interval_ms = stats.mean_interval([timing.device_ms for timing in row.timings])
    if interval_ms is None or row.samples_per_s is None:
        return None
    # The relative width is that of the time per batch: 1 / x has no interval of its own if x may be 0.
    half = stats.widen_interval(interval_ms, REPEATABILITY).half_width
    return stats.Interval(row.samples_per_s * (1 - half), row.samples_per_s * (1 + half))


def is_single_process(*rows: Row) -> bool:
    """Whether one of the rows was timed in only one process, so that the variation between processes is unknown."""
    return min(len([timing for timing in row.timings if timing.device_ms]) for row in rows) <= 1


def ran_in_all_processes(record: Record, row: Row) -> bool:
    """Whether a row was timed in all requested processes, or needs no more."""
    return row.ended_by in ("known", "alike") or len(row.timings) >= record.spec.row_processes


def ran_in_one_of_several(record: Record, row: Row) -> bool:
    """Whether a row was timed in one of several processes, because no answer rests on it or the run ended, so that the
    variation between processes is unknown.
    """
    return len(row.timings) == 1 < record.spec.row_processes


def known_interval(record: Record, row: Row) -> stats.Interval | None:
    """Return a row's throughput interval as shown; None with one of several processes: it would look too narrow."""
    return None if ran_in_one_of_several(record, row) else throughput_interval(row)


def scatter(rows: Iterable[Row]) -> float:
    """Return the largest half-width of the rows' intervals, as a fraction; 0 if none is known."""
    return max((one.half_width for row in rows if (one := throughput_interval(row))), default=0.0)


def rate_ratio_interval(above: Row, below: Row, confidence: float = stats.CONFIDENCE) -> stats.Interval | None:
    """Return the interval of one row's throughput over another's, with ``REPEATABILITY``; None if it is unknown."""
    spans = [[timing.device_ms for timing in row.timings] for row in (below, above)]
    interval = stats.ratio_interval(spans[0], spans[1], REPEATABILITY, confidence)
    if interval is None:
        return None
    batches = above.samples_per_step / below.samples_per_step
    return stats.Interval(interval.low * batches, interval.high * batches)


def format_rate(record: Record, row: Row) -> str:
    """Format a row's samples/s with the digits that its interval supports; empty if it was not timed."""
    if row.samples_per_s is None:
        return ""
    return _format_of_row(record, row, row.samples_per_s, throughput_interval(row))


def format_latency(record: Record, row: Row, latency_ms: float) -> str:
    return _format_of_row(record, row, latency_ms, latency_interval_ms(row))


def format_device_time(record: Record, row: Row, device_ms: float) -> str:
    return _format_of_row(record, row, device_ms, throughput_interval(row))


def _format_of_row(record: Record, row: Row, value: float, interval: stats.Interval | None) -> str:
    """Format a figure of a row with the digits that an interval supports; ``~5200`` for one process of several."""
    if ran_in_one_of_several(record, row):
        return format_about(value)
    return format_estimate(value, None if interval is None else interval.half_width)


def latency_interval_ms(row: Row) -> stats.Interval | None:
    """Return the confidence interval of the median latency, with ``REPEATABILITY``; None if it is unknown."""
    interval_ms = stats.median_interval([timing.latency_ms for timing in row.timings])
    if interval_ms is None or row.failure is not None:
        return None
    return stats.widen_interval(interval_ms, REPEATABILITY)


def health(row: Row) -> RowHealth | None:
    """Return the device's health during a row, each process weighted by the length of its window; None if unknown."""
    known = [(timing.health, sum(timing.device_ms) / 1000) for timing in row.timings if timing.health is not None]
    if not known:
        return None
    metered = [(seen.power_w * seconds, seconds) for seen, seconds in known if seen.power_w is not None]
    samples = (
        sum(len(t.device_ms) for t in row.timings if t.health and t.health.power_w is not None) * row.samples_per_step
    )
    energy_j, metered_s = sum(energy for energy, _ in metered), sum(seconds for _, seconds in metered)
    reasons = {name for seen, _ in known for name in seen.slowed}
    return RowHealth(
        sm_clock_mhz=_weighted_mean([(seen.sm_clock_mhz, seconds) for seen, seconds in known]),
        sm_clock_max_mhz=_largest(seen.sm_clock_max_mhz for seen, _ in known),
        power_w=energy_j / metered_s if metered_s else None,
        energy_mj_per_sample=energy_j * 1000 / samples if samples else None,
        temperature_c=_largest(seen.temperature_c for seen, _ in known),
        slowed={
            name: _weighted_mean([(seen.slowed.get(name, 0.0), seconds) for seen, seconds in known]) or 0.0
            for name in sorted(reasons)
        },
    )


def threads(record: Record) -> int | None:
    environment = record.environment
    return environment.torch_threads or None if environment.can.is_cpu else None


def others_busy_cores(row: Row) -> float | None:
    """Return how many host cores other processes kept busy while a row was timed; None if unknown."""
    return _weighted_mean([(timing.others_busy_cores, sum(timing.device_ms)) for timing in row.timings])


def all_busy_share(row: Row) -> float | None:
    """Return the fraction of a row's windows during which all devices worked; None for a device alone."""
    return _weighted_mean([(timing.all_busy_share, sum(timing.device_ms)) for timing in row.timings])


def _weighted_mean(values: Sequence[tuple[float | None, float]]) -> float | None:
    told = [(value, weight) for value, weight in values if value is not None]
    whole = sum(weight for _, weight in told)
    return sum(value * weight for value, weight in told) / whole if whole else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


_TIMED_BESIDE: Final = 2
"""Divisors that a run times in addition to the powers of two."""


class Reached(NamedTuple):
    """How to reach an effective batch: the row's batch size, accumulated ``accumulate`` times on each device.

    ``repeats`` is the number of steps of the row. Each has an optimizer step, of which only one is needed: with
    several, ``step_ms`` is an upper bound, and the row's throughput a lower bound, for accumulation.
    """

    row: Row
    accumulate: int
    devices: int
    repeats: int

    @property
    def step_ms(self) -> float:
        """Time from one optimizer step to the next, in ms."""
        spans_ms = self.row.device_ms
        return self.repeats * sum(spans_ms) / len(spans_ms)


def reach(record: Record, size: int) -> Reached | None:
    """Return the fastest row that reaches an effective batch; None if no timed batch size divides it."""
    held = [peak_bytes(record, one) or 0 for one in record.attempts if one.failure is None]
    if record.edge is not None and record.edge.limited_by == "memory" and any(held):
        capacity_bytes: int | None = max(held)  # the context and libraries have the rest of the device
    else:
        here = record.environment
        capacity_bytes = record.spec.memory_limit_bytes or here.memory_free_bytes or here.memory_total_bytes
    row = fastest(rows_that_reach(record.spec, record.rows, size, capacity_bytes))
    if row is None:
        return None
    devices = record.spec.device_count
    accumulate = size // (row.batch_size * devices)
    return Reached(row, accumulate, devices, accumulate // record.spec.accumulate)


def rows_that_reach(spec: Spec, rows: Sequence[Row], size: int, capacity_bytes: int | None = None) -> list[Row]:
    """Return the timed rows whose steps reach an effective batch, once or repeated.

    Accumulation keeps gradients while it computes the next batch, which the steps of a row may not have done: if a row
    is to be repeated, its peak must leave room for them.
    """
    found = []
    for row in rows:
        repeats, rest = divmod(size, row.batch_size * spec.accumulate * spec.device_count)
        if repeats and not rest and row.samples_per_s is not None:
            held = spec.accumulate > 1 or repeats == 1 or capacity_bytes is None
            peak = row.peak_reserved_bytes or row.peak_allocated_bytes or 0
            more = sum(row.parameter_bytes.values()) if row.gradient_bytes is None else row.gradient_bytes
            if held or peak + more <= (capacity_bytes or 0):
                found.append(row)
    return found


def sizes_that_divide(spec: Spec, largest: int) -> list[int]:
    """Return the largest batch sizes, in multiples of the granularity, that divide the effective batch of a spec."""
    each, rest = divmod(spec.effective_batch or 0, spec.device_count * spec.accumulate)
    if rest or not each:
        return []
    small = [size for size in range(1, isqrt(each) + 1) if each % size == 0]
    divisors = sorted({*small, *(each // size for size in small)})
    return [size for size in divisors if size <= largest and size % spec.granularity == 0][-_TIMED_BESIDE:]
