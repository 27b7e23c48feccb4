"""The interface of a mode, and the plainest mode: eager execution."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from torch import nn

from tputfind.record.environment import Capabilities
from tputfind.record.record import Compiled

StepOf = Callable[[Callable[..., object]], Callable[..., object]]
"""Turns a model into the step that takes its inputs: inference or training, with autocast or without."""
Bind = Callable[[Callable[..., object]], Callable[[], object]]
"""Gives a step its inputs."""


class Prepared(NamedTuple):
    """A function that runs a batch's step, and the figures of its compilation, if it was compiled."""

    run: Callable[[], object]
    compiled: Compiled | None = None


class Mode:
    """A mode in which the steps of one model run in one process. This one, eager, runs the model as it is."""

    as_it_is: ClassVar[bool] = True
    """Whether the modules run one by one, as Python calls them, without any state for a single batch size."""

    def __init__(self, module: nn.Module, step_of: StepOf) -> None:
        """Take a model that is on its device, and the step's maker."""

    @staticmethod
    def refusal(can: Capabilities) -> str:  # noqa: ARG004  # every device can run a model eagerly
        """Return why a device cannot run a model in this mode; empty if it can."""
        return ""

    def prepare(self, size: int, bind: Bind, plain: Callable[[], object]) -> Prepared:  # noqa: ARG002
        """Return a function that runs the step of a batch, or raise CannotRunSo; ``plain`` is the step as it is."""
        return Prepared(plain)
