"""The life of one child process: one question, its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import NamedTuple

import msgspec
import torch

from tputfind.errors import BadRequest, ModelFailed, NoSuchDevice, TputfindError
from tputfind.measure.devices import all_devices, open_device
from tputfind.measure.devices.protocol import Device, Stopwatch
from tputfind.measure.failures import classify
from tputfind.measure.messages import (
    Inspect,
    Inspection,
    ListDevices,
    ListModels,
    Question,
    Refusal,
    Reply,
    TimeBatches,
    TryBatch,
)
from tputfind.measure.models import find_model, named_models, shape_text
from tputfind.measure.timing import time_windows, try_steps
from tputfind.measure.workload import Step, Workload, inference
from tputfind.record import Row, Trial
from tputfind.spec import Spec
from tputfind.units import format_bytes


def answer(question: bytes, send: Callable[[bytes], None]) -> None:
    """Answer one question from the parent, message by message.

    Args:
        question: a ``messages.Question`` as JSON.
        send: takes each ``messages.Reply`` as JSON.
    """
    try:
        for said in _answers(msgspec.json.decode(question, type=Question)):
            send(msgspec.json.encode(Reply(answer=msgspec.Raw(msgspec.json.encode(said)))))
        send(msgspec.json.encode(Reply(done=True)))
    except TputfindError as error:
        refusal = Refusal(error=type(error).__name__, message=error.message, hint=error.hint, traceback=error.traceback)
        send(msgspec.json.encode(Reply(refusal=refusal)))


def _answers(question: Question) -> Iterator[msgspec.Struct]:
    match question:
        case Inspect(spec):
            yield _inspect(spec)
        case TryBatch(spec, batch_size):
            yield _try_batch(spec, batch_size)
        case TimeBatches(spec, batch_sizes):
            yield from _time_batches(spec, batch_sizes)
        case ListModels():
            yield from named_models()
        case ListDevices():
            yield from (device.environment() for device in all_devices())


def _inspect(spec: Spec) -> Inspection:
    """Find out whether the spec can be measured here, before anything is; a factory is called, a known model is not."""
    device = open_device(spec.device)
    refusal = device.refusal(spec.dtype)
    if refusal is not None:
        raise NoSuchDevice(f"{device.torch_device} cannot do --dtype {spec.dtype}: {refusal}")
    environment = device.environment()
    total = environment.memory_total_bytes
    if spec.memory_limit_bytes is not None and total is not None and spec.memory_limit_bytes > total:
        raise BadRequest(f"--memory-limit is more than the {format_bytes(total)} that {environment.device} has")
    try:
        source = find_model(spec)
        if source.parameters is not None and source.sample_shape is not None:
            shape = shape_text(source.sample_shape)
            return Inspection(environment=environment, input_shape=shape, parameters=source.parameters)
        workload = Workload(spec, torch.device("cpu"))
        shape = workload.input_shape(spec.batch_sizes[0] if spec.batch_sizes else spec.granularity)
        return Inspection(environment=environment, input_shape=shape, parameters=workload.parameters)
    except TputfindError:
        raise
    except BaseException as error:  # the user's file and factory can raise anything
        failure = classify(error, under_a_ceiling=False)
        raise ModelFailed(f"{spec.model} cannot be built: {failure.message}", "", failure.traceback) from None


def _try_batch(spec: Spec, batch_size: int) -> Trial:
    device = open_device(spec.device)
    try:
        workload = _resident(spec, device)
        with inference():
            loaded = _load(spec, device, workload, batch_size)
            step_ms = try_steps(device, loaded.step)
        device.check_limit()
    except TputfindError:
        raise
    except BaseException as error:  # a model can raise anything, sys.exit too; the classifier says what
        device.lift_limit()
        return Trial(batch_size=batch_size, failure=classify(error, under_a_ceiling=device.under_a_ceiling))
    used = device.memory_use()
    return Trial(
        batch_size=batch_size,
        step_ms=step_ms,
        peak_allocated_bytes=used.peak_allocated_bytes,
        peak_reserved_bytes=used.peak_reserved_bytes,
    )


def _time_batches(spec: Spec, batch_sizes: tuple[int, ...]) -> Iterator[Row]:
    device = open_device(spec.device)
    workload: Workload | None = None
    for batch_size in batch_sizes:
        start = perf_counter()
        try:
            if workload is None:
                workload = _resident(spec, device)
            row = _time_batch(spec, device, workload, batch_size)
        except TputfindError:
            raise
        except BaseException as error:  # as above
            device.lift_limit()
            failure = classify(error, under_a_ceiling=device.under_a_ceiling)
            yield Row(batch_size=batch_size, failure=failure, seconds=perf_counter() - start)
            return
        yield msgspec.structs.replace(row, seconds=perf_counter() - start)


def _time_batch(spec: Spec, device: Device, workload: Workload, batch_size: int) -> Row:
    with inference():
        loaded = _load(spec, device, workload, batch_size)
        windows = time_windows(
            device,
            loaded.step,
            loaded.stopwatch,
            warmup=spec.warmup,
            batches=spec.batches,
            latency_batches=spec.latency_batches,
            max_seconds=spec.max_seconds,
        )
    device.check_limit()
    used = device.memory_use()
    return Row(
        batch_size=batch_size,
        device_ms=windows.device_ms,
        latency_ms=windows.latency_ms,
        # On the CPU the call is the work: there is no submitting it apart.
        enqueue_ms=() if device.torch_device.type == "cpu" else windows.enqueue_ms,
        peak_allocated_bytes=used.peak_allocated_bytes,
        peak_reserved_bytes=used.peak_reserved_bytes,
        allocator_retries=used.allocator_retries,
    )


class _Loaded(NamedTuple):
    stopwatch: Stopwatch
    step: Step


def _load(spec: Spec, device: Device, workload: Workload, batch_size: int) -> _Loaded:
    """Put on the device all that timing a batch size takes, events included.

    A trial does the same as a row, since near the edge a few MiB decide.
    """
    device.reset_memory_use()
    loaded = _Loaded(device.stopwatch(spec.batches + 1), workload.step(batch_size))
    device.settle_limit(loaded.step)
    return loaded


def _resident(spec: Spec, device: Device) -> Workload:
    """Build the workload under the spec's memory limit."""
    device.limit_memory(spec.memory_limit_bytes)
    return Workload(spec, device.torch_device)
