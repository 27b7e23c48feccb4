"""Records as one table: a pandas DataFrame, and its CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pandas as pd

from tputfind.analysis.answers import (
    THROTTLED_SHARE,
    compile_s,
    health,
    host_bound,
    latency_interval_ms,
    throughput_interval,
)
from tputfind.record.record import Record, Row
from tputfind.report.escaping import spreadsheet_text
from tputfind.stats import mean, percentile, standard_deviation
from tputfind.units import MIB

COLUMNS: Final[dict[str, str]] = {
    "model": "string",
    "phase": "string",
    "device": "string",
    "device_name": "string",
    "dtype": "string",
    "layout": "string",
    "mode": "string",
    "input_shape": "string",
    "batch_size": "Int64",
    "status": "string",
    "batches": "Int64",
    "samples_per_s": "Float64",
    "samples_per_s_ci_low": "Float64",
    "samples_per_s_ci_high": "Float64",
    "latency_batches": "Int64",
    "latency_ms_mean": "Float64",
    "latency_ms_std": "Float64",
    "latency_ms_p50": "Float64",
    "latency_ms_p90": "Float64",
    "latency_ms_p95": "Float64",
    "latency_ms_p99": "Float64",
    "device_ms_mean": "Float64",
    "enqueue_ms_mean": "Float64",
    "host_bound": "boolean",
    "peak_allocated_mib": "Float64",
    "peak_reserved_mib": "Float64",
    "sm_clock_mhz": "Float64",
    "power_w": "Float64",
    "energy_mj_per_sample": "Float64",
    "throttled": "boolean",
    "notices": "string",
    "processes": "Int64",
    "latency_ms_p50_ci_low": "Float64",
    "latency_ms_p50_ci_high": "Float64",
    "warmup_steps": "Int64",
    "warmup_s": "Float64",
    "first_step_ms": "Float64",
    "temperature_c": "Float64",
    "throttle_reasons": "string",
    "transfer": "string",
    "copy_in_ms": "Float64",
    "copy_out_ms": "Float64",
    "compile_s": "Float64",
    "graphs": "Int64",
    "started": "string",
    "torch": "string",
}
"""The columns in order, each with its pandas type. All of them take empty cells: unknown is empty, never 0."""


def frame(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per record and batch size, with the columns of ``COLUMNS``."""
    cells = [_cells(record, row) for record in records for row in record.rows]
    table = {name: pd.Series([row.get(name) for row in cells], dtype=kind) for name, kind in COLUMNS.items()}
    return pd.DataFrame(table)


def to_csv(records: Sequence[Record]) -> bytes:
    """Return the table as CSV, figures with six significant digits."""
    table = frame(records)
    for name, kind in COLUMNS.items():
        if kind == "string":
            table[name] = table[name].map(spreadsheet_text, na_action="ignore")
    text: str = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text.encode()


def _cells(record: Record, row: Row) -> dict[str, object]:
    """Return what is known of a row; a failed row has no figures."""
    spec = record.spec
    known: dict[str, object] = {
        "model": spec.model,
        "phase": spec.phase,
        "device": record.environment.device,
        "device_name": record.environment.device_name,
        "dtype": spec.dtype,
        "layout": spec.layout,
        "mode": spec.mode,
        "input_shape": record.input_shape,
        "batch_size": row.batch_size,
        "status": row.status,
        "transfer": spec.transfer,
        "started": record.started,
        "torch": record.environment.torch,
        "notices": ";".join(notice.kind for notice in record.notices if row.batch_size in notice.batch_sizes) or None,
    }
    if row.failure is not None:
        return known
    latency_ms, timings = row.latency_ms, row.timings
    return (
        known
        | _intervals(row)
        | _health(row)
        | {
            "batches": len(row.device_ms),
            "samples_per_s": row.samples_per_s,
            "latency_batches": len(latency_ms),
            "latency_ms_mean": mean(latency_ms),
            "latency_ms_std": standard_deviation(latency_ms),
            **{f"latency_ms_p{percent}": percentile(latency_ms, percent) for percent in (50, 90, 95, 99)},
            "device_ms_mean": mean(row.device_ms),
            "enqueue_ms_mean": mean(row.enqueue_ms),
            "host_bound": host_bound(row),
            "peak_allocated_mib": _mib(row.peak_allocated_bytes),
            "peak_reserved_mib": _mib(row.peak_reserved_bytes),
            "processes": len(timings),
            "warmup_steps": sum(timing.warmup_steps for timing in timings) or None,
            "warmup_s": _added(timing.warmup_s for timing in timings),
            "first_step_ms": _middle(timing.first_step_ms for timing in timings),
            "copy_in_ms": _middle(timing.copy_in_ms for timing in timings),
            "copy_out_ms": _middle(timing.copy_out_ms for timing in timings),
            "compile_s": compile_s(record, row),
            "graphs": max((timing.compiled.graphs for timing in timings if timing.compiled), default=None),
        }
    )


def _intervals(row: Row) -> dict[str, object]:
    found = {"samples_per_s": throughput_interval(row), "latency_ms_p50": latency_interval_ms(row)}
    known = {name: interval.above_zero for name, interval in found.items() if interval is not None}
    lows = {f"{name}_ci_low": interval.low for name, interval in known.items()}
    return {**lows, **{f"{name}_ci_high": interval.high for name, interval in known.items()}}


def _health(row: Row) -> dict[str, object]:
    found = health(row)
    if found is None:
        return {}
    return {
        "sm_clock_mhz": found.sm_clock_mhz,
        "power_w": found.power_w,
        "energy_mj_per_sample": found.energy_mj_per_sample,
        "temperature_c": found.temperature_c,
        "throttled": found.throttled,
        "throttle_reasons": ";".join(name for name, share in found.slowed.items() if share >= THROTTLED_SHARE) or None,
    }


def _added(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _middle(values: Iterable[float | None]) -> float | None:
    return percentile([value for value in values if value is not None], 50)


def _mib(count: int | None) -> float | None:
    return None if count is None else count / MIB
