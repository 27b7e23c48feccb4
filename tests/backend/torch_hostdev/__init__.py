"""A device ``hostdev`` for torch: CPU kernels with their own limited memory. The backend must be built before."""

import types

import torch

from torch_hostdev import _C

device_count = _C.device_count


def set_per_process_memory_fraction(fraction: float, device: int = 0) -> None:
    """Limit the allocator to this fraction of a device's memory."""
    _C.set_fraction(fraction, device)


def get_device_name(device: int = 0) -> str:
    """Return the name of the device."""
    return "CPU behind a backend of its own"


def _nothing(*_: object) -> None:
    pass


_MODULE = types.ModuleType("torch.hostdev")
for _name, _function in {
    "device_count": device_count,
    "current_device": _C.current_device,
    "set_device": _C.set_device,
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "_is_in_bad_fork": lambda: False,
    "manual_seed_all": _nothing,
    "synchronize": torch.accelerator.synchronize,
    "get_device_name": get_device_name,
    "set_per_process_memory_fraction": set_per_process_memory_fraction,
    "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
}.items():
    setattr(_MODULE, _name, _function)

torch.utils.rename_privateuse1_backend("hostdev")
torch._register_device_module("hostdev", _MODULE)
torch.utils.generate_methods_for_privateuse1_backend()


def autoload() -> None:
    """Entry point of ``torch.backends`` that torch calls when it autoloads the package."""
