"""The devices that can be measured: each implements ``protocol.Device``."""

import os
from contextlib import suppress
from typing import Final

import torch

from tputfind.errors import NoSuchDevice
from tputfind.processes.cores import device_cores
from tputfind.processes.failures import Circumstances, Passed, exception_failure
from tputfind.record.environment import Capabilities
from tputfind.record.record import Failure
from tputfind.worker.devices.accelerator import HINT, Accelerator, count_here, kind_here
from tputfind.worker.devices.cpu import Cpu
from tputfind.worker.devices.cuda import Cuda
from tputfind.worker.devices.protocol import Device

_MOST_PRINTED: Final = 2**16


def open_device(name: str, can: Capabilities | None = None) -> Device:
    """Return the device of a name: ``auto``, ``cpu``, cores such as ``cpu:0-3``, or a kind of accelerator with or
    without ``:N``.

    ``auto`` is the accelerator of this machine, or else the CPU. ``accelerator`` is that accelerator too, but through
    torch's common interface for all kinds, even for CUDA. ``can`` are the capabilities that were found at the start of
    the run; None before that. If this machine lacks the device, it raises NoSuchDevice.
    """
    if name == "auto":
        name = kind_here() or "cpu"
    if name == "cpu":
        return Cpu()
    cores = device_cores(name)
    if cores is not None:
        return Cpu(name, cores)
    kind, _, number = name.partition(":")
    index = int(number or 0)
    wanted = kind_here() if kind == "accelerator" else kind
    if wanted is None:
        raise NoSuchDevice(f"there is no {name} here: torch {torch.__version__} finds none", HINT)
    count = (torch.cuda.device_count() if torch.cuda.is_available() else 0) if wanted == "cuda" else count_here(wanted)
    if not count:
        raise NoSuchDevice(f"there is no {name} here: {_why_no(wanted)}", HINT)
    if index >= count:
        told = f"torch sees {count} {wanted.upper()} device(s), counted from 0"
        raise NoSuchDevice(f"there is no {name} here: {told}", HINT)
    return Cuda(index) if kind == "cuda" else Accelerator(wanted, index, can)


def torch_device(name: str) -> torch.device:
    """Return torch's device for a name as in ``open_device``, without opening it."""
    kind, _, number = name.partition(":")
    if kind in ("auto", "accelerator"):
        kind = kind_here() or "cpu"
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, int(number or 0))


def all_devices() -> list[Device]:
    """Return every device of this machine, the CPU last."""
    kind = kind_here()
    if kind is None:
        return [Cpu()]
    made = Cuda if kind == "cuda" else lambda index: Accelerator(kind, index)
    return [*(made(index) for index in range(torch.accelerator.device_count())), Cpu()]


def failure_of(
    error: BaseException, device: Device, batch_size: int, passed: Passed | None = None, smallest: int | None = None
) -> Failure:
    """Return the failure for an exception; call it while the exception is alive, so that its memory is still in use.

    ``passed`` is the largest smaller batch that fits. ``smallest`` is the smallest batch size that the run tries; None
    if it tries no other.
    """
    circumstances = Circumstances(
        batch_size,
        passed,
        device.under_a_ceiling,
        device.memory_is_short(),
        smaller_untried=smallest is not None and batch_size > smallest,
        own_memory=device.capabilities.own_memory,
        printed=_read_stderr(),
    )
    device.lift_limit()
    return exception_failure(error, circumstances)


def _read_stderr() -> str:
    """Return the end of what this process has written to its standard error output, if that is a file."""
    with suppress(OSError):
        return os.pread(2, _MOST_PRINTED, max(0, os.fstat(2).st_size - _MOST_PRINTED)).decode(errors="replace")
    return ""


def _why_no(kind: str) -> str:
    if kind != "cuda":
        return f"torch {torch.__version__} finds none"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    return f"torch {torch.__version__} is built for CUDA but finds no device or no driver"
