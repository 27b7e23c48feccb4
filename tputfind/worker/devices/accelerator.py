"""Any device that torch.accelerator supports, by way of it, torch.Event, and the device's own torch module."""

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, cast

import torch
from msgspec.structs import replace
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from tputfind.errors import BadRequest, NoSuchDevice
from tputfind.processes.failures import said
from tputfind.record.environment import Capabilities, ClockTest, Environment
from tputfind.record.types import AUTOCAST, CONVERTED
from tputfind.units import format_bytes
from tputfind.worker.devices.host import HostClock, software
from tputfind.worker.devices.protocol import Device, MemoryUse, Stopwatch
from tputfind.worker.devices.self_test import self_test


def left_for_allocator(limit_bytes: int, outside_bytes: int, reserved_bytes: int) -> int:
    """Return how many bytes an allocator may take of the device under a limit for the whole process.

    ``outside_bytes`` are those of the process outside the allocator: context, kernels, library handles. If they and the
    ``reserved_bytes`` of the allocator exceed the limit, it raises torch.OutOfMemoryError.
    """
    if outside_bytes + reserved_bytes > limit_bytes:
        raise torch.OutOfMemoryError(
            f"out of memory: context and libraries take {format_bytes(outside_bytes)} beside "
            f"{format_bytes(reserved_bytes)} of tensors, of the limit of {format_bytes(limit_bytes)}"
        )
    return limit_bytes - outside_bytes


def around_every_module(step: Callable[[], object], adjust: Callable[[], None]) -> object:
    """Run a step and call ``adjust`` before and after every module in it.

    Kernels and library handles are loaded at their first use, outside the allocator. A device of the limit's size would
    have no room for them then, and the step could not be retried.
    """

    def look(*_: object) -> None:
        if not torch.compiler.is_compiling():
            adjust()

    hooks = [register_module_forward_pre_hook(look), register_module_forward_hook(look)]
    try:
        return step()
    finally:
        for hook in hooks:
            hook.remove()


class Events:
    """Marks recorded as events on the current stream: to record one makes neither host nor device wait.

    Spans are taken between adjacent marks, because ``elapsed_time`` returns a float32 of milliseconds: over a whole
    window it would only be exact to some microseconds.
    """

    def __init__(self, make: Callable[[], torch.Event], marks: int) -> None:
        self._events = [make() for _ in range(marks)]
        self._marked = 0
        for event in self._events:  # torch makes an event at its first record, which may take device memory
            event.record()

    def mark(self) -> None:
        self._events[self._marked].record()
        self._marked += 1

    def spans_ms(self) -> list[float]:
        events = self._events[: self._marked]
        self._marked = 0
        events[-1].synchronize()
        return [early.elapsed_time(late) for early, late in pairwise(events)]


MODULES: Final = {"hpu": "habana_frameworks.torch"}
"""Packages that add a kind of device to torch; for any other kind the package is ``torch_KIND``."""


SHORT_BYTES: Final = 256 * 2**20
NVIDIA: Final = {"tf32": "TF32 is a format of NVIDIA GPUs", "fp8": "torchao computes in fp8 on NVIDIA GPUs"}
_HALVES: Final = {name: getattr(torch, half) for name, half in (CONVERTED | AUTOCAST).items()}
HINT: Final = "tputfind devices lists what is here"
_REFUSALS: Final = (RuntimeError, AttributeError, NotImplementedError, AssertionError, TypeError, ImportError)
"""Exceptions of backends that do not support a function."""


def kind_here() -> str | None:
    """Return torch's name for this machine's kind of accelerator; None if it has none."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


def count_here(kind: str) -> int:
    """Return the number of devices of a kind; import the kind's package if torch does not know the kind yet."""
    _import_kind(kind)
    here = kind_here()
    return torch.accelerator.device_count() if here == kind else 0


def _import_kind(kind: str) -> None:
    """Import the package that adds a kind of device to torch, unless torch knows the kind."""
    if hasattr(torch, kind):
        return
    package = MODULES.get(kind, f"torch_{kind}")
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or not package.startswith(error.name):
            raise NoSuchDevice(f"there is no {kind} here: {package} does not import: {error}", HINT) from None
        raise NoSuchDevice(
            f"there is no {kind} here: {package} is not installed",
            f"install {package.partition('.')[0]}, made for torch {torch.__version__.partition('+')[0]}",
        ) from None
    except Exception as error:  # an import can raise anything: ImportError, OSError, RuntimeError
        raise NoSuchDevice(f"there is no {kind} here: {package} does not import: {said(error)}", HINT) from None
    if not hasattr(torch, kind):
        raise NoSuchDevice(f"there is no {kind} here: {package} adds no such device to torch", HINT)


