"""Records a process's requests to the CUDA caching allocator, from torch's memory history."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tputfind.record.trace import MOST_EVENTS, Event, Trace, pack_events

_EXPANDABLE: Final = "expandable_segments"
_MOST_ENTRIES: Final = 10 * MOST_EVENTS


def switch_segments(conf: str | None, *, expandable: bool) -> str:
    """Return allocator settings with expandable segments switched on or off."""
    others = [part for part in _settings(conf) if not part.startswith(_EXPANDABLE)]
    return ",".join([*others, f"{_EXPANDABLE}:{expandable}"])


def _settings(conf: str | None) -> list[str]:
    return [part.strip() for part in (conf or "").split(",") if part.strip()]


def apply_conf(conf: str) -> None:
    """Apply allocator settings to this process; call it before any allocation."""
    apply = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (apply or torch.cuda.memory._set_allocator_settings)(conf)


def once_before_every_module(look: Callable[[], None]) -> None:
    """Call ``look`` before every module that runs in the next call of a model, and not after that call."""
    outermost: nn.Module | None = None

    def before(module: nn.Module, _: object) -> None:
        nonlocal outermost
        if torch.compiler.is_compiling():  # the model is only traced, and the compiler cannot trace this
            return
        if module is outermost:
            hook.remove()
            return
        outermost = outermost or module
        look()

    hook = register_module_forward_pre_hook(before)


class Recorder:
    def __init__(self, index: int, *, expandable: bool) -> None:
        self._index = index
        self._expandable = expandable
        self._outside: list[tuple[int, int]] = []
        self._before_reset = self._fixed = 0
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=_MOST_ENTRIES, device=index)
        self._before_reset = -self._count_allocations()  # those before the history begins

    def reset(self) -> None:
        """Note that the allocator's counters are about to be reset: all allocations so far count as fixed."""
        self._before_reset = self._fixed = self._count_allocations()

    def outside(self, count: int) -> None:
        """Record how many bytes the process holds outside the allocator."""
        if not self._outside or self._outside[-1][1] != count:
            self._outside.append((self._count_allocations(), count))

    def trace(self, batch_size: int, memory_bytes: int, *, capped: bool, complete: bool) -> Trace | None:
        """Stop recording and return the trace; None if a model of the allocator could not replay it."""
        try:
            entries = torch.cuda.memory._snapshot(self._index)["device_traces"][self._index]
        finally:  # the timing after a trial must not be recorded
            torch.cuda.memory._record_memory_history(enabled=None)
        try:
            events = list(_insert_outside(_events(entries), self._outside))
        except KeyError:  # a release without a recorded allocation, or several streams
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
            packed=pack_events(events),
        )

    def _count_allocations(self) -> int:
        count: int = torch.cuda.memory_stats(self._index)["allocation.all.allocated"]
        return self._before_reset + count


def is_expandable(conf: str | None) -> bool | None:
    """Return whether segments are expandable; None if other settings or another backend are active."""
    if torch.cuda.get_allocator_backend() != "native":
        return None
    settings = dict(part.partition(":")[::2] for part in _settings(conf))
    expandable = settings.pop(_EXPANDABLE, "False")
    return None if settings else expandable.strip().lower() == "true"


def _events(entries: list[dict[str, Any]]) -> Iterator[Event]:
    """Yield torch's entries as events; raise KeyError if they use several streams or release an unrecorded address."""
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


def _insert_outside(events: Iterator[Event], outside: list[tuple[int, int]]) -> Iterator[Event]:
    """Yield events, and insert each change of the memory outside the allocator before the next allocation."""
    waiting, allocated = list(outside), 0
    for event in events:
        while waiting and event.kind == "allocate" and waiting[0][0] <= allocated:
            yield Event("outside", waiting.pop(0)[1])
        allocated += event.kind == "allocate"
        yield event
    yield from (Event("outside", count) for _, count in waiting)


def _end(events: list[Event]) -> int:
    """Return the number of events up to the last refused request or change outside: later ones clean up."""
    return max((number for number, event in enumerate(events, 1) if event.kind in ("refused", "outside")), default=0)
