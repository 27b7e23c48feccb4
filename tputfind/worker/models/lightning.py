"""A LightningModule in training: its ``training_step`` as a module, and the batch for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import cycle, islice
from typing import Any, Final, NoReturn, Self

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import IterableDataset

from tputfind.errors import BadRequest
from tputfind.record.spec import Spec
from tputfind.worker import ranks
from tputfind.worker.inputs import Call, Drawn, Inputs, MakeInputs

LIGHTNING: Final = ("lightning", "pytorch_lightning")
_HOW: Final = (
    "return (module, batch size -> batch), or describe its parts: --input :float:Bx3x32x32 --input :int64:B:10"
)
_MANY: Final = 10**9
"""Steps and epochs of an endless training; learning-rate schedules that depend on the length use it."""


def is_lightning(module: object) -> bool:
    """Return whether a module is a LightningModule of either package."""
    return any(
        base.__name__ == "LightningModule" and base.__module__.partition(".")[0] in LIGHTNING
        for base in type(module).__mro__
    )


class _Silent:
    """A logger that accepts any attribute or call and does nothing."""

    def __getattr__(self, name: str) -> _Silent:
        if name.startswith("__"):  # Python looks for abilities of a value by such names
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> _Silent:
        return self


class _NoTrainer:
    """Replaces a Trainer: the attributes that modules read most, as in an endless training on the devices of a job."""

    def __init__(self, accumulate: int) -> None:
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[Any] = []
        rank, size = ranks.rank_and_size()
        self.global_step = self.current_epoch = self.node_rank = 0
        self.global_rank = self.local_rank = rank
        self.world_size = self.num_devices = size
        self.num_nodes, self.accumulate_grad_batches = 1, accumulate
        self.max_epochs = self.max_steps = self.estimated_stepping_batches = self.num_training_batches = _MANY
        self.training, self.is_global_zero = True, rank == 0
        self.sanity_checking = self.validating = self.testing = self.predicting = False
        self.is_last_batch = self.should_stop = self.fast_dev_run = False
        self.datamodule = self.train_dataloader = self.val_dataloaders = self.progress_bar_callback = None
        self.gradient_clip_val = self.gradient_clip_algorithm = None
        self.logger = _Silent()
        self.loggers = [self.logger]
        self.callbacks: list[Any] = []
        self.callback_metrics: dict[str, Any] = {}
        self.logged_metrics: dict[str, Any] = {}

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"there is no Trainer where a LightningModule is measured, and so no trainer.{name}")


def _gather(module: Any, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
    """Gather the tensors and numbers in a structure, as ``LightningModule.all_gather`` does."""

    def gather(value: Any) -> torch.Tensor:
        return ranks.gather(torch.as_tensor(value, device=module.device), group, differentiable=sync_grads)

    return tree_map_only((torch.Tensor, int, float), gather, data)


def _replace_methods(module: nn.Module) -> None:
    """Make every LightningModule in a module log nothing, and gather without a Trainer."""
    for each in filter(is_lightning, module.modules()):
        each.log = each.log_dict = lambda *_, **__: None  # type: ignore[assignment]
        each.all_gather = partial(_gather, each)  # type: ignore[assignment]


class TrainingStep(nn.Module):
    """The ``training_step`` of a LightningModule as the forward pass of a module; it takes a batch.

    Logging does nothing. ``takes_example`` says whether the batch is drawn like ``example_input_array``.
    """

    def __init__(self, module: Any, *, takes_example: bool, accumulate: int) -> None:
        """Take a module that is still on the CPU, and call its hooks for the start of a training."""
        super().__init__()
        self.inner = module
        self.takes_example = takes_example
        self.number = 0
        _replace_methods(module)
        self.trainer = _NoTrainer(accumulate)  # modules hold it weakly, in some versions
        module.trainer = self.trainer
        if self.trainer.is_global_zero:
            module.prepare_data()
        ranks.wait_for_all()
        module.setup("fit")
        if hasattr(module, "configure_model"):
            module.configure_model()
        _replace_methods(module)  # also those of modules that these hooks have made
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        takes = inspect.signature(module.training_step).parameters
        self._numbered = "batch_idx" in takes or sum(each.kind in positional for each in takes.values()) > 1

    def forward(self, batch: object) -> object:
        kind = next((weight.device.type for weight in self.inner.parameters()), "cpu")
        # A trainer calls the hook before it enters autocast.
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            batch = self.inner.on_after_batch_transfer(batch, 0)
        if self._numbered:
            return self.inner.training_step(batch, self.number)
        return self.inner.training_step(batch)

    def to(self, *arguments: Any, **keywords: Any) -> Self:
        """Move the module itself, because it records its device only in its own ``to``."""
        self.inner.to(*arguments, **keywords)
        return self

    def check_takes(self, batch: Any, model: str) -> None:
        """Refuse a module whose training step takes its batch for a sequence or dict, if it is a single tensor.

        Otherwise the step would take the tensor's rows for the parts of a batch. Slices, such as ``batch[:, 1:]``, do
        not.
        """
        if not self.takes_example or not isinstance(batch, torch.Tensor):
            return
        try:
            self.forward(batch.as_subclass(_Whole))
        except _TakenApart:
            raise BadRequest(
                f"{model}: its training_step takes a batch apart, and example_input_array is a single tensor", _HOW
            ) from None
        except Exception:  # a trial reports whatever else the module raises
            return


class _TakenApart(Exception):  # always caught by check_takes
    """Raised when a batch is unpacked, or one of its parts read."""


class _Whole(torch.Tensor):
    """A tensor that can be sliced, but not unpacked or indexed; results computed from it are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001

    def __iter__(self) -> Iterator[torch.Tensor]:
        raise _TakenApart

    def __getitem__(self, index: Any) -> torch.Tensor:
        if isinstance(index, (int, str)):
            raise _TakenApart
        return super().__getitem__(index)


