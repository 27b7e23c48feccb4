"""The demand on a planner: its options, validated, and the traffic, server and target that they define."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from math import fsum, inf
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta

from tputfind import options as values
from tputfind.errors import BadRequest
from tputfind.record.types import Above0, Amount, Count, CountFromZero
from tputfind.sizing.engine.events import Routing
from tputfind.sizing.engine.replications import Goal
from tputfind.sizing.engine.servers import PROFILES, Batcher, Profile, Server
from tputfind.sizing.engine.service_times import Overheads
from tputfind.sizing.traffic import ALONE, FEWEST_ARRIVALS, Traffic, read_counts, read_gaps, read_shares, shares_of
from tputfind.units import echo

BATCHERS: Final = get_args(Batcher)
ROUTINGS: Final = get_args(Routing)
MOST_DEVICES: Final = 10_000_000
LOWEST_RATE: Final = 1e-9
HIGHEST_RATE: Final = 1e12
"""Requests per second; the lowest rate is one request in thirty years."""
_SHORTEST_DELAY_MS: Final = 1e-3
PRESETS: Final[dict[str, Overheads]] = {
    "mosec": Overheads(0.522, 0.0419, 0.00935),
    "litserve": Overheads(0.655, 0.136, 0.316),
}
"""Overheads of servers, measured with ViT-L/16 on an H200 (``results/nvidia-h200/serving``)."""
Solved = Literal["devices", "rate", "slo", "nothing"]


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic, the server, and the target for its answers. Build it with ``read_demand``.

    ``burstiness`` is the coefficient of variation of interarrival times: 1 is a Poisson stream, 0 an even one. ``gaps``
    are recorded interarrival times in seconds: they set the shape of the stream, and ``rate_per_s`` its rate.
    ``samples_per_request`` are numbers of samples, each with its fraction of the requests; ``counts`` are the
    samples of each recorded request. ``network_ms`` is subtracted from the latency target.

    ``solve`` names the answer: the least number of devices, or, for given devices, the highest rate or the tightest
    target (``rate_per_s`` or ``slo_ms`` is then a placeholder), or only their performance. The target is met with
    ``spare`` devices down, at a utilization of at most ``max_utilization``. At most ``max_queue`` requests wait in a
    queue. ``max_ongoing`` bounds the batch of a replica.
    """

    rate_per_s: Above0
    slo_ms: Above0
    percentile: Annotated[float, Meta(ge=50, le=99.99)] = 99.0
    burstiness: Annotated[float, Meta(ge=0, le=20)] = 1.0
    gaps: Annotated[tuple[Amount, ...], Meta(min_length=FEWEST_ARRIVALS - 1)] | None = None
    samples_per_request: Annotated[tuple[tuple[Count, Above0], ...], Meta(min_length=1)] = ALONE
    counts: tuple[Count, ...] | None = None
    batcher: Batcher = "greedy"
    delay_ms: Amount | None = None
    routing: Routing = "shared"
    overhead_per_batch_ms: Amount = 0.0
    overhead_per_request_ms: Amount = 0.0
    overhead_per_answer_ms: Amount = 0.0
    network_ms: Amount = 0.0
    max_batch_size: Count | None = None
    max_queue: Count | None = None
    max_ongoing: Count | None = None
    seed: CountFromZero = 0
    devices: Count | None = None
    solve: Solved = "devices"
    spare: CountFromZero = 0
    max_utilization: Annotated[float, Meta(gt=0, le=1)] = 1.0

    @property
    def profile(self) -> Profile:
        return PROFILES[self.batcher]

    @property
    def traffic(self) -> Traffic:
        # The first recorded request ends no gap, and is not replayed.
        return Traffic(self.burstiness, self.gaps, self.samples_per_request, self.counts and self.counts[1:])

    @property
    def recorded_per_s(self) -> float | None:
        return None if self.gaps is None else len(self.gaps) / fsum(self.gaps)

    @property
    def mean_samples(self) -> float:
        return self.traffic.mean_samples

    @property
    def is_whole(self) -> bool:
        """Whether requests have several samples that stay in one batch."""
        return self.traffic.has_several_samples and not self.profile.splits

    @property
    def wait_ms(self) -> float:
        return self.profile.delay_ms if self.delay_ms is None else self.delay_ms

    @property
    def server(self) -> Server:
        return Server(
            self.batcher, self.wait_ms, self.routing, self.is_whole, self.max_queue or inf, self.overhead_per_answer_ms
        )

    @property
    def overheads(self) -> Overheads:
        return Overheads(self.overhead_per_batch_ms, self.overhead_per_request_ms, self.overhead_per_answer_ms)

    @property
    def target_ms(self) -> float:
        return self.slo_ms - self.network_ms

    @property
    def goal(self) -> Goal:
        return Goal(self.target_ms, self.percentile)

    @property
    def highest_utilization(self) -> float:
        """The highest utilization. A queue with a limit is stable at any, because it refuses the excess."""
        return inf if self.max_queue is not None and self.max_utilization == 1 else self.max_utilization

    @property
    def most_ongoing(self) -> int | None:
        """Maximum requests of a device, and so its largest batch; None if unbounded."""
        return self.max_ongoing or self.profile.max_ongoing

    def keeps_up_at(self, utilization: float) -> bool:
        return (utilization < 1 or self.max_queue is not None) and utilization <= self.highest_utilization

    def largest_batch(self, measured: int) -> int:
        """Return the largest allowed batch limit, given the largest batch that was measured."""
        return min((measured, *filter(None, (self.max_batch_size, self.most_ongoing))))

    def replace_overheads(self, overheads: Overheads) -> Demand:
        return msgspec.structs.replace(self, **{f"overhead_{name}": ms for name, ms in overheads._asdict().items()})

    def __post_init__(self) -> None:
        profile, devices, wait_ms, timed = self.profile, self.devices, self.wait_ms, len(self.gaps or ()) + 1
        largest = max((samples for samples, _ in self.samples_per_request), default=1)
        is_delay = {"any": True, "none": wait_ms == 0, "whole ms": wait_ms >= 1 and wait_ms == int(wait_ms)}
        rules = [
            (devices is None or self.spare < devices, f"--spare {self.spare} leaves none of {devices} devices"),
            (self.target_ms > 0, f"--network {self.network_ms:g} ms leaves nothing of --slo {self.slo_ms:g} ms"),
            (
                is_delay[profile.delays],
                f"--delay of the {self.batcher} batcher is {'0' if profile.delays == 'none' else 'whole ms from 1 on'}",
            ),
            (
                not profile.in_replicas or self.routing != "shared",
                f"--batcher {self.batcher} batches in each replica: --routing two-choices, least-loaded or random",
            ),
            (
                self.counts is None or len(self.counts) == timed,
                f"samples: {timed} requests have a time, and {len(self.counts or ())} a number of samples",
            ),
            (
                largest <= (self.max_queue or inf) or self.is_whole,
                f"--max-queue {self.max_queue} leaves no room for a request of {largest} samples",
            ),
        ]
        problems = [text for holds, text in rules if not holds]
        if problems:
            raise ValueError("; ".join(problems))


