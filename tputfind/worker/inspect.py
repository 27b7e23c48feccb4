"""Inspects a device and a model in a child process before any measurement."""

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import file_digest, sha256
from typing import Final

import msgspec
import torch

from tputfind.errors import BadRequest, IsOwnStep, ModelFailed, NoSuchDevice, NothingFits, TputfindError
from tputfind.processes.children import ONLY_DEVICE
from tputfind.processes.failures import Circumstances, exception_failure, said
from tputfind.processes.messages import Inspection
from tputfind.record.environment import Capabilities, Environment
from tputfind.record.record import Notice, Setting
from tputfind.record.spec import Spec, own_step
from tputfind.record.types import QUANTIZED
from tputfind.step import Context, set_context
from tputfind.units import format_bytes
from tputfind.worker import ranks
from tputfind.worker.conversion import library
from tputfind.worker.devices import open_device, torch_device
from tputfind.worker.devices.host import core_quota
from tputfind.worker.devices.protocol import Device
from tputfind.worker.inputs import drawn_of, shape_text
from tputfind.worker.models import find_model, import_user_file
from tputfind.worker.models.source import Source
from tputfind.worker.modes import mode_class
from tputfind.worker.own_step import OwnStep, check_import_memory, tensor_bytes
from tputfind.worker.settings import read_settings, set_fp32_arithmetic
from tputfind.worker.workload import Workload

_TWICE: Final = "default process group twice"
_GROUP_IS_UP: Final = "with --gpus the process group is up: call init_process_group unless is_initialized()"
_COPY_ON_EACH: Final = "--device all --all-busy runs a copy on each accelerator"
_TOO_LARGE: Final = "try a device with more memory"


def open_device_of(spec: Spec, can: Capabilities | None) -> Device:
    """Open and return the device of a spec; if other devices are hidden from this process, the only visible one."""
    name = os.environ.get(ONLY_DEVICE) or ranks.device_of(spec)
    set_context(lambda: Context(torch_device(name), *ranks.rank_and_size()))
    import_user_file(spec)
    if spec.dtype in QUANTIZED:  # its memory is not the model's
        library()
    device = open_device(name, can)
    device.choose_allocator(spec.allocator)
    ranks.join(device.torch_device)
    return device


def try_device(name: str) -> Environment:
    """Return the environment of a device that multiplies two small matrices rightly, else raise NoSuchDevice."""
    device = open_device(os.environ.get(ONLY_DEVICE) or name)
    side = 64
    ones = torch.ones(side, side, device=device.torch_device)
    product = ones @ ones
    device.synchronize()
    if bool((product != side).any()):
        raise NoSuchDevice(f"{name} multiplies wrongly")
    return _add_host_name(device.environment(), name)


def _add_host_name(environment: Environment, name: str) -> Environment:
    """Return the environment with the host's name of the device if other devices are hidden from this process."""
    return msgspec.structs.replace(environment, device=name) if os.environ.get(ONLY_DEVICE) else environment


