"""The answers of plans, each a label and a text, and the lines of a server's configuration, to copy."""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final

import msgspec

from tputfind.sizing.calibration import Observed
from tputfind.sizing.engine.events import Routing
from tputfind.sizing.engine.replications import Outcome
from tputfind.sizing.engine.servers import Batcher
from tputfind.sizing.planner.costs import Energy
from tputfind.sizing.planner.plan import Answers, Plan, together
from tputfind.sizing.planner.search import MORE_TRAFFIC, count_devices
from tputfind.units import format_amount, format_figure, format_kwh, format_share, format_span, format_watts

OVERHEADS: Final = {
    "overhead_per_batch_ms": "a batch",
    "overhead_per_request_ms": "a request",
    "overhead_per_answer_ms": "an answer",
}
MORE_LABEL: Final = f"{MORE_TRAFFIC - 1:.0%} more"
_LISTED: Final = 4
_QUEUES: Final[Mapping[Batcher, str]] = {"triton": " (max_queue_size)", "mosec": " (--capacity)"}
"""Settings of servers that limit a queue; those of Ray Serve count what waits at each caller."""


def title(plan: Plan) -> str:
    return f"{plan.model} {plan.recipe} on {plan.device_name}: {stream(plan)}"


def stream(plan: Plan) -> str:
    demand = plan.demand
    network = f", {demand.network_ms:.4g} ms of them for the network" if demand.network_ms else ""
    target = f"{demand.percentile:g} % within {format_amount(demand.slo_ms)} ms"
    return f"{format_figure(demand.rate_per_s)} requests/s, {target}{network}"


