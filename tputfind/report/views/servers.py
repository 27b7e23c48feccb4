"""Lines of a server's configuration that set what a plan simulated, to copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tputfind.sizing.engine.servers import Batcher
from tputfind.sizing.planner.plan import Plan


def configuration(plan: Plan) -> list[str]:
    """Return the lines for the plan's server; none for a server of one's own."""
    make = _LINES.get(plan.demand.batcher)
    return [] if make is None else make(plan)


def _triton(plan: Plan) -> list[str]:
    demand, shared = plan.demand, plan.demand.routing == "shared"
    delay = f" max_queue_delay_microseconds: {1000 * plan.delay_ms:.0f}" if plan.delay_ms else ""
    queue = "" if demand.max_queue is None else f" default_queue_policy {{ max_queue_size: {demand.max_queue} }}"
    return [
        "# config.pbtxt",
        f"max_batch_size: {plan.outcome.batch_cap}",
        f"dynamic_batching {{{f'{delay}{queue} ' if delay or queue else ' '}}}",
        f"instance_group [ {{ kind: KIND_GPU, count: 1 }} ]  # on each of {_devices(plan, shared=shared)}",
    ]


def _mosec(plan: Plan) -> list[str]:
    wait = f"max_wait_time={plan.delay_ms:.0f}"
    num = plan.outcome.devices if plan.demand.routing == "shared" else 1
    capacity = "" if plan.demand.max_queue is None else f"  # and --capacity {plan.demand.max_queue}"
    return [
        f"server.append_worker(Model, num={num}, max_batch_size={plan.outcome.batch_cap}, {wait}){capacity}",
        *([] if num > 1 else [f"# one server on each of {_devices(plan, shared=False)}"]),
    ]


def _litserve(plan: Plan) -> list[str]:
    api = f"api = Model(max_batch_size={plan.outcome.batch_cap}, batch_timeout={plan.delay_ms / 1000:g})"
    num = plan.outcome.devices if plan.demand.routing == "shared" else 1
    return [
        api,
        f'server = LitServer(api, accelerator="cuda", devices={num})',
        *([] if num > 1 else [f"# one server on each of {_devices(plan, shared=False)}"]),
    ]


def _ray(plan: Plan) -> list[str]:
    cap = plan.outcome.batch_cap
    ongoing = max(2 * cap, plan.demand.most_ongoing or 0)
    replicas = f'num_replicas={plan.outcome.devices}, ray_actor_options={{"num_gpus": 1}}'
    return [
        f"@serve.deployment({replicas}, max_ongoing_requests={ongoing})",
        f"@serve.batch(max_batch_size={cap}, batch_wait_timeout_s={plan.delay_ms / 1000:g})",
    ]


def _devices(plan: Plan, *, shared: bool) -> str:
    devices = plan.outcome.devices
    if devices == 1:
        return "one device"
    return f"{devices} devices" if shared else f"{devices} devices, behind a router ({plan.demand.routing})"


_LINES: Final[Mapping[Batcher, Callable[[Plan], list[str]]]] = {
    "triton": _triton,
    "mosec": _mosec,
    "litserve": _litserve,
    "ray": _ray,
}
