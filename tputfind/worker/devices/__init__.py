"""The devices that can be measured: each a real implementation of ``protocol.Device``."""

import torch

from tputfind.errors import NoSuchDevice
from tputfind.processes.cores import of_device
from tputfind.processes.failures import Circumstances, Passed, of_exception
from tputfind.record.environment import Capabilities
from tputfind.record.record import Failure
from tputfind.worker.devices.accelerator import Accelerator, count_here, kind_here
from tputfind.worker.devices.cpu import Cpu
from tputfind.worker.devices.cuda import Cuda
from tputfind.worker.devices.protocol import Device

_HINT = "tputfind devices lists what is here"


def open_device(name: str, can: Capabilities | None = None) -> Device:
    """Return the device that a name stands for: ``auto``, ``cpu``, or a kind of accelerator, with ``:N`` or without.

    ``auto`` takes the accelerator that is here, or else the CPU. ``accelerator`` is that accelerator too, through what
    torch has for all of them, CUDA included.

    Args:
        name: as ``--device`` has it.
        can: what was found of the device at the start of the run; None before that.

    A set of cores such as ``cpu:0-3`` is a device too.

    Raises:
        NoSuchDevice: it is not here.
    """
    if name == "auto":
        name = kind_here() or "cpu"
    if name == "cpu":
        return Cpu()
    cores = of_device(name)
    if cores is not None:
        return Cpu(name, cores)
    kind, _, number = name.partition(":")
    index = int(number or 0)
    wanted = kind_here() if kind == "accelerator" else kind
    if wanted is None:
        raise NoSuchDevice(f"there is no {name} here: torch {torch.__version__} finds none", _HINT)
    count = (torch.cuda.device_count() if torch.cuda.is_available() else 0) if wanted == "cuda" else count_here(wanted)
    if not count:
        raise NoSuchDevice(f"there is no {name} here: {_why_no(wanted)}", _HINT)
    if index >= count:
        told = f"torch sees {count} {wanted.upper()} device(s), counted from 0"
        raise NoSuchDevice(f"there is no {name} here: {told}", _HINT)
    return Cuda(index) if kind == "cuda" else Accelerator(wanted, index, can)


def torch_device(name: str) -> torch.device:
    """Return torch's device for a name that ``open_device`` takes, without opening it."""
    kind, _, number = name.partition(":")
    if kind in ("auto", "accelerator"):
        kind = kind_here() or "cpu"
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, int(number or 0))


def all_devices() -> list[Device]:
    """Return every device here, the CPU last."""
    kind = kind_here()
    if kind is None:
        return [Cpu()]
    made = Cuda if kind == "cuda" else lambda index: Accelerator(kind, index)
    return [*(made(index) for index in range(torch.accelerator.device_count())), Cpu()]


def failure_of(
    error: BaseException, device: Device, batch_size: int, passed: Passed | None = None, smallest: int | None = None
) -> Failure:
    """Return what an exception stands for; called while it is alive, so that memory is as short as it was.

    ``passed`` is the largest smaller batch known to pass. ``smallest`` is the smallest that the run tries, None if it
    tries no other.
    """
    circumstances = Circumstances(
        batch_size,
        passed,
        device.under_a_ceiling,
        device.memory_is_short(),
        smaller_untried=smallest is not None and batch_size > smallest,
        own_memory=device.capabilities.own_memory,
    )
    device.lift_limit()
    return of_exception(error, circumstances)


def _why_no(kind: str) -> str:
    if kind != "cuda":
        return f"torch {torch.__version__} finds none"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    return f"torch {torch.__version__} is built for CUDA but finds no device or no driver"
