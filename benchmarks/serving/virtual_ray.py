"""Ray Serve's own code on a simulated clock: its router, its power of two choices, and ``serve.batch``.

The rest is replaced: a replica starts a request on the loop of its user code, and refuses requests beyond
``max_ongoing_requests`` as ``Replica.handle_request_with_rejection`` does. Messages take no time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import nan
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from ray import serve
from ray.serve import batching
from ray.serve._private import router as routers
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    ReplicaQueueLengthInfo,
    RequestMetadata,
)
from ray.serve._private.request_router import common, pow_2_router, request_router
from ray.serve.exceptions import BackPressureError
from ray.util import metrics
from serving.virtual import Loop, World

Span = Callable[[int], float]
"""Function that returns the duration of a batch in ms, for its size."""
MAX_ONGOING: Final = 5
"""Ray Serve's default."""
_DEPLOYMENT: Final = DeploymentID("model", "app")


class _Result:
    """The pending answer of one request; it replaces ``ReplicaResult`` for the router."""

    def __init__(self, replica: _Replica, request: int) -> None:
        self._replica, self._request = replica, request
        self._callbacks: list[Callable[[object], object]] = []
        self._info: asyncio.Future[ReplicaQueueLengthInfo] = asyncio.get_running_loop().create_future()

    async def get_rejection_response(self) -> ReplicaQueueLengthInfo:
        return await self._info

    def told(self, info: ReplicaQueueLengthInfo) -> None:
        self._info.set_result(info)

    def add_done_callback(self, callback: Callable[[object], object]) -> None:
        self._callbacks.append(callback)

    def done(self) -> None:
        for callback in self._callbacks:
            callback(None)

    cancel = done


class _Replica:
    """One replica: it replaces ``RunningReplica`` for the router, and runs user code on its own loop."""

    is_cross_language = False
    actor_id = None
    node_id = availability_zone = ""
    multiplexed_model_ids: Sequence[str] = ()

    def __init__(self, number: int, world: World, limit: int, handler: Callable[[int], Any]) -> None:
        self.replica_id = ReplicaID(f"{number:04d}", deployment_id=_DEPLOYMENT)
        self.max_ongoing_requests = limit
        self.loop = world.loop()
        self._handler, self._ongoing = handler, 0

    async def get_queue_len(self, *, deadline_s: float) -> int:  # noqa: ARG002
        return self._ongoing

    def try_send_request(self, pending: Any, *, with_rejection: bool) -> _Result:
        assert with_rejection
        request: int = pending.args[0]
        result, router = _Result(self, request), asyncio.get_running_loop()
        if self._ongoing >= self.max_ongoing_requests:
            result.told(ReplicaQueueLengthInfo(accepted=False, num_ongoing_requests=self._ongoing))
            return result
        self._ongoing += 1
        result.told(ReplicaQueueLengthInfo(accepted=True, num_ongoing_requests=self._ongoing))
        answer = asyncio.run_coroutine_threadsafe(self._handler(request), self.loop)
        answer.add_done_callback(lambda _: router.call_soon_threadsafe(self._finish, result))
        return result

    def _finish(self, result: _Result) -> None:
        self._ongoing -= 1
        result.done()


class _Unmeasured:
    """A metric that discards its values: without a cluster there is no receiver."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def set_default_tags(self, _: object) -> _Unmeasured:
        return self

    def set(self, *_: object, **__: object) -> None: ...

    def inc(self, *_: object, **__: object) -> None: ...

    def observe(self, *_: object, **__: object) -> None: ...


def _router(loop: Loop, replicas: list[_Replica], max_queued: int) -> Any:
    """Return Ray Serve's ``AsyncioRouter`` with these replicas, without the controller that would send them."""
    chooser = pow_2_router.PowerOfTwoChoicesRequestRouter(
        deployment_id=_DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=True,
        get_curr_time_s=loop.time,
    )
    chooser._lazily_fetched_loop = loop  # noqa: SLF001
    chooser.update_replicas(replicas)
    router = object.__new__(routers.AsyncioRouter)
    router.deployment_id = _DEPLOYMENT
    router._event_loop = loop
    router._request_router = chooser
    router._request_router_class = None
    router._enable_strict_max_ongoing_requests = True
    router._deployment_available = True
    router._request_router_initialized = asyncio.Event()
    router._request_router_initialized.set()
    router._resolve_request_arg_func = routers.resolve_deployment_response
    router._objref_resolution_latency_ms = _Unmeasured()
    metric = _Unmeasured()
    manager = routers.RouterMetricsManager(
        _DEPLOYMENT, "handle", "actor", DeploymentHandleSource.REPLICA, None, metric, metric, metric, loop
    )
    manager._deployment_config = SimpleNamespace(  # noqa: SLF001
        max_queued_requests=max_queued,
        autoscaling_config=None,
        backpressure_config=SimpleNamespace(status_code=503, retry_after_s=None),
    )
    router._metrics_manager = manager
    return router


