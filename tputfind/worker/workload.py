"""A model on a device in a dtype and layout; it makes the batches for trials and windows."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache, cached_property
from itertools import chain, filterfalse
from time import perf_counter
from typing import Any, Final, NamedTuple, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy as is_uninitialized
from torch.utils._pytree import tree_map

from tputfind.errors import BadRequest, ModelFailed
from tputfind.record.record import Notice, OutputCheck, Sight
from tputfind.record.spec import Spec
from tputfind.record.types import AUTOCAST, CONVERTED, QUANTIZED, GradMode
from tputfind.step import other_arguments
from tputfind.worker.batch import Batch
from tputfind.worker.conversion import REAL, arrange_module, move_module, plain_tensors, quantize
from tputfind.worker.inputs import (
    Call,
    Drawn,
    Each,
    Split,
    as_call,
    divides,
    drawn_of,
    drawn_split,
    forward_of,
    indexes_samples,
    is_channels_last,
    is_same,
    maxima_of,
    outline,
    repeatable_split,
    sample_shapes,
    select_samples,
    shape_of,
    shape_text,
    split_of,
)
from tputfind.worker.lightning import make_training
from tputfind.worker.models import find_model
from tputfind.worker.models.lightning import TrainingStep
from tputfind.worker.modes import mode_class
from tputfind.worker.placing import Placement, build, check_host_memory, lengths_of
from tputfind.worker.settings import (
    changed_settings,
    read_settings,
    seed_all,
    seed_torch,
    set_fp32_arithmetic,
    set_on_import,
)
from tputfind.worker.structures import drain_value, is_lazy, is_of_torch, is_plain, tensors_of

_NEXT_DRAW: Final = 1_000_003
"""Difference between the seeds of two draws; keeps them apart from the seeds of other batch sizes."""
_FIRST_NEW_DRAW: Final = 1000
"""Lower draws are for the processes of a row."""
_DRAWS: Final = 3
_LONG_MAKING_S: Final = 1.0
"""Seconds; inputs that take longer to make are made only as often as necessary."""
AS_MANY: Final = "its callable must return as many samples as it is called with, for every batch size"
_PROBED: Final = 3
"""Factor between the smallest and the largest batch size that the user's callable is tried with."""
_UNPADDED: Final = 128
"""Batch size from which a sixteenth of the samples changes the sizes of a batch, also if these are rounded up."""
_SHOWN: Final = 3


class _Made(NamedTuple):
    """Inputs on the device.

    ``repeated`` says whether they repeat the samples of a small batch. ``outline`` is set if a callable made them all.
    """

    call: Call
    repeated: bool = False
    outline: object = None


