"""What stands beside a plan: what the record, or what was asked, leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from tputfind.record.record import Notice, Record
from tputfind.sizing.demand import GETTING, Demand
from tputfind.sizing.service import FEWEST_SAMPLES
from tputfind.sizing.simulate import Outcome
from tputfind.stats import samples_for_percentile
from tputfind.units import format_sizes

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
)
"""Kinds of notices of rows that bear on how long a batch takes."""
_LISTED: Final = 3


def _one_by_one(demand: Demand) -> Iterator[tuple[str, float]]:
    """Yield what LitServe does request by request, in words, and how long that takes."""
    if demand.server.one_by_one == "getters":
        if demand.routing in GETTING:
            yield "to get it", demand.overhead_per_get_ms
        yield "to answer it", demand.overhead_per_answer_ms


def notices(record: Record, outcome: Outcome, largest: int, demand: Demand) -> Iterator[Notice]:
    """Yield what a record and a demand say against a plan; ``largest`` is the largest batch measured."""
    planned = [row for row in record.rows if row.failure is None and len(row.latency_ms) >= FEWEST_SAMPLES]
    measured = {row.batch_size for row in planned}
    smallest = min(measured, default=1)
    if smallest > (demand.samples_per_request[0][0] if demand.whole else 1):
        yield Notice(
            kind="no_small_batches",
            seen=f"no batch below {smallest} was measured, and smaller ones are taken to last as long",
            cause="few requests wait at a time unless devices are busy",
            advice="measure smaller batches too: --batch-sizes 1,2,4 and so on",
        )
    left_out = [
        row.batch_size
        for row in record.rows
        if 0 < len(row.latency_ms) < FEWEST_SAMPLES and row.batch_size < outcome.batch_cap
    ]
    if left_out:
        yield Notice(
            kind="left_out",
            seen=f"batches of {format_sizes(left_out)} have fewer than {FEWEST_SAMPLES} latencies, and are left out",
            cause="their times lie on the line between those of the sizes beside them",
            advice="measure with --thorough or more --batches",
        )
    needed = samples_for_percentile(demand.percentile)
    few = [row.batch_size for row in planned if len(row.latency_ms) < needed]
    few = [size for size in few if size <= outcome.batch_cap]
    if few:
        sizes = format_sizes(few) if len(few) <= _LISTED else f"{min(few)} to {max(few)}"
        yield Notice(
            kind="few_latency_samples",
            seen=f"p{demand.percentile:g} takes {needed} latencies; batches of {sizes} have fewer",
            cause="their slowest are not known",
            advice="measure with --thorough or more --batches",
        )
    used = [row.batch_size for row in record.rows if row.batch_size <= outcome.batch_cap]
    told = [notice for notice in record.notices if notice.kind in _TOLD and set(notice.batch_sizes) & set(used)]
    yield from (msgspec.structs.replace(notice, batch_sizes=()) for notice in told)
    if demand.devices is None and all(len(row.timings) == 1 for row in record.rows if row.failure is None):
        yield Notice(
            kind="one_process",
            seen="each batch size was timed in one process",
            cause="how processes differ is not known, nor in the range of devices",
            advice="measure with --processes 3 or more",
        )
    if record.finished is None:
        yield Notice(
            kind="interrupted",
            seen="the record was cut short",
            cause="the run that made it was interrupted",
            advice="tputfind --resume goes on with it",
        )
    if outcome.batch_cap not in measured:
        yield Notice(
            kind="interpolated_cap",
            seen=f"the cap, batch {outcome.batch_cap}, was not measured",
            cause="its times lie on the line between those of the sizes beside it",
            advice=f"measure it: --batch-sizes {outcome.batch_cap}",
        )
    if outcome.batch_cap == largest:
        yield Notice(
            kind="largest_measured",
            seen=f"the cap is batch {outcome.batch_cap}, the largest with {FEWEST_SAMPLES} latencies or more",
            cause="a larger one may need fewer devices",
            advice="measure larger batches",
        )
    if demand.most_in_window is not None and outcome.batch_cap == demand.most_in_window:
        yield Notice(
            kind="window",
            seen=f"no more than {outcome.batch_cap} requests are got in a window of {demand.wait_ms:g} ms",
            cause=f"each of them takes {demand.overhead_per_get_ms:g} ms to get",
            advice="a longer --delay lets batches grow",
        )
    if demand.batcher == "ray" and demand.max_ongoing is None:
        yield Notice(
            kind="few_ongoing",
            seen=f"a replica has no more than {demand.most_ongoing} requests at a time, and no larger batch",
            cause="Ray Serve's max_ongoing_requests is that by default; others wait 25 ms and longer to ask again",
            advice="set it to twice the batch, and a fortieth of the requests/s of each device, or more: --max-ongoing",
        )
    missing = [option for option, one_ms in _one_by_one(demand) if one_ms == 0]
    if missing:
        yield Notice(
            kind="one_by_one",
            seen=f"LitServe's own time a request is not in the figures: {', '.join(missing)}",
            cause="it handles them one by one",
            advice="--observed finds it in a log of your server",
        )
    if demand.rack_w is not None and outcome.computing is None:
        yield Notice(
            kind="no_power",
            seen=f"racks are not counted: the record does not tell the power of batches up to {outcome.batch_cap}",
            cause="the device or its driver did not tell it, or the rows were too short",
            advice="measure on a device whose power NVML reads",
        )
    if record.spec.transfer == "none" and record.environment.can.own_memory:
        yield Notice(
            kind="copies",
            seen="batch times are without copies to and from the device",
            cause="the record has no --transfer",
            advice="measure with --transfer both, or give --observed",
        )
