"""The loops that take batches: back to back, one at a time, and as a trial does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Final, NamedTuple

from tputfind.worker.devices.protocol import Device, Stopwatch

MOST_MARKED: Final = 2000
"""Batches of a window for its length's sake, and events of a block: each batch takes one or two."""
_MOMENT_MS: Final = 20.0
"""Between looks at whether the others have come as far: waiting for the device so seldom leaves it hardly idle."""
Announce = Callable[[float], None]
"""Takes about how many seconds the next stage will take, so that a silence can be told from a hang."""


Restore = Callable[[], None]
"""Makes the inputs of a step what they were before it wrote into them."""


def _nothing() -> Restore | None:
    return None


class Work(NamedTuple):
    """What is timed: one batch of many in a row, after ``lead_in`` others, and one batch by itself.

    ``restore`` returns what is to be called before each batch, outside of its time, as far as the first one has shown.
    ``held`` returns the output of the last batch if it is held, else None.
    """

    step: Callable[[], object]
    single: Callable[[], object]
    lead_in: int = 1
    restore: Callable[[], Restore | None] = _nothing
    held: Callable[[], object] = _nothing

    def fresh_step(self) -> object:
        """Run a step on inputs that no step has written into."""
        restore = self.restore()
        if restore is not None:
            restore()
        return self.step()

    def holding(self) -> Work:
        """Return the same, with each output alive until the next is made, as in ``output = model(inputs)`` in a loop.

        What runs few batches at a time would otherwise take less memory than a trial and a loop of many.
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


class Singles(NamedTuple):
    """Batches one at a time, in ms each: to the return of the call, and to the synchronised output.

    The time to the return is the host's own work: back to back it would also hold the waiting for room in the launch
    queue.
    """

    submission_ms: list[float]
    synchronised_ms: list[float]


def try_steps(device: Device, work: Work, steps: int, announce: Announce) -> list[float]:
    """Take a trial's steps, each output alive while the next is made; return what each took, in ms.

    The boundary is the host clock from the call to the synchronised output.
    """
    spans_ms: list[float] = []
    output: object = None
    for number in range(steps):
        _restored(device, work.restore())
        start_ns = perf_counter_ns()
        output = work.step() if number else device.first_step(work.step)
        device.synchronize()
        spans_ms.append((perf_counter_ns() - start_ns) / 1e6)
        if len(spans_ms) == 1:
            announce(steps * spans_ms[0] / 1000)
    del output
    return spans_ms


def trial_step_ms(spans_ms: Sequence[float]) -> float:
    """Return what a step of a trial takes: the fastest after the first. A single step stands for itself."""
    return min(spans_ms[1:] or spans_ms)


def _restored(device: Device, restore: Restore | None) -> None:
    """Make the inputs what they were, and wait until they are."""
    if restore is not None:
        restore()
        device.synchronize()


def steps_ms(device: Device, step: Callable[[], object], count: int) -> float:
    """Take steps back to back; return what one took."""
    start_ns = perf_counter_ns()
    output: object = None
    for _ in range(count):
        output = step()
    device.synchronize()
    del output
    return max((perf_counter_ns() - start_ns) / 1e6 / count, 1e-6)


def moments(device: Device, work: Work) -> Callable[[], int]:
    """Return what works for a moment as in a throughput window, and returns the steps that it took."""
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
    """Submit batches back to back and return the span of each, in ms, between marks in the device's own order of work.

    The host never waits in between. Steps lead in, so that the first mark falls into steady running and not onto an
    idle device that waits for its first kernel. If inputs are restored between steps, a step has marks on both sides,
    and the device's time for restoring lies between two of them.
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
    """Send single batches to the idle device.

    Args:
        device: idle when this is called.
        single: runs one batch.
        batches: at the most.
        least: batches that are taken however long they take.
        seconds: the others are taken within this.
        enough: says of the synchronised times so far that no more need be taken.
        stopwatches: one a batch, to mark its begin and its end; none, to mark nothing.
        restore: called before each batch, which waits for it.
    """
    submission_ms: list[float] = []
    synchronised_ms: list[float] = []
    deadline_ns = perf_counter_ns() + seconds * 1e9
    output: object = None
    for count in range(batches):
        if count >= least and (perf_counter_ns() > deadline_ns or (enough is not None and enough(synchronised_ms))):
            break
        _restored(device, restore)
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
