"""The requests of a model to the CUDA caching allocator, by fake tensors: without a GPU, memory or arithmetic."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod
from typing import Any, Final

import torch
from msgspec.structs import replace
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim import optimizer as _optimizers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tputfind.errors import BadRequest, TputfindError
from tputfind.processes.failures import Circumstances, exception_failure
from tputfind.processes.messages import FakeTrace
from tputfind.record.record import TRIAL_STEPS
from tputfind.record.spec import Spec
from tputfind.record.trace import Event, Trace, pack_events
from tputfind.worker.inspect import find_granularity
from tputfind.worker.lightning import make_training
from tputfind.worker.models.lightning import is_lightning
from tputfind.worker.structures import patch_attribute
from tputfind.worker.workload import Workload

OUTSIDE_BYTES: Final = 692 * 2**20
"""Memory of a process's context, kernels and library handles after a first step, on an H200 with torch 2.11."""
OUTSIDE_TRAINING_BYTES: Final = 766 * 2**20
"""The same after a first step of training."""
_BLAS_WORKSPACES: Final = 32 * 2**20, 2**20
"""Bytes that cuBLAS and cuBLASLt keep after the first matrix product of a thread, on Hopper."""
_HEAD_UNIT: Final = 8  # attention is a single kernel if the head dimension is a multiple of this
_aten: Final = torch.ops.aten
_device_of: Final = torch.ops.prim.device.default
_META: Final = torch.device("meta")
_PRODUCTS: Final = {getattr(_aten, name).default for name in ("linear", "addmm", "mm", "bmm", "baddbmm")}


def fake_trace(spec: Spec, batches: int) -> FakeTrace:
    """Return the allocations of a trial's steps, from steps on fake CUDA tensors.

    The batch size is ``batches`` times the granularity of the spec, or of the inputs if they need another. Memory that
    only a real kernel requests, such as the workspaces of convolutions, is missing.

    A model that does not run on fake tensors, for example because it reads values, raises BadRequest.
    """
    workload = _FakeWorkload(spec, torch.device("cpu"))
    recorder = _Recorder()
    try:
        granularity, _ = find_granularity(spec, workload)
        if granularity is not None:
            spec = replace(spec, granularity=granularity)
            workload = _FakeWorkload(spec, torch.device("cpu"))
        batch_size = batches * spec.granularity
        with _imitate_gpu(recorder), _autograd(spec), FakeTensorMode(allow_non_fake_inputs=True), recorder:
            workload.move()
            fixed = recorder.allocated
            for optimizer in workload.optimizers:
                recorder.watch(optimizer)
            step = workload.batch(batch_size)
            output: object = None
            for _ in range(TRIAL_STEPS):
                output = step()
            del output
        workload.check_samples(step)
    except TputfindError:
        raise
    except (Exception, SystemExit) as error:  # also raised by code that does not support fake tensors
        reason = exception_failure(error, Circumstances(batches * spec.granularity)).message
        message = f"{spec.model} does not run on fake tensors: {reason}"
        raise BadRequest(message, "leave --on-fake out, on a machine with a GPU") from None
    outside_bytes = OUTSIDE_TRAINING_BYTES if spec.phase == "train" else OUTSIDE_BYTES
    trace = Trace(
        batch_size=batch_size,
        fixed=fixed,
        memory_bytes=2**40,
        capped=False,
        expandable=False,
        complete=True,
        packed=pack_events((Event("outside", outside_bytes), *recorder.events)),
    )
    return FakeTrace(
        trace,
        spec.granularity,
        gradients=tuple(sorted(recorder.gradients)),
        optimizer=tuple(sorted(recorder.optimizer)),
        libraries=tuple(recorder.libraries),
        own_optimizers=workload.has_own_optimizers,
    )


