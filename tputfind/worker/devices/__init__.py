"""The devices that can be measured: each a real implementation of ``protocol.Device``."""

from __future__ import annotations

import torch

from tputfind.errors import NoSuchDevice
from tputfind.processes.cores import of_device
from tputfind.processes.failures import Circumstances, Passed, of_exception
from tputfind.record.record import Failure
from tputfind.worker.devices.cpu import Cpu
from tputfind.worker.devices.cuda import Cuda
from tputfind.worker.devices.protocol import Device


def open_device(name: str) -> Device:
    """Return the device that ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` names; ``auto`` takes CUDA if it is there.

    A set of cores such as ``cpu:0-3`` is a device too.

    Raises:
        NoSuchDevice: it is not here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return Cpu()
    cores = of_device(name)
    if cores is not None:
        return Cpu(name, cores)
    if not torch.cuda.is_available():
        raise NoSuchDevice(f"there is no {name} here: {_why_no_cuda()}", "tputfind devices lists what is here")
    index = int(name.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise NoSuchDevice(
            f"there is no {name} here: torch sees {torch.cuda.device_count()} CUDA device(s), counted from 0",
            "tputfind devices lists what is here",
        )
    return Cuda(index)


def all_devices() -> list[Device]:
    """Return every device here, the CPU last."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [*(Cuda(index) for index in range(count)), Cpu()]


def failure_of(error: BaseException, device: Device, batch_size: int, passed: Passed | None = None) -> Failure:
    """Return what an exception stands for; called while it is alive, so that memory is as short as it was."""
    circumstances = Circumstances(batch_size, passed, device.under_a_ceiling, device.memory_is_short())
    device.lift_limit()
    return of_exception(error, circumstances)


def _why_no_cuda() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    return f"torch {torch.__version__} is built for CUDA but finds no device or no driver"
