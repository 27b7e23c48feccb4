"""Linear layers in 8 bits, quantised by torchao while the model runs in bfloat16."""

from typing import Any

import torch
from torch import nn

from tputfind.errors import BadRequest
from tputfind.record.types import QUANTIZED
from tputfind.worker.models.source import import_package


def library() -> Any:
    """Return ``torchao.quantization``.

    It asks CUDA for devices when it is imported, so that no process that forks may import it.

    Raises:
        UnknownModel: torchao is not installed.
    """
    return import_package("torchao", "quantize") and import_package("torchao.quantization", "quantize")


def quantize(module: nn.Module, dtype: str, model: str) -> None:
    """Quantise the linear layers of a bfloat16 model on its device, weights once and activations in every step.

    Raises:
        BadRequest: no layer of the model can be quantised.
        UnknownModel: torchao is not installed.
    """
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