def read_demand(options: Mapping[str, object]) -> Demand:
    """Return the demand that options describe, as for ``read_spec``; raise BadRequest, which names all that are wrong.

    Numbers are per second, or milliseconds. Recorded requests keep their own rate unless it is given or asked for.
    """
    missing = [name for name in _QUESTIONS if options.get(name) is None]
    read, problems = values.fields_of(options, _READERS)
    fields: dict[str, Any] = _UNKNOWN | read
    if "gaps" in fields and "rate" in missing and len(missing) > 1:
        return read_demand({**options, "rate": len(fields["gaps"]) / fsum(fields["gaps"])})
    if missing[:2] == ["rate", "slo"]:
        problems.insert(0, "name two of --rate, --slo and --devices: the third is the answer")
    elif len(missing) > 1:
        problems.insert(0, f"--{missing[0]} is needed, or --devices")
    if {"counts", "samples_per_request"} <= read.keys() or ("gaps" in read and read.get("burstiness", 1) != 1):
        problems.append("--burstiness and --samples-per-request cannot be combined with --arrivals, which show them")
    if not problems:
        fields.setdefault("routing", PROFILES[fields.get("batcher", "greedy")].routing)
        if "counts" in fields:
            fields["samples_per_request"] = shares_of(Counter(fields["counts"][1:]))
        fields["solve"] = missing[0] if missing else "nothing"
        overheads = fields.pop("overhead", Overheads())
        try:
            return Demand(**fields).replace_overheads(overheads)
        except ValueError as conflict:
            problems.append(str(conflict))
    raise BadRequest("; ".join(problems), "see tputfind size --help")


def read_overhead(value: object) -> Overheads:
    """Read overheads: ``0.5ms+0.05ms`` (a batch, a request, and perhaps an answer), a sequence of them, or a preset."""
    word = value.strip().lower() if isinstance(value, str) else None
    if word in PRESETS:
        return PRESETS[word]
    parts = word.split("+") if word else value if isinstance(value, (list, tuple)) else [value]
    try:
        return Overheads(*map(values.ms, parts))
    except (TypeError, ValueError) as problem:
        said = problem if isinstance(problem, ValueError) else f"{echo(value)} has more than three times"
        raise ValueError(f"{said}; give 0.5ms+0.05ms (a batch, a request), or {' or '.join(PRESETS)}") from None


def _utilization(value: object) -> float:
    return 1.0 if f"{value}".replace(" ", "") in ("100%", "100.0%", "1", "1.0") else values.share(value)


def _delay(value: object) -> float:
    delay_ms = values.ms(value)
    if 0 < delay_ms < _SHORTEST_DELAY_MS:
        raise ValueError(f"{delay_ms:g} ms is neither 0 nor at least 1us")
    return delay_ms


_QUESTIONS: Final = "rate", "slo", "devices"
_UNKNOWN: Final[dict[str, object]] = {"rate_per_s": 1.0, "slo_ms": 1e12}
"""Placeholders for the answer until it is known."""
_READERS: Final[dict[str, tuple[str, values.Reader]]] = {
    "rate": ("rate_per_s", values.number_within(LOWEST_RATE, HIGHEST_RATE, values.rate)),
    "slo": ("slo_ms", values.positive_ms),
    "percentile": ("percentile", values.number_within(50, 99.99, values.percentile)),
    "burstiness": ("burstiness", values.number_within(0, 20)),
    "gaps": ("gaps", read_gaps),
    "samples_per_request": ("samples_per_request", read_shares),
    "samples": ("counts", read_counts),
    "batcher": ("batcher", values.one_of(BATCHERS)),
    "delay": ("delay_ms", _delay),
    "routing": ("routing", values.one_of(ROUTINGS)),
    "overhead": ("overhead", read_overhead),
    "network": ("network_ms", values.ms),
    "max_batch_size": ("max_batch_size", values.whole),
    "max_queue": ("max_queue", values.whole),
    "max_ongoing": ("max_ongoing", values.whole),
    "seed": ("seed", values.count_from_zero),
    "devices": ("devices", partial(values.whole, most=MOST_DEVICES)),
    "spare": ("spare", partial(values.whole, least=0, most=MOST_DEVICES)),
    "max_utilization": ("max_utilization", _utilization),
}