class Workload:
    """The model of a spec, built and resident on a device, for inference or training; ``batch`` makes its batches."""

    def __init__(
        self, spec: Spec, device: torch.device, doing: Callable[[str], None] = lambda _: None, *, filled: bool = True
    ) -> None:
        """Build the model on the device, or build and convert it on the host and then move it.

        Afterwards the device holds nothing else. ``settings`` are the settings of torch that the user's file changed.
        ``doing`` gets a description of the current work on the host, in the past tense, and an empty text at its end.
        If not ``filled``, the weights get no memory; parameters can be counted and inputs be made. A model that does
        not exist or cannot be used as requested raises a TputfindError.
        """
        self._spec = spec
        self._device = device
        self._doing = doing
        self._making_s = 0.0
        self.grad_mode = spec.grad_mode
        self._dtype = None if spec.dtype == "own" else getattr(torch, CONVERTED.get(spec.dtype, "float32"))
        seed_all(spec.seed)
        source = find_model(spec)
        set_fp32_arithmetic(tf32=spec.dtype == "tf32")
        before = read_settings()
        module, self._wanted = build(source, spec, self._dtype, device, filled=filled)
        if callable(self._wanted) and (other := other_arguments(self._wanted, 1)) is not None:
            raise BadRequest(
                f"{spec.model}: its input function takes {other}, and is called with one argument, the batch size"
            )
        spread = [one for one in module.modules() if isinstance(one, nn.DataParallel) and len(one.device_ids) > 1]
        if spread:
            raise BadRequest(
                f"{spec.model} spreads each batch over {len(spread[0].device_ids)} devices, of which one is measured",
                "return the module inside its DataParallel (.module)",
            )
        changed = (*set_on_import(), *changed_settings(before)) if spec.own_code else ()
        set_fp32_arithmetic(tf32=spec.dtype == "tf32")  # undoes what the user's file has set
        measured = read_settings()
        self.settings = tuple(one for one in changed if one.kept or measured.get(one.name) != one.value)
        self._forward = forward_of(module)
        self.refuses_eval = not (isinstance(module, TrainingStep) or _set_eval(module))
        lazy = any(map(is_uninitialized, (*module.parameters(), *module.buffers())))
        runs = filled or lazy or (isinstance(module, TrainingStep) and module.takes_example)
        if runs and (filled or not source.deferrable):  # a module that does not run stays where its factory put it
            module = arrange_module(module, self._dtype, spec.layout)
            # A module that is sharded may be too large for one device: its blocks move when they are sharded.
            sharded = filled and not lazy and spec.parallel == "fsdp"
            module = module if sharded else move_module(module, device)
        self._module = module
        if lazy:
            self._run_first_batch()
        named = (module.inner if isinstance(module, TrainingStep) else module).named_parameters()
        self.trained_names = [name for name, parameter in named if parameter.requires_grad]
        """Names of the trained parameters in the order in which DistributedDataParallel numbers them."""
        self.parameters = sum(one.numel() for one in module.parameters() if not is_uninitialized(one))
        if filled and spec.dtype in QUANTIZED:
            quantize(module, spec.dtype, spec.model)
        self._training = make_training(self._module, spec, device, spreads=filled) if spec.phase == "train" else None
        set_fp32_arithmetic(tf32=spec.dtype == "tf32")  # undoes what hooks at the start of training have set
        self._module = module if self._training is None else self._training.module
        self._mode = mode_class(spec.mode)(self._module, self._step_of)

    def _run_first_batch(self) -> None:
        """Run the smallest batch, since lazy layers have no parameters to count or train before their first one."""
        spec, module, optimizers = self._spec, self._module, list[Any]()
        modes = [(one, one.training) for one in module.modules()]
        if isinstance(module, TrainingStep):  # its step may use its optimizers, which are made anew afterwards
            optimizers = list(make_training(module, spec, self._device).optimizers)
            module.eval()  # statistics of a batch need more samples
        arguments, named = self._inputs(spec.smallest_batch).call
        with torch.enable_grad():  # also for inference, since some models call autograd.grad
            drain_value(self._call(module)(*arguments, **named))
        for one, training in modes:
            one.training = training
        module.zero_grad()
        for optimizer in optimizers:
            optimizer.state.clear()
        arrange_module(module, self._dtype, spec.layout)

    @property
    def parameter_bytes(self) -> dict[str, int]:
        """The bytes by dtype of the parameters, and of the buffers in dtypes that only weights have."""
        parameters = dict.fromkeys(self._module.parameters())
        weights = (buffer for buffer in dict.fromkeys(self._module.buffers()) if _is_compact(buffer))
        return bytes_by_dtype((*parameters, *weights))

    @property
    def gradient_bytes(self) -> int | None:
        """The bytes of the gradients of all trained parameters; None for inference."""
        if self._training is None:
            return None
        trained = (one for one in dict.fromkeys(self._module.parameters()) if one.requires_grad)
        return sum(bytes_by_dtype(trained).values())

    def batch(self, batch_size: int, draw: int = 0) -> Batch:
        """Put one batch of random inputs on the device; return it, with a step that runs in the spec's mode.

        Each ``draw`` has different numbers and, if the user's callable draws lengths, different lengths.
        """
        made = self._inputs(batch_size, draw)
        step = self._step_of(self._module)
        batch = Batch(step, batch_size, made.call, lambda: self._split, lambda: self._inputs(batch_size, draw).call)
        batch.outline = made.outline
        if made.outline is not None:
            batch.indexes_samples = cache(lambda: self._indexes_samples(made.call, batch_size))
        arguments, named = made.call
        sights: dict[Sight, bool] = {
            "inputs_repeated": made.repeated,
            "named_inputs": bool(named),
            "several_inputs": len(arguments) > 1,
        }
        batch.seen = tuple(sight for sight, is_seen in sights.items() if is_seen)
        batch.prepare(self._mode)
        if self._training is not None:
            self._training.settle(batch)
        return batch

    def new_batch(self, batch_size: int, number: int) -> Batch:
        """Return a batch of samples that no batch before has; ``number`` counts from 1.

        If the user's callable makes the same inputs in each draw, as the slice of a data set does, the samples of a
        small batch are the last ones of a larger batch; if they cannot be taken out of it, Indivisible is raised.
        """
        draw, size = _FIRST_NEW_DRAW + number, self._spec.smallest_batch
        is_small = batch_size <= self._spec.few_samples  # several times a large one might take the host's memory
        fixed = callable(self._wanted) and is_small and is_same(self._make_call(size), self._make_call(size, draw))
        if not fixed:
            return self.batch(batch_size, draw)
        samples = range(number * batch_size, (1 + number) * batch_size)
        with torch.inference_mode(mode=False), torch.no_grad():
            call = select_samples(self._make_call(samples.stop, draw), self._split, samples)
            placed = self._placement_of(call).place(call)
            return Batch(self._step_of(self._module), batch_size, placed, lambda: self._split)

    @property
    def trains_by_stand_in(self) -> bool:
        """Whether the last step used a stand-in loss, since the model returned none of its own."""
        return self._training is not None and not self._training.loss_is_own

    @property
    def has_own_optimizers(self) -> bool:
        return self._training is not None and self._training.has_own_optimizers

    @property
    def settles(self) -> bool:
        """Whether a batch runs untimed steps of training when it is made."""
        return self._training is not None and self._training.settles

    def try_out(self) -> None:
        """Check that the training step takes a batch drawn like the model's example; see ``TrainingStep``."""
        if isinstance(self._module, TrainingStep) and self._module.takes_example:
            self._module.check_takes(self._inputs(max(2, self._spec.smallest_batch)).call[0][0], self._spec.model)

    def samples(self, batch_size: int) -> int | None:
        """Return the number of samples per step; None if it is the batch size."""
        return None if self._spec.accumulate == 1 else self._spec.accumulate * batch_size

    def train(self) -> None:
        self._module.train()

    def batch_to_compare(self) -> tuple[Batch, tuple[float, ...]]:
        """Return the smallest batch, which runs eagerly, and values from both ends of plain weights and inputs.

        Inputs have the same values in every layout. The factory may draw others in another process.
        """
        size = self._spec.smallest_batch
        call = self._inputs(size).call
        batch = Batch(self._step_of(self._module), size, call, lambda: self._split)
        if not callable(self._wanted):  # they were drawn in the order of memory
            batch.copy_values(self._draw(size, 0, self._placement._replace(layout="nchw")))
        tensors = filter(is_plain, (*self._module.parameters(), *self._module.buffers(), *tensors_of(call)))
        ends = (one[(place,) * one.dim()] for one in tensors if one.numel() for place in (0, -1))
        return batch, tuple(abs(complex(end.item())) for end in ends)

    def check_training(self, batch: Batch) -> OutputCheck | None:
        """Check the steps of training after the last one; see ``Training.check``."""
        assert self._training is not None
        return self._training.check(batch)

    def check_samples(self, batch: Batch) -> None:
        """Verify the batch size of a batch; see ``check_samples``."""
        check_samples(self._spec, batch, self._make_call if callable(self._wanted) else None)

    def _step_of(self, module: Callable[..., object]) -> Callable[..., object]:
        call = self._call(module)
        return call if self._training is None else self._training.step_of(call)

    def _call(self, module: Callable[..., object]) -> Callable[..., object]:
        if self._spec.dtype not in AUTOCAST:
            return module
        autocast = getattr(torch, AUTOCAST[self._spec.dtype])

        def call(*arguments: object, **keywords: object) -> object:
            with torch.autocast(self._device.type, dtype=autocast):
                return module(*arguments, **keywords)

        return call

    def make_inputs(self, batch_size: int) -> None:
        """Make the inputs of a batch size, since some callables only accept multiples of a number."""
        if callable(self._wanted) and batch_size == self._spec.smallest_batch:
            _ = self._smallest  # kept for later use
        elif callable(self._wanted):
            self._make_call(batch_size)

    def input_shape(self) -> str:
        """Return the shape of one sample, such as ``3x224x224``; the shapes of several tensors are joined by ``+``."""
        if not callable(self._wanted):
            return shape_text([drawn.sample_shape for drawn in drawn_of(self._wanted)])
        (size, double, *_), (once, twice, *_) = self._probes
        if not divides(self._split) and self._ignores_size(size, double):
            raise ModelFailed(
                f"{self._spec.model}: its inputs are the same at batch {size} and batch {double}: {_shapes(once)}",
                AS_MANY,
            )
        return "+".join(sample_shapes(self._probes[1], self._split)) or type(twice).__name__

    def _ignores_size(self, size: int, other: int) -> bool:
        """Return whether the user's callable makes equal inputs for two batch sizes from the same random numbers."""
        assert callable(self._wanted)
        seed_all(self._spec.seed)
        made = self._wanted(size)
        seed_all(self._spec.seed)
        return is_same(made, self._wanted(other))

    def caveats(self) -> Iterator[Notice]:
        """Yield the notices about eval mode, layout and inputs that a reader of any result of this model needs."""
        if self.refuses_eval:
            yield Notice(
                kind="eval_left_out",
                seen=f"{self._spec.model} refuses eval()",
                cause="it runs in the mode that it was made in",
                advice="set its mode in the factory",
            )
        weights = list(filterfalse(is_uninitialized, (*self._module.parameters(), *self._module.buffers())))
        inputs = tensors_of(self._probes[1][0]) if callable(self._wanted) else []
        last = [name for name, held in (("weights", weights), ("inputs", inputs)) if any(map(is_channels_last, held))]
        if last and self._spec.layout == "nchw":
            yield Notice(
                kind="channels_last",
                seen=f"{' and '.join(last)} are channels last",
                cause="the factory makes them so, and --layout nchw keeps that",
                advice="make them contiguous to measure nchw",
            )
        if not callable(self._wanted):
            return
        if not divides(self._split):
            yield Notice(
                kind="samples_by_word",
                seen="samples counted by the input function",
                cause="no tensor of its inputs has one row a sample",
                advice="make sure that it makes as many as it is called with",
            )
        if self._making_s > _LONG_MAKING_S:
            return
        sizes, made = self._probes
        draws = chain(made[-1:], (self._make_call(sizes[-1], draw) for draw in range(1, _DRAWS)))
        outlines = [outline(draw, any_numbers=True) for draw in draws]
        if any(other != outlines[0] for other in outlines):
            yield Notice(
                kind="random_sizes",
                seen="the inputs of a batch size differ in size from draw to draw",
                cause="the input function draws lengths at random",
                advice="each process draws anew; fix the lengths for one largest batch",
            )

    @cached_property
    def _smallest(self) -> Call:
        return self._make_call(self._spec.smallest_batch)

    @cached_property
    def _probes(self) -> tuple[list[int], list[Call]]:
        begin_s = perf_counter()
        sizes = [factor * self._spec.smallest_batch for factor in (1, 2)]
        made = [self._smallest, self._make_call(sizes[1])]
        self._making_s = perf_counter() - begin_s
        if self._making_s <= _LONG_MAKING_S:
            with suppress(Exception):  # a callable may only accept powers of two
                made.append(self._make_call(sum(sizes)))
                sizes.append(sum(sizes))
        return sizes, made

    @cached_property
    def _split(self) -> Split:
        if not callable(self._wanted):
            return drawn_split(self._wanted)
        sizes, made = self._probes
        return split_of(made, sizes)

    @cached_property
    def _maxima(self) -> tuple[list[int], list[dict[Hashable, float]]]:
        sizes, made = self._probes
        return sizes, [maxima_of(call, self._split) for call in made]

    def _indexes_samples(self, call: Call, batch_size: int) -> bool:
        """Return whether inputs made for this batch size hold indices of samples, which a selection would falsify."""
        sizes, maxima = self._maxima
        return indexes_samples([*maxima, maxima_of(call, self._split)], [*sizes, batch_size])

    @property
    def _placement(self) -> Placement:
        return Placement(self._device, self._dtype, self._spec.layout)

    def _placement_of(self, call: Call) -> Placement:
        """Return the placement of inputs that the user's callable made."""
        lengths = lengths_of(call) if self._spec.host_lengths else []
        if (number := self._spec.lengths_input) is not None:
            lengths = lengths[number - 1 : number]
        return self._placement._replace(on_host=frozenset(map(id, lengths)))

    @property
    def lengths(self) -> int:
        """The number of one-dimensional integers among the inputs that the user's callable makes."""
        return len(lengths_of(self._smallest)) if callable(self._wanted) else 0

    def _inputs(self, batch_size: int, draw: int = 0) -> _Made:
        # Made outside of inference mode, as a caller makes them, so that writes into them can be detected and undone.
        with torch.inference_mode(mode=False), torch.set_grad_enabled(self.grad_mode == "enabled"):
            if callable(self._wanted):
                self._doing(f"made the inputs of batch {batch_size} on the host")
                inputs = self._repeat_samples(batch_size, draw) or self._make_in_full(batch_size, draw)
                self._doing("")
            else:
                inputs = _Made(self._draw(batch_size, draw, self._placement))
        return inputs

    def _draw(self, batch_size: int, draw: int, placement: Placement) -> Call:
        seed_torch(seed_of(self._spec, batch_size, draw))
        return cast("Call", tree_map(lambda value: self._draw_input(value, batch_size, placement), self._wanted))

    def _make_in_full(self, batch_size: int, draw: int) -> _Made:
        made = self._make_call(batch_size, draw)
        sizes = outline(made)  # before any object is moved in place
        return _Made(self._placement_of(made).place(made), outline=sizes)

    def _repeat_samples(self, batch_size: int, draw: int) -> _Made | None:
        """Return a large batch that repeats the samples of a small one; None if the callable must make all samples.

        If the host lacks memory for them then, it raises MemoryError.
        """
        few = self._spec.few_samples
        if batch_size <= max(few, _PROBED * self._spec.smallest_batch):
            return None
        sizes, probes = self._probes
        split, _, sizes, values = self._split, self._maxima, [*sizes, few], [*probes, self._make_call(few, draw)]
        del self._probes, self._smallest, probes  # the probes might take memory that the batch needs
        if not self._spec.fresh_inputs and repeatable_split(values, sizes) is not None:
            del values[:-1]
            placement = self._placement_of(values[0])
            return _Made(placement.repeat(values[0], split, few, batch_size), repeated=True)
        check_host_memory(batch_size, sizes, [self._placement.host_bytes(value) for value in values])
        return None

    def _make_call(self, batch_size: int, draw: int = 0) -> Call:
        """Return the inputs that the user's callable makes for a batch size; they are the same for the same draw."""
        assert callable(self._wanted)
        seed_all(seed_of(self._spec, batch_size, draw))
        try:
            made = self._wanted(batch_size)
        except StopIteration:  # which must not end a generator that gets here
            raise ModelFailed(
                f"{self._spec.model}: its input function raised StopIteration: its data have ended",
                "it is called several times for each batch size: begin the data anew",
            ) from None
        if is_lazy(made):
            raise BadRequest(
                f"{self._spec.model}: its inputs hold a generator, an iterator or a coroutine, which one step uses up",
                "return tensors, or lists of them",
            )
        set_fp32_arithmetic(tf32=self._spec.dtype == "tf32")  # undoes what the user's callable has set
        return as_call(made, self._forward)

    def _draw_input(self, drawn: object, batch_size: int, placement: Placement) -> object:
        if isinstance(drawn, Each):
            return [placement.place(drawn.make(self._device)) for _ in range(batch_size)]
        if not isinstance(drawn, Drawn):
            return drawn
        if drawn.listed:
            return [self._numbers(drawn.sample_shape, drawn, placement) for _ in range(batch_size)]
        return self._numbers(drawn.shape(batch_size), drawn, placement)

    def _numbers(self, shape: tuple[int, ...], drawn: Drawn, placement: Placement) -> torch.Tensor:
        # Drawn in place in the final dtype and layout: a converted copy would fragment the allocator's memory.
        dtype = drawn.dtype or self._dtype or torch.get_default_dtype()
        memory_format = placement.memory_format(len(shape))
        empty = torch.empty(shape, dtype=dtype, device=self._device, memory_format=memory_format)
        if drawn.ones:
            return empty.fill_(1)
        if not dtype.is_floating_point and not dtype.is_complex:
            return empty.random_(0, drawn.below)
        return empty.uniform_() if drawn.image else empty.normal_()


