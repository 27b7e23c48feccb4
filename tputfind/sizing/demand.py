"""Demand: the requests, the latency that they must be answered in, and how the server batches them."""

from __future__ import annotations

from math import ceil, inf
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from tputfind.record.types import Above0, Amount, Count, CountFromZero
from tputfind.sizing.batchers import SERVERS, Batcher, Handler, Handling, Routing, Server
from tputfind.sizing.gaps import FEWEST_ARRIVALS
from tputfind.sizing.samples import (
    ALONE,
    mean_samples,
    mean_square_samples,
)
from tputfind.units import format_figure

BATCHERS: Final = get_args(Batcher)
ROUTINGS: Final = get_args(Routing)
HANDLERS: Final = get_args(Handler)
HANDLINGS: Final = get_args(Handling)
IN_QUEUES: Final[tuple[Routing, ...]] = "least-loaded", "two-choices"
"""Routings that look at the queues of devices."""
GETTING: Final[tuple[Routing, ...]] = "shared", "random"
"""Routings with which LitServe's way to get requests one by one is simulated."""
LIMITED: Final[tuple[Batcher, ...]] = "greedy", "triton", "mosec", "ray"
"""Servers whose queue may have a limit: ``max_queue_size`` of Triton, ``--capacity`` of mosec, and Ray Serve's
``max_queued_requests``. LitServe has none."""
QUEUED: Final[tuple[Routing, ...]] = "shared", "random"
"""Routings with which limits of a queue and preferred batches are simulated."""
SHORTEST_DELAY_MS: Final = 1e-3
MOST_DEVICES: Final = 10_000_000
"""That are planned with."""
TAIL_REQUESTS: Final = 200
"""Requests beyond the percentile asked for, in each simulated stream."""
_MOST_SPLIT: Final = 10_000_000
_MOST_FOLLOWED: Final = 2_000_000
"""Samples of such a stream that are batched by themselves; fewer where they are followed one by one."""


