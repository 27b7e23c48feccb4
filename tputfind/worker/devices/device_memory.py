"""What torch.accelerator, or else a device's own module, tells of the device's memory."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import torch

_T = TypeVar("_T")
_REFUSALS: Final = (RuntimeError, AttributeError, NotImplementedError, AssertionError, TypeError, ImportError)
"""What backends raise where they do not tell."""


class DeviceMemory:
    """Reads the memory of one device. What the device does not tell is None."""

    def __init__(self, kind: str, index: int) -> None:
        """Take the device. Nothing is opened yet."""
        self._module: Any = torch.get_device_module(kind)
        self._index = index
        self._kind = kind

    @property
    def can_limit(self) -> bool:
        """Whether the allocator can be held to a part of the memory."""
        return hasattr(self._module, "set_per_process_memory_fraction")

    def free_and_total(self) -> tuple[int, int] | None:
        """Return the free and the total bytes of the device."""
        return _first(
            lambda: torch.accelerator.get_memory_info(self._index),
            lambda: self._module.mem_get_info(self._index),
        )

    def used(self) -> int | None:
        """Return what is used of the device, by whomever; some modules tell it without opening the device."""
        if hasattr(self._module, "device_memory_used"):
            with suppress(Exception):  # ImportError, or whatever the vendor's library raises where it is missing
                return int(self._module.device_memory_used(self._index))
        info = self.free_and_total()
        return None if info is None else info[1] - info[0]

    @property
    def used_is_told_unopened(self) -> bool:
        """Whether ``used`` can be asked before the process opens the device, so that its context counts as its own."""
        return hasattr(self._module, "device_memory_used")

    def allocated(self) -> int | None:
        """Return the bytes of live tensors."""
        return self._count("memory_allocated")

    def reserved(self) -> int | None:
        """Return what the allocator has taken of the device."""
        return self._count("memory_reserved")

    def peak_allocated(self) -> int | None:
        """Return the most bytes of live tensors."""
        return self._count("max_memory_allocated")

    def peak_reserved(self) -> int | None:
        """Return the most that the allocator has taken of the device."""
        return self._count("max_memory_reserved")

    def retries(self) -> int | None:
        """Return how often the allocator found no room, gave all unused memory back and asked again."""
        stats = _first(
            lambda: torch.accelerator.memory_stats(self._index), lambda: self._module.memory_stats(self._index)
        )
        count = (stats or {}).get("num_alloc_retries")
        return None if count is None else int(count)

    def give_back(self) -> None:
        """Give unused memory back to the device, and start the counters anew."""
        _first(torch.accelerator.empty_cache, lambda: self._call("empty_cache"))
        for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats"):
            self._reset(name)

    def give_allocator(self, count: int) -> None:
        """Let the allocator take so many bytes of the device, and no more."""
        info = self.free_and_total()
        assert info is not None
        share = min(1.0, count / info[1])
        try:
            self._module.set_per_process_memory_fraction(share, self._index)
        except TypeError:  # the module knows one device only
            self._module.set_per_process_memory_fraction(share)

    def allocator_conf(self) -> str | None:
        """Return the settings of the allocator that this process was started with."""
        return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get(f"PYTORCH_{self._kind.upper()}_ALLOC_CONF")

    def _reset(self, name: str) -> None:
        _first(
            lambda: getattr(torch.accelerator, name)(self._index),
            lambda: self._call(name, self._index),
        )

    def _count(self, name: str) -> int | None:
        """Return a count of bytes: of torch.accelerator, or of the module."""
        count = _first(lambda: getattr(torch.accelerator, name)(self._index), lambda: self._call(name, self._index))
        return None if count is None else int(count)

    def _call(self, name: str, *arguments: object) -> Any:
        return getattr(self._module, name)(*arguments)


def _first(*ways: Callable[[], _T]) -> _T | None:
    """Return what the first of these ways that works returns; None where none does."""
    for way in ways:
        with suppress(*_REFUSALS):
            return way()
    return None
