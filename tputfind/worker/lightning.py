"""Trains a LightningModule by its own step and optimizers, as a Trainer does."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import nn

from tputfind.errors import BadRequest
from tputfind.record.spec import Spec
from tputfind.worker import ranks
from tputfind.worker.models.lightning import TrainingStep, gradients_of
from tputfind.worker.structures import drain_value
from tputfind.worker.training import MOST_UNTIL_STEPPED, Training, idle_of

_RETURN: Final = "return an optimizer, a list of them, ([optimizers], [schedulers]), or a dict with the key optimizer"


class LightningTraining(Training):
    """Trains a LightningModule by its ``training_step``, its ``configure_optimizers`` and its hooks around a batch."""

    has_own_optimizers = True

    def __init__(self, step: TrainingStep, spec: Spec, device: torch.device, *, spreads: bool = False) -> None:
        """Make the module's optimizers, and run its hooks for the start of training, or raise BadRequest."""
        self._spec, self._step, self._module = spec, step, step.inner
        self._automatic = bool(self._module.automatic_optimization)
        self._check_options()
        self.module = ranks.spread(step, spec, device) if spreads else step
        if not self._automatic:
            ranks.sum_within_forward(self.module)
        self.optimizers, schedulers = optimizers_of(self._module.configure_optimizers(), spec.model)
        if self._automatic and len(self.optimizers) > 1:
            raise BadRequest(
                f"{spec.model} has {len(self.optimizers)} optimizers, and optimizes automatically",
                "set self.automatic_optimization = False and step each in training_step, as Lightning 2 has it",
            )
        self._scaler = torch.amp.GradScaler(device.type) if spec.scales_gradients else None
        self._idle = idle_of(self.optimizers)
        self._attach(schedulers)
        for begins in (self._module.on_fit_start, self._module.on_train_start, self._module.on_train_epoch_start):
            begins()

    @property
    def settles(self) -> bool:
        """Whether untimed steps come first, since a scaler or the module may skip an optimizer at the start."""
        return self._scaler is not None or not self._automatic

    def _check_options(self) -> None:
        spec = self._spec
        if spec.grad_checkpoint:
            raise BadRequest(f"--grad-checkpoint: {spec.model} does not offer it")
        if spec.optimizer is not None:
            raise BadRequest(f"--optimizer: {spec.model} has its own, from configure_optimizers")
        asked = [flag for flag, value in (("--clip", spec.clip), ("--accumulate", spec.accumulate > 1)) if value]
        if asked and not self._automatic:
            raise BadRequest(f"{asked[0]}: {spec.model} optimizes manually, and does so itself in training_step")
        if spec.parallel == "fsdp" and not self._automatic:
            raise BadRequest(
                f"--parallel fsdp: {spec.model} optimizes manually, and its backward passes run inside a forward pass",
                "--parallel ddp trains it; or shard it in a step of your own",
            )

    def _attach(self, schedulers: list[Any]) -> None:
        """Attach what a Trainer provides: optimizers, schedulers, backward pass and gradient clipping."""
        module, handed = self._module, [_Optimizer(each, self) for each in self.optimizers]
        self._handed = handed
        self._step.trainer.optimizers = self.optimizers
        module.optimizers = lambda *_, **__: handed[0] if len(handed) == 1 else handed
        module.lr_schedulers = lambda: (schedulers[0] if len(schedulers) == 1 else schedulers) if schedulers else None
        module.manual_backward = self.backward
        module.clip_gradients = self.clip_gradients

    def backward(self, loss: torch.Tensor, *arguments: Any, **keywords: Any) -> None:
        """Compute the gradients of a loss, which is scaled if the training has a gradient scaler."""
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        if not self._automatic:
            ranks.expect_backward(self.module, scaled)
        self._module.on_before_backward(scaled)
        self._module.backward(scaled, *arguments, **keywords)
        self._module.on_after_backward()

    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the gradients of an optimizer's weights by norm or value; without a limit, by the spec's ``clip``."""
        limit = self._spec.clip if gradient_clip_val is None else gradient_clip_val
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        if limit and f"{gradient_clip_algorithm or 'norm'}".lower().endswith("value"):
            nn.utils.clip_grad_value_(weights, limit)
        elif limit:
            nn.utils.clip_grad_norm_(weights, limit)

    def take(self, optimizer: Any, closure: Callable[[], Any] | None, keywords: dict[str, Any]) -> Any:
        """Run a step of an optimizer, through the gradient scaler if any; return its result or that of the closure."""
        if self._scaler is None:  # some optimizers evaluate the closure several times
            return optimizer.step(lambda: self._step_with_clipping(optimizer, closure), **keywords)
        result = None if closure is None else closure()
        skips = self._automatic and result is None  # the module skips the batch, and no weight has a gradient
        if not skips:
            self._scaler.unscale_(optimizer)
        self._clip_before_step(optimizer)
        if skips:
            return None
        self._scaler.step(optimizer, **keywords)
        self._scaler.update()
        return result

    def _step_with_clipping(self, optimizer: Any, closure: Callable[[], Any] | None) -> Any:
        with torch.enable_grad():
            result = None if closure is None else closure()
        self._clip_before_step(optimizer)
        return result

    def _clip_before_step(self, optimizer: Any) -> None:
        self._module.on_before_optimizer_step(optimizer)
        if self._automatic:
            self._module.configure_gradient_clipping(optimizer, self._spec.clip, None)

    def step_of(self, model: Callable[..., object]) -> Callable[..., Any]:
        """Return the step that trains the module; it takes a batch and returns the loss, or None if there is none."""
        module, counts = self._module, self._spec.mode == "eager"
        run = self._automatic_run(model) if self._automatic else lambda batch, _: drain_value(model(batch))

        def run_micro_batch(batch: object, left: int) -> Any:
            module.on_train_batch_start(batch, self._step.number)
            with self.summing(last=not left):
                outputs = _outputs_by_name(run(batch, left))
            self._step.trainer.global_step += counts and not left  # a compiler would recompile for every number
            module.on_train_batch_end(outputs, batch, self._step.number)
            self._step.number += counts
            return outputs.get("loss")

        def step(batch: object) -> Any:
            for left in range(self._spec.accumulate)[::-1]:
                loss = run_micro_batch(batch, left)  # whose other outputs are released before the next one runs
            return loss

        return step

    def _automatic_run(self, model: Callable[..., object]) -> Callable[[object, int], object]:
        """Return a function that runs a micro-batch; the last one of a step, with none left, updates the weights."""
        module, times = self._module, self._spec.accumulate
        (optimizer,) = self._handed

        def evaluate(batch: object, *, first: bool) -> object:
            output = drain_value(model(batch))
            loss = output.get("loss") if isinstance(output, dict) else output
            if first:
                module.on_before_zero_grad(optimizer)
                module.optimizer_zero_grad(0, self._step.number, optimizer)
            if isinstance(loss, torch.Tensor):  # None skips the batch
                self.backward(loss if times == 1 else loss / times)
            return output

        def run(batch: object, left: int) -> object:
            outputs: list[object] = []

            def closure() -> object:
                outputs[:] = [evaluate(batch, first=left == times - 1)]
                return outputs[0].get("loss") if isinstance(outputs[0], dict) else outputs[0]

            if left:
                closure()
            else:
                module.optimizer_step(0, self._step.number, optimizer, closure)
            return outputs[0] if outputs else None

        return run

    def settle(self, step: Callable[[], object]) -> None:
        """Run steps until each optimizer has stepped, so that its state is measured, or raise BadRequest."""
        if not self.settles:
            return
        for _ in range(MOST_UNTIL_STEPPED):
            if not self._idle:
                self._scale = 0.0 if self._scaler is None else self._scaler.get_scale()
                return
            step()
        idle = type(next(iter(self._idle.values()))).__name__
        raise BadRequest(f"{self._spec.model}: {idle} did not step in {MOST_UNTIL_STEPPED} steps")


def _outputs_by_name(output: Any) -> dict[str, Any]:
    """Return the result of ``training_step`` as a Trainer hands it to hooks: a dict, its loss without a graph."""
    outputs = dict(output) if isinstance(output, Mapping) else {} if output is None else {"loss": output}
    loss = outputs.get("loss")
    return {**outputs, "loss": loss.detach()} if isinstance(loss, torch.Tensor) else outputs


class _Optimizer:
    def __init__(self, optimizer: Any, training: LightningTraining) -> None:
        self.optimizer = optimizer
        self._training = training

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None, **keywords: Any) -> Any:
        return self._training.take(self.optimizer, closure, keywords)

    def toggle_model(self, sync_grad: bool = True) -> AbstractContextManager[None]:  # noqa: ARG002
        return gradients_of(self.optimizer, self._training.optimizers)


def optimizers_of(returned: Any, model: str) -> tuple[list[Any], list[Any]]:
    """Return the optimizers and schedulers that ``configure_optimizers`` returned in any form of Lightning's docs."""
    several = isinstance(returned, (list, tuple))
    if several and len(returned) == 2 and isinstance(returned[0], (list, tuple)):
        optimizers, schedulers = list(returned[0]), returned[1]
        schedulers = list(schedulers) if isinstance(schedulers, (list, tuple)) else [schedulers]
    else:
        parts = list(returned) if several else [returned]
        optimizers = [part.get("optimizer") if isinstance(part, dict) else part for part in parts]
        schedulers = [part["lr_scheduler"] for part in parts if isinstance(part, dict) and "lr_scheduler" in part]
    optimizers = list(_unwrap(optimizers))
    wrong = [type(each).__name__ for each in optimizers if not isinstance(each, torch.optim.Optimizer)]
    if wrong or not optimizers:
        what = "nothing" if returned is None or not optimizers else f"{wrong[0]}, not an optimizer"
        raise BadRequest(f"{model}: configure_optimizers returned {what}", _RETURN)
    return optimizers, [each["scheduler"] if isinstance(each, dict) else each for each in schedulers]


def _unwrap(optimizers: list[Any]) -> Iterator[Any]:
    """Yield the optimizers, without the wrapper of Lightning's own class."""
    for each in optimizers:
        inner = inspect.getattr_static(each, "_optimizer", None)
        yield inner if isinstance(inner, torch.optim.Optimizer) else each


def make_training(module: nn.Module, spec: Spec, device: torch.device, *, spreads: bool = False) -> Training:
    """Return the training of a module: by its own code for a LightningModule, else by the built-in step."""
    if isinstance(module, TrainingStep):
        return LightningTraining(module, spec, device, spreads=spreads)
    return Training(module, spec, device, spreads=spreads)
