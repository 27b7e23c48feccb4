"""What a model would ask of the CUDA caching allocator, found out on fake tensors: no GPU, no memory, no arithmetic."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tputfind.errors import BadRequest, TputfindError
from tputfind.processes.failures import Circumstances, of_exception
from tputfind.record.record import TRIAL_STEPS
from tputfind.record.spec import Spec
from tputfind.record.trace import Event, Trace, packed
from tputfind.worker.patched import replaced
from tputfind.worker.workload import Workload

OUTSIDE_BYTES: Final = 692 * 2**20
"""What the context, kernels and library handles of a process take: after a first step on an H200, with torch 2.11."""
_BLAS_WORKSPACES: Final = 32 * 2**20, 2**20
"""What cuBLAS and cuBLASLt keep from the first matrix product on, on Hopper."""
_HEAD_UNIT: Final = 8  # attention is one kernel for heads of a multiple of this length
_aten: Final = torch.ops.aten
_PRODUCTS: Final = {getattr(_aten, name).default for name in ("linear", "addmm", "mm", "bmm", "baddbmm")}


def fake_trace(spec: Spec, batch_size: int) -> Trace:
    """Return what a trial's steps would ask of the allocator, from steps on fake CUDA tensors.

    What only a kernel on a device knows of is not in it, such as the workspaces of convolutions.

    Raises:
        BadRequest: the model asks for what a fake tensor does not have, such as its values.
        TputfindError: the model is not there or cannot be used as asked.
        Exception: whatever the model's own code raises while it is built.
    """
    workload = _FakeWorkload(spec, torch.device("cpu"))
    recorder = _Recorder()
    try:
        with _like_a_gpu(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), recorder:
            workload.move()
            fixed = recorder.allocated
            step = workload.batch(batch_size)
            output: object = None
            for _ in range(TRIAL_STEPS):
                output = step()
            del output
        workload.check_samples(step)
    except TputfindError:
        raise
    except (Exception, SystemExit) as error:  # a model can raise anything, and so can what was not made for fakes
        reason = of_exception(error, Circumstances(batch_size)).message
        message = f"{spec.model} does not run on fake tensors: {reason}"
        raise BadRequest(message, "leave --on-fake out, on a machine with a GPU") from None
    data = packed((Event("outside", OUTSIDE_BYTES), *recorder.events))
    return Trace(
        batch_size=batch_size,
        fixed=fixed,
        memory_bytes=2**40,
        capped=False,
        expandable=False,
        complete=True,
        packed=data,
    )


class _FakeWorkload(Workload):
    """A workload built on the CPU for real: some models look at their weights while they are built."""

    def move(self) -> None:
        """Put fakes of the weights on a fake GPU, in the order of ``Module.to``; batches are made there from now on."""
        self._device = torch.device("cuda")
        moved: dict[torch.Tensor, torch.Tensor] = {}

        def place(module: nn.Module) -> None:
            for named in (module.named_parameters, module.named_buffers):
                for name, tensor in list(named(recurse=False, remove_duplicate=False)):
                    if tensor not in moved:
                        fake = tensor.to(self._device)
                        learnt = isinstance(tensor, nn.Parameter)
                        moved[tensor] = nn.Parameter(fake, tensor.requires_grad) if learnt else fake
                        moved[moved[tensor]] = moved[tensor]  # the module may have another place in the model
                    setattr(module, name, moved[tensor])

        self._module.apply(place)

    def _repeated(self, batch_size: int, draw: int) -> None:
        """Have all samples made: fakes take neither time nor memory."""


class _Recorder(TorchDispatchMode):
    """Keeps when storages on the fake GPU are made and when they die."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events, self.allocated = list[Event](), 0
        self._alive: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._multiplied: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """Run an operation, and see what it returns."""
        if func in _IN_STEPS:
            with self:
                return _IN_STEPS[func](*args)
        scratch = [self._allocate(count) for count in _scratch_bytes(func, args)]
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.is_cuda:
                storage = value.untyped_storage()
                if storage.nbytes() and storage not in self._alive:
                    self._alive.add(storage)
                    weakref.finalize(storage, self._release, self._allocate(storage.nbytes()))
        for number in scratch:
            self._release(number)
        if func in _PRODUCTS and not self._multiplied and args[0].is_cuda:
            self._multiplied = [self._allocate(count) for count in _BLAS_WORKSPACES]
        return result

    def _allocate(self, count: int) -> int:
        self.events.append(Event("allocate", count))
        self.allocated += 1
        return self.allocated - 1

    def _release(self, number: int) -> None:
        self.events.append(Event("release", number))


def _scratch_bytes(func: Any, args: tuple[Any, ...]) -> list[int]:
    """Return what a kernel takes for itself, where that is of its input's size and not known to the fake."""
    copies = 0
    if func in {_aten.native_layer_norm.default, _aten._softmax.default}:  # noqa: SLF001
        copies = 0 if args[0].is_contiguous() else 1
    elif func is _aten.roll.default and len(args) > 2:  # axis by axis
        copies = len(args[2]) - 1
    return [args[0].nbytes] * copies if copies and args[0].is_cuda else []


@contextmanager
def _like_a_gpu() -> Iterator[None]:
    """Have autocast and attention do what they do where there is a GPU: without, the one is off, the other in steps."""
    attention = functional.scaled_dot_product_attention

    def attend(query: Any, key: Any, value: Any, *args: Any, **keywords: Any) -> Any:
        if not query.is_cuda or query.dim() != 4 or query.shape[-1] % _HEAD_UNIT:
            return attention(query, key, value, *args, **keywords)
        if torch.is_autocast_enabled("cuda"):
            query, key, value = (each.to(torch.get_autocast_dtype("cuda")) for each in (query, key, value))
        return _attended(query, value)

    with (
        replaced(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        replaced(torch.cuda, "is_bf16_supported", lambda *_: True),
        replaced(functional, "scaled_dot_product_attention", attend),
    ):
        yield


def _attended(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    batch, heads, length, _ = query.shape
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)


def _self_attention(query: Any, _key: Any, _value: Any, width: int, heads: int, *rest: Any) -> tuple[Any, Any]:
    """Take the steps of the fast path of nn.MultiheadAttention: to a fake tensor it is one operation."""
    (batch, length, _), need_weights = query.shape, rest[5] if len(rest) > 5 else True
    together, attention = functional.linear(query, *rest[:2]), None
    if need_weights or width // heads % _HEAD_UNIT:
        together = torch.empty_like(together)  # queries, keys and values, one after the other
        attention = torch.empty_like(query.new_empty((batch, heads, length, length)))
        done = torch.empty_like(query)
    else:
        first = together[..., :width].view(batch, length, heads, -1).transpose(1, 2)
        done = _attended(first, first).transpose(1, 2).reshape(query.shape)
    result = functional.linear(done, *rest[2:4])
    return result, attention.sum(1) if attention is not None and need_weights else None


def _encoder_layer(x: Any, width: int, heads: int, *rest: Any) -> Any:
    """Take those of nn.TransformerEncoderLayer."""
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