class _FakeWorkload(Workload):
    """A workload with real weights on the CPU, since some models read their weights while they are built."""

    def move(self) -> None:
        """Replace the weights by fakes on a fake GPU, in the order of ``Module.to``, and make later batches there."""
        self._device = torch.device("cuda")
        moved: dict[torch.Tensor, torch.Tensor] = {}
        self._accumulators = list[object]()

        def place(module: nn.Module) -> None:
            for named in (module.named_parameters, module.named_buffers):
                for name, tensor in list(named(recurse=False, remove_duplicate=False)):
                    if tensor not in moved:
                        moved[tensor] = self._make_fake(tensor)
                        moved[moved[tensor]] = moved[tensor]  # the module may occur in the model twice
                    setattr(module, name, moved[tensor])

        self._module.apply(place)
        for each in filter(is_lightning, self._module.modules()):  # records its device in ``to``
            each._device = torch.device("cuda", 0)  # type: ignore[assignment]  # noqa: SLF001
        if self._training is not None:
            self._training = make_training(self._module, self._spec, self._device)

    def _make_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fake = tensor.to(self._device)
        if not isinstance(tensor, nn.Parameter):
            return fake
        parameter = nn.Parameter(fake, tensor.requires_grad)
        if self._training is not None and tensor.requires_grad:
            # Make the node that accumulates its gradient now, while the graph gets a device that exists.
            _mark_for_graph(parameter)
            view = parameter.view_as(parameter)
            assert view.grad_fn is not None
            self._accumulators.append(view.grad_fn.next_functions[0][0])
        return parameter

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        return () if self._training is None else self._training.optimizers

    def _repeat_samples(self, batch_size: int, draw: int) -> None:
        """Return None, so that the callable makes all samples: fakes take neither time nor memory."""


class _Recorder(TorchDispatchMode):
    """Records when storages on the fake GPU are allocated and released, and which hold gradients or optimizer state.

    Fake tensors take three paths through torch that real tensors do not. Sums of gradients, and the bias of a linear
    layer, are added out of place; they are counted as in place. The autograd graph would run on a thread of its device,
    which does not exist; so the graph gets the meta device for tensors, and the calling thread runs it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events, self.allocated = list[Event](), 0
        self.gradients, self.optimizer, self.libraries = set[int](), set[int](), list[int]()
        self.in_linear = False
        self._numbers: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = weakref.WeakKeyDictionary()
        self._holders: dict[int, int] = {}
        self._multiplied: set[bool] = set()

    def watch(self, optimizer: Optimizer) -> None:
        def before(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            self.gradients.update(self._find_numbers([weight.grad for weight in weights]))

        def after(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
            self.optimizer.update(self._find_numbers(list(optimizer.state.values())))

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    def _find_numbers(self, value: object) -> Iterator[int]:
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and (number := self._numbers.get(leaf.untyped_storage())) is not None:
                yield number

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        if func is _device_of:
            return self._device_of(args[0])
        if func in _IN_STEPS:
            with self:
                return _IN_STEPS[func](*args)
        if kwargs and kwargs.get("device") == _META:
            kwargs = {**kwargs, "device": getattr(args[0] if args else None, "fake_device", "cuda")}
        scratch = [self._allocate(count) for count in _scratch_bytes(func, args)]
        result = func(*args, **(kwargs or {}))
        in_place = func is _aten.add.Tensor and (self.in_linear or _is_in_backward()) and _fits_into(result, args[0])
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.is_cuda:
                storage = value.untyped_storage()
                if storage.nbytes() and storage not in self._numbers:
                    number = self._numbers.get(args[0].untyped_storage()) if in_place else None
                    self._hold(storage, self._allocate(storage.nbytes()) if number is None else number)
        scratch += map(self._allocate, _scratch_bytes_after(func, args))
        for number in reversed(scratch):
            self._release(number)
        if torch.is_grad_enabled() and any(map(_learns, tree_leaves((args, kwargs)))):
            for value in tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    _mark_for_graph(value)
        if func in _PRODUCTS and args[0].is_cuda and (thread := _is_in_backward()) not in self._multiplied:
            self._multiplied.add(thread)
            self.libraries += map(self._allocate, _BLAS_WORKSPACES)
        return result

    def _hold(self, storage: torch.UntypedStorage, number: int) -> None:
        """Record that a storage uses an allocation, which is released with the last such storage."""
        self._numbers[storage] = number
        self._holders[number] = self._holders.get(number, 0) + 1
        weakref.finalize(storage, self._drop_holder, number)

    def _drop_holder(self, number: int) -> None:
        self._holders[number] -= 1
        if not self._holders[number]:
            self._release(number)

    def _device_of(self, tensor: Any) -> torch.device:
        """Return the meta device to the autograd graph, and the tensor's fake device to all other callers.

        The graph is the first to ask for the device of a differentiable operation's result.
        """
        if not torch.is_grad_enabled():
            return _META if _is_in_backward() else tensor.fake_device
        graph_asks, tensor.graph_asks = getattr(tensor, "graph_asks", False), False
        return _META if graph_asks else tensor.fake_device

    def _allocate(self, count: int) -> int:
        self.events.append(Event("allocate", count))
        self.allocated += 1
        return self.allocated - 1

    def _release(self, number: int) -> None:
        self.events.append(Event("release", number))


def _mark_for_graph(tensor: Any) -> None:
    """Expect the next query for the device of a tensor, and of its base if it is a view, from the autograd graph."""
    tensor.graph_asks = True
    base = tensor._base  # noqa: SLF001
    if base is not None:
        base.graph_asks = True


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() >= 0 and not torch.is_grad_enabled()  # noqa: SLF001


def _fits_into(result: Any, first: Any) -> bool:
    return isinstance(first, torch.Tensor) and (result.shape, result.dtype) == (first.shape, first.dtype)


def _learns(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _scratch_bytes(func: Any, args: tuple[Any, ...]) -> list[int]:
    """Return the sizes in bytes of a kernel's temporary copies of its inputs, which fake tensors do not show."""
    if func in {_aten.native_layer_norm.default, _aten._softmax.default}:  # noqa: SLF001
        copied = [args[0]]
    elif func is _aten.native_layer_norm_backward.default:
        copied = [args[0], args[1]]
    elif func is _aten.roll.default and len(args) > 2:  # axis by axis
        return [args[0].nbytes] * (len(args[2]) - 1) if args[0].is_cuda else []
    else:
        return []
    return [tensor.nbytes for tensor in copied if tensor.is_cuda and not tensor.is_contiguous()]


