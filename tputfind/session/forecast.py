"""Forecasts for memories of other sizes, from a few trials on the device at hand or from fake tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tputfind.errors import BadRequest
from tputfind.processes.children import Children
from tputfind.processes.messages import TraceOnFake
from tputfind.record.files import RecordFile
from tputfind.record.forecast import CardForecast, Forecasts
from tputfind.record.method import METHOD
from tputfind.record.record import Trial
from tputfind.record.spec import Spec
from tputfind.record.trace import Trace
from tputfind.record.types import LARGEST_BATCH
from tputfind.search.forecast import (
    FIRST_BATCH,
    NonMonotonic,
    edge_where,
    expected_batch,
    expected_non_monotonic,
    non_monotonic_where,
)
from tputfind.search.replay import Forecast, Memory, ratio
from tputfind.session.catalogue import check_torchvision
from tputfind.session.inspect import inspect, new_record, now
from tputfind.session.outcome import no_answer
from tputfind.session.progress import Progress
from tputfind.session.session import Session
from tputfind.session.trials import FIRST_TIMEOUT_S, TrialRunner
from tputfind.version import __version__

_FIRST_BATCHES: Final = FIRST_BATCH, 7, 1
_NEAR: Final = 1.1
"""A trial within this factor of a forecast is near enough."""
_MOST_TRIALS: Final = 2
"""Most trials that are taken to come near to one forecast."""
_ERRORS: Final = ((_NEAR, 0.03), (2.0, 0.1), (math.inf, 0.2))
"""How far a forecast from a trial within such a factor is off at the most, nine times in ten."""
_ERROR_ON_FAKE: Final = 0.2


def measure(spec: Spec, memories: Sequence[int], children: Children, progress: Progress, command: str) -> Forecasts:
    """Forecast the largest batch for devices with these bytes of memory, from trials on the one that is here.

    A first trial is small. For each memory there are up to two more, near its forecast, where this device has the
    memory for them. ``command`` is kept: how this was asked for.

    Raises:
        TputfindError: the device or the model does not allow it.
    """
    inspection = inspect(spec, children)
    environment = inspection.environment
    if not environment.can.allocator_trace:
        raise BadRequest(
            "forecasts are made from what a CUDA device's memory allocator was asked for, and there is none here",
            "--on-fake makes coarser ones without a device",
        )
    record = new_record(spec, inspection, command)
    session = Session(record, TrialRunner(children, spec, environment), RecordFile(None, ""), progress)
    session.until_it_runs(lambda: _take_first_trial(session))
    cards = tuple(_forecast(session, memory_bytes) for memory_bytes in memories)
    tried = tuple(sorted({trial.batch_size for trial in session.record.trials}))
    return Forecasts(
        method=METHOD,
        tputfind=__version__,
        command=command,
        started=record.started,
        spec=spec,
        device_name=environment.device_name,
        tried=tried,
        cards=cards,
    )


def on_fake(spec: Spec, memories: Sequence[int], children: Children, progress: Progress, command: str) -> Forecasts:
    """Forecast as ``measure`` does, without a device: from what the model would ask for, workspaces not included.

    Raises:
        TputfindError: the model does not run on fake tensors.
    """
    if spec.source == "torchvision":
        check_torchvision(children)
    started = now()
    progress.doing("running it on fake tensors", None)
    trace = children.ask_one(TraceOnFake(spec, FIRST_BATCH), Trace, FIRST_TIMEOUT_S)

    def card(memory_bytes: int) -> CardForecast:
        memory = Memory(memory_bytes, expandable=spec.allocator == "expandable", capped=True)
        fits = Forecast([trace], memory).fits
        found = edge_where(fits, granularity=1, max_batch=LARGEST_BATCH)
        around = non_monotonic_where(fits, found, granularity=1, max_batch=LARGEST_BATCH)
        error = max(_ERROR_ON_FAKE, _spread(found, around))
        return CardForecast(memory_bytes=memory_bytes, largest_batch=found, error=error)

    return Forecasts(
        method=METHOD,
        tputfind=__version__,
        command=command,
        started=started,
        spec=spec,
        device_name=None,
        tried=(FIRST_BATCH,),
        cards=tuple(map(card, memories)),
    )


def _take_first_trial(session: Session) -> None:
    """Find a small batch that passes, and whose trace the model of the allocator is right about."""
    for batch_size in _FIRST_BATCHES:
        if session.try_batch(batch_size) is None:
            break
    latest = session.record.trials[-1]
    if latest.failure is not None:
        raise no_answer(session.record.spec, latest.batch_size, latest.failure)
    if _edge(session, None) is None:
        raise BadRequest(
            f"what {session.record.spec.model} asks of the memory allocator cannot be replayed here",
            "that takes NVML, one CUDA stream, and no PYTORCH_ALLOC_CONF other than expandable_segments",
        )


def _forecast(session: Session, memory_bytes: int) -> CardForecast:
    for _ in range(_MOST_TRIALS):
        batch_size = _edge(session, memory_bytes) or 0
        near = _distance(session.record.trials, batch_size) <= _NEAR
        if near or batch_size == LARGEST_BATCH or batch_size > (_edge(session, None) or 0):
            break
        session.try_batch(batch_size)
    found = _edge(session, memory_bytes) or 0
    distance = _distance(session.record.trials, found)
    error = next(error for factor, error in _ERRORS if distance <= factor)
    around = expected_non_monotonic(session.known(memory_bytes), found)
    error = max(error, _spread(found, around))
    return CardForecast(memory_bytes=memory_bytes, largest_batch=found, error=error)


def _edge(session: Session, memory_bytes: int | None) -> int | None:
    """Return the edge that the trials let expect under a limit; the largest batch size there can be without an end."""
    return expected_batch(session.known(memory_bytes), 0, None)


def _spread(found: int, around: NonMonotonic) -> float:
    """Return how far from a forecast fits and fails are expected to alternate, as a share of it in whole percents."""
    distances = [abs(size - found) for size in around if size is not None]
    return math.ceil(100 * max(distances) / found) / 100 if distances else 0.0


def _distance(trials: Sequence[Trial], batch_size: int) -> float:
    """Return the factor between a batch size and the nearest that passed; 1 for none at all, which needs no trial."""
    if batch_size == 0:
        return 1.0
    return min(ratio(trial.batch_size, batch_size) for trial in trials if trial.failure is None)