def summary(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the summary: the answer, devices and hosts, utilization, and the cost, or else the power, if known."""
    outcome = plan.outcome
    yield from _solution(plan)
    worst = plan.observed and plan.observed.worst
    doubt = f"; unreliable, as its logs are predicted {worst.error:+.0%} off" if worst else ""
    yield "Devices", f"{outcome.devices}{_range(plan)}{_hosts(plan)}: batches of up to {outcome.batch_cap}{doubt}"
    yield "Utilization", f"{format_percent(outcome.utilization)} of the rate of full batches"
    costs, powers = list(_costs(plan)), list(_powers(plan))
    yield from costs or powers[:1]


def _hosts(plan: Plan) -> str:
    each = plan.devices_per_host
    if each is None:
        return ""
    hosts = -(-plan.outcome.devices // each)
    return f", on {hosts} host{'s' * (hosts > 1)}{f' of {each}' if each > 1 else ''}"


def details(plan: Plan) -> Iterator[tuple[str, str]]:
    outcome, demand = plan.outcome, plan.demand
    waits = plan.delay_ms > 0 and outcome.batch_cap > 1
    batcher = (
        f"waits up to {format_amount(plan.delay_ms)} ms for more" if waits else "takes what waits when a device is free"
    )
    if demand.traffic.has_several_samples:
        yield "Requests", _samples(plan)
    yield "Batcher", f"{demand.batcher}: {batcher}"
    if plan.without_spare is not None:
        yield "None gone", f"{outcome.devices}: {_verdict(plan, outcome)}"
        yield f"{demand.spare} gone", f"{plan.without_spare.devices}: {_verdict(plan, plan.without_spare)}"
    yield from _server(plan)
    yield fewer_label(plan).capitalize(), _fewer(plan)
    more = _verdict(plan, plan.more_traffic)
    rate = format_figure(plan.more_traffic.rate_per_s)
    yield MORE_LABEL, f"{rate} requests/s on all {outcome.devices}: {more}"
    devices = [number for number in msgspec.structs.astuple(plan.rules) if number is not None]
    low, high = min(devices), max(devices)
    yield "Rules of thumb", f"{format_span(f'{low}', f'{high}')} devices, by formulas instead of simulation"
    added = [f"{format_amount(ms)} ms {words}" for name, words in OVERHEADS.items() if (ms := getattr(demand, name))]
    if plan.observed is not None:
        yield "Overheads", _overheads(plan.observed)
    elif added:
        yield "Overheads", ", ".join(added)
    powers = list(_powers(plan))
    yield from powers if any(_costs(plan)) else powers[1:]
    if 0 < outcome.simulated < outcome.devices and demand.routing != "random":
        cell = f"{outcome.simulated} of the devices with their share of the requests"
        yield "Simulated", f"{cell}, as cells behind a random split"
    if plan.arrivals_per_s is not None:
        rates = format_figure(plan.arrivals_per_s), format_figure(demand.rate_per_s)
        log = f"{plan.arrivals} in {format_figure((plan.arrivals - 1) / plan.arrivals_per_s)} s, {rates[0]}/s"
        part = "replayed" if outcome.simulated == outcome.devices else "a part of them, drawn at random, replayed"
        replayed = f"{part} at {rates[1]}/s; times of batches are drawn"
        yield "Arrivals", f"{log}, {replayed if outcome.simulated else 'too many to be replayed'}"


def mix(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.no_mix:
        yield "Mix", plan.no_mix
    if plan.mix is None or plan.price is None or plan.cost_per_hour is None:
        return
    mixed, outcome, currency = plan.mix, plan.mix.outcome, plan.price.currency
    million = f"{format_cost(mixed.cost_per_million, currency)} a million requests"
    saved = 1 - mixed.cost_per_hour / plan.cost_per_hour
    hour = f"{format_cost(mixed.cost_per_hour, currency)} an hour"
    yield "Mix", f"{hour}, {million}: {saved:.1%} below {plan.outcome.devices} x {plan.device_name}"
    tail = f"p{plan.demand.percentile:g} {format_figure(outcome.tail_ms)} ms"
    yield "Meets", f"the target, {tail}, utilization {format_percent(outcome.utilization)}"
    yield _TAKEN[plan.demand.routing]


_TAKEN: Final[dict[Routing, tuple[str, str]]] = {
    "shared": ("Batches", "are taken by the device that has been idle for the longest, of whichever kind"),
    "random": ("Requests", "go to a device by chance, in proportion to what it can do with full batches"),
    "least-loaded": ("Requests", "go to the device with the fewest unanswered ones, of whichever kind"),
    "two-choices": ("Requests", "go to the one of two random devices that has fewer unanswered ones"),
}


def sum_of_models(found: Answers) -> Iterator[tuple[str, str]]:
    sums = together(found)
    if sums is None:
        return
    cost = "" if sums.cost_per_hour is None else f", {format_cost(sums.cost_per_hour, sums.currency)} an hour"
    each = f"each of {len(found.models)} models with its own, at the whole rate"
    yield "Together", f"{sums.devices} devices{cost}: {each}"


def fewer_label(plan: Plan) -> str:
    gone = plan.outcome.devices - plan.fewer.devices if plan.fewer else plan.demand.spare + 1
    if plan.demand.spare:
        return f"{gone} gone"
    return "one fewer" if gone == 1 else f"{gone} fewer"


def format_percent(share: float) -> str:
    """Format a fraction as a whole percentage, with a decimal from 95 % to below 100 %: 99.6 % is not 100 %."""
    return f"{100 * share:.1f} %" if 0.95 <= share < 1 else f"{100 * share:.0f} %"


def format_cost(amount: float, currency: str) -> str:
    return f"{format_figure(amount)} {currency}"


def _costs(plan: Plan) -> Iterator[tuple[str, str]]:
    demand = plan.demand
    if plan.price is not None and plan.cost_per_hour is not None and plan.cost_per_million is not None:
        source = ": ".join(filter(None, (plan.price.device, f"{plan.price.source} {plan.price.date}".strip())))
        hour, million = (format_cost(one, plan.price.currency) for one in (plan.cost_per_hour, plan.cost_per_million))
        if demand.traffic.has_several_samples and plan.cost_per_million_samples is not None:
            million += f" a million requests, {format_cost(plan.cost_per_million_samples, plan.price.currency)}"
        counted = "samples" if demand.traffic.has_several_samples else "requests"
        yield "Cost", f"{hour} an hour, {million} a million {counted} ({source})"


def _powers(plan: Plan) -> Iterator[tuple[str, str]]:
    energy = plan.energy
    if energy is None:
        return
    each = f"{format_watts(energy.computing.power_w)} a device, {format_share(energy.computing.share)} of the time"
    watts = format_span(format_watts(energy.low_w), format_watts(energy.high_w))
    yield "Power", f"{watts} for all devices; computing takes {each}"
    kwh = format_span(format_kwh(energy.kwh_per_million_low), format_kwh(energy.kwh_per_million_high))
    yield "Energy", f"{kwh} a million samples; {_best_by_energy(energy)}"


def _best_by_energy(energy: Energy) -> str:
    saving, fast = energy.best_by_energy, energy.best_by_rate
    least = f"{format_kwh(saving.kwh_per_million)} in full batches of {saving.batch_size}"
    if saving.batch_size == fast.batch_size:
        return f"{least}, the best by energy and by rate"
    return f"{least}, the best by energy; {format_kwh(fast.kwh_per_million)} of {fast.batch_size}, the best by rate"


def _server(plan: Plan) -> Iterator[tuple[str, str]]:
    demand, refused = plan.demand, plan.outcome.refused
    if demand.most_ongoing is not None:
        yield "Limit", f"no batch above {demand.most_ongoing}, the requests that --max-ongoing lets a device have"
    if demand.max_queue is not None:
        queue = "the queue" if demand.routing == "shared" else "the queue of a device"
        setting = _QUEUES.get(demand.batcher, "")
        is_split = demand.traffic.has_several_samples and not demand.is_whole
        find = "requests of which a sample finds" if is_split else "requests that find"
        yield "Refused", f"{refused:.2%}: {find} {demand.max_queue} in {queue}{setting}"


def _solution(plan: Plan) -> Iterator[tuple[str, str]]:
    demand = plan.demand
    rate = f"{format_figure(demand.rate_per_s)} requests/s"
    if demand.solve == "rate":
        yield "Highest rate", f"{rate} meet the target, found to 2 %"
    if demand.solve == "slo":
        yield "Target", f"{format_amount(demand.slo_ms)} ms is the tightest at {rate}"
    if demand.solve == "nothing":
        yield "Verdict", f"{count_devices(plan.worst.devices)}: {_verdict(plan, plan.worst)}"


def _samples(plan: Plan) -> str:
    demand, sizes = plan.demand, plan.demand.samples_per_request
    if len(sizes) == 1:
        each = f"{sizes[0][0]} samples each"
    else:
        listed = ", ".join(f"{samples} ({100 * share:.3g} %)" for samples, share in sizes)
        each = listed if len(sizes) <= _LISTED else f"{sizes[0][0]} to {sizes[-1][0]}"
        each += f" samples, {demand.mean_samples:.4g} on average"
    way = "each stays in one batch" if demand.is_whole else "each sample is batched by itself"
    return f"{each}: {format_figure(plan.samples_per_s)} samples/s; {way}"


def _overheads(observed: Observed) -> str:
    each = {
        "a batch": observed.per_batch,
        "a request": observed.per_request,
        "an answer": observed.per_answer,
        "between client and queue": observed.beside,
    }
    added = [
        f"{one.value_ms:.3g} ms {words} ({one.low_ms:.3g} to {one.high_ms:.3g})"
        for words, one in each.items()
        if one.high_ms > 0
    ]
    return f"{', '.join(added)}; by {observed.found_by}"


def _range(plan: Plan) -> str:
    """Return the 90 % interval of the number of devices; empty if it contains only the plan's number."""
    if plan.fewest is None:
        return ""
    if plan.most is None:
        return f" ({plan.fewest} or more)"
    return "" if plan.fewest == plan.most else f" ({plan.fewest} to {plan.most})"


def _fewer(plan: Plan) -> str:
    if plan.fewer is None:
        return "there is none"
    return f"{plan.fewer.devices}, with batches of up to {plan.fewer.batch_cap}: {_verdict(plan, plan.fewer)}"


def _verdict(plan: Plan, outcome: Outcome) -> str:
    demand = plan.demand
    utilization = format_percent(outcome.utilization)
    if outcome.is_saturated:
        return f"target missed, {utilization} utilization: the queue grows"
    if outcome.tail_ms == inf:
        known = "undecided: too near the target to tell" if outcome.verdict == "undecided" else "target missed"
        return f"{known}, {outcome.refused:.2%} of the requests refused"
    tail = f"p{demand.percentile:g} {format_figure(outcome.tail_ms)} ms"
    if outcome.utilization > demand.highest_utilization:
        return f"target missed, utilization of {utilization} is above --max-utilization"
    if outcome.verdict == "meets":
        return f"target met, {tail}"
    if outcome.verdict == "misses":
        return f"target missed, {tail}"
    if outcome.tail_high_ms <= demand.target_ms:
        return f"undecided: {utilization} utilization is too near the limit to tell, {tail} as far as simulated"
    return f"undecided: too near the target to tell, {tail}"


def configuration(plan: Plan) -> list[str]:
    """Return the configuration lines for the plan's server; empty without a template, or if the target is missed."""
    make = _LINES.get(plan.demand.batcher)
    return make(plan) if make is not None and plan.holds else []


def _triton(plan: Plan) -> list[str]:
    demand, shared = plan.demand, plan.demand.routing == "shared"
    delay = f" max_queue_delay_microseconds: {1000 * plan.delay_ms:.0f}" if plan.delay_ms else ""
    queue = "" if demand.max_queue is None else f" default_queue_policy {{ max_queue_size: {demand.max_queue} }}"
    _, servers = _devices_of_server(plan)
    kind = "KIND_GPU" if plan.cpu_threads is None else "KIND_CPU"
    return [
        "# config.pbtxt",
        f"max_batch_size: {plan.outcome.batch_cap}",
        f"dynamic_batching {{{f'{delay}{queue} ' if delay or queue else ' '}}}",
        f"instance_group [ {{ kind: {kind}, count: 1 }} ]  # on each of {_devices(plan, shared=shared)}",
        *(servers if shared and plan.outcome.devices > 1 else []),
    ]


def _mosec(plan: Plan) -> list[str]:
    num, servers = _devices_of_server(plan)
    each = f'    env=[{{"CUDA_VISIBLE_DEVICES": str(gpu)}} for gpu in range({num})],'
    return [
        "server.append_worker(",
        f"    Model, num={num}, max_batch_size={plan.outcome.batch_cap}, max_wait_time={plan.delay_ms:.0f},",
        *([each] if num > 1 and plan.cpu_threads is None else []),
        ")" if plan.demand.max_queue is None else f")  # and --capacity {plan.demand.max_queue}",
        *servers,
    ]


def _litserve(plan: Plan) -> list[str]:
    api = f"api = Model(max_batch_size={plan.outcome.batch_cap}, batch_timeout={plan.delay_ms / 1000:g})"
    num, servers = _devices_of_server(plan)
    kind = "cuda" if plan.cpu_threads is None else "cpu"
    return [api, f'server = LitServer(api, accelerator="{kind}", devices={num})', *servers, *_comment_on_limit(plan)]


def _ray(plan: Plan) -> list[str]:
    cap = plan.outcome.batch_cap
    ongoing = max(2 * cap, plan.demand.most_ongoing or 0)
    needs = '"num_gpus": 1' if plan.cpu_threads is None else f'"num_cpus": {plan.cpu_threads}'
    replicas = f"num_replicas={plan.outcome.devices}, ray_actor_options={{{needs}}}"
    return [
        f"@serve.deployment({replicas}, max_ongoing_requests={ongoing})",
        f"@serve.batch(max_batch_size={cap}, batch_wait_timeout_s={plan.delay_ms / 1000:g})",
        *_comment_on_limit(plan),
    ]


def _comment_on_limit(plan: Plan) -> Iterator[str]:
    if plan.demand.max_queue is not None:
        yield f"# the limit of {plan.demand.max_queue} requests in a queue has no setting here"


def _devices_of_server(plan: Plan) -> tuple[int, list[str]]:
    """Return the devices of a server on one host, and a comment on the servers if there are several."""
    devices = plan.outcome.devices
    if devices == 1 or plan.demand.routing != "shared":
        return 1, [f"# one server on each of {_devices(plan, shared=False)}"]
    each = min(devices, plan.devices_per_host or devices)
    return each, ["# on one host; the plan has more, with one queue for all"] if each < devices else []


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
