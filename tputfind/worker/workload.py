"""A model on a device in a dtype and layout: it makes the batches that are tried and timed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_map

from tputfind.errors import ModelFailed
from tputfind.record.choices import Phase
from tputfind.record.record import OutputCheck
from tputfind.record.spec import Spec
from tputfind.worker.batch import Batch
from tputfind.worker.inputs import (
    CHANNELS_LAST,
    Call,
    Drawn,
    Split,
    as_call,
    drawn_of,
    moves,
    sample_shapes,
    shape_text,
    split_of,
    split_of_drawn,
    tensors_of,
)
from tputfind.worker.models import find_model
from tputfind.worker.modes import MODES
from tputfind.worker.training import Training

_WEIGHTS: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
_AS_MANY: Final = "its callable must return as many samples as it is called with, for every batch size"
_SHOWN: Final = 3
_AUTOCAST: Final = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}


class Workload:
    """The model of a spec, built and resident on a device, to infer or to train; ``batch`` gives it something to do."""

    def __init__(self, spec: Spec, device: torch.device, doing: Callable[[str], None] = lambda _: None) -> None:
        """Build the model on the CPU, convert it there, and move it: the device then holds nothing but the result.

        Args:
            spec: which model, dtype, layout and seed.
            device: where it is to run.
            doing: told what is done on the host, in the past tense, and an empty text when it is done.

        Raises:
            TputfindError: the model is not there or cannot be used as asked.
            Exception: whatever the model's own code raises.
        """
        self._spec = spec
        self._device = device
        self._doing = doing
        self._dtype = _WEIGHTS.get(spec.dtype, torch.float32)
        _set_fp32_arithmetic(tf32=spec.dtype == "tf32")
        torch.manual_seed(spec.seed)
        module, self._wanted = find_model(spec).build()
        self._module = _arranged(module.eval(), self._dtype, spec.layout).to(device)
        self._training = Training(self._module, spec, device) if spec.phase == "train" else None
        self._mode = MODES[spec.mode](self._module, self._step_of, torch.get_device_module(device).synchronize)
        self.parameters = sum(parameter.numel() for parameter in module.parameters())

    def batch(self, batch_size: int) -> Batch:
        """Put one batch of random inputs on the device, and have its step run in the mode of the spec."""
        batch = Batch(self._step_of(self._module), batch_size, self._inputs(batch_size), lambda: self._split)
        batch.prepare(self._mode)
        if self._training is not None:
            self._training.settle(batch)
        return batch

    def check_training(self, batch: Batch) -> OutputCheck:
        """Say what can be said of steps of training, after all of them; see ``Training.check``."""
        assert self._training is not None
        return self._training.check(batch)

    def check_samples(self, batch: Batch) -> None:
        """Make sure that a batch holds as many samples as it is said to, in every part of its inputs.

        Call it after the batch was timed: it may call the user's own callable, for two small batches.

        Raises:
            ModelFailed: the user's callable made another number.
        """
        count = next(batch.miscounts(), None)
        if count is not None:
            raise ModelFailed(
                f"{self._spec.model}: its inputs hold {count} sample{'' if count == 1 else 's'} at batch {batch.size}",
                _AS_MANY,
            )

    def _step_of(self, module: Callable[..., object]) -> Callable[..., object]:
        call = self._call(module)
        return call if self._training is None else self._training.step_of(call)

    def _call(self, module: Callable[..., object]) -> Callable[..., object]:
        autocast = _AUTOCAST.get(self._spec.dtype)
        if autocast is None:
            return module

        def call(*arguments: object, **keywords: object) -> object:
            with torch.autocast(self._device.type, dtype=autocast):
                return module(*arguments, **keywords)

        return call

    def input_shape(self) -> str:
        """Return the shape of one sample: ``3x224x224``, several tensors apart by ``+``.

        The batch axis of a user's own inputs is the one that is twice as long for twice the smallest batch size.

        Raises:
            ModelFailed: there is no such axis, so that the batch size would not be what it is said to be.
        """
        if not callable(self._wanted):
            return shape_text([drawn.sample_shape for drawn in drawn_of(self._wanted)])
        size = self._spec.smallest_batch
        once, twice = self._made(size), self._made(2 * size)
        shapes = list(sample_shapes(once, twice, size))
        if not any(follows for _, follows in shapes):
            raise ModelFailed(
                f"{self._spec.model}: no part of its inputs grows with the batch size: "
                f"they are {_shapes(once)} at batch {size} and {_shapes(twice)} at batch {2 * size}",
                _AS_MANY,
            )
        return shape_text([shape for shape, _ in shapes])

    @cached_property
    def _split(self) -> Split:
        """Where the samples lie in a batch's inputs."""
        if not callable(self._wanted):
            return split_of_drawn(self._wanted)
        size = self._spec.smallest_batch
        return split_of(self._made(size), self._made(2 * size), size)

    def _inputs(self, batch_size: int) -> Call:
        if callable(self._wanted):
            self._doing(f"made the inputs of batch {batch_size} on the host")
            inputs: Call = tree_map(self._placed, self._made(batch_size), is_leaf=moves)
            self._doing("")
        else:
            torch.manual_seed(self._spec.seed + batch_size)
            inputs = tree_map(lambda value: self._drawn(value, batch_size), self._wanted)
        return inputs

    def _made(self, batch_size: int) -> Call:
        """Return what the user's callable makes for a batch size, the same every time, as it made it."""
        assert callable(self._wanted)
        torch.manual_seed(self._spec.seed + batch_size)
        return as_call(self._wanted(batch_size))

    def _drawn(self, drawn: object, batch_size: int) -> object:
        if not isinstance(drawn, Drawn):
            return drawn
        if drawn.listed:
            return [self._numbers(drawn.sample_shape, drawn) for _ in range(batch_size)]
        shape, axis = drawn.sample_shape, drawn.axis
        return self._numbers(shape if axis is None else (*shape[:axis], batch_size, *shape[axis:]), drawn)

    def _numbers(self, shape: tuple[int, ...], drawn: Drawn) -> torch.Tensor:
        # Drawn in place and in its final form: a converted copy would leave a hole in the allocator's memory.
        dtype, memory_format = drawn.dtype or self._dtype, self._memory_format(len(shape))
        empty = torch.empty(shape, dtype=dtype, device=self._device, memory_format=memory_format)
        if drawn.ones:
            return empty.fill_(1)
        if not dtype.is_floating_point:
            return empty.random_(0, drawn.below)
        return empty.uniform_() if drawn.image else empty.normal_()

    def _placed(self, value: Any) -> object:
        """Return a tensor, or what else knows how to move, on the device; anything else as it is."""
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value = value.to(dtype=self._dtype, memory_format=self._memory_format(value.dim()))
        moved = value.to(self._device) if moves(value) else value
        return value if moved is None else moved  # some move in place

    def _memory_format(self, dimensions: int) -> torch.memory_format:
        if self._spec.layout == "nchw":
            return torch.contiguous_format
        return CHANNELS_LAST.get(dimensions, torch.contiguous_format)