Solved = Literal["devices", "rate", "slo", "nothing"]


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests come, and what is expected of the answers. Build it with ``sizing.options.read_demand``.

    ``burstiness`` is the coefficient of variation of the time between requests: 1 is a Poisson stream, 0 an even one.
    ``gaps`` are times between requests that were recorded, in any unit: they give the stream its shape, and
    ``rate_per_s`` its pace. ``network_ms`` is what the latency target leaves to others; overheads come on top of
    what the record measured. ``overhead_per_get_ms`` comes before it, for each request that is got out of a queue, and
    ``overhead_per_answer_ms`` after it, for each answer that goes out, while the device goes on.

    ``samples_per_request`` are the numbers of samples that requests have, each with its share of them; ``counts`` those
    of the recorded ones. ``requests`` says whether a request's samples are batched by themselves or stay in one batch;
    None is the server's own way. A server to which each sample is an item has the overheads of a request for each.

    ``solve`` is what is asked for: the least number of devices, or, of a given number, the highest rate or the tightest
    target (then ``rate_per_s`` or ``slo_ms`` stands for the answer), or nothing but what they do. The target holds with
    ``spare`` devices gone, and no device has a load above ``most_load``. ``rack_w`` is the power of a rack for its
    devices, and ``idle_w`` what a device takes that has nothing to do; None where they were not given.

    Of the requests that wait in a queue there are ``max_queue`` at the most, and others are refused. Triton prefers
    batches of ``preferred_batches``. With ``search_delay`` the delay is looked for too. A replica of Ray Serve has no
    more than ``max_ongoing`` unanswered. BentoML refuses what would be answered later than ``max_latency_ms``.
    """

    rate_per_s: Above0
    slo_ms: Above0
    percentile: Annotated[float, Meta(ge=50, le=99.99)] = 99.0
    burstiness: Annotated[float, Meta(ge=0, le=20)] = 1.0
    gaps: Annotated[tuple[Amount, ...], Meta(min_length=FEWEST_ARRIVALS - 1)] | None = None
    samples_per_request: Annotated[tuple[tuple[Count, Above0], ...], Meta(min_length=1)] = ALONE
    counts: tuple[Count, ...] | None = None
    requests: Handling | None = None
    batcher: Batcher = "greedy"
    delay_ms: Amount | None = None
    routing: Routing = "shared"
    overhead_per_batch_ms: Amount = 0.0
    overhead_per_request_ms: Amount = 0.0
    overhead_per_get_ms: Amount = 0.0
    overhead_per_answer_ms: Amount = 0.0
    network_ms: Amount = 0.0
    max_batch: Count | None = None
    seed: CountFromZero = 0
    devices: Count | None = None
    solve: Solved = "devices"
    spare: CountFromZero = 0
    most_load: Annotated[float, Meta(gt=0, le=1)] = 1.0
    max_queue: Count | None = None
    preferred_batches: tuple[Count, ...] = ()
    search_delay: bool = False
    handler: Handler | None = None
    max_ongoing: Count | None = None
    max_latency_ms: Above0 | None = None
    rack_w: Above0 | None = None
    idle_w: Amount | None = None

    @property
    def server(self) -> Server:
        """What the batcher does."""
        return SERVERS[self.batcher]

    @property
    def several(self) -> bool:
        """Whether requests have several samples, some at least."""
        return self.samples_per_request[-1][0] > 1

    @property
    def handling(self) -> Handling:
        """What the batcher does with requests of several samples."""
        return self.requests or (self.server.handles or HANDLINGS)[0]

    @property
    def whole(self) -> bool:
        """Whether requests have several samples that stay in one batch."""
        return self.several and self.handling == "whole"

    @property
    def mean_samples(self) -> float:
        """How many samples a request has on average."""
        return mean_samples(self.samples_per_request)

    @property
    def samples_dispersion(self) -> float:
        """The mean square of the samples of a request over the square of their mean: 1 where all have as many."""
        return mean_square_samples(self.samples_per_request) / self.mean_samples**2

    @property
    def least_cap(self) -> int:
        """The smallest cap with which no request is refused: all the samples of the largest, where it stays whole."""
        return self.samples_per_request[-1][0] if self.whole else 1

    @property
    def target_ms(self) -> float:
        """What is left of the latency target for waiting and computing."""
        return self.slo_ms - self.network_ms

    @property
    def wait_ms(self) -> float:
        """How long the batcher lets a batch wait for more requests."""
        return self.server.delay_ms if self.delay_ms is None else self.delay_ms

    @property
    def load_allowed(self) -> float:
        """The highest load of a device. A queue with a limit is steady under any: it refuses what is too much."""
        return inf if self.max_queue is not None and self.most_load == 1 else self.most_load

    @property
    def refuses(self) -> bool:
        """Whether the server refuses requests."""
        return self.max_queue is not None or self.most_latency_ms is not None

    @property
    def handled(self) -> Handler | None:
        """How the model is called, where that decides over batches."""
        return self.handler or next(iter(self.server.handlers), None)

    @property
    def most_ongoing(self) -> int | None:
        """How many requests a device may have unanswered, or None if nothing bounds that."""
        return self.max_ongoing or self.server.max_ongoing

    @property
    def most_latency_ms(self) -> float | None:
        """How late an answer may be without being refused, or None if nothing bounds that."""
        return self.max_latency_ms or self.server.max_latency_ms

    @property
    def most_in_window(self) -> int | None:
        """How many requests can be got while a batch waits for more, or None if nothing bounds that."""
        bounded = self.overhead_per_get_ms > 0 and self.wait_ms > 0
        return ceil(self.wait_ms / self.overhead_per_get_ms) if bounded else None

    def __post_init__(self) -> None:
        """Check what no single field shows."""
        problems = [text for broken, text in self._rules() if broken]
        if problems:
            raise ValueError("; ".join(problems))

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            (
                self.devices is not None and self.spare >= self.devices,
                f"--spare {self.spare} leaves none of {self.devices} devices",
            ),
            (self.target_ms <= 0, f"--network {self.network_ms:g} ms leaves nothing of --slo {self.slo_ms:g} ms"),
            *self._rules_of_servers(),
            (
                self.server.in_replicas and self.routing == "shared",
                f"--batcher {self.batcher} batches in each replica: --routing two-choices, least-loaded or random",
            ),
            (
                self.server.whole_ms and self.delay_ms is not None and self.delay_ms != max(1, int(self.delay_ms)),
                f"--delay of {self.batcher} is in whole milliseconds, 1 ms at the least",
            ),
            (
                self.overhead_per_get_ms > 0 and (self.server.one_by_one != "getters" or self.routing not in GETTING),
                "overhead_per_get is of --batcher litserve, and of --routing shared or random",
            ),
            (
                0 < self.wait_ms < SHORTEST_DELAY_MS or 0 < self.overhead_per_get_ms < SHORTEST_DELAY_MS,
                "--delay and overhead_per_get are 0, or 1us at the least",
            ),
            *self._rules_of_queues(),
            (
                self.gaps is not None and self.burstiness != 1.0,
                "--arrivals say how bursty the stream is, so --burstiness has nothing to add",
            ),
            *self._rules_of_samples(),
        ]

    def _rules_of_samples(self) -> list[tuple[bool, str]]:
        handles, samples = self.server.handles, self.mean_samples
        timed = len(self.gaps or ()) + 1
        many = f"--samples-per-request: {format_figure(samples)} on average are too many"
        followed = self.server.one_by_one is not None or self.routing in IN_QUEUES
        most = _MOST_FOLLOWED if followed else _MOST_SPLIT
        longest = samples * TAIL_REQUESTS / (1 - self.percentile / 100)
        return [
            (
                self.requests is not None and not self.several,
                "--requests is of requests of several samples: give --samples-per-request",
            ),
            (
                self.several and not handles,
                f"requests of several samples are not simulated for --batcher {self.batcher}",
            ),
            (
                self.several and bool(handles) and self.requests not in (None, *handles),
                f"--requests {self.requests}: --batcher {self.batcher} has them {' or '.join(handles)}",
            ),
            (
                self.several and (self.max_queue is not None or bool(self.preferred_batches)),
                "--max-queue and --preferred-batches are simulated for requests of one sample",
            ),
            (
                self.counts is not None and len(self.counts) != timed,
                f"samples: {timed} requests have a time, and {len(self.counts or ())} a number of samples",
            ),
            (
                self.several and not self.whole and longest > most,
                f"{many} to simulate p{self.percentile:g} where each is batched by itself: lower --percentile",
            ),
        ]

    def _rules_of_queues(self) -> list[tuple[bool, str]]:
        largest = max(self.preferred_batches, default=0)
        queued = self.batcher != "ray" and self.routing not in QUEUED
        return [
            (
                self.max_queue is not None and self.batcher not in LIMITED,
                f"--max-queue is of --batcher {', '.join(LIMITED[:-1])} or {LIMITED[-1]}",
            ),
            (largest > 0 and self.batcher != "triton", "--preferred-batches is of --batcher triton"),
            (
                (self.max_queue is not None or largest > 0) and queued,
                f"--max-queue and --preferred-batches are of --routing {' or '.join(QUEUED)}",
            ),
            (
                self.max_batch is not None and largest > self.max_batch,
                f"--preferred-batches: {largest} is above --max-batch {self.max_batch}",
            ),
            (
                self.search_delay and self.solve != "devices",
                "--delay auto looks for the fewest devices, and does without --devices",
            ),
        ]

    def _rules_of_servers(self) -> list[tuple[bool, str]]:
        server = self.server
        learns = server.rule is None
        does = "finds out by itself how long to wait" if learns else "sends what is there, and waits for nothing"
        waiting = bool(self.delay_ms) or self.search_delay
        return [
            (not server.waits and waiting, f"--delay: the {self.batcher} batcher {does}"),
            (self.handler is not None and not server.handlers, "--handler is of --batcher ray or bentoml"),
            (self.max_ongoing is not None and server.max_ongoing is None, "--max-ongoing is of --batcher ray"),
            (
                self.max_latency_ms is not None and server.max_latency_ms is None,
                "--max-latency is of --batcher bentoml",
            ),
        ]
