"""Notices on a plan: gaps of the record or the demand that affect it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

import msgspec

from tputfind.record.record import Notice, Record
from tputfind.sizing.engine.replications import Outcome
from tputfind.sizing.engine.service_times import FEWEST_SAMPLES, Overheads, pads_batches, timed_rows
from tputfind.sizing.planner.inverse import BESIDE, Edge
from tputfind.sizing.planner.question import PRESETS, Demand
from tputfind.stats import samples_for_percentile
from tputfind.units import format_figure, format_sizes

_TOLD: Final = (
    "host_busy",
    "cut_short",
    "throttled",
    "wide_interval",
    "not_settled",
    "unfinished",
    "host_bound",
    "noise",
    "spread",
    "smaller_batches_fail",
)
"""Kinds of notices on rows that affect batch times."""
_LISTED: Final = 3
_PLAYED: Final = 1.25
"""Factor on the rate of recorded requests, or its inverse, above which their peaks are too short or too long."""
_REQUESTS_BEYOND: Final = 10
"""Minimum recorded requests beyond a percentile."""
_SHORT: Final = 0.1
"""Fraction of the target up to which it makes little difference that recorded times are rounded."""
_KNOWN: Final = 1.05
"""Ratio of a percentile to either end of its interval up to which it counts as known."""


def notices(
    record: Record, outcome: Outcome, largest: int, demand: Demand, edge: Edge | None = None, *, fills: bool = True
) -> Iterator[Notice]:
    """Yield the notices on a plan; ``largest`` is the largest measured batch; ``fills`` if batches reach the cap."""
    if edge is not None:
        yield _edge_notice(edge, outcome, demand)
    if demand.overheads == Overheads():
        low, high = sorted(PRESETS.values())
        yield Notice(
            kind="no_overhead",
            seen=f"the server's time is missing, such as {low.per_batch_ms:.2g} ms a batch and "
            f"{low.per_request_ms:.2g} to {high.per_request_ms:.2g} ms a request",
            cause="records time the model alone",
            advice="give --overhead or --observed",
        )
    factor = demand.rate_per_s / (demand.recorded_per_s or demand.rate_per_s)
    if not 1 / _PLAYED <= factor <= _PLAYED:
        yield Notice(
            kind="arrivals_scaled",
            seen=f"recorded requests are replayed {factor:.3g} times as fast",
            cause=f"a peak of a second lasts {1 / factor:.2g} s, and queues {'absorb it' if factor > 1 else 'grow'}",
            advice=f"record at about {format_figure(demand.rate_per_s)}/s, or "
            + ("merge several logs" if factor > 1 else "thin the log"),
        )
    fewest = _REQUESTS_BEYOND * samples_for_percentile(demand.percentile)
    if demand.gaps is not None and len(demand.gaps) + 1 < fewest:
        yield Notice(
            kind="few_arrivals",
            seen=f"p{demand.percentile:g} rests on the peaks among {len(demand.gaps) + 1} recorded requests",
            cause="so few show by chance how high peaks are",
            advice=f"record {fewest} requests or more",
        )
    tick_s = 0.0 if demand.gaps is None else _tick_s(demand.gaps)
    if 1000 * tick_s / factor > _SHORT * demand.target_ms:
        yield Notice(
            kind="coarse_arrivals",
            seen=f"most recorded times coincide, in steps of {tick_s:g} s",
            cause="the log has no finer times",
            advice="log finer ones: such bursts take more devices",
        )
    low_ms, tail_ms, high_ms = outcome.tail_low_ms, outcome.tail_ms, outcome.tail_high_ms
    if tail_ms < high_ms == inf:
        yield Notice(
            kind="wide_percentile",
            seen=f"p{demand.percentile:g} lies above {format_figure(low_ms)} ms",
            cause="nearly as many requests are refused as may be late",
            advice="rely on the fraction in time, or let --max-queue be longer",
        )
    elif high_ms < inf and max(high_ms / tail_ms, tail_ms / low_ms) > _KNOWN:
        yield Notice(
            kind="wide_percentile",
            seen=f"p{demand.percentile:g} lies between {format_figure(low_ms)} and {format_figure(high_ms)} ms",
            cause="long queues are rare near 100 % utilization",
            advice="rely on the fraction in time or --max-utilization 90%",
        )
    counted = [row for row in timed_rows(record) if row.samples_per_step != row.batch_size]
    if counted:
        yield Notice(
            kind="samples_per_step",
            seen=f"batch {counted[0].batch_size} is {counted[0].batch_size} samples here, and "
            f"{counted[0].samples_per_step} in the record's samples/s",
            cause="samples= of the step says so",
            advice="give the rate and samples a request in units of the batch size",
        )
    if record.spec.phase == "step":
        yield Notice(
            kind="own_step",
            seen="a step of your own is taken for the answer to a batch of requests",
            cause="whether it trains is unknown",
            advice="size no training",
        )
    measured = {row.batch_size for row in timed_rows(record)}
    smallest = min(measured, default=1)
    if smallest > (demand.samples_per_request[0][0] if demand.is_whole else 1):
        yield Notice(
            kind="no_small_batches",
            seen=f"batches below {smallest} are assumed to take as long as one of {smallest}",
            cause="they were not measured",
            advice="measure smaller batches too: --batch-sizes 1,2,4 and so on",
        )
    needed = max(samples_for_percentile(demand.percentile), FEWEST_SAMPLES)
    # The times of batches between two measured sizes rest on both.
    upper = min((size for size in measured if size >= outcome.batch_cap), default=outcome.batch_cap)
    timed = [row for row in record.rows if row.failure is None and row.batch_size <= upper]
    few = [row.batch_size for row in timed if 0 < len(row.latency_ms) < needed]
    is_left_out = any(0 < len(row.latency_ms) < FEWEST_SAMPLES for row in timed)
    if few:
        sizes = format_sizes(few) if len(few) <= _LISTED else f"{min(few)} to {max(few)}"
        yield Notice(
            kind="few_latency_samples",
            seen=f"the slowest batches of {sizes} may be missing",
            cause=f"p{demand.percentile:g} takes {needed} latencies"
            + f"; under {FEWEST_SAMPLES}, a size is left out" * is_left_out,
            advice="measure with --thorough or more --batches",
        )
    used = [row.batch_size for row in record.rows if row.batch_size <= upper]
    told = [notice for notice in record.notices if notice.kind in _TOLD and set(notice.batch_sizes) & set(used)]
    yield from (msgspec.structs.replace(notice, batch_sizes=()) for notice in told)
    if demand.devices is None and all(len(row.timings) == 1 for row in record.rows if row.failure is None):
        yield Notice(
            kind="one_process",
            seen="the range of devices leaves out how processes differ",
            cause="each batch size was timed in one process",
            advice="measure with --processes 3 or more",
        )
    if record.finished is None:
        yield Notice(
            kind="interrupted",
            seen="the record was cut short",
            cause="the run that made it was interrupted",
            advice="finish it with tputfind --resume",
        )
    failures = [row.batch_size for row in record.rows if row.failure is not None]
    if failed := [size for size in failures if size <= outcome.batch_cap]:
        yield Notice(
            kind="failed_batches",
            seen=f"batch {format_sizes(failed)} failed when measured, and the server makes such batches",
            cause="other sizes give their times",
            advice="find the cause, or limit the batch: --max-batch-size",
        )
    if pads_batches(record) and outcome.batch_cap > smallest:
        spec = record.spec
        multiples = f"the model takes multiples of {spec.granularity}"
        yield Notice(
            kind="padded_batches",
            seen="batches take as long as the next larger one measured",
            cause=multiples if spec.granularity > 1 else f"{spec.mode} prepares each alone",
            advice="let the server pad to those sizes",
        )
    elif outcome.batch_cap not in measured:
        yield Notice(
            kind="interpolated_cap",
            seen=f"the times of the maximum batch size, {outcome.batch_cap}, are interpolated",
            cause="it was not measured",
            advice=f"measure it: --batch-sizes {outcome.batch_cap}",
        )
    reason = record.edge.limited_by if record.edge else "cap"
    is_last = reason not in ("cap", "latency", "cut_short") and record.largest_batch <= largest
    can_grow = not is_last and demand.largest_batch(largest + 1) > largest
    if fills and can_grow and outcome.batch_cap == largest and (outcome.devices > 1 or demand.devices is not None):
        short = [row.batch_size for row in record.rows if row.batch_size > largest and row.latency_ms]
        better = "need fewer devices" if demand.devices is None else "do better"
        yield Notice(
            kind="largest_measured",
            seen=f"a larger maximum batch size than {outcome.batch_cap} may {better}",
            cause=f"it is the largest with {FEWEST_SAMPLES} latencies or more",
            advice=f"measure batch {min(short)} with --thorough or more --batches"
            if short
            else "measure larger batches",
        )
    limit = demand.most_ongoing
    if limit is not None and limit < 2 * outcome.batch_cap:
        yield Notice(
            kind="few_ongoing",
            seen=f"a replica takes {limit} requests at a time, and no larger batch",
            cause="max_ongoing_requests is low",
            advice=f"set it to {2 * outcome.batch_cap} or more: --max-ongoing",
        )
    if record.spec.transfer == "none" and record.environment.can.own_memory:
        yield Notice(
            kind="copies",
            seen="batch times are without copies to and from the device",
            cause="the record has no --transfer",
            advice="measure with --transfer both, or give --observed",
        )


def _tick_s(gaps: Sequence[float]) -> float:
    """Return the time to whose multiples most recorded times are rounded, so that they coincide; 0 for others."""
    steps_s = [gap for gap in gaps if gap]
    tick_s = float(f"{min(steps_s, default=0.0):.3g}")  # times since 1970 are exact to 0.2 µs
    is_rounded = len(steps_s) < len(gaps) / 2 and all(abs(gap / tick_s - round(gap / tick_s)) < 1e-3 for gap in steps_s)
    return tick_s if is_rounded else 0.0


def _edge_notice(edge: Edge, outcome: Outcome, demand: Demand) -> Notice:
    late, longer_ms = 100 - demand.percentile, demand.network_ms + BESIDE * demand.target_ms
    more_late, fewer_late, longer = (None if number is None else number + demand.spare for number in edge)
    below, above, digits = 100 - BESIDE * late, 100 - late / BESIDE, 4 if demand.percentile <= 99.9 else 5
    farthest = 2 * outcome.devices - demand.spare  # twice those that serve, and the spare ones
    most = f"more than {farthest}" if fewer_late is None else f"{fewer_late}"
    is_easier = longer is not None and longer < outcome.devices
    easier = f"accept --slo {longer_ms:.4g}ms ({longer} devices), or " if is_easier else ""
    return Notice(
        kind="on_edge",
        seen=f"p{below:.{digits}g} takes {more_late} devices, and p{above:.{digits}g} {most}",
        cause="slow" + " or delayed" * (demand.server.held_ms > 0) + " batches are late in any fleet",
        advice=f"{easier}measure with --thorough",
    )