def inspect(spec: Spec) -> Inspection:
    """Return the device, the input shape and the findings; raise TputfindError if the spec cannot be measured here.

    A library's model is built only if its parameters or inputs are unknown, if it has loaded weights, or for training.
    """
    device = open_device_of(spec, None)
    device.test_clocks()
    device.make_current()
    environment = _add_host_name(device.environment(), spec.device)
    refusal = device.refusal(spec.dtype)
    if refusal is not None:
        raise NoSuchDevice(f"{environment.device} cannot do --dtype {spec.dtype}: {refusal}")
    if spec.transfer != "none" and not device.capabilities.pinned_copies:
        raise BadRequest(
            f"--transfer {spec.transfer}: on {environment.device} no copies between host and device are timed"
        )
    total = environment.memory_total_bytes
    if spec.has_instances and environment.can.own_memory:
        if refusal := device.sharing_refusal():
            raise NoSuchDevice(f"--instances {spec.instances}: {refusal}", _COPY_ON_EACH)
        if spec.memory_limit_bytes or spec.headroom:
            raise BadRequest(f"--instances {spec.instances}: only those of a CPU can be held to a part of its memory")
    if unfit := mode_class(spec.mode).refusal(device.capabilities):
        raise NoSuchDevice(f"--mode {spec.mode}: {environment.device} {unfit}")
    if (spec.memory_limit_bytes or spec.headroom) and not device.capabilities.memory_limit:
        asked = "--headroom" if spec.memory_limit_bytes is None else "--memory-limit"
        raise BadRequest(f"{asked}: {environment.device} cannot be held to less memory than it has")
    if spec.memory_limit_bytes is not None and total is not None and spec.memory_limit_bytes > total:
        raise BadRequest(f"--memory-limit is more than the {format_bytes(total)} that {environment.device} has")
    try:
        return _looked_at(spec, device, environment)
    except TputfindError:
        raise
    except BaseException as error:  # the user's file and factory can raise anything
        failure = exception_failure(error, Circumstances())
        if failure.kind == "out_of_memory":
            raise NothingFits(f"{spec.model} cannot be built: {failure.message}", _TOO_LARGE) from None
        hint = _GROUP_IS_UP if spec.gpus is not None and _TWICE in failure.message else ""
        raise ModelFailed(f"{spec.model} cannot be built: {failure.message}", hint, failure.traceback) from None


def _looked_at(spec: Spec, device: Device, environment: Environment) -> Inspection:
    """Return the findings on a model or step, whose factory is called once; see ``inspect``."""
    imported_bytes = tensor_bytes() if spec.own_code and not environment.can.own_memory else 0
    if spec.phase == "step":
        check_import_memory(spec, imported_bytes)
        return _findings(spec, device, environment)
    set_fp32_arithmetic(tf32=spec.dtype == "tf32")  # as for a model, so that it does not count as the factory's doing
    before = read_settings()
    try:
        return _findings(spec, device, environment)
    except IsOwnStep as found:
        made = None if spec.source == "live" else found.made  # a live step is loaded anew, onto the device
    step = own_step(spec)
    check_import_memory(step, imported_bytes)
    return _findings(step, device, environment, partial(OwnStep, made=made, before=before))


def _findings(
    spec: Spec, device: Device, environment: Environment, make_step: Callable[..., OwnStep] = OwnStep
) -> Inspection:
    """Return the findings on a model, which is built if necessary, or on a step that ``make_step`` makes."""
    source = find_model(spec)
    unfit = source.unfit(environment.can)
    if unfit:
        raise NoSuchDevice(f"{spec.model}: {unfit}")
    parameters, inputs = source.parameters, source.inputs
    settings: tuple[Setting, ...] = ()
    caveats, granularity, own_optimizers = source.caveats, None, False
    if parameters is None or inputs is None or spec.weights is not None or spec.phase != "infer":
        workload = _unfilled_workload(spec, device, make_step)
        granularity, why = find_granularity(spec, workload)
        if granularity is not None:
            caveats += (granularity_notice(spec, granularity, spec.smallest_batch, why),)
            changed = msgspec.structs.replace(spec, granularity=granularity)
            workload = _unfilled_workload(changed, device, make_step)
        workload.try_out()
        parameters = parameters or workload.parameters or None  # None for int8 models and frozen programs
        shape = workload.input_shape()
        caveats += tuple(workload.caveats())
        settings, own_optimizers = workload.settings, workload.has_own_optimizers
    else:
        shape = shape_text([drawn.sample_shape for drawn in drawn_of(inputs)])
    if spec.gpus is not None and spec.parallel is None and spec.phase != "step":
        raise BadRequest(
            f"--gpus {spec.gpus}: {spec.model} is a model, and nothing says how it runs on several devices",
            "--phase train --parallel ddp trains it so; a step of your own may do what it likes",
        )
    return Inspection(
        environment=environment,
        input_shape=shape,
        parameters=parameters,
        source_sha256=_fingerprint(source),
        caveats=(*caveats, *_quota_notices(spec, environment)),
        settings=settings,
        granularity=granularity,
        own_step=spec.phase == "step",
        own_optimizers=own_optimizers,
    )


