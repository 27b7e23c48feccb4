"""A model on a device in a dtype and layout, and the step that is tried and timed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import nn

from tputfind.errors import BadRequest
from tputfind.measure.models import Source, find_model, shape_text
from tputfind.spec import Spec

Step = Callable[[], object]
"""Run one batch that lies on the device; returns the model's output."""

_WEIGHTS: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
_AUTOCAST: Final = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


class Workload:
    """The model of a spec, built and resident on a device in eval mode; ``step`` gives it a batch."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        """Build the model on the CPU, convert it there, and move it: the device then holds nothing but the result.

        Args:
            spec: which model, dtype, layout and seed.
            device: where it is to run.

        Raises:
            TputfindError: the model is not there or cannot be used as asked.
            Exception: whatever the model's own code raises.
        """
        self._spec = spec
        self._device = device
        self._dtype = _WEIGHTS.get(spec.dtype, torch.float32)
        _set_fp32_arithmetic("tf32" if spec.dtype == "tf32" else "ieee")
        torch.manual_seed(spec.seed)
        source: Source = find_model(spec)
        module, self._make_inputs = source.build()
        self._sample_shape = source.sample_shape
        self._module = _arranged(module.eval(), self._dtype, spec.layout).to(device)
        self.parameters = sum(parameter.numel() for parameter in module.parameters())

    def step(self, batch_size: int) -> Step:
        """Put one batch of random inputs on the device and return the step that runs it."""
        arguments, keywords = _as_call(self._inputs(batch_size))
        module = self._module
        autocast = _AUTOCAST.get(self._spec.dtype)
        if autocast is None:
            return lambda: module(*arguments, **keywords)

        def step() -> object:
            with torch.autocast(self._device.type, dtype=autocast):
                return module(*arguments, **keywords)

        return step

    def input_shape(self, batch_size: int) -> str:
        """Return the shape of one sample: ``3x224x224``, several tensors apart by ``+``.

        The batch axis of a user's own inputs is the one that is twice as long for twice this batch size.

        Raises:
            BadRequest: there is no such axis, so that the batch size would not be what it is said to be.
        """
        if self._sample_shape is not None:
            return shape_text(self._sample_shape)
        once, twice = (_tensors(self._inputs(size)) for size in (batch_size, 2 * batch_size))
        shapes, follows = [], False
        for tensor, double in zip(once, twice, strict=False):
            pairs = list(zip(tensor.shape, double.shape, strict=False))
            follows = follows or (batch_size, 2 * batch_size) in pairs
            shapes.append(tuple(length for length, doubled in pairs if length == doubled))
        if not follows:
            raise BadRequest(
                f"{self._spec.model}: no tensor of its inputs has an axis as long as the batch size that it is given",
                "the inputs' callable must return tensors of the batch size that it is called with",
            )
        return "+".join(map(shape_text, shapes))

    def _inputs(self, batch_size: int) -> object:
        torch.manual_seed(self._spec.seed + batch_size)
        if self._make_inputs is not None:
            arguments, keywords = _as_call(self._make_inputs(batch_size))
            placed = {name: self._placed(value) for name, value in keywords.items()}
            return placed or tuple(self._placed(value) for value in arguments)
        assert self._sample_shape is not None
        shape = (batch_size, *self._sample_shape)
        # Drawn in place and in its final form: a converted copy would leave a hole in the allocator's memory.
        return torch.empty(
            shape, dtype=self._dtype, device=self._device, memory_format=self._memory_format(len(shape))
        ).normal_()

    def _placed(self, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_floating_point():
            value = value.to(dtype=self._dtype, memory_format=self._memory_format(value.dim()))
        return value.to(self._device)

    def _memory_format(self, dimensions: int) -> torch.memory_format:
        if self._spec.layout == "nchw":
            return torch.contiguous_format
        return _CHANNELS_LAST.get(dimensions, torch.contiguous_format)


def inference() -> AbstractContextManager[Any]:
    """Return the mode that every step of phase ``infer`` runs under."""
    return torch.inference_mode()


def _arranged(module: nn.Module, dtype: torch.dtype, layout: str) -> nn.Module:
    """Convert weights on the CPU to the dtype and, where the rank allows it, to channels last."""
    module = module.to(dtype)
    if layout == "nhwc":
        # Each by its own rank: Module.to(memory_format=...) fails where ranks 4 and 5 meet.
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dim() in _CHANNELS_LAST:
                # Not contiguous(): that leaves 1x1 weights, which are contiguous either way, with their old strides.
                tensor.data = tensor.data.to(memory_format=_CHANNELS_LAST[tensor.dim()])
    return module


def _as_call(inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return inputs as positional and keyword arguments."""
    if isinstance(inputs, dict):
        return (), inputs
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def _tensors(inputs: object) -> list[torch.Tensor]:
    arguments, keywords = _as_call(inputs)
    return [value for value in (*arguments, *keywords.values()) if isinstance(value, torch.Tensor)]


def _set_fp32_arithmetic(precision: str) -> None:
    """Have matrix products, convolutions and recurrences of fp32 data computed in ``ieee`` fp32 or in ``tf32``.

    One by one: torch.backends.fp32_precision alone leaves cuDNN convolutions on TF32 in torch 2.11.
    """
    backends: Any = torch.backends  # torch's annotations do not know the attribute
    for backend in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        backend.fp32_precision = precision
