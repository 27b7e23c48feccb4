"""One batch of a model: the step that is tried and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch.utils._pytree import tree_leaves

from tputfind.errors import BadRequest
from tputfind.record.record import Compiled
from tputfind.worker.inputs import Call, Indivisible, Split, divides, miscounts, moves, picked, tensors_of
from tputfind.worker.modes.mode import Mode


class Batch:
    """One batch that lies on the device. Calling it is the step: it runs the model and returns its output.

    ``compiled`` says what compiling the step came to, if it was.
    """

    def __init__(self, model: Callable[..., object], size: int, inputs: Call, split: Callable[[], Split]) -> None:
        self.size = size
        self.compiled: Compiled | None = None
        self._model = model
        self._inputs = inputs
        self._split = split
        self._as_it_is = self._bound(model)
        self._run: Callable[[], object] = self._as_it_is

    def __call__(self) -> object:
        """Run the step."""
        return self._run()

    def prepare(self, mode: Mode) -> None:
        """Run the step from now on in a mode; errors as for ``Mode.prepare``."""
        self._run, self.compiled = mode.prepare(self.size, self._bound, self._as_it_is)

    def _bound(self, step: Callable[..., object]) -> Callable[[], object]:
        return partial(step, *self._inputs[0], **self._inputs[1])

    @property
    def eager(self) -> Batch | None:
        """The same inputs for the model run as it is; None where this batch does that."""
        if self._run is self._as_it_is:
            return None
        return Batch(self._model, self.size, self._inputs, self._split)

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
        try:
            inputs = picked(self._inputs, split, samples)
        except Indivisible:
            return None
        return Batch(self._model, len(samples), inputs, self._split) if divides(split) else None

    def miscounts(self) -> Iterator[int]:
        """Yield each number of samples in its inputs that is not the batch size."""
        return miscounts(self._inputs, self._split(), self.size)