def _quota_notices(spec: Spec, environment: Environment) -> Iterator[Notice]:
    """Yield the notice of a control group that allows a CPU less time than its threads take."""
    quota = core_quota() if environment.can.is_cpu else None
    processes = spec.ranks or 1
    # Several processes share the threads of one, unless the user sets the number of each.
    threads = environment.torch_threads * (processes if "OMP_NUM_THREADS" in os.environ else 1)
    if quota is not None and quota < threads:
        yield Notice(
            kind="core_quota",
            seen=f"{threads} threads compute, and a control group allows the time of {quota:.3g} cores",
            cause="it stops them for a part of each 0.1 s",
            advice=f"OMP_NUM_THREADS={max(1, int(quota / processes))} is often faster",
        )


def _unfilled_workload(spec: Spec, device: Device, make_step: Callable[..., OwnStep]) -> Workload | OwnStep:
    """Return a model on the CPU, whose weights may have no memory; or the user's own step on the device."""
    if spec.phase == "step":
        return make_step(spec, device.torch_device)
    return Workload(spec, torch.device("cpu"), filled=False)


def find_granularity(spec: Spec, workload: Workload | OwnStep) -> tuple[int | None, str]:
    """Return the granularity that the user's inputs need without an option for it, and why; None if they need none.

    If none helps, the error of the user's callable is raised.
    """
    try:
        workload.make_inputs(spec.smallest_batch)
    except Exception as error:  # the user's callable can raise anything
        found = None
        if spec.granularity == 1 and spec.batch_sizes is None:
            found = smallest_that_works(workload.make_inputs, error)
        if found is None:
            raise
        return found, said(error)
    return None, ""


def _fingerprint(source: Source) -> str | None:
    """Return the SHA-256 of the source's file and its ``made_of``; None if it has neither."""
    if source.path is None and not source.made_of:
        return None
    digest = sha256()
    if source.path is not None:
        with source.path.open("rb") as file:
            digest = file_digest(file, "sha256")
    digest.update(source.made_of.encode())
    return digest.hexdigest()


_MULTIPLES: Final = (2, 4, 8, 16)
LARGEST_NAMED: Final = 512
_MOST_NAMED: Final = 6
"""Maximum number of candidates from an error's text."""


def granularity_notice(spec: Spec, number: int, failed_size: int, why: str) -> Notice:
    """Return the notice that batch sizes are multiples of a number, or raise BadRequest if their limit is smaller."""
    if spec.max_batch is not None and spec.max_batch < number:
        raise BadRequest(
            f"{spec.model} fails at batch {failed_size}, and runs at {number}: {why}", f"--max-batch {number} or more"
        )
    return Notice(
        kind="granularity",
        seen=f"batch sizes are multiples of {number}",
        cause=f"batch {failed_size} fails: {why}",
        advice=f"--granularity {number} says so beforehand",
    )


def candidates(text: str, largest: int = LARGEST_NAMED) -> list[int]:
    """Return the candidates for a granularity in ascending order: 2, 4, 8, 16, and numbers in an error's text."""
    named = dict.fromkeys(int(number) for number in re.findall(r"\d+", text) if len(number) < 8)
    fitting = [number for number in named if 1 < number <= largest and number not in _MULTIPLES]
    return sorted((*_MULTIPLES, *fitting[:_MOST_NAMED]))


def smallest_that_works(make: Callable[[int], object], error: BaseException) -> int | None:
    """Return the smallest granularity with which a function makes inputs without an error; None if there is none."""
    for number in candidates(said(error)):
        try:
            for factor in (1, 2, 3):
                make(factor * number)
        except Exception:  # noqa: S112  # the user's function can raise anything
            continue
        return number
    return None