def as_training(spec: Spec, module: Any, make: MakeInputs | None, described: Call | None) -> tuple[nn.Module, Inputs]:
    """Return a module that trains a LightningModule, and its batches.

    The batches are made by the user's function, drawn as ``--input`` describes them, collated from samples of the
    module's own ``train_dataloader``, or drawn like its ``example_input_array``: the first of these that exists.
    """
    example = module.example_input_array
    takes_example = make is None and described is None and not overrides(module, "train_dataloader")
    step = TrainingStep(module, takes_example=takes_example, accumulate=spec.accumulate)
    if make is not None:
        made = make
        return step, lambda size: (module.on_before_batch_transfer(made(size), 0),)
    if described is not None:
        return step, ((_build_batch(described),), {})
    if not step.takes_example:
        collate, samples = _load_samples(spec, module)
        return step, lambda size: (module.on_before_batch_transfer(collate(list(islice(cycle(samples), size))), 0),)
    if example is None:
        raise BadRequest(f"{spec.model} does not say what batch its training_step takes", _HOW)
    return step, ((drawn_like(example),), {})


def drawn_like(example: Any) -> Any:
    """Return an example of inputs, each tensor replaced by a rule to draw it, with samples along the first axis."""
    return tree_map_only(torch.Tensor, lambda each: Drawn.like(each, 0) if each.dim() else each, example)


def example_call(module: Any) -> Call | None:
    """Return the arguments of ``forward`` from ``example_input_array``; None if the module has none."""
    example = getattr(module, "example_input_array", None) if is_lightning(module) else None
    if example is None:
        return None
    drawn = drawn_like(example)
    if isinstance(drawn, dict):
        return (), drawn
    return (tuple(drawn) if isinstance(drawn, (tuple, list)) else (drawn,)), {}


def _build_batch(described: Call) -> object:
    positional, named = described
    if named:
        return {**{str(number): part for number, part in enumerate(positional)}, **named}
    return positional[0] if len(positional) == 1 else positional


def overrides(module: Any, name: str) -> bool:
    method = getattr(type(module), name, None)
    return getattr(method, "__module__", "").partition(".")[0] not in LIGHTNING


def _load_samples(spec: Spec, module: Any) -> tuple[Callable[[list[Any]], object], list[Any]]:
    """Return the collate function and some samples of a module's own data."""
    loader = module.train_dataloader()
    data, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if data is None or collate is None:
        raise BadRequest(f"{spec.model}: its train_dataloader returns {type(loader).__name__}, no DataLoader", _HOW)
    if getattr(loader, "batch_sampler", data) is None:
        raise BadRequest(f"{spec.model}: the data of its train_dataloader are whole batches of a fixed size", _HOW)
    few = spec.few_samples
    # An IterableDataset inherits a __getitem__ that only raises.
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset)
    samples = [data[number] for number in range(min(few, len(data)))] if is_indexed else list(islice(data, few))
    if not samples:
        raise BadRequest(f"{spec.model}: its train_dataloader has no samples", _HOW)
    return collate, samples


@contextmanager
def gradients_of(optimizer: Any, optimizers: list[Any]) -> Iterator[None]:
    """Let only the weights of one optimizer take gradients."""
    own = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    others = [weight for each in optimizers for group in each.param_groups for weight in group["params"]]
    held = [weight for weight in others if id(weight) not in own and weight.requires_grad]
    for weight in held:
        weight.requires_grad = False
    try:
        yield
    finally:
        for weight in held:
            weight.requires_grad = True
