"""Builds a module whose weights take memory once: in their final dtype, on the device, in the order of ``Module.to``.

While a constructor runs, tensors from ``torch.empty`` have no memory (they lie on the meta device), and every operation
on them is recorded. Then each weight is allocated as ``Module.to`` would do it, and the operations are repeated there.
Other tensors of the constructor, mostly buffers, are made on the host, converted and moved.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, groupby
from typing import Any, Final, NamedTuple, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tputfind.worker.conversion import REAL, convert_tensor, memory_format_of
from tputfind.worker.structures import patch_attribute, tensors_of

_HOST: Final = torch.device("cpu")
_META: Final = torch.device("meta")
_EMPTY: Final = torch.ops.aten.empty.memory_format
_DEVICE: Final = torch.Tensor.device.__get__
_IS_META: Final = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]
_CHUNK: Final = 2**21
"""Numbers drawn at a time in the constructor's dtype, then rounded to that of the weight; 8 MiB in fp32."""
_ELEMENTWISE: Final = {
    getattr(getattr(torch.ops.aten, name), overload)
    for overload, names in (
        ("default", ("normal_", "uniform_", "zero_", "erfinv_", "clamp_")),
        ("Scalar", ("fill_", "mul_", "div_", "add_")),
        ("Tensor", ("mul_", "div_", "add_")),
    )
    for name in names
}
"""In-place operations that treat every number alike."""
_CONSTANT: Final = {torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default}
_OVERWRITING: Final = {torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default, *_CONSTANT}
"""Elementwise operations that overwrite numbers without reading them."""


class CannotDefer(Exception):
    """Raised if a constructor's operations on its weights cannot be repeated on the device."""


class _View(NamedTuple):
    """A tensor without memory, described as a view of its storage."""

    storage: torch.UntypedStorage
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return math.prod(self.size)


