"""One batch of a model: the step that trials run and windows time."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from tputfind.errors import BadRequest
from tputfind.record.record import Compiled, Sight
from tputfind.worker.devices.host import status_bytes
from tputfind.worker.inputs import (
    Call,
    Indivisible,
    Split,
    can_count_samples,
    divides,
    drop_rows,
    has_part_of_sample,
    has_samples,
    miscounts,
    select_samples,
    shape_of,
)
from tputfind.worker.modes.compile import first_output
from tputfind.worker.modes.mode import Mode
from tputfind.worker.ranks import take_turn
from tputfind.worker.structures import (
    clone_tensors,
    copy_containers,
    drain_value,
    draining,
    has_same_parts,
    is_lazy,
    is_plain,
    moves,
    narrow_to_one,
    tensors_of,
    zero_stride_axes,
)

_ROOM: Final = 1.25
"""Factor on the bytes of copies, since allocators round up."""


_Form = tuple[torch.Size, tuple[int, ...], Any]


class _Inputs:
    """The inputs of a batch, and those given to its last step; each step gets new containers if steps change them.

    Steps refer to this, and not to their batch: in a reference cycle the inputs would outlive the batch, since
    ``time_windows`` freezes the garbage collector.
    """

    def __init__(self, call: Call, *, has_state: bool) -> None:
        self.call = self.given = call
        self.renews = True
        self._is_new = False
        self._has_state = has_state

    def renew(self) -> None:
        """Copy the containers for the next step, which else does so itself."""
        self.given, self._is_new = copy_containers(self.call, of_tensors=self._has_state), True

    def bind(self, step: Callable[..., object]) -> Callable[[], object]:
        """Return the step of these inputs, without arguments."""

        def run() -> object:
            if not self.renews:
                self.given = self.call
            elif not self._is_new:
                self.renew()
            self._is_new = False
            return step(*self.given[0], **self.given[1])

        return run


class Batch:
    """One batch on the device. A call is a step: it runs the model and returns its output.

    The first call checks three things. If the output is lazy, every step computes it in full from then on. If the step
    writes into its inputs, ``restore`` undoes that; it is None if there is nothing to undo, or no host memory for
    copies. ``seen`` records both. If it changes containers, as ``batch.pop("labels")`` does, every step gets new ones,
    which ``restore`` makes too.
    ``compiled`` is the result of compiling the step, or None. ``outline`` is the outline of the inputs if the user's
    callable made all samples, else None. ``indexes_samples`` returns whether the inputs hold indices of samples.
    """

    def __init__(
        self,
        model: Callable[..., object],
        size: int,
        inputs: Call,
        split: Callable[[], Split],
        again: Callable[[], Call] | None = None,
        *,
        has_state: bool = False,
    ) -> None:
        """Keep the model and its inputs, which are on the device.

        ``split`` returns the location of the samples in the inputs. ``again`` makes the same inputs once more; it is
        None if writes into them need not be undone. With ``has_state``, objects without tensors keep what steps change.
        """
        self.size = size
        self.compiled: Compiled | None = None
        self.restore: Callable[[], None] | None = None
        self.seen: tuple[Sight, ...] = ()
        self.outline: object = None
        self.indexes_samples: Callable[[], bool] = lambda: False
        self._model = model
        self._inputs = inputs
        self._fed = _Inputs(inputs, has_state=has_state)
        self._split = split
        self._again = again
        self._writes = False
        self._as_it_is = self._fed.bind(model)
        self._prepared: Callable[[], object] = self._as_it_is
        self._run: Callable[[], object] | None = None

    def __call__(self) -> object:
        """Run the step, in turn with the other processes of a job."""
        take_turn()
        return self._first() if self._run is None else self._run()

    def prepare(self, mode: Mode) -> None:
        """Run the step in this mode from now on; errors as for ``Mode.prepare``."""
        if not mode.as_it_is:  # a compiler finds nothing to compile in a lazy output
            self._as_it_is = self._fed.bind(draining(self._model))
        versions, fed = self._written(), self._fed
        self._prepared, self.compiled = mode.prepare(self.size, lambda step: fed.bind(draining(step)), self._as_it_is)
        self._writes = self._written() != versions  # the versions do not count the writes of a replayed graph
        self._run = None

    def _first(self) -> object:
        """Run the step, and check whether its output is lazy and whether it writes into its inputs."""
        tensors = [one for one in tensors_of(self._inputs) if is_plain(one)]
        versions, forms = self._written(), [_form_of(one) for one in tensors]
        if self.compiled is None:
            output, self.compiled = first_output(self._prepared)
        else:
            output = self._prepared()
        if is_lazy(output):
            self.seen += ("drained",)
            output, self._run = drain_value(output), draining(self._prepared)
        else:
            self._run = self._prepared
        self._fed.renews = not has_same_parts(self._inputs, self._fed.given)
        reshaped = [pair for pair in zip(tensors, forms, strict=True) if _form_of(pair[0]) != pair[1]]
        if reshaped:
            _reshape(reshaped)
            self._run = _undo_reshape(self._run, reshaped)
        if self._writes or self._written() != versions:
            self.restore = self._make_restore()
            self.seen += ("inputs_written",) if self.restore is None else ("inputs_restored",)
        if self._fed.renews:
            parts = [part for part in (self._fed.renew, self.restore) if part is not None]

            def renew_and_restore() -> None:
                for part in parts:
                    part()

            self.restore = renew_and_restore
        return output

    def _written(self) -> list[int]:
        """Return how often each tensor of the inputs was written to; 0 for inference tensors, which count no writes."""
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors_of(self._inputs)]  # noqa: SLF001

    def _make_restore(self) -> Callable[[], None] | None:
        """Return a function that restores the inputs from copies in host memory; None if such copies cannot be made."""
        resident = tensors_of(self._inputs)
        total_bytes = sum(tensor.numel() * tensor.element_size() for tensor in resident)
        if self._again is None or not _has_room(total_bytes):
            return None
        try:
            # An input function may hand out the same memory each time.
            shared = {tensor.untyped_storage().data_ptr() for tensor in resident if is_plain(tensor)}
            originals = [_copy_to_host(tensor, shared) for tensor in tensors_of(self._again())]
        except (MemoryError, RuntimeError):  # out of memory while copying
            return None
        if [tensor.shape for tensor in originals] != [tensor.shape for tensor in resident]:
            return None
        # A tensor cannot be written to along axes that it is expanded along.
        axes = [zero_stride_axes(tensor) if is_plain(tensor) else [] for tensor in resident]
        written, values = (list(map(narrow_to_one, tensors, axes)) for tensors in (resident, originals))
        pairs = list(zip(written, values, strict=True))

        def restore() -> None:
            with torch.no_grad():
                for tensor, original in pairs:
                    tensor.copy_(original)

        return restore

    @property
    def shapes(self) -> tuple[object, ...]:
        return tuple(shape_of(tensor) for tensor in tensors_of(self._inputs))

    @property
    def values_per_sample(self) -> int | None:
        """The floating-point inputs of a sample; None without any, as of tokens, of which a model makes far more."""
        floats = [tensor for tensor in tensors_of(self._inputs) if tensor.is_floating_point() and not tensor.is_nested]
        return sum(tensor.numel() for tensor in floats) // self.size if floats else None

    def again(self) -> Batch:
        """Return a new batch of the same inputs, which runs the model eagerly and restores no inputs."""
        return Batch(self._model, self.size, self._inputs, self._split)

    @property
    def eager(self) -> Batch | None:
        """A batch of the same inputs that runs the model eagerly; None if this batch does so itself."""
        return None if self._prepared is self._as_it_is else self.again()

    def feed_from_host(self, *, pinned: bool) -> Callable[[], None]:
        """Return a function that copies inputs from host memory into the resident tensors, as for new data.

        From pinned memory the copy is asynchronous: it is queued on the device, and the host does not wait. An input
        that can only be moved as a whole raises BadRequest.
        """
        leaves = tree_leaves(self._inputs, is_leaf=moves)
        whole = [type(leaf).__name__ for leaf in leaves if moves(leaf) and not isinstance(leaf, torch.Tensor)]
        if whole:
            raise BadRequest(f"a {whole[0]} among the inputs cannot be copied into, so no copies can be timed")
        resident = {id(tensor): tensor for tensor in tensors_of(leaves)}.values()  # one may be several arguments
        with torch.no_grad():  # for inputs that require gradients
            hosts = [empty_on_host(value, pinned=pinned).copy_(value) for value in resident]
        pairs = list(zip(resident, hosts, strict=True))

        def copy_inputs() -> None:
            with torch.no_grad():
                for value, host in pairs:
                    value.copy_(host, non_blocking=pinned)

        return copy_inputs

    def batch_of_samples(self, samples: Sequence[int]) -> Batch | None:
        """Return a batch of the samples of these indices; None if the inputs cannot be divided by sample.

        They cannot if a part has another number of samples, or indices of samples, which the small batch lacks. The
        model runs eagerly, whatever the mode of this batch.
        """
        split = self._split()
        if self.restore is not None:
            self.restore()
        if self.indexes_samples() or any(True for _ in self.miscounts()):
            return None
        try:
            # Outside of inference mode, as the inputs were made: a model's own threads compute without that mode.
            with torch.inference_mode(mode=False), torch.no_grad():
                inputs = select_samples(self._inputs, split, samples)
        except Indivisible:
            return None
        return Batch(self._model, len(samples), inputs, self._split) if divides(split) else None

    def scale_inputs(self, factor: float) -> Batch:
        """Return a batch whose floating-point inputs are larger by a factor, or by one that their dtype can hold."""
        with torch.inference_mode(mode=False), torch.no_grad():
            inputs = clone_tensors(self._inputs)
            for tensor in tensors_of(inputs):
                if tensor.is_floating_point():
                    least = math.copysign(torch.finfo(tensor.dtype).eps, factor)
                    tensor.mul_(1 + max(factor, least, key=abs))
        return Batch(self._model, self.size, inputs, self._split)

    def copy_values(self, inputs: object) -> None:
        """Copy the values of tensors in ``inputs``, which have the same structure, into the inputs of this batch."""
        for tensor, other in zip(tensors_of(self._inputs), tensors_of(inputs), strict=True):
            tensor.copy_(other)

    def can_count_samples(self) -> bool:
        return can_count_samples(self._split())

    def has_samples(self) -> bool:
        return has_samples(self._inputs, self._split(), self.size)

    def forget_rows(self, inputs: object, size: int) -> None:
        """Count no samples by several rows each if the inputs of another batch size, or these, have other numbers."""
        split = self._split()
        if not has_samples(inputs, split, size) or has_part_of_sample(self._inputs, split):
            self._split = lambda: drop_rows(split)

    def miscounts(self) -> Iterator[int]:
        return miscounts(self._inputs, self._split(), self.size)


def _form_of(tensor: torch.Tensor) -> _Form:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _reshape(changed: Sequence[tuple[torch.Tensor, _Form]]) -> None:
    """Give tensors their first forms again, which a step changed in place, as by ``x.unsqueeze_(1)``."""
    with torch.no_grad():
        for tensor, form in changed:
            tensor.as_strided_(*form)


def _undo_reshape(step: Callable[[], object], changed: Sequence[tuple[torch.Tensor, _Form]]) -> Callable[[], object]:
    """Return a step that gives these tensors their first forms again after it."""

    def run() -> object:
        output = step()
        _reshape(changed)
        return output

    return run


def empty_on_host(tensor: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    """Return memory of the host for a copy of a tensor; MemoryError if there is too little, or too little to pin."""
    try:
        return torch.empty_like(tensor, device="cpu", pin_memory=pinned)
    except RuntimeError as error:
        if not any(words in f"{error}" for words in ("out of memory", "can't allocate")):
            raise
        raise MemoryError("the host has too little memory for a copy of the batch") from None  # not the device


def _copy_to_host(tensor: torch.Tensor, shared: Container[int]) -> torch.Tensor:
    """Return a tensor in host memory: itself if it is there and its storage is none of the shared ones."""
    is_shared = is_plain(tensor) and tensor.untyped_storage().data_ptr() in shared
    return tensor.clone() if is_shared else tensor.cpu()


def _has_room(count: int) -> bool:
    """Return whether this many bytes on top of the peak fit under the limit on this process's address space."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return True
    return (status_bytes("VmPeak") or limit) + _ROOM * count < limit
