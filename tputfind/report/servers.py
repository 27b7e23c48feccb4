"""What the server of a plan is set to, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tputfind.sizing.batchers import Batcher, Handler
from tputfind.sizing.plan import Plan
from tputfind.sizing.solve import delays_ms
from tputfind.units import format_figure, format_sizes

_QUEUES: Final[Mapping[Batcher, str]] = {
    "triton": " (max_queue_size)",
    "mosec": " (--capacity)",
    "ray": " (max_queued_requests)",
}
"""Settings of servers that limit a queue."""
_HANDLERS: Final[Mapping[Handler, str]] = {
    "blocking": "blocks its event loop, as a plain model(x) does in an async function",
    "threaded": "calls the model in a thread, beside its event loop",
}

_FULL: Final = 0.95
"""Of what a device does with full batches: a limit that leaves more of it decides nothing."""


def told(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield settings of the server, each a label and a text, and how many requests it refuses."""
    demand, refused = plan.demand, plan.outcome.refused
    if demand.search_delay:
        tried = delays_ms(demand)
        of = f"of {len(tried)} delays tried, {tried[0]:g} to {tried[-1]:g} ms"
        yield "Delay", f"{plan.delay_ms:g} ms: {of}, the shortest with the fewest devices"
    if demand.preferred_batches:
        yield "Preferred", f"batches of {format_sizes(demand.preferred_batches)} (preferred_batch_size)"
    if demand.handled is not None:
        yield "Handler", _HANDLERS[demand.handled]
    if demand.most_ongoing is not None:
        yield "Limit", f"{demand.most_ongoing} requests at a time for each replica (max_ongoing_requests)"
    if plan.waiting_per_s is not None and plan.waiting_per_s < _FULL * plan.full_per_s:
        does = "catch up" if plan.outcome.load < 1 else "never catch up"
        each, full = format_figure(plan.waiting_per_s), format_figure(plan.full_per_s)
        yield "After a pause", f"the devices {does}: each answers {each}/s while requests wait for room, of {full}/s"
    if demand.max_queue is not None:
        queue = "the queue of a device" if demand.routing == "random" else "the queue"
        setting = _QUEUES.get(demand.batcher, "")
        yield "Refused", f"{refused:.2%}: requests that find {demand.max_queue} in {queue}{setting}"
    if demand.most_latency_ms is not None:
        yield "Refused", f"{refused:.2%}: requests that would take {demand.most_latency_ms:g} ms (max_latency_ms)"