def check_samples(spec: Spec, batch: Batch, make: Callable[[int], Call] | None) -> None:
    """Verify the batch size in a batch by the parts in which samples can be counted; raise ModelFailed if it is wrong.

    The part with the most numbers per sample must hold the batch size. Another part may differ: the boxes of images may
    be ragged, and the candidates of queries limited.

    If the samples cannot be counted in some part, the batch must differ in size from a smaller one that ``make`` makes:
    one from a data set that has ended would not. Call it after the timing.
    """
    # Small batches may be padded to multiples of a number.
    fewer = batch.size // 2 if batch.size < _UNPADDED else batch.size - batch.size // 16
    fewer = fewer // spec.granularity * spec.granularity
    is_small = fewer < max(spec.smallest_batch, 2)
    count = next(batch.miscounts(), None)
    if count is not None and not batch.has_samples() and make is not None:
        # The first batches may have had as many rows a sample by chance: compare with a size that was not tried.
        tried = _PROBED * spec.smallest_batch
        other = fewer if fewer > tried else 2 * max(batch.size, tried)
        batch.forget_rows(make(other), other)
        count = next(batch.miscounts(), None)
    if count is not None and not batch.has_samples():
        samples = f"{count} sample{'' if count == 1 else 's'}"
        raise ModelFailed(f"{spec.model}: its batch holds {samples} at batch size {batch.size}", AS_MANY)
    if count is not None or is_small or make is None or batch.can_count_samples():
        return
    if outline(make(fewer)) == batch.outline:
        problem = f"its batch is of the same size at batch sizes {fewer} and {batch.size}"
        raise ModelFailed(f"{spec.model}: {problem}", AS_MANY)


