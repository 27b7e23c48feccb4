"""The figures of a row, each declared once: name with unit, type, function, and place in tables."""

from collections.abc import Callable, Iterable
from statistics import median
from typing import Final, Literal, NamedTuple

from tputfind.analysis import answers
from tputfind.record import identity
from tputfind.record.record import Record, Row, host_bound
from tputfind.stats import Interval, mean, percentile, standard_deviation
from tputfind.units import MIB, format_bytes, format_figure

Value = str | int | float | bool | None
Kind = Literal["string", "Int64", "Float64", "boolean"]
"""Types of pandas that allow empty cells: an unknown figure is empty, never 0."""
Room = Literal["any", "compiled", "wide", "page"]
"""The tables that show a column: any; those of compiled models; wide ones and Markdown; the page alone."""


class Shown(NamedTuple):
    """How tables show a column; a narrow terminal drops columns by ``drop``, first those that follow from others."""

    place: int
    heading: str
    room: Room = "any"
    drop: int = 0


class Column(NamedTuple):
    """A figure of a row; None if unknown.

    A failed row has only the columns with ``of_failed``. A column without ``shown`` is in no table; ``text`` formats
    the figure there, by default with four significant digits.
    """

    name: str
    kind: Kind
    find: Callable[[Record, Row], Value]
    of_failed: bool = False
    in_csv: bool = True
    shown: Shown | None = None
    text: Callable[[Record, Row, float], str] = lambda _record, _row, value: format_figure(value)

    def value(self, record: Record, row: Row) -> Value:
        found = self.find(record, row) if self.of_failed or row.failure is None else None
        return float(found) if self.kind == "Float64" and found is not None else found

    def cell(self, record: Record, row: Row) -> tuple[str, float | None]:
        value = self.value(record, row)
        return ("", None) if value is None else (self.text(record, row, float(value)), float(value))


def _column_of_all_rows(name: str, kind: Kind, find: Callable[[Record, Row], Value]) -> Column:
    return Column(name, kind, find, of_failed=True)


def _bound(
    find: Callable[[Record, Row], Interval | None], end: Literal["low", "high"]
) -> Callable[[Record, Row], Value]:
    def value(record: Record, row: Row) -> Value:
        interval = find(record, row)
        return None if interval is None else getattr(interval.above_zero, end)

    return value


def _latency(percent: float) -> Callable[[Record, Row], Value]:
    return lambda _record, row: percentile(row.latency_ms, percent)


def _health_figure(find: Callable[[answers.RowHealth], Value]) -> Callable[[Record, Row], Value]:
    def value(_record: Record, row: Row) -> Value:
        seen = answers.health(row)
        return None if seen is None else find(seen)

    return value


def _energy_mj_per_sample(record: Record, row: Row) -> Value:
    seen = answers.health(row)
    # The power is that of the first device, and the samples are those of all.
    return None if seen is None or record.spec.device_count > 1 else seen.energy_mj_per_sample


def _median_interval(record: Record, row: Row) -> Interval | None:
    return None if answers.ran_in_one_of_several(record, row) else answers.latency_interval_ms(row)


def _half_width_percent(record: Record, row: Row) -> Value:
    interval = answers.known_interval(record, row)
    return None if interval is None else 100 * interval.half_width


def _notices(record: Record, row: Row) -> Value:
    return ";".join(notice.kind for notice in record.notices if row.batch_size in notice.batch_sizes) or None


def _throttle_reasons(seen: answers.RowHealth) -> Value:
    return ";".join(name for name, share in seen.slowed.items() if share >= answers.THROTTLED_SHARE) or None


