"""Time the stages of the user's own pipeline without blocking host or device."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from random import Random
from threading import RLock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import msgspec
import torch

from tputfind.errors import BadRequest
from tputfind.stats import percentile

RESERVOIR: Final = 1000
"""Spans of a stage that are kept for its percentiles."""
MOST_OUTSTANDING: Final = 4096
"""Maximum pairs of marks that await the device, whose launch queues hold about a thousand launches each."""
_A_FEW: Final = 2
"""Pairs checked when a block ends: one keeps up, the second works off the backlog."""


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
        self.count += 1
        self.total += sample
        if self.count <= RESERVOIR:
            self.chosen.append(sample)
        elif (place := int(self._random.random() * self.count)) < RESERVOIR:
            self.chosen[place] = sample


_Pair = tuple[Samples, torch.Event, torch.Event]


class _Device:
    """The events of one device: free ones, and by stream the pairs that it has not passed yet, oldest first."""

    __slots__ = ("_kind", "done_ns", "free", "index", "origin", "pairs")

    def __init__(self, kind: str, index: int) -> None:
        self._kind = kind
        self.index = index
        self.free: list[torch.Event] = []
        self.pairs: defaultdict[int, deque[_Pair]] = defaultdict(deque)
        self.origin: tuple[torch.Event, int] | None = None  # the first mark, and the host clock at that time
        self.done_ns = 0.0

    def mark(self, stream: torch.Stream) -> torch.Event:
        """Record an event on the stream. torch.cuda's own class does the same through more Python."""
        try:
            event = self.free.pop()
        except IndexError:
            event = torch.Event(self._kind, enable_timing=True)
        event.record(stream)
        return event

    def note_done(self, end: torch.Event) -> None:
        """Convert the time of a passed event to the host clock, and keep the latest. It may have passed long ago."""
        if self.origin is not None and self.origin[0].query():
            self.done_ns = max(self.done_ns, self.origin[1] + self.origin[0].elapsed_time(end) * 1e6)


Mark = tuple[_Device, torch.Event | None]


class Marks:
    """Marks on the current streams of one kind of device. Only ``wait`` blocks until they have passed."""

    def __init__(self, kind: str, *, enabled: bool, index: int | None) -> None:
        module = torch.get_device_module(kind)
        self._kind = kind
        # Also False in a forked child.
        self._is_open: Callable[[], bool] = getattr(module, "is_initialized", lambda: True)
        self._is_capturing: Callable[[], bool] = getattr(module, "is_current_stream_capturing", lambda: False)
        self.lock = RLock()  # not a Lock: a signal handler may request the table while its thread holds it
        self._enabled = enabled
        self._index = index
        self._devices: dict[int, _Device] = {}
        self._outstanding = 0

    def begin(self) -> Mark | None:
        """Mark the current stream; return None without a device.

        The mark has no event under graph capture, or if too many pairs are outstanding.
        """
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
        """Mark the current stream, queue the pair until its span is known, and check a few of the oldest pairs."""
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
        """Release the event of a mark for reuse, without a call to the device, which may have failed."""
        device, begin = mark
        if begin is not None:
            device.free.append(begin)

    def collect(self) -> None:
        """Add the spans of all pairs that the device has passed."""
        if self._may_ask():
            with self.lock:
                self._resolve_all(sys.maxsize, late=True)

    def wait(self) -> None:
        """Wait for all current pairs, without the lock, so that other threads go on."""
        if not self._may_ask():
            return
        with self.lock:
            queues = [pairs for device in self._devices.values() for pairs in device.pairs.values()]
            waiting = [pair for pairs in queues for pair in tuple(pairs)]
        for _, begin, end in waiting:
            begin.synchronize()
            end.synchronize()

    def done_ns(self) -> float:
        """Return when, by the host clock in ns, the device had passed the last of the pairs that ``collect`` took."""
        return max((device.done_ns for device in self._devices.values()), default=0.0)

    def reset(self) -> None:
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
        """Add the spans of the oldest pairs, at most ``most``, as far as the device has passed them."""
        for _ in range(most):
            if not pairs:
                return
            spans, begin, end = pairs.popleft()
            if not (end.query() and begin.query()):  # the begin may be on another stream
                pairs.appendleft((spans, begin, end))
                return
            spans.add(begin.elapsed_time(end))
            if late:
                device.note_done(end)
            device.free += (begin, end)
            self._outstanding -= 1


