"""Spans between marks on the streams of an accelerator, taken without making host or device wait."""

import sys
from collections import defaultdict, deque
from collections.abc import Callable
from random import Random
from threading import RLock
from time import perf_counter_ns
from typing import Final

import torch

RESERVOIR: Final = 1000
"""Samples of a stage that are kept for its percentiles."""
MOST_OUTSTANDING: Final = 4096
"""Most pairs of marks that await the device. Its launch queues hold about a thousand launches each."""
_A_FEW: Final = 2
"""Pairs looked at when a block ends: one would keep up, the second works off what has gathered."""


class Samples:
    """Count and total of all samples, and a uniform random choice of RESERVOIR of them.

    Algorithm R of Vitter, "Random Sampling with a Reservoir", ACM Transactions on Mathematical Software 11 (1985).
    """

    __slots__ = ("_random", "chosen", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.chosen: list[float] = []
        self._random = Random(0)  # noqa: S311  # of its own, so that the user's is left alone

    def add(self, sample: float) -> None:
        """Count the sample, and perhaps keep it."""
        self.count += 1
        self.total += sample
        if self.count <= RESERVOIR:
            self.chosen.append(sample)
        elif (place := int(self._random.random() * self.count)) < RESERVOIR:
            self.chosen[place] = sample


_Pair = tuple[Samples, torch.Event, torch.Event]


class _Device:
    """The events of one device: free ones, and by stream the pairs it was not seen to pass yet, oldest first."""

    __slots__ = ("_kind", "done_ns", "free", "index", "origin", "pairs")

    def __init__(self, kind: str, index: int) -> None:
        self._kind = kind
        self.index = index
        self.free: list[torch.Event] = []
        self.pairs: defaultdict[int, deque[_Pair]] = defaultdict(deque)
        self.origin: tuple[torch.Event, int] | None = None  # the first mark, and the host clock then
        self.done_ns = 0.0

    def mark(self, stream: torch.Stream) -> torch.Event:
        """Record an event on the stream. torch.cuda's own class does the same through more of Python."""
        try:
            event = self.free.pop()
        except IndexError:
            event = torch.Event(self._kind, enable_timing=True)
        event.record(stream)
        return event

    def note_done(self, end: torch.Event) -> None:
        """Put a passed event on the host clock: it may have been passed long before anybody asks."""
        if self.origin is not None and self.origin[0].query():
            self.done_ns = max(self.done_ns, self.origin[1] + self.origin[0].elapsed_time(end) * 1e6)


Mark = tuple[_Device, torch.Event | None]


class Marks:
    """Marks on the current streams of one kind of device. Nothing but ``wait`` waits for them."""

    def __init__(self, kind: str, *, enabled: bool, index: int | None) -> None:
        module = torch.get_device_module(kind)
        self._kind = kind
        # False in a forked child, too.
        self._is_open: Callable[[], bool] = getattr(module, "is_initialized", lambda: True)
        self._is_capturing: Callable[[], bool] = getattr(module, "is_current_stream_capturing", lambda: False)
        self.lock = RLock()  # not a Lock: a signal handler may ask for the table while its thread holds it
        self._enabled = enabled
        self._index = index
        self._devices: dict[int, _Device] = {}
        self._outstanding = 0

    def begin(self) -> Mark | None:
        """Mark the current stream. Return None without a device, and no event where a mark would do harm."""
        if not (self._enabled and self._is_open()):
            return None
        stream = torch.accelerator.current_stream(self._index)
        device = self._devices.get(stream.device_index)
        if device is None:
            with self.lock:
                device = self._devices.setdefault(stream.device_index, _Device(self._kind, stream.device_index))
        if self._outstanding >= MOST_OUTSTANDING or self._is_capturing():
            return device, None
        if device.origin is None:
            device.origin = device.mark(stream), perf_counter_ns()
        return device, device.mark(stream)

    def end(self, mark: Mark, spans: Samples) -> None:
        """Mark the stream that is current now, for a span to be added later, and look at a few of the oldest pairs."""
        device, begin = mark
        if self._is_capturing():  # a query would break the capture as well
            self.drop(mark)
        elif begin is None:
            with self.lock:
                self._resolve_all(_A_FEW)
        else:
            stream = torch.accelerator.current_stream(device.index)
            end = device.mark(stream)
            with self.lock:
                pairs = device.pairs[stream.stream_id]
                pairs.append((spans, begin, end))
                self._outstanding += 1
                self._resolve(device, pairs, _A_FEW)

    def drop(self, mark: Mark) -> None:
        """Forget a mark, without a word to the device, which may be past use. Its event can be recorded anew."""
        device, begin = mark
        if begin is not None:
            device.free.append(begin)

    def collect(self) -> None:
        """Take the spans of all pairs that the device has passed."""
        if self._may_ask():
            with self.lock:
                self._resolve_all(sys.maxsize, late=True)

    def wait(self) -> None:
        """Wait for all pairs there are, without the lock, so that other threads go on."""
        if not self._may_ask():
            return
        with self.lock:
            queues = [pairs for device in self._devices.values() for pairs in device.pairs.values()]
            waiting = [pair for pairs in queues for pair in tuple(pairs)]
        for _, begin, end in waiting:
            begin.synchronize()
            end.synchronize()

    def done_ns(self) -> float:
        """Return when, by the host clock, the device had passed the last of the pairs that ``collect`` took."""
        return max((device.done_ns for device in self._devices.values()), default=0.0)

    def reset(self) -> None:
        """Forget all pairs."""
        for device in self._devices.values():
            for pairs in device.pairs.values():
                device.free += (event for _, *events in pairs for event in events)
                pairs.clear()
            device.origin, device.done_ns = None, 0.0
        self._outstanding = 0

    def _may_ask(self) -> bool:
        return self._enabled and self._is_open() and not self._is_capturing()

    def _resolve_all(self, most: int, *, late: bool = False) -> None:
        for device in self._devices.values():
            for pairs in device.pairs.values():
                self._resolve(device, pairs, most, late=late)

    def _resolve(self, device: _Device, pairs: deque[_Pair], most: int, *, late: bool = False) -> None:
        """Take the spans of the oldest pairs, ``most`` of them, as far as the device has passed them."""
        for _ in range(most):
            if not pairs:
                return
            spans, begin, end = pairs.popleft()
            if not (end.query() and begin.query()):  # the begin may lie on another stream
                pairs.appendleft((spans, begin, end))
                return
            spans.add(begin.elapsed_time(end))
            if late:
                device.note_done(end)
            device.free += (begin, end)
            self._outstanding -= 1
