"""BentoML's own adaptive batching, ``CorkDispatcher`` and its optimizer, on a simulated clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import nan
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import numpy as np
from bentoml._internal.marshal import dispatcher
from bentoml._internal.utils import alg
from numpy.typing import NDArray
from serving.virtual import World

Span = Callable[[int], float]
"""How long a batch of a size takes, in ms."""
MAX_LATENCY_MS: Final = 60_000
"""Its default."""


class _Refused(Exception):
    """The service is overloaded."""


def _refuse() -> NoReturn:
    raise _Refused


def answered_ms(
    arrivals_ms: NDArray[np.float64], span: Span, *, cap: int, max_latency_ms: int, blocking: bool
) -> NDArray[np.float64]:
    """Return when one worker of BentoML answers requests that come at these times, in ms; nan where it refuses one.

    Args:
        arrivals_ms: when they come.
        span: how long a batch takes.
        cap: ``max_batch_size``.
        max_latency_ms: the option of that name.
        blocking: whether the handler blocks its event loop: ``async def`` around a plain ``model(x)``.
    """
    world = World()
    # Requests come from another thread, as they do from a socket while the worker's is blocked.
    client, loop = world.loop(), world.loop()
    clock = SimpleNamespace(time=world.time)
    for module in (dispatcher, alg):
        module.time = clock

    async def model(requests: Sequence[int]) -> Sequence[int]:
        await world.compute(span(len(requests)) / 1000, blocking=blocking)
        return requests

    cork: Any = dispatcher.CorkDispatcher(max_latency_ms, cap, fallback=_refuse, get_batch_size=lambda _: 1)
    answer = cork(model)
    done_ms = np.full(len(arrivals_ms), nan)

    async def ask(request: int) -> None:
        try:
            await answer(request)
        except _Refused:
            pass
        else:
            done_ms[request] = 1000 * world.time()
        ended.append(request)

    def arrive(request: int) -> None:
        asyncio.run_coroutine_threadsafe(ask(request), loop)
        if request + 1 < len(arrivals_ms):
            client.call_at(arrivals_ms[request + 1] / 1000, arrive, request + 1)

    ended: list[int] = []
    client.call_at(arrivals_ms[0] / 1000, arrive, 0)
    world.run(lambda: len(ended) == len(arrivals_ms))
    return done_ms
