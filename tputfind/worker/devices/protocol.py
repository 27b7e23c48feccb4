"""What the measuring code asks of a device. The implementations are real: a device is never mocked."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from tputfind.record.environment import Capabilities, Environment
from tputfind.record.trace import Trace


class MemoryUse(NamedTuple):
    """What ``memory_use`` tells; None where the device cannot."""

    peak_allocated_bytes: int | None
    """The most in use."""
    peak_reserved_bytes: int | None
    """The most taken from the device."""
    allocator_retries: int | None
    """How often the allocator found no room, gave all unused memory back and asked again."""


class Stopwatch(Protocol):
    """Marks moments in the device's own order of work, without making the host wait."""

    def mark(self) -> None:
        """Mark the moment when all work submitted so far is done."""

    def spans_ms(self) -> list[float]:
        """Wait for the last mark, return the milliseconds between consecutive ones, one fewer, and begin anew."""


class Device(Protocol):
    """One device of this process."""

    torch_device: torch.device
    capabilities: Capabilities
    under_a_ceiling: bool
    """Whether the process's own address space is limited."""

    @property
    def slows_first_step(self) -> bool:
        """Whether ``first_step`` does more than the step, so that its time says nothing."""

    def test_clocks(self) -> None:
        """Hold the clocks of a device that may not have them right against each other; its capabilities then say so.

        Call it once, at the start of a run, with nothing on the device.

        Raises:
            NoSuchDevice: nothing can be timed on it.
        """

    def environment(self) -> Environment:
        """Describe the device and the software it runs under."""

    def choose_allocator(self, name: str | None) -> None:
        """Work with native or expandable segments; None changes nothing. Call it before anything else.

        Raises:
            BadRequest: there is no such choice on this device.
        """

    def refusal(self, dtype: str) -> str | None:
        """Say why it cannot compute in ``dtype``, or None where it can."""

    def limit_memory(self, limit_bytes: int | None, *, by_module: bool = True) -> None:
        """Act from now on as if the device had this much memory in all. Call it once, before anything is built.

        ``by_module`` says whether the first step may be watched module by module: not where it was compiled.
        """

    def record_allocations(self) -> None:
        """Keep what is asked of the memory allocator from now on, where that can be told. Call it after the limit."""

    def trace(self, batch_size: int, *, complete: bool) -> Trace | None:
        """Return what was asked of the memory allocator since ``record_allocations``; None where that is not known."""

    def first_step(self, step: Callable[[], object]) -> object:
        """Take the first step of a batch size and return its output.

        What the step loads of libraries counts against a limit, and may have to be watched: see ``slows_first_step``.
        """

    def check_limit(self) -> None:
        """Raise torch.OutOfMemoryError where more than the limit was taken past the allocator's guard."""

    def lift_limit(self) -> None:
        """Let the process have memory again, to report a failure."""

    def memory_is_short(self) -> bool:
        """Say whether little is left of the memory, or of the limit on it; False where it cannot be told."""

    def clock_under_power_limit(self) -> float:
        """Return the clock as a share of its highest where a power limit holds it down; 1 elsewhere."""

    def stopwatch(self, marks: int) -> Stopwatch:
        """Return a stopwatch ready for this many marks."""

    def usable(self) -> bool:
        """Say whether the device still answers this process: a fault in one batch can end that for all."""

    def synchronize(self) -> None:
        """Wait until the device has done all that was submitted."""

    def reset_memory_use(self) -> None:
        """Give unused memory back and start ``memory_use`` anew."""

    def memory_use(self) -> MemoryUse:
        """Return what was used since ``reset_memory_use``."""
