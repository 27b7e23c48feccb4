"""Puts modules and inputs on the device in their final dtype and layout."""

import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from tputfind.errors import TputfindError
from tputfind.processes.failures import Circumstances, exception_failure, for_want_of_memory
from tputfind.record.spec import Spec
from tputfind.units import format_bytes
from tputfind.worker.conversion import convert_tensor
from tputfind.worker.deferred import Deferral
from tputfind.worker.devices.host import host_memory
from tputfind.worker.inputs import CHANNELS_LAST, Inputs, Rows, Split, copies, is_channels_last
from tputfind.worker.models.source import Source
from tputfind.worker.settings import seed_all
from tputfind.worker.structures import (
    Copies,
    clone_tensors,
    contents_of,
    convert_parts,
    is_plain,
    map_parts,
    moves,
    narrow_to_one,
    parts_of,
    replace_parts,
    tensors_of,
    zero_stride_axes,
)


class Placement(NamedTuple):
    """The target of inputs: a device, a dtype for real numbers (None: their own dtype), and a layout.

    ``on_host`` has the ids of tensors that stay on the host, as ``pack_padded_sequence`` needs its lengths.
    """

    device: torch.device
    dtype: torch.dtype | None
    layout: str
    on_host: frozenset[int] = frozenset()

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the device on which a tensor belongs."""
        return torch.device("cpu") if id(tensor) in self.on_host else self.device

    def memory_format(self, dimensions: int) -> torch.memory_format:
        """Return the memory format of a tensor with this number of dimensions."""
        if self.layout == "nchw":
            return torch.contiguous_format
        return CHANNELS_LAST.get(dimensions, torch.contiguous_format)

    def arrange(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor in the dtype and layout, on its current device.

        Channels last stays so in layout ``nchw``: the user's model may insist on it.
        """
        tensor = convert_tensor(tensor, self.dtype)
        if not tensor.is_floating_point() or not is_plain(tensor) or is_channels_last(tensor):
            return tensor
        return tensor.to(memory_format=self.memory_format(tensor.dim()))

    def place(self, value: Any, placed: Copies | None = None, tensors: Copies | None = None) -> Any:
        """Return a value with its tensors, also those in objects, on the device; other parts stay unchanged.

        ``placed`` holds the copies of the parts of an object, so that parts that refer to each other also do so on the
        device. ``tensors`` are those placed so far: a tensor that is several arguments is one on the device, too.
        Samples of a list are placed one by one, also one object that the list holds several times.
        """
        if placed is not None and id(value) in placed:
            return placed[id(value)][1]
        if isinstance(value, torch.Tensor):
            if tensors is not None and id(value) in tensors:
                return tensors[id(value)][1]
            placed_tensor = self.arrange(value).to(self.device_of(value))
            is_leaf = value.requires_grad and value.is_leaf and placed_tensor is not value
            placed_tensor = placed_tensor.detach().requires_grad_() if is_leaf else placed_tensor
            if tensors is not None:
                tensors[id(value)] = value, placed_tensor
            return placed_tensor
        if moves(value):
            moved = value.to(self.device)
            moved = value if moved is None else moved  # some move in place
            for tensor in tensors_of(moved):
                if (converted := convert_tensor(tensor, self.dtype)) is not tensor:
                    tensor.data = converted
            return moved
        parts = contents_of(value)
        if parts is None:
            return value
        tensors = None if isinstance(value, list) else {} if tensors is None else tensors
        if placed is None and isinstance(value, (list, tuple, dict)):
            return map_parts(lambda part: self.place(part, None, tensors), value)
        placed = {} if placed is None else placed
        return convert_parts(value, parts, lambda part: self.place(part, placed, tensors), placed)

    def repeat(self, value: Any, split: Split, few: int, many: int, tensors: Copies | None = None) -> Any:
        """Return a value on the device with ``many`` samples that repeat the ``few`` of ``value``; see ``copies``.

        It takes as much of the device's memory as a value made for ``many`` samples. ``repeatable_split`` returns the
        location of the samples. ``tensors`` is as for ``place``.
        """
        tensors = {} if tensors is None else tensors
        match split:
            case int(axis) | Rows(axis):
                if id(value) not in tensors:
                    tensors[id(value)] = value, self._fill(value, axis, few, many)
                return tensors[id(value)][1]
            case "listed":
                items = [self.place(item) for item in value]
                for start, _, count in copies(few, many):
                    items += [clone_tensors(item) for item in items[start : start + count]]
                return replace_parts(value, dict(enumerate(items)))
            case dict():
                parts = parts_of(value) or {}
                return replace_parts(
                    value, {key: self.repeat(parts[key], split[key], few, many, tensors) for key in split}
                )
            case _:
                return self.place(value, None, tensors)

    def _fill(self, tensor: torch.Tensor, axis: int, few: int, many: int) -> torch.Tensor:
        samples, device = self.arrange(tensor), self.device_of(tensor)
        each = samples.shape[axis] // few
        shape = (*samples.shape[:axis], each * many, *samples.shape[axis + 1 :])
        expanded = zero_stride_axes(samples) if samples.device == device else []
        if expanded:  # a tensor made for all samples stays expanded, too, unless it is moved
            samples = narrow_to_one(samples, expanded)
            filled = samples if axis in expanded else self._fill(samples, axis, few, many)
            return filled.expand(shape)
        if not samples.is_contiguous():
            samples = samples.to(samples.dtype, copy=True)  # same strides as after a move to another device
        beside = samples.stride(axis)
        strides = [stride * many // few if stride > beside else stride for stride in samples.stride()]
        # The whole tensor is allocated first and filled in place: a copy would fragment the allocator's memory.
        whole = torch.empty_strided(shape, strides, dtype=samples.dtype, device=device)
        with torch.no_grad():
            whole.narrow(axis, 0, each * few).copy_(samples)
            for start, end, count in copies(few, many):
                source = whole.narrow(axis, each * start, each * count)
                whole.narrow(axis, each * end, each * count).copy_(source)
        return whole.requires_grad_(tensor.requires_grad)

    def host_bytes(self, value: object) -> int:
        """Return the bytes of the tensors that are not on the device, plus those of the largest converted copy."""
        elsewhere = [tensor for tensor in tensors_of(value) if tensor.device.type != self.device.type]
        dense = [tensor for tensor in elsewhere if is_plain(tensor)]
        storages = {storage.data_ptr(): storage.nbytes() for storage in (each.untyped_storage() for each in dense)}
        pairs = ((tensor, self.arrange(tensor)) for tensor in dense)
        return sum(storages.values()) + max((one.nbytes for tensor, one in pairs if one is not tensor), default=0)


def lengths_of(inputs: object) -> list[torch.Tensor]:
    """Return the one-dimensional integers in inputs, which may be lengths of sequences."""
    return [
        tensor
        for tensor in tensors_of(inputs)
        if tensor.dim() == 1 and not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
    ]


def check_host_memory(batch_size: int, sizes: Sequence[int], host_bytes: Sequence[int]) -> None:
    """Raise MemoryError if the host lacks memory for the inputs of a batch size; else the kernel might kill a process.

    The estimate extrapolates linearly from the smallest and the largest batch that were made, which is too low if
    inputs grow faster. ``sizes`` are their batch sizes, two at least and smaller than ``batch_size``; ``host_bytes``
    are the bytes of each: see ``Placement.host_bytes``.
    """
    (least, least_bytes), *_, (most, most_bytes) = sorted(zip(sizes, host_bytes, strict=True))
    slope = max(0.0, (most_bytes - least_bytes) / (most - least))
    needed, left = int(most_bytes + slope * (batch_size - most)), host_memory()[1]
    if needed > left:
        has = f"of the host's memory, which has {format_bytes(left)} left"
        raise MemoryError(f"the inputs of batch {batch_size} take {format_bytes(needed)} {has}")


def free_memory(device: torch.device) -> None:
    """Collect garbage, since modules are in reference cycles, and give the memory back to the device."""
    gc.collect()
    with suppress(AttributeError):  # a CPU keeps no free memory
        torch.get_device_module(device).empty_cache()


def build(
    source: Source, spec: Spec, dtype: torch.dtype | None, device: torch.device, *, filled: bool = True
) -> tuple[nn.Module, Inputs]:
    """Return a module and its inputs, or raise a TputfindError.

    A library's model is already on the device in the dtype and layout if its constructor can be repeated there. Other
    models are on the host, as their source builds them. If not ``filled``, the weights of a library's model may be on
    the meta device, without memory.
    """
    if source.deferrable:
        built = _build_in_place(source, spec, dtype, device, filled=filled)
        if built is not None:
            return built
        free_memory(device)
        seed_all(spec.seed)
    module, inputs = source.build()
    source.finish(module)
    return module, inputs


def _build_in_place(
    source: Source, spec: Spec, dtype: torch.dtype | None, device: torch.device, *, filled: bool
) -> tuple[nn.Module, Inputs] | None:
    """Build a library's module as ``build`` does; return None if it must be built on the host."""
    try:
        with Deferral() as deferral:
            module, inputs = source.build()
        if filled:
            deferral.fill(module, dtype, spec.layout, device)
            source.finish(module)
    except TputfindError:
        raise
    except Exception as error:  # constructors and their operations can raise anything
        if for_want_of_memory(exception_failure(error, Circumstances())) and spec.parallel != "fsdp":
            raise
        return None
    return module, inputs