if TYPE_CHECKING:
    import pandas as pd


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one stage; None means unknown.

    ``count`` is the number of blocks that ended without an exception; all figures but ``failed`` are of these.
    ``device_ms`` is the mean span between the marks on the stream, which on an idle stream includes the wait for the
    host's launches. Its percentiles are of a random choice if there are more than RESERVOIR spans; the 99th is None
    below 100 spans. ``host_ms`` is the mean host clock of the whole block, waiting included. ``enqueue_ms`` is the same
    of blocks on a device: the time that the host took to submit them; None for host stages.

    ``share`` is the stage's time, on the device if it was marked and by the host clock otherwise, divided by the total:
    the host clock from the begin of the first block to the end of the last one, or to when the device had done the
    work. A block inside another one of the same stage (recursion) counts in all figures but the share, which has the
    time of the outer block alone. Shares of different stages that nest may add up to more than 1, and so may the share
    of one stage whose blocks overlap, in several threads or tasks, or on several streams. Unresolved spans are missing
    from it.

    ``failed`` counts the blocks that an exception ended, ``unresolved`` the blocks of a device stage that lack their
    span: not done yet, begun before torch initialized the device, under graph capture, or beyond MOST_OUTSTANDING at
    once.
    """

    stage: str
    count: int
    device_ms: float | None
    device_ms_p50: float | None
    device_ms_p99: float | None
    host_ms: float | None
    enqueue_ms: float | None
    share: float | None
    failed: int
    unresolved: int


_PANDAS: Final = {str: "string", int: "Int64"}
COLUMNS: Final = {field.name: _PANDAS.get(field.type, "Float64") for field in msgspec.structs.fields(StageTime)}
"""The table's columns in order, with their pandas types. All allow empty cells: unknown is empty, never 0."""


