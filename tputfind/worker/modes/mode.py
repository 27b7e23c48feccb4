"""What a way to run a model's steps is, and the plainest: as Python runs it."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol

from torch import nn

from tputfind.record.environment import Capabilities
from tputfind.record.record import Compiled

StepOf = Callable[[Callable[..., object]], Callable[..., object]]
"""Makes of a model the step that takes the model's inputs: to infer or to train, with autocast or without."""


class Prepared(NamedTuple):
    """What runs a batch's step, and what compiling it came to, if it was."""

    run: Callable[[], object]
    compiled: Compiled | None = None


class Mode(Protocol):
    """A way to run the steps of one model in one process."""

    as_it_is: ClassVar[bool]
    """Whether the modules run one by one, as Python calls them, and nothing stays that is good for one batch size."""

    def __init__(self, module: nn.Module, step_of: StepOf, synchronize: Callable[[], None]) -> None:
        """Take a model that lies on its device, and what waits for the device."""

    @staticmethod
    def refusal(can: Capabilities) -> str:
        """Say why a device cannot run a model so; nothing where it can."""

    def prepare(
        self, size: int, bind: Callable[[Callable[..., object]], Callable[[], object]], plain: Callable[[], object]
    ) -> Prepared:
        """Return what runs the step of a batch.

        Args:
            size: of the batch.
            bind: gives a step its inputs.
            plain: the step as it is, with its inputs.

        Raises:
            CannotRunSo: the model cannot be run in this way.
            Exception: whatever the model raises, its compiler, or want of memory.
        """


class Eager:
    """Runs a model as it is."""

    as_it_is: ClassVar = True

    def __init__(self, module: nn.Module, step_of: StepOf, synchronize: Callable[[], None]) -> None:
        """There is nothing to prepare."""

    @staticmethod
    def refusal(can: Capabilities) -> str:  # noqa: ARG004  # every device can
        """Nothing speaks against it."""
        return ""

    def prepare(
        self,
        size: int,  # noqa: ARG002  # any will do
        bind: Callable[[Callable[..., object]], Callable[[], object]],  # noqa: ARG002
        plain: Callable[[], object],
    ) -> Prepared:
        """Return the step as it is."""
        return Prepared(plain)
