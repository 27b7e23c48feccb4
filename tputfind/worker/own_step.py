"""A user's own step on a device: it runs unchanged, on batches that the user's code makes."""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

import msgspec
import torch
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from tputfind.errors import BadRequest, ModelFailed, TputfindError
from tputfind.record.record import Notice, OutputCheck
from tputfind.record.spec import Spec
from tputfind.units import format_bytes
from tputfind.worker import ranks
from tputfind.worker.batch import Batch
from tputfind.worker.devices.accelerator import kind_here
from tputfind.worker.inputs import (
    Call,
    Split,
    divides,
    outline,
    sample_shapes,
    split_of,
)
from tputfind.worker.models import find_model
from tputfind.worker.models.steps import StepOfSize, as_step
from tputfind.worker.settings import changed_settings, read_settings, seed_all, set_on_import
from tputfind.worker.structures import copy_containers, drain_value, parts_of, tensors_of
from tputfind.worker.training import MOST_SKIPPED, MOST_UNTIL_STEPPED, idle_of, needs_closure
from tputfind.worker.workload import AS_MANY, Workload, bytes_by_dtype, check_samples, seed_of

_SMALL_BYTES: Final = 2**20
"""Maximum bytes of tensors that an import may create; they do not change the largest batch."""
_ENDLESS: Final = "a measurement takes as many steps as it needs: begin the data anew, and leave out the end"


class _Seen(NamedTuple):
    """Findings from small batches.

    ``split`` locates the samples, ``shape`` is the shape of one sample. ``grows`` says whether a batch grows with the
    batch size. ``parts`` counts its micro-batches.
    """

    split: Split
    shape: str
    grows: bool
    parts: int = 1