def _sum_if_any(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _mib(count: int | None) -> float | None:
    return None if count is None else count / MIB


COLUMNS: Final = (
    _column_of_all_rows("model", "string", lambda record, _: record.spec.model),
    _column_of_all_rows("phase", "string", lambda record, _: record.spec.phase),
    _column_of_all_rows("device", "string", lambda record, _: record.environment.device),
    _column_of_all_rows("device_name", "string", lambda record, _: record.environment.device_name),
    _column_of_all_rows("dtype", "string", lambda record, _: record.spec.dtype),
    _column_of_all_rows("layout", "string", lambda record, _: record.spec.layout),
    _column_of_all_rows("mode", "string", lambda record, _: record.spec.mode),
    _column_of_all_rows("input_shape", "string", lambda record, _: record.input_shape),
    _column_of_all_rows("batch_size", "Int64", lambda _, row: row.batch_size),
    _column_of_all_rows("status", "string", lambda _, row: row.status),
    Column("batches", "Int64", lambda _, row: len(row.device_ms)),
    Column(
        "samples_per_s",
        "Float64",
        lambda _, row: row.samples_per_s,
        shown=Shown(1, "samples/s"),
        text=lambda record, row, _: answers.format_rate(record, row),
    ),
    Column(
        "samples_per_s_half_width_percent",
        "Float64",
        _half_width_percent,
        in_csv=False,
        shown=Shown(2, "± %"),
        text=lambda _record, _row, percent: f"{percent:.1f}",
    ),
    Column("samples_per_s_ci_low", "Float64", _bound(answers.known_interval, "low")),
    Column("samples_per_s_ci_high", "Float64", _bound(answers.known_interval, "high")),
    Column("latency_batches", "Int64", lambda _, row: len(row.latency_ms)),
    Column("latency_ms_mean", "Float64", lambda _, row: mean(row.latency_ms)),
    Column("latency_ms_std", "Float64", lambda _, row: standard_deviation(row.latency_ms)),
    Column("latency_ms_p50", "Float64", _latency(50), shown=Shown(4, "p50 ms"), text=answers.format_latency),
    Column("latency_ms_p90", "Float64", _latency(90)),
    Column("latency_ms_p95", "Float64", _latency(95)),
    Column("latency_ms_p99", "Float64", _latency(99), shown=Shown(5, "p99 ms", drop=2), text=answers.format_latency),
    Column(
        "device_ms_mean",
        "Float64",
        lambda _, row: mean(row.device_ms),
        shown=Shown(3, "device ms", "wide", drop=1),
        text=answers.format_device_time,
    ),
    Column("enqueue_ms_mean", "Float64", lambda _, row: mean(row.enqueue_ms)),
    Column("host_bound", "boolean", lambda _, row: host_bound(row)),
    Column("peak_allocated_mib", "Float64", lambda _, row: _mib(row.peak_allocated_bytes)),
    Column("peak_reserved_mib", "Float64", lambda _, row: _mib(row.peak_reserved_bytes)),
    Column(
        "peak_mib",
        "Float64",
        lambda record, row: _mib(answers.peak_bytes(record, row)),
        in_csv=False,
        shown=Shown(6, "memory"),
        text=lambda _record, _row, mib: format_bytes(round(mib * MIB)),
    ),
    Column("sm_clock_mhz", "Float64", _health_figure(lambda seen: seen.sm_clock_mhz), shown=Shown(8, "SM MHz", "page")),
    Column("power_w", "Float64", _health_figure(lambda seen: seen.power_w), shown=Shown(9, "W", "page")),
    Column("energy_mj_per_sample", "Float64", _energy_mj_per_sample),
    Column("throttled", "boolean", _health_figure(lambda seen: seen.throttled)),
    _column_of_all_rows("notices", "string", _notices),
    Column("processes", "Int64", lambda _, row: len(row.timings)),
    Column("latency_ms_p50_ci_low", "Float64", _bound(_median_interval, "low")),
    Column("latency_ms_p50_ci_high", "Float64", _bound(_median_interval, "high")),
    Column("warmup_steps", "Int64", lambda _, row: sum(timing.warmup_steps for timing in row.timings) or None),
    Column("warmup_s", "Float64", lambda _, row: _sum_if_any(timing.warmup_s for timing in row.timings)),
    Column("first_step_ms", "Float64", lambda _, row: _middle(timing.first_step_ms for timing in row.timings)),
    Column("temperature_c", "Float64", _health_figure(lambda seen: seen.temperature_c)),
    Column("throttle_reasons", "string", _health_figure(_throttle_reasons)),
    _column_of_all_rows("transfer", "string", lambda record, _: record.spec.transfer),
    Column("copy_in_ms", "Float64", lambda _, row: _middle(timing.copy_in_ms for timing in row.timings)),
    Column("copy_out_ms", "Float64", lambda _, row: _middle(timing.copy_out_ms for timing in row.timings)),
    Column("compile_s", "Float64", answers.compile_s, shown=Shown(7, "compile s", "compiled", drop=3)),
    Column(
        "graphs",
        "Int64",
        lambda _, row: max((timing.compiled.graphs for timing in row.timings if timing.compiled), default=None),
    ),
    _column_of_all_rows("started", "string", lambda record, _: record.started),
    _column_of_all_rows("torch", "string", lambda record, _: record.environment.torch),
    _column_of_all_rows("threads", "Int64", lambda record, _: answers.threads(record)),
    Column("others_busy_cores", "Float64", lambda _, row: answers.others_busy_cores(row)),
    _column_of_all_rows("load", "string", lambda record, _: record.spec.load.replace("_", " ")),
    _column_of_all_rows("busy_devices", "Int64", lambda record, _: record.spec.busy_devices),
    Column("all_busy_share", "Float64", lambda _, row: answers.all_busy_share(row)),
    _column_of_all_rows("cores", "string", lambda record, _: record.environment.cores),
    Column("samples_per_step", "Int64", lambda _, row: row.samples_per_step),
    _column_of_all_rows("parallel", "string", lambda record, _: record.spec.parallel),
    _column_of_all_rows("ranks", "Int64", lambda record, _: record.spec.device_count),
    Column("scaling_efficiency", "Float64", lambda record, row: record.scaling_efficiency(row)),
    _column_of_all_rows("instances", "Int64", lambda record, _: record.spec.instances),
    _column_of_all_rows("optimizer", "string", lambda record, _: identity.optimizer_of(record)),
    _column_of_all_rows("grad_checkpoint", "boolean", lambda record, _: record.spec.grad_checkpoint),
    _column_of_all_rows("allocator", "string", lambda record, _: record.spec.allocator),
)
"""In the order of the CSV. New columns are added at the end."""


def shown_in(*rooms: Room) -> list[tuple[Shown, Column]]:
    """Return the columns of a table with these rooms, from left to right, each with its presentation."""
    found = [(column.shown, column) for column in COLUMNS if column.shown is not None and column.shown.room in rooms]
    return sorted(found, key=lambda pair: pair[0].place)