class Accelerator(Device):
    """One device of this machine's accelerator, CUDA included."""

    under_a_ceiling = False

    def __init__(self, kind: str, index: int, can: Capabilities | None = None) -> None:
        """Take a device that this machine has, by torch's name for its kind, such as ``xpu``, and its number."""
        self.torch_device = torch.device(kind, index)
        self._index = index
        self._module: Any = torch.get_device_module(kind)
        self._limit_bytes: int | None = None
        self._by_module = True
        self._outside_before_bytes: int | None = None
        self._clock_test: ClockTest | None = None
        self.capabilities = can or Capabilities(
            events=True,
            own_memory=True,
            memory_limit=hasattr(self._module, "set_per_process_memory_fraction"),
            allocator_trace=False,
            graphs=False,
            pinned_copies=False,
            health=False,
        )

    def test_clocks(self) -> None:
        """Test events, the host clock and the memory counters with a known load; use only those that are right."""
        with torch.accelerator.device_index(self._index):
            try:
                found = self_test(self)
            except RuntimeError as error:
                raise NoSuchDevice(f"{self.torch_device} does not run the self-test: {said(error)}", HINT) from None
        if not found.waits:
            raise NoSuchDevice(
                f"{self.torch_device} cannot be timed: {found.test.findings[0]}", "see whether its driver has an update"
            )
        size_known = self._free_and_total() is not None
        self.capabilities = replace(
            self.capabilities,
            events=found.events,
            memory_limit=self.capabilities.memory_limit and size_known and found.counters,
            memory_size=size_known,
            memory_peaks=found.counters,
        )
        self._clock_test = found.test

    def make_current(self) -> None:
        torch.accelerator.set_device_index(self._index)

    def environment(self) -> Environment:
        properties: Any = None
        name: Any = None
        with suppress(Exception):  # AttributeError, or whatever a backend raises instead
            properties = self._module.get_device_properties(self._index)
        with suppress(Exception):  # as above
            name = getattr(properties, "name", None) or self._module.get_device_name(self._index)
        free, total = self._free_and_total() or (None, None)
        uuid = getattr(properties, "uuid", None)
        tested = self._clock_test is not None
        return Environment(
            device=str(self.torch_device),
            device_name=str(name or self.torch_device.type),
            device_uuid=None if uuid is None else str(uuid),
            memory_total_bytes=total,
            memory_free_bytes=free,
            driver=getattr(properties, "driver_version", None),
            allocator_conf=self._allocator_conf(),
            can=self.capabilities,
            clock=("events" if self.capabilities.events else "host") if tested else None,
            clock_test=self._clock_test,
            **cast("Any", software()),
        )

    def choose_allocator(self, name: str | None) -> None:
        if name is not None:
            raise BadRequest(f"--allocator {name}: only --device cuda has segments to choose")

    def refusal(self, dtype: str) -> str | None:
        """Return why the device cannot compute in ``dtype``: TF32 and fp8 need CUDA; half types may be unsupported."""
        if dtype in NVIDIA and self.torch_device.type != "cuda":
            return NVIDIA[dtype]
        wanted = _HALVES.get(dtype)
        supported: set[torch.dtype] = set()
        with suppress(RuntimeError, AttributeError, NotImplementedError):  # before torch 2.10, or not reported
            supported = torch.accelerator.get_device_capability(self._index)["supported_dtypes"]
        if wanted is not None and supported and wanted not in supported:
            return f"it says that it does not support {str(wanted).removeprefix('torch.')}"
        return None

    def sharing_refusal(self) -> str | None:
        return f"processes take turns on {self.torch_device}"

    @property
    def slows_first_step(self) -> bool:
        """Whether the first step is watched module by module, as it is under a memory limit."""
        return self._limit_bytes is not None and self._by_module

    def limit_memory(self, limit_bytes: int | None, *, by_module: bool = True) -> None:
        """Make the device current, note the memory that other processes use, and limit the allocator to the rest.

        If the device cannot report its used memory before it is opened, the memory of other processes counts against
        the limit too.
        """
        self._limit_bytes = limit_bytes
        self._by_module = by_module
        if limit_bytes is not None and not self.capabilities.memory_limit:
            raise BadRequest(f"--memory-limit: {self.torch_device} cannot be held to less memory than it has")
        if hasattr(self._module, "device_memory_used"):  # which reads it before the process opens the device
            self._outside_before_bytes = self._bytes_in_use() or 0
        self.make_current()
        self.synchronize()
        if limit_bytes is not None:
            self._give_allocator_the_rest()

    def first_step(self, step: Callable[[], object]) -> object:
        """Run a step; under a limit, take newly loaded libraries off the allocator's part at every module."""
        if not self.slows_first_step:
            return step()
        output = around_every_module(step, self._give_allocator_the_rest)
        self.synchronize()
        self._give_allocator_the_rest()
        return output

    def check_limit(self) -> None:
        """Raise torch.OutOfMemoryError if later steps exceeded the limit in total."""
        if self._limit_bytes is not None:
            if not self._by_module:  # as on CUDA: release cached memory first, since its part was not reduced
                self.synchronize()
                self._ask_module("empty_cache")
            self._give_allocator_the_rest()

    def memory_is_short(self) -> bool:
        info, reserved = self._free_and_total(), self._count("memory_reserved")
        left = [] if info is None else [info[0]]
        if self._limit_bytes is not None and reserved is not None:
            left.append(self._limit_bytes - self._outside_bytes() - reserved)
        return bool(left) and min(left) < SHORT_BYTES

    def stopwatch(self, marks: int) -> Stopwatch:
        """Return a stopwatch that uses events, or the host clock if the events are wrong."""
        if self.capabilities.events:
            return self.event_stopwatch(marks)
        return HostClock(self.synchronize)

    def event_stopwatch(self, marks: int) -> Stopwatch:
        return Events(lambda: torch.Event(self.torch_device, enable_timing=True), marks)

    def usable(self) -> bool:
        try:
            self.synchronize()
        except RuntimeError:
            return False
        return True

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self._index)

    def allocated_bytes(self) -> int | None:
        return self._count("memory_allocated")

    def peak_bytes(self) -> int | None:
        return self._count("max_memory_allocated")

    def reset_memory_use(self) -> None:
        self.synchronize()
        self._ask_module("empty_cache")
        for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats"):
            self._ask_module(name, self._index)

    def memory_use(self) -> MemoryUse:
        """Return the allocator's peaks; None for each if the self-test found them wrong."""
        if not self.capabilities.memory_peaks:
            return MemoryUse(None, None, None)
        retries = (self._ask_module("memory_stats", self._index) or {}).get("num_alloc_retries")
        return MemoryUse(self._count("max_memory_allocated"), self._count("max_memory_reserved"), retries)

    def _outside_bytes(self) -> int:
        """Return the process's device memory outside the allocator: context, kernels, library handles."""
        used, reserved = self._bytes_in_use(), self._count("memory_reserved")
        if used is None or reserved is None:
            raise RuntimeError("the device no longer reports its memory, so --memory-limit cannot be kept")
        return max(0, used - (self._outside_before_bytes or 0) - reserved)

    def _give_allocator_the_rest(self) -> None:
        info = self._free_and_total()
        assert self._limit_bytes is not None
        outside, reserved = self._outside_bytes(), self._count("memory_reserved") or 0
        count = left_for_allocator(self._limit_bytes, outside, reserved)
        assert info is not None
        share = min(1.0, count / info[1])
        try:
            self._module.set_per_process_memory_fraction(share, self._index)
        except TypeError:  # the module supports one device only
            self._module.set_per_process_memory_fraction(share)

    def _free_and_total(self) -> tuple[int, int] | None:
        told: tuple[int, int] | None = self._ask_module("get_memory_info", self._index)
        return told or self._ask_module("mem_get_info", self._index)

    def _bytes_in_use(self) -> int | None:
        """Return the bytes in use by all processes; some modules read them without opening the device."""
        if hasattr(self._module, "device_memory_used"):
            with suppress(Exception):  # ImportError, or whatever the vendor's library raises where it is missing
                return int(self._module.device_memory_used(self._index))
        info = self._free_and_total()
        return None if info is None else info[1] - info[0]

    def _count(self, name: str) -> int | None:
        """Return a count of bytes by torch's name for it, such as ``max_memory_reserved``; None if unsupported."""
        count = self._ask_module(name, self._index)
        return None if count is None else int(count)

    def _allocator_conf(self) -> str | None:
        kind = self.torch_device.type.upper()
        return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get(f"PYTORCH_{kind}_ALLOC_CONF")

    def _ask_module(self, name: str, *arguments: object) -> Any:
        """Call a function of torch.accelerator, or else of the device's module; return None if neither supports it."""
        for owner in (torch.accelerator, self._module):
            with suppress(*_REFUSALS):
                return getattr(owner, name)(*arguments)
        return None
