"""One batch of a model: the step that is tried and timed."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch.utils._pytree import tree_leaves

from tputfind.errors import BadRequest
from tputfind.record.record import Compiled, Sight
from tputfind.worker.inputs import Call, Indivisible, Split, divides, miscounts, moves, picked, shape_of
from tputfind.worker.modes.compile import first_output
from tputfind.worker.modes.mode import Mode
from tputfind.worker.ranks import take_turn
from tputfind.worker.structures import drained, draining, is_lazy, tensors_of

_ROOM: Final = 1.25
"""Factor on the bytes of copies: allocators round up."""


class Batch:
    """One batch that lies on the device. Calling it is the step: it runs the model and returns its output.

    The first call finds out whether the output is lazy, which is drained within the step from then on, and whether the
    step writes into its inputs: ``restore`` then makes them what they were, and is None otherwise. ``seen`` says both.
    ``compiled`` says what compiling the step came to, if it was. ``outline`` is that of the inputs that the user's
    callable made, if it made all samples.
    """

    def __init__(
        self,
        model: Callable[..., object],
        size: int,
        inputs: Call,
        split: Callable[[], Split],
        again: Callable[[], Call] | None = None,
    ) -> None:
        """Take the model, the inputs, where the samples lie in them, and what makes the same inputs once more."""
        self.size = size
        self.compiled: Compiled | None = None
        self.restore: Callable[[], None] | None = None
        self.seen: tuple[Sight, ...] = ()
        self.outline: object = None
        self._model = model
        self._inputs = inputs
        self._split = split
        self._again = again
        self._writes = False
        self._as_it_is = self._bound(model)
        self._prepared: Callable[[], object] = self._as_it_is
        self._run: Callable[[], object] = self._first

    def __call__(self) -> object:
        """Run the step, as all other processes of a job do meanwhile."""
        take_turn()
        return self._run()

    def prepare(self, mode: Mode) -> None:
        """Run the step from now on in a mode; errors as for ``Mode.prepare``."""
        if not mode.as_it_is:  # a compiler that is handed a lazy output has nothing to compile
            self._as_it_is = self._bound(draining(self._model))
        versions = self._written()
        self._prepared, self.compiled = mode.prepare(
            self.size, lambda step: self._bound(draining(step)), self._as_it_is
        )
        self._writes = self._written() != versions  # a replayed graph counts none of its writes
        self._run = self._first

    def _first(self) -> object:
        """Run the step, and find out what must be done about its output and its inputs.

        What it compiles of its own accord is compiled until nothing more is.
        """
        versions = self._written()
        if self.compiled is None:
            output, self.compiled = first_output(self._prepared)
        else:
            output = self._prepared()
        if is_lazy(output):
            self.seen += ("drained",)
            output, self._run = drained(output), lambda: drained(self._prepared())
        else:
            self._run = self._prepared
        if self._writes or self._written() != versions:
            self.restore = self._restoring()
            self.seen += ("inputs_written",) if self.restore is None else ("inputs_restored",)
        return output

    def _written(self) -> list[int]:
        """Return how often each tensor of the inputs was written to; 0 for those that do not count it."""
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors_of(self._inputs)]  # noqa: SLF001

    def _restoring(self) -> Callable[[], None] | None:
        """Return what makes the inputs what they were, from copies in host memory; None if they have no room there."""
        resident = tensors_of(self._inputs)
        total_bytes = sum(tensor.numel() * tensor.element_size() for tensor in resident)
        if self._again is None or not _has_room(total_bytes):
            return None
        try:
            originals = [tensor.cpu() for tensor in tensors_of(self._again())]
        except (MemoryError, RuntimeError):  # memory that ran out on the way
            return None
        if [tensor.shape for tensor in originals] != [tensor.shape for tensor in resident]:
            return None
        pairs = list(zip(resident, originals, strict=True))

        def restore() -> None:
            with torch.no_grad():
                for tensor, original in pairs:
                    tensor.copy_(original)

        return restore

    def _bound(self, step: Callable[..., object]) -> Callable[[], object]:
        return partial(step, *self._inputs[0], **self._inputs[1])

    @property
    def shapes(self) -> tuple[object, ...]:
        """The shapes of the tensors in its inputs."""
        return tuple(shape_of(tensor) for tensor in tensors_of(self._inputs))

    def again(self) -> Batch:
        """Return the same batch, of which no step was taken yet."""
        return Batch(self._model, self.size, self._inputs, self._split)

    @property
    def eager(self) -> Batch | None:
        """The same inputs for the model run as it is; None where this batch does that."""
        if self._prepared is self._as_it_is:
            return None
        return self.again()

    def feed_from_host(self, *, pinned: bool) -> Callable[[], None]:
        """Return what copies the inputs anew from host memory into the resident ones, as a caller with new data would.

        From pinned memory the host does not wait for the copy, which takes its place in the device's order of work.

        Raises:
            BadRequest: some of the inputs can be moved as a whole, and not copied into.
        """
        leaves = tree_leaves(self._inputs, is_leaf=moves)
        whole = [type(leaf).__name__ for leaf in leaves if moves(leaf) and not isinstance(leaf, torch.Tensor)]
        if whole:
            raise BadRequest(f"a {whole[0]} among the inputs cannot be copied into, so no copies can be timed")
        resident = tensors_of(leaves)
        pairs = [(value, torch.empty_like(value, device="cpu", pin_memory=pinned).copy_(value)) for value in resident]

        def feed() -> None:
            for value, host in pairs:
                value.copy_(host, non_blocking=pinned)

        return feed

    def picked(self, samples: Sequence[int]) -> Batch | None:
        """Return a batch of some of the samples, by index; None where the inputs cannot be taken apart so.

        It runs the model as it is, in whatever mode this one runs.
        """
        split = self._split()
        if self.restore is not None:
            self.restore()
        try:
            inputs = picked(self._inputs, split, samples)
        except Indivisible:
            return None
        return Batch(self._model, len(samples), inputs, self._split) if divides(split) else None

    def miscounts(self) -> Iterator[int]:
        """Yield each number of samples in its inputs that is not the batch size."""
        return miscounts(self._inputs, self._split(), self.size)


def _has_room(count: int) -> bool:
    """Return whether so many bytes more would fit under the limit on this process's address space, at its peak too."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return True
    status = Path("/proc/self/status").read_text()
    peak = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmPeak:")), limit)
    return peak + _ROOM * count < limit
