"""The loops that run batches: back to back, one at a time, and as in a trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Final, NamedTuple

from tputfind.worker.devices.protocol import Device, Stopwatch
from tputfind.worker.structures import count_values

MOST_MARKED: Final = 2000
"""Number of batches that makes any window long enough, and maximum number of events of a block.

A batch takes one or two events.
"""
_MOMENT_MS: Final = 20.0
"""Milliseconds of work between checks whether other processes are ready.

The host waits for the device before each check; with this interval the device hardly idles.
"""
Announce = Callable[[float], None]
"""Takes the expected seconds of the next stage, which distinguish a long stage from a hang."""
Restore = Callable[[], None]
"""Undoes the writes of a step into its inputs."""


class Work(NamedTuple):
    """The work to time: ``step`` is one of many batches in a row, ``single`` a batch by itself.

    ``lead_in`` untimed batches come before the batches in a row. ``restore`` returns a function to call before each
    batch, outside of its time, or None; the first batch decides. ``held`` returns the last batch's output if it is kept
    alive, else None.
    """

    step: Callable[[], object]
    single: Callable[[], object]
    lead_in: int = 1
    restore: Callable[[], Restore | None] = lambda: None
    held: Callable[[], object] = lambda: None

    def restore_inputs(self) -> None:
        """Undo the writes of the last step into its inputs, if there are any."""
        restore = self.restore()
        if restore is not None:
            restore()

    def fresh_step(self) -> object:
        """Run a step on inputs that no step has written into."""
        self.restore_inputs()
        return self.step()

    def holding(self) -> Work:
        """Return the same work with each output alive until the next, as with ``output = model(inputs)`` in a loop.

        A loop of a few batches would otherwise take less memory than a trial or a long loop.
        """
        held: object = None

        def hold(run: Callable[[], object]) -> Callable[[], object]:
            def run_and_hold() -> object:
                nonlocal held
                held = run()
                return held

            return run_and_hold

        step = hold(self.step)
        single = step if self.single is self.step else hold(self.single)
        return self._replace(step=step, single=single, held=lambda: held)


class Steps(NamedTuple):
    """The time of each step of a trial in ms, and the number of values in the smallest output after the first step."""

    spans_ms: list[float]
    returned: int | None = None


class Singles(NamedTuple):
    """The times of single batches in ms: from the call to its return, and from the call to the synchronised output.

    The time to the return is the host's own work. Back to back it would include waits for space in the launch queue.
    """

    submission_ms: list[float]
    synchronised_ms: list[float]


def try_steps(device: Device, work: Work, steps: int, announce: Announce) -> Steps:
    """Run a trial's steps, each output alive while the next is made, and time each up to its synchronised output."""
    spans_ms: list[float] = []
    returned: int | None = None
    output: object = None
    for number in range(steps):
        _restore_and_wait(device, work.restore())
        start_ns = perf_counter_ns()
        output = work.step() if number else device.first_step(work.step)
        device.synchronize()
        spans_ms.append((perf_counter_ns() - start_ns) / 1e6)
        if number:
            counted = count_values(output)
            returned = counted if returned is None else min(returned, counted)
        else:
            announce(steps * spans_ms[0] / 1000)
    del output
    return Steps(spans_ms, returned)


def trial_step_ms(spans_ms: Sequence[float]) -> float:
    """Return the step time of a trial in ms: that of the fastest step after the first, or of the only step."""
    return min(spans_ms[1:] or spans_ms)


def _restore_and_wait(device: Device, restore: Restore | None) -> None:
    if restore is not None:
        restore()
        device.synchronize()


def steps_ms(device: Device, step: Callable[[], object], count: int) -> float:
    """Run ``count`` steps back to back; return the mean time of a step in ms."""
    start_ns = perf_counter_ns()
    output: object = None
    for _ in range(count):
        output = step()
    device.synchronize()
    del output
    return max((perf_counter_ns() - start_ns) / 1e6 / count, 1e-6)


def moments(device: Device, work: Work) -> Callable[[], int]:
    """Return a function that works for about 20 ms as in a throughput window, and returns its number of steps."""
    step_ms = _MOMENT_MS

    def moment() -> int:
        nonlocal step_ms
        steps = max(1, min(MOST_MARKED // 2, math.floor(_MOMENT_MS / step_ms)))
        step_ms = steps_ms(device, work.fresh_step, steps)
        return steps

    return moment


def back_to_back(
    step: Callable[[], object], stopwatch: Stopwatch, batches: int, lead_in: int, restore: Restore | None = None
) -> list[float]:
    """Submit batches back to back; return the time of each in ms between marks in the device's own order of work.

    The host never waits in between. After ``lead_in`` steps the device is busy at the first mark, and does not wait for
    its first kernel. If inputs are restored between steps, each step has marks on both sides, which exclude the
    device's time to restore.
    """
    output: object = None
    for _ in range(lead_in):
        if restore is not None:
            restore()
        output = step()
    if restore is None:
        stopwatch.mark()
    for _ in range(batches):
        if restore is not None:
            restore()
            stopwatch.mark()
        output = step()
        stopwatch.mark()
    spans_ms = stopwatch.spans_ms()[:: 1 if restore is None else 2]
    del output
    return spans_ms


def one_at_a_time(
    device: Device,
    single: Callable[[], object],
    batches: int,
    *,
    least: int = 0,
    seconds: float = math.inf,
    enough: Callable[[Sequence[float]], bool] | None = None,
    stopwatches: Sequence[Stopwatch] = (),
    restore: Restore | None = None,
) -> Singles:
    """Run at most this many single batches on the idle device; return their times.

    After ``least`` batches it ends when the ``seconds`` are over or the synchronised times so far are ``enough``. If
    there are ``stopwatches``, one marks the begin and end of each batch, which waits for ``restore`` of its inputs.
    """
    submission_ms: list[float] = []
    synchronised_ms: list[float] = []
    deadline_ns = perf_counter_ns() + seconds * 1e9
    output: object = None
    for count in range(batches):
        if count >= least and (perf_counter_ns() > deadline_ns or (enough is not None and enough(synchronised_ms))):
            break
        _restore_and_wait(device, restore)
        if stopwatches:
            stopwatches[count].mark()
        start_ns = perf_counter_ns()
        output = single()
        submitted_ns = perf_counter_ns()
        if stopwatches:
            stopwatches[count].mark()
        device.synchronize()
        synchronised_ms.append((perf_counter_ns() - start_ns) / 1e6)
        submission_ms.append((submitted_ns - start_ns) / 1e6)
    del output
    return Singles(submission_ms, synchronised_ms)
