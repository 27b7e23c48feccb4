"""One batch timed in every way there is, the wrong ones too: so that each can be held against the others."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import Final

from tputfind.errors import TputfindError
from tputfind.processes.messages import TimeMethods
from tputfind.record.clocks import GRAPH, Cell, Condition, Figures, Loop, TimingMethod, is_plain, schedule
from tputfind.record.spec import Spec
from tputfind.worker.batch import Batch
from tputfind.worker.devices import failure_of, open_device
from tputfind.worker.devices.protocol import Device
from tputfind.worker.loops import back_to_back, one_at_a_time
from tputfind.worker.modes.cudagraph import captured
from tputfind.worker.own_step import make_workload
from tputfind.worker.warm_up import warm_up
from tputfind.worker.workload import inference

_WINDOW_S: Final = 0.6
"""For which warm-up settles: it takes half as long at the least, so that an idle device clocks up."""
_WARMUP_STEPS: Final = 10
_MOST_S: Final = 60.0
_LEAD_IN: Final = 1
"""Batches before each turn that are not timed."""
Step = Callable[[], object]
Samples = Sequence[Sequence[float]]
"""Milliseconds a batch, for each of the ways that one loop answers."""


def time_methods(asked: TimeMethods, announce: Callable[[float], None]) -> Iterator[Cell]:
    """Yield the cells, turn by turn.

    A failure of copies is just that loop's, where the process can go on; any other is the last cell.
    """
    device = open_device(asked.spec.device, asked.can)
    timed = _Timed(asked, device, announce)
    failed: set[Loop] = set()
    for turn in schedule(asked.loops, asked.repeats, asked.drop):
        for loop, count in turn:
            if loop in failed:
                continue
            ways, condition = loop
            try:
                samples = timed.run(ways, condition, count)
            except TputfindError:
                raise
            except BaseException as error:  # a model can raise anything, sys.exit too
                failure = failure_of(error, device, asked.batch_size)
                yield from (Cell(way=way, condition=condition, failure=failure) for way in ways)
                if is_plain(ways[0], condition) or ways == GRAPH or not device.usable():
                    return
                failed.add(loop)
            else:
                for way, of_way in zip(ways, samples, strict=True):
                    yield Cell(way=way, condition=condition, figures=Figures.of(of_way))


def warmed_s(device: Device, step: Step, spec: Spec, announce: Callable[[float], None]) -> float:
    """Warm a step up, and return about how many seconds it takes."""
    steps = _WARMUP_STEPS if spec.warmup is None else spec.warmup
    warmed = warm_up(device, step, announce, steps=steps, window_s=_WINDOW_S, max_seconds=_MOST_S)
    return warmed.fastest_ms / 1000


class _Timed:
    """The batch of one question on its device. What it takes is made when it is first needed."""

    def __init__(self, asked: TimeMethods, device: Device, announce: Callable[[float], None]) -> None:
        self._asked = asked
        self._device = device
        self._announce = announce
        self._warm: dict[tuple[bool, Condition], tuple[Step, float]] = {}

    def run(self, ways: Sequence[TimingMethod], condition: Condition, count: int) -> Samples:
        """Run one loop of ``count`` timings, after warm-up and a batch unless the condition is that there is none."""
        loop = _LOOPS[ways[0]]
        batch = self._batch  # made outside of inference mode, as a user would
        with inference(self._asked.spec.grad_mode):
            if condition == "cold":
                self._announce(self._asked.expected_s)
                samples = loop(self._device, batch, count, 0)
            else:
                step, seconds = self._warm_step(condition, graph=ways == GRAPH)
                self._announce((count + _LEAD_IN) * seconds)
                samples = loop(self._device, step, count, _LEAD_IN)
            self._device.synchronize()
        return samples if len(samples) == len(ways) else [samples[0]] * len(ways)

    @cached_property
    def _batch(self) -> Batch:
        self._device.limit_memory(self._asked.spec.memory_limit_bytes)
        workload = make_workload(self._asked.spec, self._device.torch_device)
        with inference(self._asked.spec.grad_mode):
            batch = workload.batch(self._asked.batch_size)
        workload.check_samples(batch)
        gc.collect()
        gc.freeze()  # collections while a loop runs then look at what the steps make, not at all of torch
        return batch

    @cached_property
    def _replay(self) -> Step:
        return captured(self._batch)

    def _warm_step(self, condition: Condition, *, graph: bool) -> tuple[Step, float]:
        """Return a step of this condition that has been warmed up, and about how many seconds it takes."""
        if (graph, condition) not in self._warm:
            step: Step = self._replay if graph else self._batch
            if condition != "warm":
                step = _after(self._batch.feed_from_host(pinned=condition == "pinned"), step)
            self._warm[graph, condition] = step, warmed_s(self._device, step, self._asked.spec, self._announce)
        return self._warm[graph, condition]


def _after(feed: Callable[[], None], step: Step) -> Step:
    def fed() -> object:
        feed()
        return step()

    return fed


def _lead_in(device: Device, step: Step, batches: int) -> None:
    for _ in range(batches):
        step()
    device.synchronize()


def _host_clock(device: Device, step: Step, repeats: int, lead_in: int) -> Samples:
    """The host clock around the call: submission, or waiting behind what was submitted before."""
    _lead_in(device, step, lead_in)
    spans_ms: list[float] = []
    for _ in range(repeats):
        start_ns = perf_counter_ns()
        output = step()
        spans_ms.append((perf_counter_ns() - start_ns) / 1e6)
    device.synchronize()
    del output
    return [spans_ms]


def _host_clock_synchronised(device: Device, step: Step, repeats: int, lead_in: int) -> Samples:
    """The host clock from the call to the synchronised output: the latency of a row."""
    _lead_in(device, step, lead_in)
    return [one_at_a_time(device, step, repeats).synchronised_ms]


def _events_waited(device: Device, step: Step, repeats: int, lead_in: int) -> Samples:
    """A pair of events around the call; the host waits for the second before it goes on."""
    watches = [device.stopwatch(2) for _ in range(repeats)]
    _lead_in(device, step, lead_in)
    spans_ms: list[float] = []
    for watch in watches:
        watch.mark()
        output = step()
        watch.mark()
        spans_ms += watch.spans_ms()
    del output
    return [spans_ms]


def _events_at_end(device: Device, step: Step, repeats: int, lead_in: int) -> Samples:
    """Marks between batches that are submitted back to back, read at the end: the throughput of a row.

    The host waits for nothing after what leads in: the first mark is not to fall onto an idle device.
    """
    return [back_to_back(step, device.stopwatch(repeats + 1), repeats, lead_in)]


def _boundaries(device: Device, step: Step, repeats: int, lead_in: int) -> Samples:
    """Three boundaries of the same batches, each sent to an idle device: submission, synchronised output, device."""
    watches = [device.stopwatch(2) for _ in range(repeats)]
    _lead_in(device, step, lead_in)
    singles = one_at_a_time(device, step, repeats, stopwatches=watches)
    device_ms = [span_ms for watch in watches for span_ms in watch.spans_ms()]
    return singles.submission_ms, singles.synchronised_ms, device_ms


_LOOPS: Final[Mapping[TimingMethod, Callable[[Device, Step, int, int], Samples]]] = {
    "host_clock": _host_clock,
    "host_clock_synchronised": _host_clock_synchronised,
    "events_waited": _events_waited,
    "events_at_end": _events_at_end,
    "graph": _events_at_end,
    "submission": _boundaries,
}
"""By the first of the ways that a loop answers; each step may be a batch, or the replay of one. A loop takes how many
timings, and how many batches lead in."""
