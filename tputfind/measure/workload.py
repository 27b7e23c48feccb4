"""A model on a device in a dtype and layout, and the step that is tried and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import nn

from tputfind.errors import BadRequest
from tputfind.measure.models import Source, find_model, shape_text
from tputfind.spec import Spec

_WEIGHTS: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
_AUTOCAST: Final = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


class Batch:
    """One batch that lies on the device. Calling it is the step: it runs the model and returns its output."""

    def __init__(
        self,
        call: Callable[..., object],
        size: int,
        arguments: tuple[object, ...],
        keywords: dict[str, object],
        axes: Callable[[], list[int | None] | None],
    ) -> None:
        self.size = size
        self._call = call
        self._arguments = arguments
        self._keywords = keywords
        self._axes = axes

    def __call__(self) -> object:
        """Run the step."""
        return self._call(*self._arguments, **self._keywords)

    def feed_from_host(self, *, pinned: bool) -> Callable[[], None]:
        """Return what copies the inputs anew from host memory into the resident ones, as a caller with new data would.

        From pinned memory the host does not wait for the copy, which takes its place in the device's order of work.
        """
        resident = [value for value in (*self._arguments, *self._keywords.values()) if isinstance(value, torch.Tensor)]
        pairs = [(value, torch.empty_like(value, device="cpu", pin_memory=pinned).copy_(value)) for value in resident]

        def feed() -> None:
            for value, host in pairs:
                value.copy_(host, non_blocking=pinned)

        return feed

    def picked(self, samples: Sequence[int]) -> Batch | None:
        """Return a batch of some of the samples, by index; None where the inputs cannot be taken apart so."""
        values = [*self._arguments, *self._keywords.values()]
        axes = self._axes()
        if axes is None or len(axes) != len(values) or all(axis is None for axis in axes):
            return None
        few = [_picked(value, axis, samples) for value, axis in zip(values, axes, strict=True)]
        count = len(self._arguments)
        keywords = dict(zip(self._keywords, few[count:], strict=True))
        return Batch(self._call, len(samples), tuple(few[:count]), keywords, self._axes)


class Workload:
    """The model of a spec, built and resident on a device in eval mode; ``batch`` gives it something to do."""

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

    def batch(self, batch_size: int) -> Batch:
        """Put one batch of random inputs on the device."""
        arguments, keywords = _as_call(self._inputs(batch_size))
        return Batch(self._call(), batch_size, arguments, keywords, self._batch_axes)

    def _call(self) -> Callable[..., object]:
        module = self._module
        autocast = _AUTOCAST.get(self._spec.dtype)
        if autocast is None:
            return module

        def call(*arguments: object, **keywords: object) -> object:
            with torch.autocast(self._device.type, dtype=autocast):
                return module(*arguments, **keywords)

        return call

    def _batch_axes(self) -> list[int | None] | None:
        """Return the batch axis of every input, None for one that has none; None in all where they cannot be told."""
        if self._sample_shape is not None:
            return [0]
        assert self._make_inputs is not None
        size = self._spec.granularity
        once, twice = ([*arguments, *keywords.values()] for arguments, keywords in map(self._made, (size, 2 * size)))
        if len(once) != len(twice):
            return None
        pairs = list(zip(once, twice, strict=True))
        axes = [_axis(*pair, size) for pair in pairs]
        known = all(axis is not None or _same(*pair) for axis, pair in zip(axes, pairs, strict=True))
        return axes if known else None

    def input_shape(self, batch_size: int) -> str:
        """Return the shape of one sample: ``3x224x224``, several tensors apart by ``+``.

        The batch axis of a user's own inputs is the one that is twice as long for twice this batch size.

        Raises:
            BadRequest: there is no such axis, so that the batch size would not be what it is said to be.
        """
        if self._sample_shape is not None:
            return shape_text(self._sample_shape)
        once, twice = (_tensors(self._made(size)) for size in (batch_size, 2 * batch_size))
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
        if self._make_inputs is not None:
            arguments, keywords = self._made(batch_size)
            placed = {name: self._placed(value) for name, value in keywords.items()}
            return placed or tuple(self._placed(value) for value in arguments)
        torch.manual_seed(self._spec.seed + batch_size)
        assert self._sample_shape is not None
        shape = (batch_size, *self._sample_shape)
        # Drawn in place and in its final form: a converted copy would leave a hole in the allocator's memory.
        return torch.empty(
            shape, dtype=self._dtype, device=self._device, memory_format=self._memory_format(len(shape))
        ).normal_()

    def _made(self, batch_size: int) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return what the user's callable makes for a batch size, the same every time, as it made it."""
        assert self._make_inputs is not None
        torch.manual_seed(self._spec.seed + batch_size)
        return _as_call(self._make_inputs(batch_size))

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


def _picked(value: object, axis: int | None, samples: Sequence[int]) -> object:
    if axis is None or not isinstance(value, torch.Tensor):
        return value
    few = value.index_select(axis, torch.tensor(samples, device=value.device))
    for memory_format in (torch.channels_last, torch.channels_last_3d):
        if _CHANNELS_LAST.get(value.dim()) is memory_format and value.is_contiguous(memory_format=memory_format):
            return few.contiguous(memory_format=memory_format)
    return few


def _as_call(inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return inputs as positional and keyword arguments."""
    if isinstance(inputs, dict):
        return (), inputs
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def _axis(once: object, twice: object, size: int) -> int | None:
    """Return the axis that is as long as the batch, and twice as long for twice the batch, if it is the only change."""
    if not (isinstance(once, torch.Tensor) and isinstance(twice, torch.Tensor)) or once.dim() != twice.dim():
        return None
    lengths = enumerate(zip(once.shape, twice.shape, strict=True))
    changes = [(axis, pair) for axis, pair in lengths if pair[0] != pair[1]]
    return changes[0][0] if [pair for _, pair in changes] == [(size, 2 * size)] else None


def _same(once: object, twice: object) -> bool:
    """Whether an input does not depend on the batch size: the same numbers, or a tensor of the same shape."""
    if isinstance(once, torch.Tensor) and isinstance(twice, torch.Tensor):
        return once.shape == twice.shape
    return isinstance(once, (int, float, str, bool, type(None))) and once == twice


def _tensors(inputs: tuple[tuple[object, ...], dict[str, object]]) -> list[torch.Tensor]:
    arguments, keywords = inputs
    return [value for value in (*arguments, *keywords.values()) if isinstance(value, torch.Tensor)]


def _set_fp32_arithmetic(precision: str) -> None:
    """Have matrix products, convolutions and recurrences of fp32 data computed in ``ieee`` fp32 or in ``tf32``.

    One by one: torch.backends.fp32_precision alone leaves cuDNN convolutions on TF32 in torch 2.11.
    """
    backends: Any = torch.backends  # torch's annotations do not know the attribute
    for backend in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        backend.fp32_precision = precision
