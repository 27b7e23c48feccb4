"""Demand: the requests, the latency that they must be answered in, and how the server batches them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import ceil
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from tputfind import units, values
from tputfind.errors import BadRequest
from tputfind.spec import Above0, Amount, Count, CountFromZero

Batcher = Literal["greedy", "triton", "mosec", "litserve", "ray"]
Routing = Literal["shared", "random", "least-loaded", "two-choices"]
BATCHERS: Final = get_args(Batcher)
ROUTINGS: Final = get_args(Routing)
GETTING: Final[tuple[Routing, ...]] = "shared", "random"
"""Routings with which LitServe's way to get requests one by one is simulated."""
_SHORTEST_MS: Final = 1e-3
DELAYS_MS: Final[dict[Batcher, float]] = {"greedy": 0.0, "triton": 0.0, "mosec": 10.0, "litserve": 0.0, "ray": 10.0}
"""How long each server lets a batch wait for more requests, unless it is told otherwise."""
_FEWEST_ARRIVALS: Final = 100
_MOST_ARRIVALS: Final = 2_000_000


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests come, one sample each, and what is expected of the answers. Build it with ``read_demand``.

    ``burstiness`` is the coefficient of variation of the time between requests: 1 is a Poisson stream, 0 an even one.
    ``gaps`` are times between requests that were recorded, in any unit: they give the stream its shape, and
    ``rate_per_s`` its pace. ``network_ms`` is what the latency target leaves to others; overheads come on top of
    what the record measured. ``overhead_per_get_ms`` comes before it, for each request that is got out of a queue, and
    ``overhead_per_answer_ms`` after it, for each answer that goes out, while the device goes on.
    """

    rate_per_s: Above0
    slo_ms: Above0
    percentile: Annotated[float, Meta(ge=50, le=99.99)] = 99.0
    burstiness: Annotated[float, Meta(ge=0, le=20)] = 1.0
    gaps: Annotated[tuple[Amount, ...], Meta(min_length=_FEWEST_ARRIVALS - 1)] | None = None
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

    @property
    def target_ms(self) -> float:
        """What is left of the latency target for waiting and computing."""
        return self.slo_ms - self.network_ms

    @property
    def wait_ms(self) -> float:
        """How long the batcher lets a batch wait for more requests."""
        return DELAYS_MS[self.batcher] if self.delay_ms is None else self.delay_ms

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
            (self.target_ms <= 0, f"--network {self.network_ms:g} ms leaves nothing of --slo {self.slo_ms:g} ms"),
            (
                self.batcher == "greedy" and bool(self.delay_ms),
                "--delay: the greedy batcher sends what is there, and waits for nothing",
            ),
            (
                self.batcher == "ray" and self.routing == "shared",
                "--batcher ray batches in each replica: --routing two-choices, least-loaded or random",
            ),
            (
                self.batcher == "mosec" and self.delay_ms is not None and self.delay_ms != max(1, int(self.delay_ms)),
                "--delay of mosec is in whole milliseconds, 1 ms at the least",
            ),
            (
                self.overhead_per_get_ms > 0 and (self.batcher != "litserve" or self.routing not in GETTING),
                "--overhead-per-get is of --batcher litserve, and of --routing shared or random",
            ),
            (
                0 < self.wait_ms < _SHORTEST_MS or 0 < self.overhead_per_get_ms < _SHORTEST_MS,
                "--delay and --overhead-per-get are 0, or 1us at the least",
            ),
            (
                self.gaps is not None and self.burstiness != 1.0,
                "--arrivals say how bursty the stream is, so --burstiness has nothing to add",
            ),
        ]


def gaps_of(times: list[float]) -> tuple[float, ...]:
    """Return the times between requests that came at these times.

    Raises:
        ValueError: they are too few, or do not rise.
    """
    if len(times) < _FEWEST_ARRIVALS:
        raise ValueError(f"{len(times)} requests show no stream: at least {_FEWEST_ARRIVALS} are needed")
    if len(times) > _MOST_ARRIVALS:
        raise ValueError(f"{len(times)} requests are more than are replayed: {_MOST_ARRIVALS} at the most")
    gaps = tuple(later - earlier for earlier, later in pairwise(times))
    if min(gaps) < 0 or not max(gaps) > 0:
        raise ValueError("the times of requests must rise")
    return gaps


def read_demand(options: Mapping[str, object]) -> Demand:
    """Return the demand that options describe, by name with underscores; None means: not given.

    They are as a command line writes them (text), or as Python code would: numbers per second, and milliseconds.

    Raises:
        BadRequest: one or more are wrong, or missing; its message names them all.
    """
    missing = [f"--{name} is needed" for name in ("rate", "slo") if options.get(name) is None]
    fields, wrong = values.fields_of(options, _READERS)
    problems = missing + wrong
    if not problems:
        if fields.get("batcher") == "ray":
            fields.setdefault("routing", "two-choices")
        try:
            return msgspec.convert(fields, Demand)
        except msgspec.ValidationError as error:
            problems.append(_in_options(f"{error}"))
    raise BadRequest("; ".join(problems), "see tputfind size --help")


def _in_options(message: str) -> str:
    """Return msgspec's words with the option in place of the field: ``... - at `$.rate_per_s```."""
    words, _, field = message.partition(" - at `$.")
    options = {field: option for option, (field, _) in _READERS.items()}
    option = options.get(field.rstrip("`"))
    return message if option is None else f"--{option.replace('_', '-')}: {words}"


def _ms(value: object) -> float:
    """Return milliseconds, which may be 0."""
    nothing = isinstance(value, str) and value.strip() == "0"
    return values.number(value) if nothing or not isinstance(value, str) else units.parse_ms(value)


_READERS: Final[dict[str, tuple[str, values.Reader]]] = {
    "rate": ("rate_per_s", values.number),
    "slo": ("slo_ms", _ms),
    "percentile": ("percentile", values.number),
    "burstiness": ("burstiness", values.number),
    "gaps": ("gaps", lambda value: value),
    "batcher": ("batcher", values.one_of(BATCHERS)),
    "delay": ("delay_ms", _ms),
    "routing": ("routing", values.one_of(ROUTINGS)),
    "overhead_per_batch": ("overhead_per_batch_ms", _ms),
    "overhead_per_request": ("overhead_per_request_ms", _ms),
    "overhead_per_get": ("overhead_per_get_ms", _ms),
    "overhead_per_answer": ("overhead_per_answer_ms", _ms),
    "network": ("network_ms", _ms),
    "max_batch": ("max_batch", values.whole),
    "seed": ("seed", values.count_from_zero),
}