def _view_of(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_meta:
        return value
    storage, offset = value.untyped_storage(), int(value.storage_offset())
    return _View(storage, tuple(value.shape), tuple(value.stride()), offset, value.dtype)


def _find_views(value: object) -> list[_View]:
    return [leaf for leaf in tree_leaves(value, is_leaf=_is_view) if _is_view(leaf)]


def _is_view(value: object) -> bool:
    return isinstance(value, _View)


class _Operation(NamedTuple):
    """A recorded operation; ``views`` are its arguments without memory, and ``makes`` the storages that it creates."""

    function: Any
    arguments: Sequence[object]
    keywords: Mapping[str, object]
    views: Sequence[_View]
    result: object
    makes: frozenset[torch.UntypedStorage]

    @property
    def writes(self) -> set[torch.UntypedStorage]:
        """The storages that the operation creates or may write to."""
        written = {view.storage for view in self.views} if self.function._schema.is_mutable else set()  # noqa: SLF001
        return written | self.makes

    @property
    def alone(self) -> _View | None:
        """The view that an elementwise operation changes; None for other operations, or with further tensors."""
        tensors = [leaf for leaf in tree_leaves((self.arguments, self.keywords)) if isinstance(leaf, torch.Tensor)]
        elementwise = self.function in _ELEMENTWISE and len(self.views) == 1 and not tensors
        return self.views[0] if elementwise else None


class _SaidToBeOnHost(TorchFunctionMode):
    """Reports the host as the device of tensors without memory: some constructors do less on the meta device."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if func == _IS_META:
            return False
        return _HOST if func == _DEVICE and result == _META else result


class Deferral(TorchDispatchMode):
    """Context in which real-valued tensors of ``torch.empty`` get no memory; ``fill`` allocates it later."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations: list[_Operation] = []
        self._whole: dict[torch.UntypedStorage, _View] = {}
        self._tensors: dict[torch.UntypedStorage, torch.Tensor] = {}
        self._scratch: dict[torch.dtype, torch.Tensor] = {}
        self._device = _HOST
        self._contexts = ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, which keeps torch from importing its compiler; the import takes a second."""
        return False

    def __enter__(self) -> Self:
        self._contexts.enter_context(patch_attribute(nn.init, "_no_grad_trunc_normal_", _trunc_normal))
        self._contexts.enter_context(_SaidToBeOnHost())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._contexts.close()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """Run an operation, and record it if it takes a tensor without memory."""
        keywords = dict(kwargs or {})
        given = tree_map(_view_of, (args, keywords))
        views = _find_views(given)
        deferred = func is _EMPTY and _is_deferrable(keywords)
        if deferred:
            keywords["device"] = _META
        # Skip operations on tensors without memory; torch's own code for them would import its compiler.
        unchanged = func in _ELEMENTWISE and args[0].is_meta
        result = args[0] if unchanged else func(*args, **keywords)
        if not deferred and not views:
            return result
        result_views = tree_map(_view_of, result)
        made = {view.storage: view for view in _find_views(result_views) if view.storage not in self._whole}
        self._whole |= made
        if not deferred and (made or func._schema.is_mutable):  # noqa: SLF001
            arguments, keywords = given
            self._operations.append(_Operation(func, arguments, keywords, views, result_views, frozenset(made)))
        return result

    def fill(self, module: nn.Module, dtype: torch.dtype | None, layout: str, device: torch.device) -> None:
        """Put a module that was built in this context on a device in a dtype and layout, or raise CannotDefer."""
        self._check(module)
        self._device = device
        attributes = [(parameter, dict(vars(parameter))) for parameter in module.parameters()]
        swapping = torch.__future__.get_swap_module_params_on_conversion()
        # Parameters keep their identity, since several modules may share one; so their contents are swapped.
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            module._apply(lambda tensor: self._place(tensor, dtype, layout))  # type: ignore[no-untyped-call]  # noqa: SLF001
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swapping)
        for parameter, kept in attributes:
            vars(parameter).update(kept)
        held = {tensor.untyped_storage() for tensor in chain(module.parameters(), module.buffers())}
        if not {tensor.untyped_storage() for tensor in self._tensors.values()} <= held:
            raise CannotDefer  # a module with its own way to move has replaced a weight
        with torch.no_grad():
            for view, operations in groupby(self._needed_operations(), lambda operation: operation.alone):
                if view is None:
                    for operation in operations:
                        self._repeat(operation)
                else:
                    self._repeat_elementwise(view, list(operations))
        self._tensors.clear()
        self._scratch.clear()

    def _check(self, module: nn.Module) -> None:
        """Check the tensors without memory."""
        registered = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
        written = set().union(*(operation.writes for operation in self._operations))
        storages = set()
        for tensor in registered.values():
            if not tensor.is_meta:
                continue
            view = _view_of(tensor)
            if view.storage in storages or view.storage not in written or not tensor.is_contiguous():
                raise CannotDefer
            whole = self._whole.get(view.storage)
            if whole is None or (whole.numel, whole.offset, whole.dtype) != (view.numel, view.offset, view.dtype):
                raise CannotDefer
            self._whole[view.storage] = view
            storages.add(view.storage)
        for each in module.modules():
            if isinstance(each, nn.RNNBase):  # on the device it copies its weights into one buffer
                raise CannotDefer
            others = [value for name, value in vars(each).items() if name not in ("_parameters", "_buffers")]
            if any(tensor.is_meta and id(tensor) not in registered for tensor in tensors_of(others)):
                raise CannotDefer

    def _place(self, tensor: torch.Tensor, dtype: torch.dtype | None, layout: str) -> torch.Tensor:
        """Return a weight on the device: converted and moved, or allocated without values if it has no memory yet."""
        memory_format = memory_format_of(tensor, layout)
        if not tensor.is_meta:
            placed = convert_tensor(tensor, dtype)
            if memory_format is not None:
                placed = placed.to(memory_format=memory_format)
            return placed.to(self._device)
        final = tensor.dtype if dtype is None or tensor.dtype not in REAL else dtype
        shape, memory_format = tensor.shape, memory_format or torch.contiguous_format
        placed = torch.empty(shape, dtype=final, device=self._device, memory_format=memory_format)
        self._tensors[tensor.untyped_storage()] = placed
        return placed

    def _needed_operations(self) -> list[_Operation]:
        """Return the operations that the weights depend on, since some constructors draw twice or replace a layer."""
        needed, kept = set(self._tensors), list[_Operation]()
        for operation in reversed(self._operations):
            if not operation.writes & needed:
                continue
            kept.append(operation)
            needed.update(view.storage for view in operation.views)
            first = operation.alone
            if first and operation.function in _OVERWRITING and first.numel == self._whole[first.storage].numel:
                needed.discard(first.storage)
        return kept[::-1]

    def _repeat(self, operation: _Operation) -> None:
        """Repeat an operation in its original dtypes; its results are rounded to the dtypes of the weights."""
        views = {view: self._view_on_device(view) for view in operation.views}
        values = {view: tensor.to(view.dtype) for view, tensor in views.items()}

        def given(value: Any) -> Any:
            if isinstance(value, _View):
                return values[value]
            if isinstance(value, torch.Tensor):
                return value.to(self._device)
            return self._device if value == _META else value

        arguments, keywords = tree_map(given, (operation.arguments, operation.keywords), is_leaf=_is_view)
        result = operation.function(*arguments, **keywords)
        for view, tensor in views.items():
            if values[view] is not tensor and view.storage in operation.writes:
                tensor.copy_(values[view])
        leaves = zip(tree_leaves(operation.result, is_leaf=_is_view), tree_leaves(result), strict=True)
        for view, tensor in leaves:
            if not _is_view(view) or view.storage not in operation.makes:
                continue
            if view.storage in self._tensors:
                self._view_on_device(view).copy_(tensor)
            else:
                self._tensors[view.storage] = tensor

    def _repeat_elementwise(self, view: _View, operations: Sequence[_Operation]) -> None:
        """Repeat elementwise operations on one view, piece by piece in their original dtype.

        Weights in channels last are drawn in the order of their axes, and thus have the values of other layouts.
        """
        whole = placed = self._tensor(view.storage)
        is_whole = view.numel == whole.numel()
        if is_whole and not placed.is_contiguous():
            whole = placed.contiguous()
        self._repeat_on(whole, view, operations, is_whole=is_whole)
        if whole is not placed:
            placed.copy_(whole)

    def _repeat_on(self, whole: torch.Tensor, view: _View, operations: Sequence[_Operation], *, is_whole: bool) -> None:
        target = whole.as_strided((whole.numel(),), (1,)) if is_whole else self._view_on_device(view)
        if target.dtype == view.dtype or {each.function for each in operations} <= _CONSTANT:
            _run(operations, target)
            return
        if not is_whole:
            piece = target.to(view.dtype)
            _run(operations, piece)
            target.copy_(piece)
            return
        if view.dtype not in self._scratch:
            self._scratch[view.dtype] = torch.empty(_CHUNK, dtype=view.dtype, device=self._device)
        for part in torch.split(target, _CHUNK):
            piece = self._scratch[view.dtype][: part.numel()]
            if operations[0].function not in _OVERWRITING:
                piece.copy_(part)
            _run(operations, piece)
            part.copy_(piece)

    def _view_on_device(self, view: _View) -> torch.Tensor:
        """Return a recorded view as a view of the tensor on the device."""
        tensor, whole = self._tensor(view.storage), self._whole[view.storage]
        if view == whole:
            return tensor
        if view.dtype != whole.dtype or not tensor.is_contiguous() or whole.offset:
            raise CannotDefer
        return tensor.as_strided(view.size, view.stride, view.offset)

    def _tensor(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor on the device for a storage; one that belongs to no weight is made at its first use."""
        if storage not in self._tensors:
            whole = self._whole[storage]
            made = torch.empty_strided(whole.size, whole.stride, dtype=whole.dtype, device=self._device)
            self._tensors[storage] = made
        return self._tensors[storage]


def _is_deferrable(keywords: Mapping[str, Any]) -> bool:
    """Return whether these arguments of ``torch.empty`` request a dense real tensor in pageable host memory."""
    return (
        (keywords.get("dtype") or torch.get_default_dtype()) in REAL
        and (keywords.get("device") or _HOST) == _HOST
        and keywords.get("layout") in (None, torch.strided)
        and keywords.get("memory_format") in (None, torch.contiguous_format, torch.preserve_format)
        and not keywords.get("pin_memory")
    )


def _run(operations: Sequence[_Operation], tensor: torch.Tensor) -> None:
    for operation in operations:
        operation.function(tensor, *operation.arguments[1:], **operation.keywords)


def _trunc_normal(  # noqa: PLR0917  # the signature of torch's own
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Draw from a truncated normal distribution by its inverse, since torch's own function skips meta tensors."""

    def share_below(limit: float) -> float:
        return (1 + math.erf((limit - mean) / std / math.sqrt(2))) / 2

    with torch.no_grad():
        tensor.uniform_(2 * share_below(a) - 1, 2 * share_below(b) - 1, generator=generator)
        return tensor.erfinv_().mul_(std * math.sqrt(2)).add_(mean).clamp_(min=a, max=b)
