"""Converts a module's tensors to a dtype, memory format and device, one tensor at a time, and quantises layers."""

from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy as is_uninitialized

from tputfind.errors import BadRequest
from tputfind.record.types import QUANTIZED
from tputfind.worker.inputs import CHANNELS_LAST
from tputfind.worker.models.lightning import is_lightning
from tputfind.worker.models.source import import_package
from tputfind.worker.structures import is_of_torch, is_plain

REAL: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that a conversion changes."""


def convert_tensor(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a real floating-point tensor in a dtype; others, and those of subclasses with a dispatch, unchanged."""
    if dtype is None or tensor.dtype not in REAL or tensor.is_quantized:
        return tensor
    dispatches = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return tensor if dispatches and not tensor.is_nested else tensor.to(dtype)


def memory_format_of(tensor: torch.Tensor, layout: str) -> torch.memory_format | None:
    """Return the memory format of a weight in a layout; None if its strides do not change."""
    changes = layout == "nhwc" and is_plain(tensor) and not is_uninitialized(tensor)
    return CHANNELS_LAST.get(tensor.dim()) if changes else None


def arrange_module(module: nn.Module, dtype: torch.dtype | None, layout: str) -> nn.Module:
    """Convert a module in place to the dtype and, for weights with 4 or 5 dimensions in layout ``nhwc``, channels last.

    Only real floating-point parameters and buffers change their dtype: complex, fp8, integer and quantised ones and
    tensor subclasses keep it.
    """

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return convert_tensor(tensor, dtype) if is_of_torch(tensor) else tensor

    if dtype is not None:
        module._apply(convert)  # type: ignore[no-untyped-call]  # noqa: SLF001
        for each in filter(is_lightning, module.modules()):
            each._dtype = dtype  # type: ignore[assignment]  # noqa: SLF001  # as its method to() does
    # Each tensor by its own rank: Module.to(memory_format=...) fails for a module with ranks 4 and 5.
    for tensor in (*module.parameters(), *module.buffers()):
        memory_format = memory_format_of(tensor, layout)
        if memory_format is not None:
            # Not contiguous(), which keeps the old strides of 1x1 weights: they are contiguous in both formats.
            tensor.data = tensor.data.to(memory_format=memory_format)
    return module


def move_module(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module to a device unless it is there already, since some modules refuse to be moved."""
    there = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    moved = module if there == {device} else module.to(device)
    return module if moved is None else moved  # the user's own ``to`` may return nothing


def library() -> Any:
    """Return ``torchao.quantization``, or UnknownModel; no process that forks may import it: it opens CUDA devices."""
    return import_package("torchao", "quantize") and import_package("torchao.quantization", "quantize")


def quantize(module: nn.Module, dtype: str, model: str) -> None:
    """Quantise the linear layers of a bfloat16 model on its device by torchao: weights once, activations every step."""
    torchao = library()
    torchao.quantize_(module, getattr(torchao, QUANTIZED[dtype])())
    if not any(plain_tensors(parameter) != [parameter] for parameter in module.parameters()):
        raise BadRequest(f"--dtype {dtype} quantises linear layers, and {model} has none", "measure it in fp16 or bf16")


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors that a tensor holds: itself, or those of a subclass, such as quantised weights."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])  # tensors, and what describes them
    return [one for part in parts if isinstance(part, torch.Tensor) for one in plain_tensors(part)]