def _scratch_bytes_after(func: Any, args: tuple[Any, ...]) -> list[int]:
    """Return the bytes of a kernel's workspaces that are allocated after its output: the partial sums of rows by block.

    The gradient of a bias is such a sum. The number of blocks is that of a device with 132 multiprocessors.
    """
    if func is not _aten.sum.dim_IntList or not args[0].is_cuda:
        return []
    *rows, columns = args[0].shape
    by_thread = prod(rows) // 4
    if sorted(axis % args[0].dim() for axis in args[1]) != list(range(len(rows))) or columns % 4 or by_thread < 16:
        return []
    blocks = max(min(-(-2112 // -(-columns // 128)), -(-by_thread // 16)), -(-by_thread // 256))
    return [4 * columns * 128 * blocks, 24] if blocks > 1 else []


def _autograd(spec: Spec) -> AbstractContextManager[Any]:
    return torch.enable_grad() if spec.phase == "train" else torch.no_grad()


@contextmanager
def _allow_foreach() -> Iterator[None]:
    """Make optimizers update all fake weights at once, as on a GPU."""
    types = _optimizers._foreach_supported_types  # noqa: SLF001
    types.append(FakeTensor)
    try:
        yield
    finally:
        types.remove(FakeTensor)


@contextmanager
def _imitate_gpu(recorder: _Recorder) -> Iterator[None]:
    """Make autocast, gradient scaling, optimizers and attention work on fakes as they do with a GPU."""
    attention, linear = functional.scaled_dot_product_attention, functional.linear

    def attend(query: Any, key: Any, value: Any, *args: Any, **keywords: Any) -> Any:
        if not query.is_cuda or query.dim() != 4 or query.shape[-1] % _HEAD_UNIT:
            return attention(query, key, value, *args, **keywords)
        if torch.is_autocast_enabled("cuda"):
            query, key, value = (each.to(torch.get_autocast_dtype("cuda")) for each in (query, key, value))
        if torch.is_grad_enabled() and any(map(_learns, (query, key, value))):
            return _Attention.apply(query, key, value)
        return _attention_output(query, value)

    def watch_linear(*args: Any, **keywords: Any) -> Any:
        recorder.in_linear = True
        try:
            return linear(*args, **keywords)
        finally:
            recorder.in_linear = False

    with (
        patch_attribute(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        patch_attribute(torch.cuda, "is_bf16_supported", lambda *_: True),
        patch_attribute(torch.amp.GradScaler, "_maybe_opt_step", lambda _scaler, optimizer, *_: optimizer.step()),
        patch_attribute(torch.amp.GradScaler, "get_scale", lambda _scaler: 1.0),
        patch_attribute(functional, "linear", watch_linear),
        _allow_foreach(),
        patch_attribute(functional, "scaled_dot_product_attention", attend),
    ):
        yield


class _Attention(torch.autograd.Function):
    """Attention in a single kernel for training, with the tensors that the backward pass saves and allocates.

    On Hopper this is cuDNN's kernel in half precision, and the memory-efficient kernel in fp32.
    """

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        batch, heads, length, _ = query.shape
        seeds = [query.new_empty(1, dtype=torch.int64) for _ in range(2)]
        output = _attention_output(query, value) if query.dtype == torch.float32 else _like(query, value.shape[-1])
        sums = query.new_empty((batch, heads, length), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums, *seeds)
        _mark_for_graph(output)
        return output

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value, *_ = ctx.saved_tensors
        batch, heads, length, width = query.shape
        gradients = tuple(map(torch.empty_like, (query, key, value)))
        if query.dtype == torch.float32:
            query.new_empty((batch, heads, length))
        else:
            query.new_empty(batch * heads * length * (width + 1), dtype=torch.float32)
        return gradients


def _like(query: torch.Tensor, width: int) -> torch.Tensor:
    order = sorted(range(query.dim()), key=query.stride, reverse=True)
    shape = [*query.shape[:-1], width]
    empty = query.new_empty([shape[axis] for axis in order])
    return empty.permute([order.index(axis) for axis in range(query.dim())])


def _attention_output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    batch, heads, length, _ = query.shape
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)


def _self_attention(query: Any, _key: Any, _value: Any, width: int, heads: int, *rest: Any) -> tuple[Any, Any]:
    """Run the fast path of nn.MultiheadAttention in steps; fake tensors see it as a single operation."""
    (batch, length, _), need_weights = query.shape, rest[5] if len(rest) > 5 else True
    together, attention = functional.linear(query, *rest[:2]), None
    if need_weights or width // heads % _HEAD_UNIT:
        together = torch.empty_like(together)  # queries, keys and values, one after the other
        attention = torch.empty_like(query.new_empty((batch, heads, length, length)))
        done = torch.empty_like(query)
    else:
        first = together[..., :width].view(batch, length, heads, -1).transpose(1, 2)
        done = _attention_output(first, first).transpose(1, 2).reshape(query.shape)
    result = functional.linear(done, *rest[2:4])
    return result, attention.sum(1) if attention is not None and need_weights else None


def _encoder_layer(x: Any, width: int, heads: int, *rest: Any) -> Any:
    """Run the fast path of nn.TransformerEncoderLayer in steps."""
    attention, norm_first, norms, layers = rest[:4], rest[5], (rest[7:9], rest[9:11]), (rest[11:13], rest[13:15])

    def blocks(inner: Callable[[Any], Any], x: Any, norm: Any) -> Any:
        if norm_first:
            return inner(functional.layer_norm(x, (width,), *norm)).add_(x)
        return functional.layer_norm(inner(x).add_(x), (width,), *norm)

    x = blocks(lambda x: _self_attention(x, x, x, width, heads, *attention, None, False)[0], x, norms[0])
    return blocks(lambda x: functional.linear(functional.linear(x, *layers[0]), *layers[1]), x, norms[1])


_IN_STEPS: Final[dict[Any, Callable[..., Any]]] = {
    _aten._native_multi_head_attention.default: _self_attention,  # noqa: SLF001
    _aten._transformer_encoder_layer_fwd.default: _encoder_layer,  # noqa: SLF001
}
