"""Batches that are copied from and to host memory; the copies overlap with compute, as in a good server."""

from collections.abc import Callable
from statistics import median
from typing import Any, Final

import torch

from tputfind.worker.batch import Batch, empty_on_host
from tputfind.worker.devices.protocol import Device
from tputfind.worker.loops import one_at_a_time
from tputfind.worker.structures import tensors_of

_SLOTS: Final = 2
"""Batches on the device; one is computed while the other one is copied."""
LEAD_IN: Final = _SLOTS + 1
"""Steps until the copy pipeline is full and the step time is that of steady state."""
_REPEATS: Final = 10


class _Slot:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.feed = batch.feed_from_host(pinned=True)
        self.copied_in, self.computed, self.copied_out = (torch.cuda.Event() for _ in range(3))  # type: ignore[no-untyped-call]
        self._home: list[torch.Tensor] = []

    def send(self, tensors: list[torch.Tensor]) -> None:
        """Copy an output to pinned memory on the current stream, asynchronously."""
        if [tensor.shape for tensor in tensors] != [place.shape for place in self._home]:
            self._home = [empty_on_host(tensor, pinned=True) for tensor in tensors]
        with torch.no_grad():  # a copy of an output with a gradient would keep the graph of every step
            for tensor, place in zip(tensors, self._home, strict=True):
                place.copy_(tensor, non_blocking=True)


class Transfer:
    """Steps that copy their inputs from pinned memory and, with ``back``, their outputs to it. CUDA only."""

    def __init__(self, make_batch: Callable[[], Batch], *, back: bool) -> None:
        """Put two batches on the current device."""
        self._slots = [_Slot(make_batch()) for _ in range(_SLOTS)]
        self._back = back
        self._inward, self._outward = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._taken = 0

    @property
    def batches(self) -> list[Batch]:
        """The batches, which take turns."""
        return [slot.batch for slot in self._slots]

    def step(self) -> object:
        """Submit one batch of many in a row; its copies only wait for the data and the slot that they need.

        Inputs are copied while the previous batch is computed, and outputs while the next one is. A slot is reused only
        after its previous batch is done, so that the slowest of copies and compute sets the step time.
        """
        slot = self._slots[self._taken % _SLOTS]
        self._taken += 1
        main: Any = torch.cuda.current_stream()
        with torch.cuda.stream(self._inward):
            self._inward.wait_event(slot.computed)
            slot.feed()
            slot.copied_in.record()
        main.wait_event(slot.copied_in)
        main.wait_event(slot.copied_out)
        output = slot.batch()
        slot.computed.record()
        if self._back:
            tensors = _cuda_tensors(output)
            with torch.cuda.stream(self._outward):
                self._outward.wait_event(slot.computed)
                slot.send(tensors)
                slot.copied_out.record()
            for tensor in tensors:
                tensor.record_stream(self._outward)
        return output

    def single(self) -> object:
        """Submit one batch by itself: copy in, compute and copy out in sequence."""
        slot = self._slots[0]
        slot.feed()
        output = slot.batch()
        if self._back:
            slot.send(_cuda_tensors(output))
        return output

    def copies_ms(self, device: Device) -> tuple[float, float | None]:
        """Return the median times of one batch's copies in and out on an idle device, in ms by the host clock.

        The second is None if outputs are not copied.
        """
        slot = self._slots[0]
        tensors = _cuda_tensors(slot.batch()) if self._back else []
        device.synchronize()
        out_ms = _median_ms(device, lambda: slot.send(tensors)) if self._back else None
        return _median_ms(device, slot.feed), out_ms


def _cuda_tensors(output: object) -> list[torch.Tensor]:
    return [leaf for leaf in tensors_of(output) if leaf.is_cuda]


def _median_ms(device: Device, copy: Callable[[], None]) -> float:
    return median(one_at_a_time(device, copy, _REPEATS).synchronised_ms)