class OwnStep:
    """The user's step of a spec on a device; ``batch`` makes its batches, as ``Workload.batch`` does for models."""

    trains_by_stand_in = has_own_optimizers = False
    gradient_bytes: int | None = None
    """Unknown: a step trains as it likes."""

    def __init__(
        self,
        spec: Spec,
        device: torch.device,
        doing: Callable[[str], None] = lambda _: None,
        *,
        made: object = None,
        before: Mapping[str, str] | None = None,
    ) -> None:
        """Make the step with the user's factory; ``doing`` and errors are as for ``Workload``.

        ``made`` is the result of the factory, if this process has called it already, and ``before`` the settings of
        torch before that call.
        """
        self._spec = spec
        self._device = device
        self._doing = doing
        seed_all(spec.seed)
        before = read_settings() if before is None else before
        source = find_model(spec)
        assert source.step is not None
        self._step = source.step() if made is None else as_step(spec, made)
        noted = (*set_on_import(), *changed_settings(before))
        self.settings = tuple(msgspec.structs.replace(setting, kept=True) for setting in noted)
        self._optimizers = list(self._step.optimizers) or _optimizers_here()
        self._kinds = list(map(type, self._optimizers))
        self._idle = idle_of(self._optimizers)
        self.settles = False
        """Whether the first step of a batch size is several."""
        self._number = 0
        self._keeps_graph = False
        self._waiting = ""
        """The class of an optimizer that never stepped, though its weights have gradients; empty without one."""

    @property
    def parameters(self) -> int:
        """The number of distinct parameters of the step's modules and optimizers."""
        return sum(parameter.numel() for parameter in self._weights())

    @property
    def parameter_bytes(self) -> dict[str, int]:
        """The bytes of these parameters by dtype."""
        return bytes_by_dtype(self._weights())

    def samples(self, batch_size: int) -> int | None:
        """Return the number of samples per step, None if it is the batch size; raise BadRequest if it is below 1."""
        given = self._step.samples
        count = given(batch_size) if callable(given) else given * batch_size
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise BadRequest(f"{self._spec.model}: samples({batch_size}) returned {count!r}, not a whole number from 1")
        return None if count == batch_size else count

    def batch(self, batch_size: int, draw: int = 0) -> Batch:
        """Make one batch with the user's function; return it with the step that runs on it."""
        self._doing(f"made batch {batch_size}")
        call = self._make_call(batch_size, draw)
        if self._makes_its_batch:
            self._idle.clear()
            optimizers = _optimizers_here()
            self._idle, self._kinds = idle_of(optimizers), list(map(type, optimizers))
        self._doing("")
        batch = Batch(self._run, batch_size, call, lambda: self._findings.split, has_state=True)
        batch.outline = None if self._makes_its_batch else outline(call)
        self._run_once: Callable[[Any], object] | None = self._first
        return batch

    def check_training(self, batch: Batch) -> OutputCheck | None:
        """Run one more step; return whether its losses are finite, or None if it returns no loss."""
        losses = list(_losses(batch()))
        if not losses:
            return None
        return OutputCheck(result="loss" if all(map(math.isfinite, losses)) else "not_finite")

    def check_samples(self, batch: Batch) -> None:
        """Verify the batch size of a batch; see ``workload.check_samples``."""
        check_samples(self._spec, batch, None if self._makes_its_batch else self._make_call)

    def try_out(self) -> None:
        """Run one step at the smallest batch size, so that its imports are known, and whether its output keeps a graph.

        Errors of the user's code are ignored here, as the first trial reports them, but not a TputfindError.
        """
        try:
            self._keeps_graph = _keeps_graph(drain_value(self.batch(self._spec.smallest_batch)()))
            ranks.rest()
        except TputfindError:
            raise
        except BaseException:  # the user's code can raise anything
            return

    def make_inputs(self, batch_size: int) -> None:
        """Make and discard a batch, since some functions only accept multiples of a number."""
        if not self._makes_its_batch:
            self._make_call(batch_size)

    def input_shape(self) -> str:
        """Return the shape of one sample, empty if the step makes its own batch, or raise ModelFailed."""
        if not self._findings.grows:
            size = self._spec.smallest_batch
            raise ModelFailed(
                f"{self._spec.model}: its batch is of the same size at batch sizes {size} and {2 * size}", AS_MANY
            )
        return self._findings.shape

    def caveats(self) -> Iterator[Notice]:
        """Yield the notices that a reader of any result of this step needs."""
        size = self._spec.smallest_batch
        if not divides(self._findings.split):
            yield Notice(
                kind="samples_by_word",
                seen="samples counted by the step",
                cause="no tensor of its batch has one row a sample",
                advice="if a step takes more than the batch size, return a tputfind.Step with samples=",
            )
        elif (parts := self._findings.parts) > 1 and self._step.samples == 1:
            yield Notice(
                kind="samples_by_word",
                seen=f"a batch of size {size} holds {parts * size} samples in {parts} parts",
                cause="samples/s count one part",
                advice=f"if a step takes all, write samples={parts} in its tputfind.Step",
            )
        repeating = [kind.__name__ for kind in self._kinds if needs_closure(kind)]
        if repeating:
            yield Notice(
                kind="closure",
                seen=f"{repeating[0]} evaluates the loss several times a step, and less often as it converges",
                cause="all steps train on one batch",
                advice="for steps of one length, make it with max_iter=1 and tolerances of 0",
            )
        if self._waiting:
            yield Notice(
                kind="idle_optimizer",
                seen=f"{self._waiting} did not step in {MOST_UNTIL_STEPPED} steps: its state takes no memory here",
                cause="its weights have gradients, which the step may still sum",
                advice="measure a step in which it steps, if training uses it",
            )
        if self._keeps_graph:
            yield Notice(
                kind="keeps_graph",
                seen="autograd keeps what each step computes until its output is dropped",
                cause="the output is for a backward pass that the step leaves out",
                advice="for inference, run it under torch.no_grad(), which takes less memory",
            )
        if (samples := self.samples(size)) is not None:
            yield Notice(
                kind="samples_per_step",
                seen=f"samples/s count {samples} samples a step at batch size {size}",
                cause="samples= of the step says so",
                advice="memory is that of the batch size",
            )

    def _weights(self) -> Iterator[torch.Tensor]:
        held: dict[int, torch.Tensor] = {}
        for module in self._step.modules:
            held |= {id(parameter): parameter for parameter in module.parameters()}
        for optimizer in self._optimizers:
            held |= {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
        yield from (weight for weight in held.values() if not is_lazy(weight))

    def _run(self, batch: object) -> object:
        run = self._run_once or self._take
        self._run_once = None
        return run(batch)

    def _take(self, batch: object) -> object:
        """Run one step."""
        self._number += 1
        try:
            return self._step.run(batch)
        except (StopIteration, SystemExit) as error:
            if error.__context__ is not None or (isinstance(error, SystemExit) and error.code):
                raise
            ended = f"its training ended at step {self._number}, by {type(error).__name__}"
        raise ModelFailed(f"{self._spec.model}: {ended}", _ENDLESS)

    def _first(self, batch: object) -> object:
        """Run the first step of a batch size, and further ones until each optimizer has stepped."""
        kept = copy_containers(batch, of_tensors=True)  # a step may change its batch
        output = self._take(batch)
        if inspect.iscoroutine(output):
            output.close()
            raise BadRequest(
                f"{self._spec.model}: a step returned a coroutine, and ran nothing",
                "write def instead of async def, and asyncio.run inside",
            )
        self._check_place()
        for part in (batch, *(parts_of(batch) or {}).values()):
            if _is_used_up(part):
                name = type(part).__name__
                raise BadRequest(
                    f"{self._spec.model}: a step uses up the {name} in its batch, which is empty in the next step",
                    "return a list of its items",
                )
        for number in range(MOST_UNTIL_STEPPED):
            if not self._idle:
                return output
            if number == MOST_SKIPPED and not (self._step.optimizers or _have_gradients(self._idle.values())):
                break
            self.settles = True
            output = drain_value(output)
            output = self._take(copy_containers(kept, of_tensors=True))
            self._doing("")  # it is no silence of a model that hangs
        idle = type(next(iter(self._idle.values()))).__name__ if self._idle else ""
        self._waiting = idle if _have_gradients(self._idle.values()) else ""
        self._idle.clear()
        if not idle or not self._step.optimizers:  # an optimizer that the step does not name may have another purpose
            return output
        never = f"{idle} did not step in {MOST_UNTIL_STEPPED} steps"
        raise BadRequest(
            f"{self._spec.model}: {never}, so that no state of it would count",
            f"name in optimizers= those that a step uses, at least every {MOST_UNTIL_STEPPED}th time",
        )

    def _check_place(self) -> None:
        """Check that the step runs on the measured device."""
        own = _takes_memory_of(self._device)
        if own is None and (other := kind_here()) is not None:
            own = not _takes_memory_of(torch.device(other))
        if own is False:
            raise BadRequest(
                f"{self._spec.model}: its step does not run on {self._device}, which is measured",
                "make what it holds on tputfind.context().device",
            )

    @property
    def _makes_its_batch(self) -> bool:
        return isinstance(self._step, StepOfSize)

    @cached_property
    def _findings(self) -> _Seen:
        if self._makes_its_batch:
            return _Seen("unknown", "", grows=True)
        sizes = [factor * self._spec.smallest_batch for factor in (1, 2)]
        calls = [self._make_call(size) for size in sizes]
        split = split_of(calls, sizes)
        grows = divides(split) or outline(calls[0]) != outline(calls[1])
        shape = "+".join(sample_shapes(calls, split)) or type(calls[0][0][0]).__name__
        made = [args[0] for args, _ in calls]
        parts = _micro_batches(made[0], split_of(made, sizes))
        return _Seen(split, shape, grows=grows, parts=parts)

    def _make_call(self, batch_size: int, draw: int = 0) -> Call:
        """Return the batch of a batch size as arguments of the step; a draw always has the same random numbers."""
        seed_all(seed_of(self._spec, batch_size, draw))
        made = self._step.make_batch(batch_size)
        if inspect.iscoroutine(made):
            made.close()
            raise BadRequest(f"{self._spec.model}: make_batch returned a coroutine", "write def instead of async def")
        if isinstance(made, DataLoader) and self._step.samples == 1:
            raise BadRequest(
                f"{self._spec.model}: make_batch returned a DataLoader, of which a step may take one batch or all",
                "return next(iter(loader)); or say what a step takes, such as samples=lambda size: 100 * size",
            )
        return (made,), {}


def _have_gradients(optimizers: Iterable[torch.optim.Optimizer]) -> bool:
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return any(weight.grad is not None for group in groups for weight in group["params"])


def _keeps_graph(output: object) -> bool:
    """Return whether the first tensor in an output with a gradient function awaits a backward pass, which is run."""
    waiting = next((each for each in tensors_of(output) if each.grad_fn is not None), None)
    if waiting is None:
        return False
    try:
        torch.autograd.backward(waiting.sum())
    except RuntimeError:  # the step has run it, which freed the graph
        return False
    return True


def _micro_batches(batch: object, split: Split) -> int:
    """Return the number of containers alike with samples in a batch; 1 if its parts are tensors, or differ."""
    parts = list(split.values()) if isinstance(batch, (list, tuple)) and isinstance(split, dict) else []
    alike = all(isinstance(part, dict) and divides(part) and part == parts[0] for part in parts)
    return max(len(parts), 1) if alike else 1


def tensor_bytes() -> int:
    """Return the bytes of the tensors in this process; before any others are made, those that a file's import made."""
    storages = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and one.layout is torch.strided:
            storage = one.untyped_storage()
            with suppress(RuntimeError):  # a tensor of a tracer has no memory
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def check_import_memory(spec: Spec, total_bytes: int) -> None:
    """Refuse a file that makes tensors of over 1 MiB when it is imported: their memory would not be measured."""
    if total_bytes > _SMALL_BYTES:
        home, _, name = spec.model.rpartition(":")
        raise BadRequest(
            f"{home} makes {format_bytes(total_bytes)} of tensors as it is imported, which would not count",
            f"make them in {name}",
        )


def _losses(output: Any) -> Iterator[float]:
    """Yield the losses in the output of a step: a number, that in first place, or those whose names contain ``loss``.

    Other numbers, such as the norm of gradients, may be infinite in a sound training.
    """
    if isinstance(output, torch.Tensor) and output.numel() == 1 and output.is_floating_point():
        yield output.item()
    elif isinstance(output, Real) and not isinstance(output, Integral):
        yield float(output)
    elif hasattr(type(output), "_asdict"):
        yield from _losses(output._asdict())
    elif isinstance(output, (list, tuple)):
        yield from _losses(output[0] if output else None)
    else:
        for name, part in (parts_of(output) or {}).items():
            if "loss" in f"{name}".lower():
                yield from _losses(part)


def _optimizers_here() -> list[torch.optim.Optimizer]:
    gc.collect()  # optimizers of an earlier step may be in reference cycles
    found = (each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer))
    return [each for each in found if "param_groups" in vars(each)]


_END: Final = object()


def _is_used_up(value: object) -> bool:
    """Return whether a generator or another iterator has ended; one of the latter may lose an item.

    A file that can go back to its beginning, and what begins again when iterated, have not.
    """
    if inspect.isgenerator(value):
        return value.gi_frame is None
    try:
        return isinstance(value, Iterator) and not hasattr(value, "seek") and next(iter(value), _END) is _END
    except Exception:  # the user's code can raise anything
        return False


def _takes_memory_of(device: torch.device) -> bool | None:
    """Return whether this process has allocated memory of a device; None if the device does not count it."""
    module: Any = torch.get_device_module(device)
    taken = getattr(module, "max_memory_allocated", None)
    return None if taken is None else bool(taken(device) > 0)


def make_workload(
    spec: Spec, device: torch.device, doing: Callable[[str], None] = lambda _: None
) -> Workload | OwnStep:
    """Return the workload of a spec on a device: the user's own step, or a model for inference or training."""
    return OwnStep(spec, device, doing) if spec.phase == "step" else Workload(spec, device, doing)
