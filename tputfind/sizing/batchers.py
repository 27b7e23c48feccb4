"""How servers make batches of what waits, each by its own rule, as read from its source.

A rule is asked when the next batch is closed. It knows when the device is free, when the batch before was closed, when
the oldest waiting request came, and when the one comes that makes the batch full.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor
from typing import Final, Literal, NamedTuple, TypeAlias

Rule: TypeAlias = Callable[[float, float, float, float], float]
"""``(free_ms, closed_ms, first_ms, full_ms)`` to the time at which the batch is closed."""
Batcher = Literal["greedy", "triton", "mosec", "litserve", "ray", "bentoml"]
Routing = Literal["shared", "random", "least-loaded", "two-choices"]
"""Where a request waits: in one queue for all devices, or in that of a device picked so."""
Handler = Literal["blocking", "threaded"]
"""Whether the model is called on the server's event loop, which it blocks, or in a thread beside it."""
_TOKIO_MS: Final = 1.0


class Server(NamedTuple):
    """What a server does with requests that wait.

    ``rule`` makes its rule from how long a batch waits for more; ``delay_ms`` is that by default, and ``timer_ms`` what
    its timers add on average. With ``windows`` batches are made by the clock. Its workers may take requests out of a
    shared queue ``one_by_one``: ``getters`` take some time for each, ``workers`` collect batches side by side. With
    ``in_replicas`` each device has a queue of its own. ``routing`` is by default, as the first of ``handlers`` is, and
    ``max_ongoing``: of the requests that a device has been given and not answered. Without a rule its batches follow
    from what it has learned.
    """

    rule: Callable[[float], Rule] | None
    delay_ms: float = 0.0
    timer_ms: float = 0.0
    waits: bool = True
    whole_ms: bool = False
    in_replicas: bool = False
    windows: bool = False
    one_by_one: Literal["getters", "workers"] | None = None
    routing: Routing = "shared"
    handlers: tuple[Handler, ...] = ()
    max_ongoing: int | None = None
    max_latency_ms: float | None = None


def held_ms(batcher: Batcher, wait_ms: float) -> float:
    """Return how long a server that is to let a batch wait so long does so on average.

    mosec's timers are tokio's: they tick in whole milliseconds, and both the tick and the wait for it are rounded up.
    After batches of 32 on an H200 the next began 6.0 ms later if it had waited than if it was full at once, where 5 had
    been asked for.
    """
    return wait_ms + SERVERS[batcher].timer_ms


def rule_of(batcher: Batcher, wait_ms: float) -> Rule:
    """Return the rule of a server that lets a batch wait so long for more requests."""
    rule = SERVERS[batcher].rule
    assert rule is not None, batcher
    return rule(wait_ms)


def _greedy(free_ms: float, closed_ms: float, first_ms: float, full_ms: float) -> float:  # noqa: ARG001
    """Take what is there as soon as the device is free."""
    return max(free_ms, first_ms)


def _triton(wait_ms: float) -> Rule:
    """Triton, ``dynamic_batch_scheduler.cc``: the delay counts from when the oldest request came.

    While all instances are busy a batch goes on growing.
    """

    def rule(free_ms: float, closed_ms: float, first_ms: float, full_ms: float) -> float:  # noqa: ARG001
        return max(free_ms, first_ms, min(first_ms + wait_ms, full_ms))

    return rule


def _mosec(wait_ms: float) -> Rule:
    """mosec, ``protocol.rs``: a free worker takes a request, and from then on waits for others."""

    def rule(free_ms: float, closed_ms: float, first_ms: float, full_ms: float) -> float:  # noqa: ARG001
        return _collected(max(free_ms, first_ms), wait_ms, full_ms)

    return rule


def _litserve(wait_ms: float) -> Rule:
    """LitServe, ``loops/base.py``: windows follow each other from when the worker is free; what came in one is a batch.

    The whole window passes, whether anything waits or not, unless the batch is full. Without one, it takes what is
    there.
    """
    if wait_ms == 0:
        return _greedy

    def rule(free_ms: float, closed_ms: float, first_ms: float, full_ms: float) -> float:  # noqa: ARG001
        empty = floor((first_ms - free_ms) / wait_ms) if first_ms > free_ms else 0
        return max(first_ms, _collected(free_ms + empty * wait_ms, wait_ms, full_ms))

    return rule


def _ray(wait_ms: float) -> Rule:
    """Ray Serve, ``batching.py``: batches are closed while the device is busy, and wait for it as they are.

    With a handler that blocks its event loop no rule tells when: ``replicas.Blocked``.
    """

    def rule(free_ms: float, closed_ms: float, first_ms: float, full_ms: float) -> float:  # noqa: ARG001
        return _collected(max(closed_ms, first_ms), wait_ms, full_ms)

    return rule


def _collected(begins_ms: float, wait_ms: float, full_ms: float) -> float:
    """Return when a batch that is collected from then on is closed: after the wait, or when it is full."""
    return min(begins_ms + wait_ms, max(begins_ms, full_ms))


SERVERS: Final[dict[Batcher, Server]] = {
    "greedy": Server(lambda _: _greedy, waits=False),
    "triton": Server(_triton),
    "mosec": Server(_mosec, delay_ms=10.0, timer_ms=_TOKIO_MS, whole_ms=True, one_by_one="workers"),
    "litserve": Server(_litserve, windows=True, one_by_one="getters"),
    "ray": Server(
        _ray,
        delay_ms=10.0,
        in_replicas=True,
        routing="two-choices",
        handlers=("blocking", "threaded"),
        max_ongoing=5,
    ),
    "bentoml": Server(
        None,
        waits=False,
        in_replicas=True,
        routing="random",
        handlers=("threaded", "blocking"),
        max_latency_ms=60_000.0,
    ),
}
