"""What a step runs on is put on the device: the module of a source, and inputs in the final dtype and layout."""

import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from tputfind.errors import TputfindError
from tputfind.processes.failures import Circumstances, for_want_of_memory, of_exception
from tputfind.record.spec import Spec
from tputfind.units import format_bytes
from tputfind.worker.conversion import convert_tensor
from tputfind.worker.deferred import Deferral
from tputfind.worker.devices.host import host_memory
from tputfind.worker.inputs import CHANNELS_LAST, Inputs, Rows, Split, alike, moves
from tputfind.worker.models.source import Source
from tputfind.worker.repeats import copies
from tputfind.worker.settings import seed_all
from tputfind.worker.structures import is_plain, parts_of, tensors_of, with_parts


class Placement(NamedTuple):
    """Where inputs lie and in which form: a device, the dtype of real numbers (None: their own), and a layout."""

    device: torch.device
    dtype: torch.dtype | None
    layout: str

    def memory_format(self, dimensions: int) -> torch.memory_format:
        """Return the memory format of a tensor of so many dimensions."""
        if self.layout == "nchw":
            return torch.contiguous_format
        return CHANNELS_LAST.get(dimensions, torch.contiguous_format)

    def arrange(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor in the dtype and layout, where it lies."""
        tensor = convert_tensor(tensor, self.dtype)
        if not tensor.is_floating_point() or not is_plain(tensor):
            return tensor
        return tensor.to(memory_format=self.memory_format(tensor.dim()))

    def place(self, value: Any) -> Any:
        """Return a value with its tensors, and what else knows how to move, on the device; anything else as it is."""
        if isinstance(value, torch.Tensor):
            return self.arrange(value).to(self.device)
        if moves(value):
            moved = value.to(self.device)
            moved = value if moved is None else moved  # some move in place
            for tensor in tensors_of(moved):
                tensor.data = convert_tensor(tensor, self.dtype)
            return moved
        parts = parts_of(value)
        return value if parts is None else with_parts(value, {key: self.place(part) for key, part in parts.items()})

    def repeat(self, value: Any, split: Split, few: int, many: int) -> Any:
        """Return a value that holds ``few`` samples as one on the device that holds ``many``, as ``copies`` says.

        It takes as much of the device's memory as a value that was made for so many.

        Args:
            value: made for ``few`` samples.
            split: where they lie, as ``repeatable_split`` found it.
            few: the samples in the value.
            many: the samples in the result.
        """
        match split:
            case int(axis) | Rows(axis):
                return self._fill(value, axis, few, many)
            case "listed":
                items = [self.place(item) for item in value]
                for start, _, count in copies(few, many):
                    items += [_clone(item) for item in items[start : start + count]]
                return alike(value, items)
            case list() | dict():
                splits = split.values() if isinstance(split, dict) else split
                parts = zip((parts_of(value) or {}).items(), splits, strict=True)
                return with_parts(value, {key: self.repeat(part, each, few, many) for (key, part), each in parts})
            case _:
                return self.place(value)

    def _fill(self, tensor: torch.Tensor, axis: int, few: int, many: int) -> torch.Tensor:
        samples = self.arrange(tensor)
        learnt = samples.requires_grad and (samples.device == self.device or torch.is_grad_enabled())
        if not samples.is_contiguous():
            samples = samples.to(samples.dtype, copy=True)  # with the strides that a move to another device gives
        each = samples.shape[axis] // few
        shape = (*samples.shape[:axis], each * many, *samples.shape[axis + 1 :])
        beside = samples.stride(axis)
        strides = [stride * many // few if stride > beside else stride for stride in samples.stride()]
        # The whole comes first and is filled in place: a copy of its size would leave a hole in the allocator's memory.
        whole = torch.empty_strided(shape, strides, dtype=samples.dtype, device=self.device)
        with torch.no_grad():
            whole.narrow(axis, 0, each * few).copy_(samples)
            for start, end, count in copies(few, many):
                source = whole.narrow(axis, each * start, each * count)
                whole.narrow(axis, each * end, each * count).copy_(source)
        return whole.requires_grad_(learnt)

    def host_bytes(self, value: object) -> int:
        """Return the bytes of the tensors that lie elsewhere than on the device, with the largest copy on the way."""
        elsewhere = [tensor for tensor in tensors_of(value) if tensor.device.type != self.device.type]
        dense = [tensor for tensor in elsewhere if is_plain(tensor)]
        storages = {storage.data_ptr(): storage.nbytes() for storage in (each.untyped_storage() for each in dense)}
        pairs = ((tensor, self.arrange(tensor)) for tensor in dense)
        return sum(storages.values()) + max((one.nbytes for tensor, one in pairs if one is not tensor), default=0)


def check_host_memory(batch_size: int, sizes: Sequence[int], host_bytes: Sequence[int]) -> None:
    """Make sure that the host has memory for the inputs of a batch size, before the kernel has to kill for it.

    The estimate grows with the batch size as between the smallest and the largest batch that were made, which is too
    little if inputs grow faster.

    Args:
        batch_size: larger than all ``sizes``.
        sizes: batch sizes whose inputs were made, two different ones at least.
        host_bytes: what these take on the host; see ``Placement.host_bytes``.

    Raises:
        MemoryError: it has not.
    """
    (least, least_bytes), *_, (most, most_bytes) = sorted(zip(sizes, host_bytes, strict=True))
    slope = max(0.0, (most_bytes - least_bytes) / (most - least))
    needed, left = int(most_bytes + slope * (batch_size - most)), host_memory()[1]
    if needed > left:
        has = f"of the host's memory, which has {format_bytes(left)} left"
        raise MemoryError(f"the inputs of batch {batch_size} take {format_bytes(needed)} {has}")


def _clone(value: Any) -> Any:
    """Return a value with copies of its tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    parts = parts_of(value)
    return value if parts is None else with_parts(value, {key: _clone(part) for key, part in parts.items()})


def build(
    source: Source, spec: Spec, dtype: torch.dtype | None, device: torch.device, *, filled: bool = True
) -> tuple[nn.Module, Inputs]:
    """Return a module and its inputs.

    A library's model lies on the device already, in the dtype and layout, if its constructor can be repeated there; any
    other lies on the host, as its source builds it. If not ``filled``, the weights of a library's model may have no
    memory: they lie on the meta device.

    Raises:
        TputfindError: the source cannot build what the spec asks for.
        Exception: whatever the model's own code raises, or torch if there is no memory.
    """
    if source.deferrable:
        built = _built_in_place(source, spec, dtype, device, filled=filled)
        if built is not None:
            return built
        gc.collect()  # modules hold themselves in cycles
        with suppress(AttributeError):
            torch.get_device_module(device).empty_cache()
        seed_all(spec.seed)
    module, inputs = source.build()
    source.finish(module)
    return module, inputs


def _built_in_place(
    source: Source, spec: Spec, dtype: torch.dtype | None, device: torch.device, *, filled: bool
) -> tuple[nn.Module, Inputs] | None:
    """Return a library's module as ``build`` does; None if it has to be built on the host."""
    try:
        with Deferral() as deferral:
            module, inputs = source.build()
        if filled:
            deferral.fill(module, dtype, spec.layout, device)
            source.finish(module)
    except TputfindError:
        raise
    except Exception as error:  # what a constructor does is not known beforehand, nor what an operation raises
        if for_want_of_memory(of_exception(error, Circumstances())):
            raise
        return None
    return module, inputs