def inference(mode: GradMode = "inference") -> AbstractContextManager[Any]:
    """Return the autograd context for the steps of phase ``infer``."""
    if mode == "inference":
        return torch.inference_mode()
    return torch.set_grad_enabled(mode == "enabled")


def gradients(spec: Spec) -> AbstractContextManager[Any]:
    """Return the autograd context for the steps of a spec; a step of the user's own keeps the mode of its file."""
    if spec.phase == "step":
        return nullcontext()
    return torch.enable_grad() if spec.phase == "train" else inference(spec.grad_mode)


def seed_of(spec: Spec, batch_size: int, draw: int) -> int:
    """Return the seed for one draw of the inputs of a batch size."""
    return spec.seed + batch_size + draw * _NEXT_DRAW


def bytes_by_dtype(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Return the bytes of tensors by the name of their dtype, or of their class, as with some quantised weights."""
    counts = Counter[str]()
    for tensor in filterfalse(is_uninitialized, tensors):
        sharded = hasattr(tensor, "full_tensor")  # by FSDP: all of it is the model's
        for part in [tensor] if sharded else plain_tensors(tensor):
            own = sharded or is_of_torch(part)
            name = f"{part.dtype}".removeprefix("torch.") if own else type(part).__name__
            counts[name] += part.numel() * part.element_size()
    return dict(counts)


def _shapes(inputs: object) -> str:
    shapes = [shape_of(tensor) for tensor in tensors_of(inputs)]
    more = f" and {len(shapes) - _SHOWN} more" if len(shapes) > _SHOWN else ""
    return (shape_text(shapes[:_SHOWN]) if shapes else "no tensor") + more


def _is_compact(tensor: torch.Tensor) -> bool:
    """Return whether a buffer has a dtype of weights only: complex, 8-bit or narrower, or quantised."""
    counts = tensor.dtype in (torch.int64, torch.int32, torch.int16, torch.bool)
    return not counts and tensor.dtype not in REAL


def _set_eval(module: nn.Module) -> bool:
    """Put a module into eval mode; return False if it refuses, as exported programs do."""
    try:
        module.eval()
    except Exception:  # eval() may raise anything; the module then keeps its mode
        return False
    return True
