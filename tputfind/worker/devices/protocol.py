"""The interface of a device for the measuring code, with the behaviour of a device that reports nothing of its own.

An implementation must have the abstract methods; ``accelerator.py`` has them for any accelerator of torch.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from tputfind.record.environment import Capabilities, Environment
from tputfind.record.trace import Trace


class MemoryUse(NamedTuple):
    """The figures of ``memory_use``; None for each that the device does not report."""

    peak_allocated_bytes: int | None
    """Peak of the bytes in use."""
    peak_reserved_bytes: int | None
    """Peak of the bytes taken from the device."""
    allocator_retries: int | None
    """How often the allocator found no room, released all unused memory and tried again."""


class Stopwatch(Protocol):
    """Marks points in the device's own order of work, without making the host wait."""

    def mark(self) -> None:
        """Mark the time at which all work submitted so far is done."""

    def spans_ms(self) -> list[float]:
        """Wait for the last mark, return the milliseconds between consecutive marks (one fewer), and reset."""


class Device(Protocol):
    """One device, as this process uses it."""

    torch_device: torch.device
    capabilities: Capabilities
    under_a_ceiling: bool
    """Whether the process's own address space is limited."""

    @property
    def slows_first_step(self) -> bool:
        """Whether ``first_step`` does more than the step, so that its time must not be used."""
        return False

    def test_clocks(self) -> None:
        """Test the clocks of a device against each other, if they may be wrong, and set its capabilities accordingly.

        Call it once, at the start of a run, before anything is on the device. A device that cannot be timed raises
        NoSuchDevice.
        """
        return

    def make_current(self) -> None:
        """Make this the device that code means by its kind alone, such as ``cuda``."""
        return

    @abstractmethod
    def environment(self) -> Environment:
        """Describe the device and the software it runs under."""

    @abstractmethod
    def choose_allocator(self, name: str | None) -> None:
        """Use native or expandable segments; None changes nothing. Call it before the device has memory."""

    @abstractmethod
    def refusal(self, dtype: str) -> str | None:
        """Return why the device cannot compute in ``dtype``; None if it can."""

    def sharing_refusal(self) -> str | None:
        """Return why several processes cannot compute on the device at the same time; None if they can."""
        return None

    @abstractmethod
    def limit_memory(self, limit_bytes: int | None, *, by_module: bool = True) -> None:
        """Make the device act as if it had this much memory in total. Call it once, before the model is built.

        ``by_module`` says whether the first step may be watched module by module; a compiled step may not.
        """

    def record_allocations(self) -> None:
        """Record requests to the memory allocator from now on, after ``limit_memory``, if the device reports them."""
        return

    def trace(self, batch_size: int, *, complete: bool) -> Trace | None:  # noqa: ARG002
        """Return the requests to the memory allocator since ``record_allocations``; None if they are unknown."""
        return None

    def first_step(self, step: Callable[[], object]) -> object:
        """Run the first step of a batch size and return its output.

        Libraries that the step loads count against a limit and may have to be watched: see ``slows_first_step``.
        """
        return step()

    def check_limit(self) -> None:
        """Raise torch.OutOfMemoryError if memory outside the allocator brought the total over the limit."""
        return

    def lift_limit(self) -> None:
        """Lift the memory limit, so that the process can report a failure."""
        return

    @abstractmethod
    def memory_is_short(self) -> bool:
        """Return whether little is left of the memory, or of the limit on it; False if that is unknown."""

    def clock_under_power_limit(self) -> float:
        """Return the clock as a fraction of its maximum if a power limit reduces it, else 1."""
        return 1.0

    @abstractmethod
    def stopwatch(self, marks: int) -> Stopwatch:
        """Return a stopwatch ready for this many marks."""

    def usable(self) -> bool:
        """Return whether the device still answers this process: a fault in one batch can make it unusable."""
        return True

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""
        return

    @abstractmethod
    def allocated_bytes(self) -> int | None:
        """Return the bytes in use now; None if the device does not report them."""

    @abstractmethod
    def reset_memory_use(self) -> None:
        """Release unused memory to the device and reset ``memory_use``."""

    @abstractmethod
    def memory_use(self) -> MemoryUse:
        """Return the memory used since ``reset_memory_use``."""
