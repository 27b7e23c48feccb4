"""Records what a process asks of the CUDA caching allocator, as torch's memory history tells it."""

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tputfind.record.trace import MOST_EVENTS, Event, Trace, packed

_EXPANDABLE: Final = "expandable_segments"
_MOST_ENTRIES: Final = 10 * MOST_EVENTS


def allocator_conf() -> str | None:
    """Return the settings of the allocator that this process was started with."""
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")


def with_segments(conf: str | None, *, expandable: bool) -> str:
    """Return settings of the allocator with expandable segments switched on or off."""
    others = [part for part in _settings(conf) if not part.startswith(_EXPANDABLE)]
    return ",".join([*others, f"{_EXPANDABLE}:{expandable}"])


def _settings(conf: str | None) -> list[str]:
    return [part.strip() for part in (conf or "").split(",") if part.strip()]


def apply_conf(conf: str) -> None:
    """Have the allocator of this process work by these settings; call it before anything is allocated."""
    apply = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (apply or torch.cuda.memory._set_allocator_settings)(conf)


def once_before_every_module(look: Callable[[], None]) -> None:
    """Have ``look`` called before every module that runs in the next call of a model, and in none after that."""
    outermost: nn.Module | None = None

    def before(module: nn.Module, _: object) -> None:
        nonlocal outermost
        if torch.compiler.is_compiling():  # nothing runs yet, and the compiler cannot take this in
            return
        if module is outermost:
            hook.remove()
            return
        outermost = outermost or module
        look()

    hook = register_module_forward_pre_hook(before)


class Recorder:
    """Keeps what is asked of one device's allocator from now on."""

    def __init__(self, index: int, *, expandable: bool) -> None:
        """Start."""
        self._index = index
        self._expandable = expandable
        self._outside: list[tuple[int, int]] = []
        self._before_reset = 0
        self._fixed = 0
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=_MOST_ENTRIES, device=index)

    def reset(self) -> None:
        """Say that the counters of the allocator are about to start anew: what was allocated so far is fixed."""
        self._before_reset = self._fixed = self._allocated()

    def outside(self, count: int) -> None:
        """Say how many bytes the process holds of the device beside the allocator's."""
        if not self._outside or self._outside[-1][1] != count:
            self._outside.append((self._allocated(), count))

    def trace(self, batch_size: int, memory_bytes: int, *, capped: bool, complete: bool) -> Trace | None:
        """Return what was recorded, and stop; None where it is nothing that a model of the allocator could replay."""
        try:
            entries = torch.cuda.memory._snapshot(self._index)["device_traces"][self._index]
        finally:  # what the process times after a trial must not be recorded
            torch.cuda.memory._record_memory_history(enabled=None)
        try:
            events = list(_with_outside(_events(entries), self._outside))
        except KeyError:  # given back, and not seen to be asked for
            return None
        if not complete:
            events = events[: _end(events)]
        if len(events) > MOST_EVENTS:
            return None
        return Trace(
            batch_size=batch_size,
            fixed=self._fixed,
            memory_bytes=memory_bytes,
            capped=capped,
            expandable=self._expandable,
            complete=complete,
            packed=packed(events),
        )

    def _allocated(self) -> int:
        count: int = torch.cuda.memory_stats(self._index)["allocation.all.allocated"]
        return self._before_reset + count


def is_expandable(conf: str | None) -> bool | None:
    """Return whether segments are expandable; None where settings are at work that change more than that."""
    if torch.cuda.get_allocator_backend() != "native":
        return None
    settings = dict(part.partition(":")[::2] for part in _settings(conf))
    expandable = settings.pop(_EXPANDABLE, "False")
    return None if settings else expandable.strip().lower() == "true"


def _events(entries: list[dict[str, Any]]) -> Iterator[Event]:
    """Yield torch's entries as events; KeyError where they are not of one stream from its start."""
    numbers: dict[int, int] = {}
    allocated = 0
    streams = {entry["stream"] for entry in entries if entry["action"] == "alloc"}
    if len(streams) > 1:
        raise KeyError(streams)
    for entry in entries:
        action = entry["action"]
        if action == "alloc":
            numbers[entry["addr"]] = allocated
            allocated += 1
            yield Event("allocate", entry["size"])
        elif action == "free_completed":
            yield Event("release", numbers.pop(entry["addr"]))
        elif action == "oom":
            yield Event("refused", entry["size"])


def _with_outside(events: Iterator[Event], outside: list[tuple[int, int]]) -> Iterator[Event]:
    """Yield events with what was held outside the allocator, at the allocations after which it changed."""
    waiting, allocated = list(outside), 0
    for event in events:
        while waiting and event.kind == "allocate" and waiting[0][0] <= allocated:
            yield Event("outside", waiting.pop(0)[1])
        allocated += event.kind == "allocate"
        yield event
    yield from (Event("outside", count) for _, count in waiting)


def _end(events: list[Event]) -> int:
    """Return how many events there are up to the one that there was no memory for: what follows is clearing up."""
    return max((number for number, event in enumerate(events, 1) if event.kind in ("refused", "outside")), default=0)
