"""A step as Python runs it."""

from collections.abc import Callable
from typing import ClassVar

from torch import nn

from tputfind.record.environment import Capabilities
from tputfind.worker.modes.mode import Prepared, StepOf


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