def answered_ms(
    arrivals_ms: NDArray[np.float64],
    spans: Iterable[Span],
    *,
    cap: int,
    delay_ms: float,
    max_ongoing: int,
    max_queued: int = -1,
    blocking: bool,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Return when Ray Serve answers requests that arrive at these times, in ms; nan if it refuses one.

    Args:
        arrivals_ms: arrival times.
        spans: for each replica, the function that returns the duration of a batch.
        cap: ``max_batch_size``.
        delay_ms: ``batch_wait_timeout_s``.
        max_ongoing: ``max_ongoing_requests``.
        max_queued: ``max_queued_requests``.
        blocking: whether the handler blocks its event loop, as a plain ``model(x)`` does.
        seed: seed of the router's choices.
    """
    random.seed(seed)
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    world = World()
    clock = SimpleNamespace(time=world.time, monotonic=world.time)
    for module in (batching, request_router, common, routers):
        module.time = clock
    for kind in ("Counter", "Gauge", "Histogram"):
        setattr(metrics, kind, _Unmeasured)
        setattr(batching, kind, _Unmeasured)
    serve.get_replica_context = lambda: SimpleNamespace(
        _deployment_config=SimpleNamespace(max_ongoing_requests=max_ongoing)
    )
    loop = world.loop()
    replicas = [
        _Replica(number, world, max_ongoing, _handler(world, span, cap, delay_ms, blocking=blocking))
        for number, span in enumerate(spans)
    ]
    done_ms = np.full(len(arrivals_ms), -1.0)
    left = len(arrivals_ms)
    world.active = loop
    asyncio.events._set_running_loop(loop)  # noqa: SLF001
    router = _router(loop, replicas, max_queued)
    asyncio.events._set_running_loop(None)  # noqa: SLF001

    def ended(request: int, at_ms: float) -> None:
        nonlocal left
        done_ms[request] = at_ms
        left -= 1

    async def ask(request: int) -> None:
        metadata = RequestMetadata(request_id=str(request), internal_request_id=str(request))
        try:
            result = await router.assign_request(metadata, request)
        except BackPressureError:
            ended(request, nan)
        else:
            result.add_done_callback(lambda _: ended(request, 1000 * world.time()))

    def arrive(request: int) -> None:
        task = loop.create_task(ask(request))
        tasks.add(task)
        task.add_done_callback(gone)
        if request + 1 < len(arrivals_ms):
            loop.call_at(arrivals_ms[request + 1] / 1000, arrive, request + 1)

    def gone(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if (error := task.exception()) is not None:
            raise error

    tasks: set[asyncio.Task[None]] = set()
    loop.call_at(arrivals_ms[0] / 1000, arrive, 0)
    world.run(lambda: left == 0)
    return done_ms


def _handler(world: World, span: Span, cap: int, delay_ms: float, *, blocking: bool) -> Callable[[int], Any]:
    """Return a function in the user's code that answers one request, in batches."""

    @serve.batch(max_batch_size=cap, batch_wait_timeout_s=delay_ms / 1000)  # type: ignore[untyped-decorator]
    async def model(requests: list[int]) -> list[int]:
        await world.compute(span(len(requests)) / 1000, blocking=blocking)
        return requests

    return partial(model)