def inference() -> AbstractContextManager[Any]:
    """Return the mode that every step of phase ``infer`` runs under."""
    return torch.inference_mode()


def gradients(phase: Phase) -> AbstractContextManager[Any]:
    """Return the mode that every step of a phase runs under."""
    return torch.enable_grad() if phase == "train" else inference()


def _shapes(inputs: object) -> str:
    """Return the shapes of the first tensors of inputs, and how many more there are."""
    shapes = [tensor.shape for tensor in tensors_of(inputs)]
    more = f" and {len(shapes) - _SHOWN} more" if len(shapes) > _SHOWN else ""
    return (shape_text(shapes[:_SHOWN]) or "no tensor") + more


def _arranged(module: nn.Module, dtype: torch.dtype, layout: str) -> nn.Module:
    """Convert weights on the CPU to the dtype and, where the rank allows it, to channels last."""
    module = module.to(dtype)
    if layout == "nhwc":
        # Each by its own rank: Module.to(memory_format=...) fails where ranks 4 and 5 meet.
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dim() in CHANNELS_LAST:
                # Not contiguous(): that leaves 1x1 weights, which are contiguous either way, with their old strides.
                tensor.data = tensor.data.to(memory_format=CHANNELS_LAST[tensor.dim()])
    return module


def _set_fp32_arithmetic(*, tf32: bool) -> None:
    """Have matrix products, convolutions and recurrences of fp32 data computed in TF32, or in fp32 as IEEE 754 has it.

    By the older switches, which set the newer ones too. With those alone (``fp32_precision``), which one at a time take
    effect in torch 2.11, the older ones say otherwise, and compiling and exporting a model fails over that.
    """
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