class _Inner(Samples):
    """Samples that are added to those of a whole, too."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Samples) -> None:
        super().__init__()
        self._whole = whole

    def add(self, sample: float) -> None:
        self._whole.add(sample)
        self.total += sample


class _Stage:
    __slots__ = (
        *("asked", "failed", "first_ns", "host", "host_ns", "inner_ns", "inner_spans", "last_ns", "name", "spans"),
        *("submit_ns", "submitted"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = self.failed = 0
        self.host = self.host_ns = 0  # blocks timed by the host clock alone
        self.submitted = self.submit_ns = 0  # blocks on a device, marked or not
        self.spans = Samples()
        self.inner_ns, self.inner_spans = 0, _Inner(self.spans)  # blocks inside one of the same stage
        self.first_ns, self.last_ns = sys.maxsize, 0

    def close(self, start_ns: int, end_ns: int, *, failed: bool, asked: bool, on_device: bool, inner: bool) -> None:
        """Count a block that has ended. ``asked``: whether device time was requested, with or without a device."""
        self.first_ns = min(self.first_ns, start_ns)
        self.last_ns = max(self.last_ns, end_ns)
        if failed:
            self.failed += 1
            return
        self.asked += asked
        if on_device:
            self.submitted += 1
            self.submit_ns += end_ns - start_ns
        else:
            self.host += 1
            self.host_ns += end_ns - start_ns
            self.inner_ns += (end_ns - start_ns) * inner

    def line(self, whole_ns: float) -> StageTime:
        spans, count = self.spans, self.host + self.submitted
        known = (spans.count or self.host) and whole_ns > 0
        outer_ns = (spans.total - self.inner_spans.total) * 1e6 + self.host_ns - self.inner_ns
        return StageTime(
            stage=self.name,
            count=count,
            device_ms=spans.total / spans.count if spans.count else None,
            device_ms_p50=percentile(spans.chosen, 50),
            device_ms_p99=percentile(spans.chosen, 99),
            host_ms=(self.host_ns + self.submit_ns) / count / 1e6 if count else None,
            enqueue_ms=self.submit_ns / self.submitted / 1e6 if self.submitted else None,
            share=outer_ns / whole_ns if known else None,
            failed=self.failed,
            unresolved=self.asked - spans.count if self.submitted else 0,
        )


class _Stages(dict[str, _Stage]):
    def __missing__(self, name: str) -> _Stage:
        return self.setdefault(name, _Stage(name))  # if two threads arrive at once, both get the first one's


class _Block:
    """One block of a stage: a context manager for one ``with`` at a time."""

    __slots__ = ("_asked", "_inner", "_mark", "_marks", "_name", "_stage", "_stages", "_start_ns")

    def __init__(self, stages: _Stages, marks: Marks, name: str, asked: bool) -> None:
        self._stages = stages
        self._marks = marks
        self._name = name
        self._asked = asked
        self._start_ns = 0

    def __enter__(self) -> None:
        if self._start_ns:
            raise RuntimeError(f"this block of stage {self._name!r} is open: call stage() anew for every with")
        self._stage, around = self._stages[self._name], _OPEN.get()
        self._inner = any(block.is_open_in(self._stage) for block in around)
        self._mark = self._marks.begin() if self._asked else None
        _OPEN.set((*around, self))
        self._start_ns = perf_counter_ns()

    def is_open_in(self, stage: _Stage) -> bool:
        return self._stage is stage and self._start_ns > 0

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        end_ns, start_ns = perf_counter_ns(), self._start_ns
        marks, mark, stage = self._marks, self._mark, self._stage
        self._start_ns, failed = 0, kind is not None
        _OPEN.set(tuple(block for block in _OPEN.get() if block is not self))  # a generator may end in any order
        try:
            if mark is not None and failed:
                marks.drop(mark)
            elif mark is not None:
                marks.end(mark, stage.inner_spans if self._inner else stage.spans)
        finally:  # recording the mark may be the first call to raise an error of the device
            with marks.lock:
                on_device, inner = mark is not None, self._inner
                stage.close(start_ns, end_ns, failed=failed, asked=self._asked, on_device=on_device, inner=inner)


_OPEN: Final[ContextVar[tuple[_Block, ...]]] = ContextVar("open stages", default=())
"""The blocks that this thread or task is in, or was in when it started; blocks that have ended have no start time."""


class StageTimer:
    """Times the stages of a pipeline on the device and by the host clock, without making either wait for the other.

    ::

        timer = StageTimer()
        for frame in frames:
            with timer.stage("detect"):
                boxes = detector(batch)
            with timer.stage("draw", device=False):
                draw(frame, boxes)
        print(timer.frame())

    Stages may be nested, threads may share a timer, and memory is bounded however long the loop. CUDA graph capture
    suspends the marks. If one thread captures while others measure, capture with the ``capture_error_mode``
    "thread_local": with CUDA's default the capture breaks when any thread queries an event.

    Args:
        device: the device whose streams are marked; "cpu" for the host clock alone. By default, the current one when a
            block begins, of torch's accelerator here, once torch has initialized it: a timer does not initialize it for
            work on the CPU. Work on a device that is never made current needs a timer with its name.
    """

    __slots__ = ("__weakref__", "_marks", "_stages")

    def __init__(self, device: torch.device | str | None = None) -> None:
        here = torch.accelerator.current_accelerator() or torch.device("cpu")
        wanted = here if device is None else torch.device(device)
        if wanted.type not in (here.type, "cpu"):
            raise BadRequest(f"stages are timed on {here.type}, not on {wanted}", "device='cpu' takes the host clock")
        on_device = wanted.type != "cpu"
        if device is not None and on_device:
            _open(wanted)
        index = wanted.index if device is not None else None
        self._marks = Marks(wanted.type, enabled=on_device, index=index)
        self._stages = _Stages()

    def stage(self, name: str, *, device: bool = True) -> AbstractContextManager[None]:
        """Return a context manager that times its block as a block of that stage.

        An exception propagates unchanged, and the block is counted as failed. The marks are set on the streams that are
        current at the block's begin and end. If those differ, the span is from when the first stream reaches its mark
        until the second reaches its own: it may be negative if nothing makes the second stream wait. Without ``device``
        no marks are set, for work of the host.
        """
        return _Block(self._stages, self._marks, name, device)

    def finish(self) -> None:
        """Wait until the device has done all blocks that have ended."""
        self._marks.wait()
        self._marks.collect()

    def stages(self) -> tuple[StageTime, ...]:
        """Return the current figures of all stages, in order of first use, without waiting for the device."""
        self._marks.collect()
        with self._marks.lock:
            stages = tuple(self._stages.values())
            first_ns = min((stage.first_ns for stage in stages), default=0)
            last_ns = max((stage.last_ns for stage in stages), default=0)
            return tuple(stage.line(max(last_ns, self._marks.done_ns()) - first_ns) for stage in stages)

    def samples_ms(self, name: str) -> list[float]:
        """Return the known device spans of a stage in ms, without waiting; empty for an unknown stage.

        They are in the order of their ends; above RESERVOIR spans they are a random choice, in no order.
        """
        self._marks.collect()
        with self._marks.lock:
            return list(self._stages[name].spans.chosen) if name in self._stages else []

    def frame(self) -> pd.DataFrame:
        """Wait for the device, and return ``StageTime`` as a table: one line per stage, in order of first use."""
        import pandas as pd  # imported here to keep the import of the timer light

        self.finish()
        lines = self.stages()
        cells = {name: [getattr(line, name) for line in lines] for name in COLUMNS}
        return pd.DataFrame({name: pd.Series(cells[name], dtype=kind) for name, kind in COLUMNS.items()})

    def reset(self) -> None:
        """Drop all measurements, such as those of a warm-up, including those of blocks that are open now."""
        with self._marks.lock:
            self._stages.clear()
            self._marks.reset()


def _open(device: torch.device) -> None:
    """Make torch initialize a device now; BadRequest if it does not exist."""
    init = getattr(torch.get_device_module(device), "init", None)
    if init is not None:
        init()
    count = torch.accelerator.device_count()
    if (device.index or 0) >= count:
        raise BadRequest(f"there is no device {device}", f"torch sees {count}")
