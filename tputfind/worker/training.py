"""A step of training: forward pass, loss, backward pass, and optimizer step."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import Parameter, signature
from typing import Any, ClassVar, Final
from weakref import ref

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook

from tputfind.errors import BadRequest
from tputfind.options import did_you_mean
from tputfind.processes.failures import CannotRunSo, said
from tputfind.record.record import OutputCheck
from tputfind.record.spec import Spec
from tputfind.units import echo
from tputfind.worker import ranks
from tputfind.worker.structures import attributes_of, drain_value, parts_of, tensors_of

_LEARNING_RATE: Final = 1e-4
"""Small, so that the weights stay in range; nothing needs to be learnt."""
MOST_UNTIL_STEPPED: Final = 100
"""Maximum number of steps until each of the user's own optimizers has stepped."""
MOST_SKIPPED: Final = 40
"""Maximum number of steps that the scaler may skip: its scale starts at 2^16 and halves at every overflow."""
_SKIPPED: Final = "the scaler skipped steps that overflowed, so that the optimizer's part is missing from some"
_SETTINGS: Final[dict[str, dict[str, Any]]] = {"SGD": {"momentum": 0.9}}
"""Further arguments of optimizers besides the learning rate, by class name."""

_MOST_NODES: Final = 10_000
"""Maximum nodes of autograd's graph between a loss and the outputs that it is computed from."""
_UNKNOWN: Final = object()
_PARTS_OF_LOSS: Final = ("loss_", "classification", "bbox_")
"""Prefixes of the names that detectors give to the parts of their loss."""


