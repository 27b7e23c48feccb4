"""How a module's tensors are converted: dtype, memory format and device, one tensor at a time."""

from typing import Final

import torch
from torch import nn

from tputfind.worker.inputs import CHANNELS_LAST
from tputfind.worker.structures import is_of_torch, is_plain

REAL: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that a conversion changes."""


def convert_tensor(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a tensor of real floating-point numbers in a dtype; any other, and subclasses, as they are."""
    if dtype is None or tensor.dtype not in REAL or tensor.is_quantized:
        return tensor
    return tensor.to(dtype) if is_of_torch(tensor) else tensor


def memory_format_of(tensor: torch.Tensor, layout: str) -> torch.memory_format | None:
    """Return the memory format that a layout gives a weight; None if its strides stay as they are."""
    return CHANNELS_LAST.get(tensor.dim()) if layout == "nhwc" and is_plain(tensor) else None


def arrange_module(module: nn.Module, dtype: torch.dtype | None, layout: str) -> nn.Module:
    """Convert weights to the dtype and, where the rank allows it, to channels last, on the device where they lie.

    Only real floating-point parameters and buffers are converted: complex, fp8, integer and quantised ones and tensor
    subclasses stay as they are.
    """
    if dtype is not None:
        module._apply(lambda tensor: convert_tensor(tensor, dtype))  # type: ignore[no-untyped-call]  # noqa: SLF001
    # Each by its own rank: Module.to(memory_format=...) fails where ranks 4 and 5 meet.
    for tensor in (*module.parameters(), *module.buffers()):
        memory_format = memory_format_of(tensor, layout)
        if memory_format is not None:
            # Not contiguous(): that leaves 1x1 weights, which are contiguous either way, with their old strides.
            tensor.data = tensor.data.to(memory_format=memory_format)
    return module


def move_module(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module to a device; one that lies there already is left alone, since some refuse to be moved."""
    there = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    return module if there == {device} else module.to(device)
