"""Forecasts for devices with other memory sizes, from a few trials on a local device or from fake tensors."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import product
from typing import Final

from msgspec.structs import replace

from tputfind import options as values
from tputfind.declaration import add_options_of, options_by_field
from tputfind.errors import BadRequest, ModelFailed
from tputfind.processes.children import Children
from tputfind.processes.failures import ChildFailed
from tputfind.processes.messages import FakeTrace, Inspection, TraceOnFake
from tputfind.record.files import RecordFile
from tputfind.record.forecast import CardForecast, Forecasts, MemorySplit, VariantForecast
from tputfind.record.record import Trial
from tputfind.record.result import shown_progress
from tputfind.record.spec import Spec, read_spec
from tputfind.record.types import LARGEST_BATCH, METHOD, QUANTIZED, Dtype
from tputfind.search.forecast import (
    FIRST_BATCH,
    Known,
    NonMonotonic,
    edge_where,
    expected_batch,
    expected_non_monotonic,
    non_monotonic_where,
)
from tputfind.search.replay import Forecast, Memory, Program, ratio
from tputfind.session import expectations, pickling
from tputfind.session.inspect import inspect, new_record, now, preload_packages
from tputfind.session.outcome import no_answer
from tputfind.session.progress import Progress, Silent
from tputfind.session.session import Session
from tputfind.session.trials import FIRST_TIMEOUT_S, TrialRunner
from tputfind.version import __version__

_MOST_MEMORIES: Final = 1000
_FIRST_BATCHES: Final = FIRST_BATCH, 7, 1
_NEAR: Final = 1.1
"""Maximum ratio of a forecast to its nearest trial at which no further trial is needed."""
_MOST_TRIALS: Final = 2
"""Maximum number of trials per forecast."""
_ERRORS: Final = ((_NEAR, 0.03), (2.0, 0.1), (math.inf, 0.2))
"""Error of a forecast (90 % of cases), by the maximum ratio between the forecast and its nearest trial."""
_ERROR_ON_FAKE: Final = {"infer": 0.2, "train": 0.05}
"""Stated error of forecasts on fake tensors, by phase; the errors in benchmarks were smaller."""
_SAMPLES_ON_FAKE: Final = 64
"""Number of batch sizes on either side of the edge at which such a forecast looks for exceptions: only those far from
the edge widen its error, and a replay takes milliseconds."""
_NOT_ON_FAKE: Final = ("mode", "transfer", "max_batch", "memory_limit_bytes", "headroom")
_KINDS: Final = ("gradients", "optimizer", "libraries")
_NARROWER: Final[dict[Dtype, Dtype]] = {"fp32": "amp-bf16", "tf32": "amp-bf16", "amp-fp16": "bf16", "amp-bf16": "bf16"}
"""The narrower dtype in which a training is also forecast."""
_ENDLESS: Final = Memory(2**60)


@add_options_of(Spec)
def forecast(
    model: str | Callable[..., object],
    *,
    memory: str | float | Iterable[str | float],
    inputs: Callable[[int], object] | None = None,
    on_fake: bool = False,
    progress: bool | None = None,
    trust_model_file: bool = False,
    **options: object,
) -> Forecasts:
    """Forecast the largest batch on devices with other memory: ``tputfind forecast``, from Python.

    With a CUDA device, a few trials run on it. Without one, or if ``on_fake`` is true, the steps run on fake tensors,
    which need no device::

        tputfind.forecast("resnet50", memory="24GiB,80GiB", phase="train", optimizer="adamw")

    Args:
        model: a name, a module, or a function that builds a module, as for ``tputfind.find``.
        memory: one size or several, such as ``"24GiB,80GiB"``; numbers are bytes.
        inputs: the function that makes the inputs of a live module, as for ``find``.
        on_fake: use fake tensors even if there is a device.
        progress: whether to show progress on stderr.
        trust_model_file: load a file of a model or of weights even if that can run code of the file.
        options: the command line's, with underscores: ``phase="train"``, ``grad_checkpoint=True``.

    Returns:
        The forecasts by ascending memory: ``forecasts.cards[0].largest_batch``, and how the memory is used.

    Raises:
        BadRequest: an option is wrong, or the model does not run on fake tensors.
        TputfindError: the request, the device or the model does not allow it.
    """
    memories, wrong = read_memories(memory)
    if wrong:
        raise BadRequest(wrong)
    spec = read_spec(pickling.name_of(model), options)
    words = " ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
    command = f"forecast {spec.model} {words}".strip()
    with (
        shown_progress() if progress else nullcontext(Silent()) as told,
        pickling.pickle_model(model, inputs) as file,
        Children(trust_model_file=trust_model_file, live=file) as children,
    ):
        return forecast_with(spec, memories, children, told, command, on_fake=on_fake)


def read_memories(memory: object) -> tuple[tuple[int, ...], str]:
    """Return the sizes in bytes, ascending, and an error message; the message is empty if all sizes are valid."""
    texts = memory.split(",") if isinstance(memory, str) else memory if isinstance(memory, Iterable) else [memory]
    try:
        sizes = tuple(sorted({values.size(text) for text in texts}))
    except ValueError as problem:
        return (), f"--memory: {problem}"
    if not sizes:
        return (), "--memory says for which: --memory 16GiB,24GiB,80GiB"
    return sizes, f"--memory: {len(sizes)} sizes are more than {_MOST_MEMORIES}" if len(sizes) > _MOST_MEMORIES else ""


def forecast_with(
    spec: Spec, memories: Sequence[int], children: Children, progress: Progress, command: str, *, on_fake: bool = False
) -> Forecasts:
    """Forecast the largest batch for devices with these bytes of memory; the result records ``command``.

    A local device that records allocator traces runs a few trials. Otherwise the steps run on fake tensors, without
    workspaces: the use of each memory is then split by kind, and training is also forecast in variants that need less
    memory. TputfindError if the device or the model does not allow it, or the model does not run on fake tensors.
    """
    if spec.ranks is not None:
        raise BadRequest(
            "a forecast is of one device: it counts neither the buckets of gradients nor NCCL's memory",
            "leave parallel and gpus out; tputfind run measures on several devices",
        )
    spec = replace(spec, given_defaults=())
    if not on_fake:
        progress.doing("looking at the model and the device", None)
    inspection = None if on_fake else inspect(spec, children)
    can_trace = inspection is not None and inspection.environment.can.allocator_trace
    found = Forecasts(
        method=METHOD,
        tputfind=__version__,
        command=command,
        started=now(),
        spec=spec,
        device_name=None,
        tried=(FIRST_BATCH,),
        cards=(),
    )
    if inspection is not None and (can_trace or spec.device != "auto"):
        return _forecast_from_trials(found, inspection, memories, children, progress)
    if spec.dtype in QUANTIZED:
        raise BadRequest(
            f"--dtype {spec.dtype}: torchao quantises no fake tensors",
            "forecast bf16 without a GPU, or leave --on-fake out on a machine with one",
        )
    plain = Spec(model=spec.model)
    asked = [name for name in _NOT_ON_FAKE if getattr(spec, name) != getattr(plain, name)]
    if ignored := [options_by_field(Spec)[name].flag for name in asked]:
        raise BadRequest(f"{', '.join(ignored)}: a forecast from fake tensors does not take that into account")
    progress.doing("running it on fake tensors", None)
    preload_packages(spec, children)
    traced = trace_on_fake(spec, children)
    return replace(
        found,
        spec=replace(spec, granularity=traced.granularity),
        tried=(traced.trace.batch_size,),
        own_optimizers=traced.own_optimizers,
        cards=tuple(card_on_fake(spec, traced, memory_bytes) for memory_bytes in memories),
        variants=tuple(_variants(spec, memories, children, progress)),
    )


def _forecast_from_trials(
    found: Forecasts, inspection: Inspection, memories: Sequence[int], children: Children, progress: Progress
) -> Forecasts:
    """Add forecasts from a small trial and, for each memory, up to two more trials near its forecast, if they fit."""
    environment = inspection.environment
    if not environment.can.allocator_trace:
        raise BadRequest(
            "forecasts need the requests to a CUDA device's memory allocator, and there is no such device here",
            "leave --device out, or give --on-fake: fake tensors need no device",
        )
    record = new_record(found.spec, inspection, found.command)
    session = Session(record, TrialRunner(children, record.spec, environment), RecordFile(None, ""), progress)
    cards: list[CardForecast] = []

    def forecast_all() -> None:
        _take_first_trial(session)
        cards[:] = [_forecast(session, memory_bytes) for memory_bytes in memories]

    session.until_it_runs(forecast_all)
    tried = tuple(sorted({trial.batch_size for trial in session.record.trials}))
    return replace(
        found,
        spec=session.record.spec,
        started=record.started,
        own_optimizers=inspection.own_optimizers,
        device_name=environment.device_name,
        tried=tried,
        cards=tuple(cards),
    )


def trace_on_fake(spec: Spec, children: Children) -> FakeTrace:
    """Return the trace of a spec; raise ModelFailed if its process ends, and as for ``fake_trace``."""
    try:
        return children.ask_one(TraceOnFake(spec, FIRST_BATCH), FakeTrace, FIRST_TIMEOUT_S)
    except ChildFailed as death:
        raise ModelFailed(f"{spec.model} does not run on fake tensors: {death.failure.message}") from None


def _forecast_on_fake(spec: Spec, traced: FakeTrace, memory_bytes: int) -> tuple[Forecast, int]:
    """Return the forecast that a trace gives for a memory, and its largest batch."""
    memory = Memory(memory_bytes, expandable=spec.allocator == "expandable", capped=True)
    forecast = Forecast([traced.trace], memory)
    found = edge_where(forecast.fits, granularity=traced.granularity, max_batch=LARGEST_BATCH)
    return forecast, found if found + traced.granularity <= LARGEST_BATCH else LARGEST_BATCH


def card_on_fake(spec: Spec, traced: FakeTrace, memory_bytes: int) -> CardForecast:
    """Return the forecast for a memory, in bytes, from a trace of fake tensors."""
    forecast, found = _forecast_on_fake(spec, traced, memory_bytes)
    steps = {"granularity": traced.granularity, "max_batch": LARGEST_BATCH, "samples": _SAMPLES_ON_FAKE}
    around = non_monotonic_where(forecast.fits, found, **steps)
    error = max(_ERROR_ON_FAKE[spec.phase], _spread(found, around))
    return CardForecast(
        memory_bytes=memory_bytes,
        largest_batch=found,
        error=error,
        split=None if found == LARGEST_BATCH else _split(traced, found, forecast.memory),
    )


def _split(traced: FakeTrace, found: int, memory: Memory) -> MemorySplit:
    """Return the memory use by kind at the largest batch; in unlimited memory, at the smallest, if none fits."""
    batch_size, memory = (found, memory) if found else (traced.granularity, _ENDLESS)
    program = Program(traced.trace)
    kinds = {number: kind for kind in _KINDS for number in getattr(traced, kind)}
    bytes_by_kind = program.allocated_at_peak(batch_size, kinds)
    reserved_bytes = program.replay(batch_size, memory).peak_reserved_bytes
    outside_bytes = next(value for kind, value in traced.trace.events() if kind == "outside")
    tensors = {f"{kind}_bytes": bytes_by_kind.get(kind, 0) for kind in ("weights", "gradients", "optimizer")}
    activations_bytes = bytes_by_kind.get("activations", 0)
    free_bytes = reserved_bytes - activations_bytes - sum(tensors.values())
    return MemorySplit(**tensors, activations_bytes=activations_bytes, overhead_bytes=outside_bytes + free_bytes)


def _variants(spec: Spec, memories: Sequence[int], children: Children, progress: Progress) -> Iterator[VariantForecast]:
    """Yield forecasts for variants of a training that need less memory: checkpointing, a narrower dtype, or both."""
    dtypes = dict.fromkeys([spec.dtype, _NARROWER.get(spec.dtype, spec.dtype)])
    for checkpoint, dtype in product(sorted({spec.grad_checkpoint, True}), dtypes) if spec.phase == "train" else ():
        varied = replace(spec, dtype=dtype, grad_checkpoint=checkpoint)
        if varied == spec:
            continue
        progress.doing(f"running it on fake tensors in {dtype}{', with checkpointing' if checkpoint else ''}", None)
        with suppress(BadRequest, ModelFailed):  # a model may not offer checkpointing, or not run in that dtype
            traced = trace_on_fake(varied, children)
            batches = tuple(_forecast_on_fake(varied, traced, memory_bytes)[1] for memory_bytes in memories)
            yield VariantForecast(dtype=dtype, grad_checkpoint=checkpoint, largest_batches=batches)


def _take_first_trial(session: Session) -> None:
    """Try a few small batch sizes until one fits, and check that the allocator model reproduces its trace.

    BadRequest if it does not; TputfindError if even the smallest batch fails.
    """
    for batches in _FIRST_BATCHES:
        if session.try_batch(batches * session.record.spec.granularity) is None:
            break
    latest = session.record.trials[-1]
    if latest.failure is not None:
        raise no_answer(session.record.spec, latest.batch_size, latest.failure)
    if _edge(session, None) is None:
        raise BadRequest(
            f"the memory requests of {session.record.spec.model} cannot be replayed here",
            "a replay needs NVML, one CUDA stream, and no PYTORCH_ALLOC_CONF other than expandable_segments",
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
    around = expected_non_monotonic(_read_trials(session, memory_bytes), found)
    error = max(error, _spread(found, around))
    return CardForecast(memory_bytes=memory_bytes, largest_batch=found, error=error)


def _edge(session: Session, memory_bytes: int | None) -> int | None:
    """Return the expected edge under a limit, on a device of its own; None as the limit stands for the memory here."""
    return expected_batch(session.known(None) if memory_bytes is None else _read_trials(session, memory_bytes), 0, None)


def _read_trials(session: Session, memory_bytes: int) -> Known:
    """Return the input of a forecast for another device, whatever other processes hold on this one."""
    return expectations.known(session.record, memory_bytes, None)


def _spread(found: int, around: NonMonotonic) -> float:
    """Return the largest relative distance from a forecast at which fits and failures alternate, rounded up to 1 %."""
    distances = [abs(size - found) for size in around if size is not None]
    return math.ceil(100 * max(distances) / found) / 100 if distances else 0.0


def _distance(trials: Sequence[Trial], batch_size: int) -> float:
    """Return the ratio between a batch size and the nearest that passed; 1 for batch size 0, which needs no trial."""
    if batch_size == 0:
        return 1.0
    return min(ratio(trial.batch_size, batch_size) for trial in trials if trial.failure is None)