class Training:
    """Trains a model with an optimizer and, for fp16 by autocast, a gradient scaler."""

    module: nn.Module
    """The module to train; wrapped for several devices if requested."""
    optimizers: list[torch.optim.Optimizer]
    has_own_optimizers: ClassVar = False
    loss_is_own = True
    """Whether the last step used a loss that the model returned."""
    _scale = 0.0

    def __init__(self, module: nn.Module, spec: Spec, device: torch.device, *, spreads: bool = False) -> None:
        """Put a module into training mode, and make its optimizer; with ``spreads``, for all devices of the job.

        A module without weights to train, or that does not suit an option, raises BadRequest.
        """
        if not module.training:  # it is still training if it refused eval(): it may refuse train() too
            module.train()
        if spec.grad_checkpoint:
            _checkpoint(module, spec.model)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise BadRequest(f"--phase train: {spec.model} has nothing to train")
        self.module = module = ranks.spread(module, spec, device) if spreads else module
        weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizers = [_make_optimizer(spec.optimizer or "sgd", module, weights)]
        self._weights, self._clip, self._times = weights, spec.clip, spec.accumulate
        self._idle = idle_of(self.optimizers)
        self._scaler = torch.amp.GradScaler(device.type) if spec.scales_gradients else None
        self._place: Hashable = _UNKNOWN

    def step_of(self, model: Callable[..., object]) -> Callable[..., Any]:
        """Return the step that trains a model; it takes the model's arguments and returns the loss.

        With accumulation, a step runs the batch once for each micro-batch.
        """
        (optimizer,), scaler, times = self.optimizers, self._scaler, self._times

        def step(*arguments: object, **keywords: object) -> torch.Tensor:
            for left in range(times)[::-1]:
                with self.summing(last=not left):
                    output = drain_value(model(*arguments, **keywords))
                    own = self._own_loss(output)
                    self.loss_is_own = own is not None
                    loss = stand_in_loss(output) if own is None else own
                    loss = loss if times == 1 else loss / times
                    (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
                    if left:
                        del output, own  # further outputs do not outlive their micro-batch
            if scaler is None:
                self._clip_gradients()
                optimizer.step()
            else:
                if self._clip is not None:  # the norm must be that of unscaled gradients
                    scaler.unscale_(optimizer)
                    self._clip_gradients()
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            return loss.detach()

        return step

    def _own_loss(self, output: Any) -> torch.Tensor | None:
        """Return the loss that the model returns; None if it has none.

        One without a name depends on all other parts of the output, which is looked at in the first output alone.
        """
        own, parts = own_loss(output), parts_of(output)
        if parts is None or (own is not None and (own is not parts.get(0) or own is getattr(output, "loss", None))):
            return own
        if self._place is _UNKNOWN:
            self._place = place_of_loss(parts)
        return parts.get(self._place)

    def summing(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch of a step: the ``last`` one sums gradients over all devices."""
        return nullcontext() if last else ranks.local_gradients(self.module)

    def _clip_gradients(self) -> None:
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._weights, self._clip)

    @property
    def settles(self) -> bool:
        """Whether steps of training run before the first timed step."""
        return self._scaler is not None

    def settle(self, step: Callable[[], object]) -> None:
        """Run steps until the optimizer has stepped, since a scaler finds its scale by skipping steps that overflow."""
        if self._scaler is None:
            return
        for _ in range(MOST_SKIPPED):
            step()
            if not self._idle:
                self._scale = self._scaler.get_scale()
                return
        raise CannotRunSo("its gradients are finite at no scale, so that the optimizer never takes a step")

    def check(self, step: Callable[[], object]) -> OutputCheck | None:
        """Run one more step; check that its loss is finite and that the scaler skipped no step since ``settle``.

        Return None if the step has no loss: a LightningModule may skip a batch, or optimize manually.
        """
        loss = step()
        if not isinstance(loss, torch.Tensor):
            return None
        if not self._is_finite(loss):
            return OutputCheck(result="not_finite")
        if self._scaler is not None and self._scaler.get_scale() < self._scale:
            return OutputCheck(result="unchecked", remark=_SKIPPED)
        return OutputCheck(result="loss")

    def _is_finite(self, loss: torch.Tensor) -> bool:
        """Whether a loss is finite; that of a stand-in may be infinite, as its labels may be scores that are masked."""
        if bool(torch.isfinite(loss)) or self.loss_is_own or not bool(torch.isposinf(loss)):
            return bool(torch.isfinite(loss))
        return all(bool(torch.isfinite(weight).all()) for weight in self._weights)


def _make_optimizer(name: str, module: nn.Module, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer of ``torch.optim`` by its name in lower case."""
    classes = _optimizers()
    if name not in classes:
        near = did_you_mean(name, tuple(classes))
        raise BadRequest(f"--optimizer: torch.optim has no {echo(name)}{near}", f"it has {', '.join(sorted(classes))}")
    made = classes[name]
    if needs_closure(made):
        raise BadRequest(
            f"--optimizer {name} evaluates the model several times a step, through a closure",
            "choose one that takes a step from gradients, such as adamw",
        )
    if made is torch.optim.SparseAdam and not _are_sparse(module, weights):
        raise BadRequest(
            f"--optimizer {name} takes sparse gradients alone, and this model has dense ones", "choose adam or adamw"
        )
    try:
        # The momentum of sparse gradients gets longer with every step.
        further = {} if _sparse_layers(module) else _SETTINGS.get(made.__name__, {})
        return made(weights, lr=_LEARNING_RATE, **further)  # type: ignore[call-arg]
    except (ValueError, TypeError) as error:
        raise BadRequest(f"--optimizer {name} does not take the weights of this model: {said(error)}") from None


def _optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    every = {name.lower(): getattr(torch.optim, name) for name in dir(torch.optim)}
    return {
        name: each
        for name, each in every.items()
        if isinstance(each, type) and issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer
    }


def needs_closure(optimizer: type[torch.optim.Optimizer]) -> bool:
    """Return whether a class of optimizers evaluates the loss itself, through a closure, as LBFGS does."""
    closure = signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


def _sparse_layers(module: nn.Module) -> list[Any]:
    return [layer for layer in module.modules() if getattr(layer, "sparse", False) is True]


def _are_sparse(module: nn.Module, weights: Sequence[nn.Parameter]) -> bool:
    found = [layer.weight for layer in _sparse_layers(module)]
    return all(any(weight is other for other in found) for weight in weights)


class _Idle(dict[int, torch.optim.Optimizer]):
    """Optimizers by id; a hook refers to it weakly, and outlives it."""


def idle_of(optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, torch.optim.Optimizer]:
    """Return the optimizers by id; each is removed from the result when it, or another with its weights, first steps.

    An optimizer that wraps another one steps by that, or by methods of its own, as those of SAM and Lightning Fabric.
    Steps of an optimizer that neither is one of torch nor wraps one are not seen: it is left out.
    """

    def has_hook(value: object, depth: int = 2) -> bool:
        parts = value if isinstance(value, (list, tuple)) else (attributes_of(value) or {}).values() if depth else ()
        return isinstance(value, torch.optim.Optimizer) or any(has_hook(part, depth - 1) for part in parts if depth)

    seen = filter(has_hook, optimizers)
    idle = _Idle((id(optimizer), optimizer) for optimizer in seen)
    seen_by_hook = ref(idle)

    def note(stepped: torch.optim.Optimizer, *_: object) -> None:
        left = seen_by_hook()
        if not left:
            return
        held = {id(weight) for group in stepped.param_groups for weight in group["params"]}
        for key, each in list(left.items()):
            if each is stepped or all(id(weight) in held for group in each.param_groups for weight in group["params"]):
                del left[key]

    register_optimizer_step_post_hook(note)
    return idle


def stand_in_loss(output: Any) -> torch.Tensor:
    """Return a loss for the output of a model that has none of its own.

    It is a sum in fp32 over the tensors of the output that require gradients: the cross-entropy of two-dimensional ones
    as scores by class, with the classes in turn as labels; scalars as they are; the mean square of others.
    """
    leaves = [leaf for leaf in tensors_of(output) if leaf.requires_grad]
    if isinstance(output, torch.Tensor) and output.is_floating_point() and not output.dim() and not leaves:
        # As a loss of pairs does in a batch of one sample.
        raise CannotRunSo("its loss requires no gradient: return one that is not detached")
    if not leaves:
        raise BadRequest(
            f"--phase train: the model returns {type(output).__name__}, in which no tensor requires gradients",
            "return the loss as a scalar tensor, or under the name loss",
        )
    losses = [_loss(leaf.float()) for leaf in leaves]
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def own_loss(output: Any) -> torch.Tensor | None:
    """Return the loss that a model returns; None if it has none.

    The loss has the name ``loss`` or is a scalar in first place; an ``mc_loss`` is added to it. A named loss with a
    number for each sample counts by its mean. If all items of a dict are scalars named like the parts of a detector's
    loss, the loss is their sum.
    """
    if isinstance(output, Mapping) and output and all(f"{name}".startswith(_PARTS_OF_LOSS) for name in output):
        parts = list(output.values())
        if all(isinstance(part, torch.Tensor) and part.dim() == 0 and part.requires_grad for part in parts):
            return torch.stack(parts).sum()
    named, choice = (
        output.get(name) if isinstance(output, Mapping) else getattr(output, name, None) for name in ("loss", "mc_loss")
    )
    if isinstance(named, torch.Tensor) and isinstance(choice, torch.Tensor):  # a second head, for multiple choice
        named = named + choice
    first, *others = output if isinstance(output, (tuple, list)) and output else (output,)
    if any(isinstance(each, torch.Tensor) and each.requires_grad and each.dim() == 0 for each in others):
        first = None  # it may be one of several losses: see ``place_of_loss``
    for loss in (named, first):
        if isinstance(loss, torch.Tensor) and loss.requires_grad and (loss is named or loss.dim() == 0):
            return loss.mean() if loss.dim() else loss
    return None


def place_of_loss(parts: Mapping[Hashable, object]) -> Hashable:
    """Return the key of the scalar in an output whose gradients reach all other parts; None if there is none.

    It counts too if they reach what another part, such as probabilities, is computed from without further weights. An
    auxiliary loss does not reach them, and one of several losses not the others. A compiled model has one node in the
    graph for all its outputs, so that only a single scalar can be its loss.
    """
    learnt = {key: [each for each in tensors_of(part) if each.requires_grad] for key, part in parts.items()}
    scalars = [key for key, part in parts.items() if isinstance(part, torch.Tensor) and learnt[key] and not part.dim()]
    losses = {learnt[key][0].grad_fn for key in scalars}
    for place in scalars:
        left = {each.grad_fn for key, tensors in learnt.items() for each in tensors if key != place}
        level, seen = {learnt[place][0].grad_fn}, set[object]()
        if len(scalars) > 1 and level <= left:
            return None
        while level and left and len(seen) < _MOST_NODES:
            left -= level
            seen |= level
            level = {node for each in level if each is not None for node, _ in each.next_functions} - seen
        if not left or (not left & losses and _has_no_further_weights(left, seen)):
            return place
    return None


def _has_no_further_weights(nodes: set[Any], known: set[Any]) -> bool:
    """Return whether all paths from nodes of autograd's graph to weights lead through ``known`` nodes."""
    level, seen = nodes, set[object]()
    while level:
        if not all(node is not None and node.next_functions for node in level):  # a weight has none
            return False
        seen |= level
        level = {node for each in level for node, _ in each.next_functions if node is not None} - seen
        weights = {node for node in level if not node.next_functions}
        level -= known - weights
    return True


def _loss(output: torch.Tensor) -> torch.Tensor:
    if output.dim() == 0:
        return output
    if output.dim() == 2:
        samples, classes = output.shape
        return cross_entropy(output, torch.arange(samples, device=output.device) % classes)
    return output.square().mean()


def _checkpoint(module: Any, model: str) -> None:
    """Turn on gradient checkpointing through the interface of the module's own library."""
    try:
        if getattr(module, "supports_gradient_checkpointing", False):  # transformers
            # With a reentrant one, the default before transformers 5, layers after frozen ones get no gradients.
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        elif hasattr(module, "set_grad_checkpointing"):  # timm
            module.set_grad_checkpointing(True)
        else:
            raise BadRequest(f"--grad-checkpoint: {model} does not offer it")
    except AssertionError as error:
        raise BadRequest(f"--grad-checkpoint: {model} does not offer it: {error}") from None
