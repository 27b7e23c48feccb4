"""Variants timed in turn: one process of each is kept ready, and their short windows alternate in a balanced order.

A disturbance of one window also hits its neighbours, and cancels in their ratio.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from math import dist, hypot, lcm
from random import Random
from statistics import fmean, median
from time import monotonic
from typing import Final, NamedTuple, Self

import msgspec

from tputfind.analysis.answers import needed_bytes
from tputfind.analysis.compare import Tried
from tputfind.analysis.turns import LOOKS, THROUGHPUT, Cost, Round, Speed, Turns, is_steady, order_of_block
from tputfind.errors import BadRequest, NoSuchDevice
from tputfind.processes.children import Children
from tputfind.processes.failures import ChildFailed, for_want_of_memory, is_for_one_process, misuse_failure
from tputfind.processes.messages import TakeTurns, Turn
from tputfind.record.environment import Capabilities
from tputfind.record.identity import name_of
from tputfind.record.record import Failure, waits_for_host
from tputfind.record.spec import Spec
from tputfind.record.types import NOISE, REPEATABILITY
from tputfind.session.health import Watch
from tputfind.session.trials import FIRST_TIMEOUT_S, diagnosis_of
from tputfind.units import GIB

WINDOW_S: Final = 0.02
"""Seconds of a window: shorter windows would be mostly lead-in steps; longer ones let disturbances hit one variant
only."""
_FEWEST_BLOCKS: Final = 3
"""Minimum number of blocks, so that one disturbed block does not decide."""
_MOST_BLOCKS: Final = 100
_OF_STARTING: Final = 2.0
"""Windows take this many times the start-up time of the processes: more time is better spent on further processes."""
_OF_LEFT: Final = 0.6
"""Windows take no more than this fraction of the time left: a check of the outputs follows."""
AGAIN: Final = 0.5
"""Seconds of a further round, as a fraction of those of the first, which also checks outputs and compiles."""
_LONG_S: Final = 4.0
"""Total seconds after which fewer blocks suffice: short disturbances do not matter for such long steps."""


class Variant(NamedTuple):
    """A variant at a batch size; ``children`` starts its processes, ``can`` holds the features of its device.

    It is judged by its ``cost``; ``watch`` reads the device's power.
    """

    spec: Spec
    batch_size: int
    children: Children
    can: Capabilities
    cost: Cost = THROUGHPUT
    watch: Watch | None = None


class UnknownCost(NoSuchDevice, exit_code=3):
    """Raised if a device does not report a cost."""

    def __init__(self, cost: Cost, device_name: str) -> None:
        super().__init__(
            f"--for {cost.goal}: {device_name} does not report the {cost.goal} of its work",
            "--for throughput and --for latency need only a clock",
        )


def multiple_near(batch_size: int, specs: Iterable[Spec]) -> int:
    """Return the largest multiple of the granularities of all specs up to a batch size, or else the smallest one."""
    step = lcm(*(spec.granularity for spec in specs))
    return max(batch_size // step, 1) * step


class VariantFailed(Exception):
    """Raised if a variant does not run; ``variant`` is its number."""

    def __init__(self, variant: int, failure: Failure) -> None:
        super().__init__(failure.message)
        self.variant = variant
        self.failure = failure


def take_round(
    variants: Sequence[Variant],
    number: int,
    random: Random,
    *,
    together: bool = True,
    error: float = REPEATABILITY,
    one_model: bool = False,
) -> Round:
    """Return the throughputs of one fresh process per variant, in turn; windows take about twice the start-up time.

    The first round, whose ``number`` is 0, checks outputs, and starts the variants in their order. Processes are kept
    ready ``together``, or run one after the other, for variants that do not fit together. A round ends sooner at a
    standard ``error`` of the ratios, as in ``is_steady``. Variants of ``one_model`` have equal outputs of one dtype.

    Raises:
        VariantFailed: a variant does not run.
        OutOfTime: the end that ``Children.end_within`` set has come; other errors as for ``Children.ask``.
    """
    order = list(range(len(variants)))
    if number:  # in the first round, those before a failing variant have run
        random.shuffle(order)
    groups = [order] if together else [[index] for index in order]
    per_s: list[list[float]] = [[] for _ in variants]
    speeds: dict[int, Speed] = {}
    lasts: dict[int, Turn] = {}
    most = _MOST_BLOCKS
    for place, group in enumerate(groups):
        with ExitStack() as stack:
            begin_s, done = monotonic(), 0
            processes = {index: stack.enter_context(_Process(variants[index], index, number)) for index in group}
            for process in processes.values():
                process.start()
            left_s = min(variants[index].children.seconds_left() for index in group) / (len(groups) - place)
            until_s = monotonic() + min(_OF_STARTING * (monotonic() - begin_s), _OF_LEFT * left_s)
            while done < most and _needs_another_block(done, until_s):
                for index in order_of_block(group, random):
                    per_s[index].append(processes[index].window_per_unit())
                done += 1
                if together:
                    ready = tuple(processes[index].median_speed() for index in range(len(variants)))
                    if is_steady(Round(tuple(map(tuple, per_s)), ready), error):
                        break
            most = done  # a later group takes no more, and fewer if its windows take longer
            for process in processes.values():
                process.close_gate()  # so that all check their outputs at once
            for index, process in processes.items():
                process.finish()
                speeds[index], lasts[index] = process.median_speed(), process.last
    if one_model:
        _check_values([variant.spec for variant in variants], [lasts[index] for index in range(len(variants))])
    count = min(map(len, per_s))
    per_s = [windows[:count] for windows in per_s]
    return Round(tuple(map(tuple, per_s)), tuple(speeds[index] for index in range(len(variants))))


def _check_values(specs: Sequence[Spec], lasts: Sequence[Turn]) -> None:
    """Raise VariantFailed if outputs of one dtype differ from those of the first variant by more than rounding.

    They may differ in number or in order: rounding can decide which boxes a detector finds. Those of other weights or
    inputs are not compared: a factory may draw them by a generator of its own, without a seed.
    """
    first, there = specs[0], lasts[0].values
    for index, (spec, last) in enumerate(zip(specs, lasts, strict=True)):
        here = last.values
        if spec.dtype != first.dtype or len(here) != len(there) or last.sources != lasts[0].sources:
            continue
        apart = min(dist(here, there), dist(sorted(here), sorted(there))) / max(hypot(*there), 1e-300)
        if apart > NOISE[spec.dtype]:
            of = name_of(first, images=first.layout != spec.layout)
            how = f"outputs differ by {apart:.2g} (relative) from those of {of}"
            raise VariantFailed(index, Failure(kind="wrong_output", message=how))


def _needs_another_block(done: int, until_s: float) -> bool:
    left_s = until_s - monotonic()
    return left_s > 0 or (done < _FEWEST_BLOCKS and (done == 0 or left_s > -_LONG_S))


class Duel:
    """Two variants, and their timings in turn."""

    refusal: BadRequest | None = None
    """The error if a variant does not run at its batch size, which was requested, but at others."""

    def __init__(
        self,
        old: Variant,
        new: Variant,
        *,
        inspect: Callable[[Variant], Variant] | None = None,
        first_error: float = REPEATABILITY,
        one_model: bool = False,
    ) -> None:
        """Take the two variants; one that runs only in another mode of autograd is later put in that mode.

        ``inspect`` returns the new variant as the device runs it, before the first round that it takes here.
        ``first_error`` is the error at which the first round ends sooner. ``one_model`` is as for ``take_round``.
        """
        self.variants = [old, new]
        self._inspect = inspect
        self._first_error, self._one_model = first_error, one_model
        self.tried = Tried(Turns(batch_sizes=(old.batch_size, new.batch_size)))
        self.took_s = 0.0  # expected seconds of its next round
        self._together = True

    @property
    def batch_size(self) -> int:
        """Batch size of the old variant."""
        return self.variants[0].batch_size

    def goes_on(self, is_certain: Callable[[Tried], bool]) -> bool:
        """Whether another round is needed; the verdict is looked at only after the numbers of rounds in ``LOOKS``."""
        count = len(self.tried.turns.rounds)
        if self.tried.failure is not None or count >= LOOKS[-1]:
            return False
        return count not in LOOKS or not is_certain(self.tried)

    def take_round(self, random: Random) -> None:
        """Take one more round, or adapt to a failure or record it; errors as for ``take_round``."""
        turns, begin_s = self.tried.turns, monotonic()
        number = len(turns.rounds)
        if self._inspect is not None:
            self.variants[1], self._inspect = self._inspect(self.variants[1]), None
        try:
            error = REPEATABILITY if number else self._first_error
            together, one_model = self._together, self._one_model
            taken = take_round(self.variants, number, random, together=together, error=error, one_model=one_model)
        except VariantFailed as failed:
            want = for_want_of_memory(failed.failure) or is_for_one_process(failed.failure)
            if self._together and want:
                self._together = False  # one after the other, each may have enough memory
            elif not self._runs_otherwise(failed):
                self.tried = self.tried._replace(failed=failed.variant, failure=failed.failure)
        else:
            self.tried = self.tried._replace(turns=msgspec.structs.replace(turns, rounds=(*turns.rounds, taken)))
        self.took_s = (monotonic() - begin_s) * (1.0 if number else AGAIN)

    def _runs_otherwise(self, failed: VariantFailed) -> bool:
        """Whether a failed variant runs with other settings, such as another mode of autograd; it keeps them then."""
        variant = self.variants[failed.variant]
        if failed.failure.kind != "error":
            return False
        found: dict[str, object] = {}
        try:
            found = diagnosis_of(variant.children, variant.spec, variant.batch_size, variant.can).settings
        except BadRequest as refusal:  # other batch sizes may run, but these were requested
            self.refusal = refusal
        if found:
            spec = msgspec.structs.replace(variant.spec, **found)
            self.variants[failed.variant] = variant._replace(spec=spec)
            if spec.batch_sizes is None:
                specs = [one.spec for one in self.variants]
                sizes = [multiple_near(one.batch_size, specs) for one in self.variants]
                self.variants = [one._replace(batch_size=size) for one, size in zip(self.variants, sizes, strict=True)]
                self.tried = Tried(msgspec.structs.replace(self.tried.turns, batch_sizes=tuple(sizes)))
        return bool(found)


def duels_to_continue(duels: Sequence[Duel], is_certain: Callable[[Tried], bool], until_s: float) -> Iterator[Duel]:
    """Yield the duels that need another round, by turns, until each is certain or there is no time for one more.

    ``is_certain`` says whether the timings need no further round; ``until_s`` is the end, by the monotonic clock in
    seconds. The very first round is always yielded.
    """
    while left := [duel for duel in duels if duel.goes_on(is_certain)]:
        for duel in left:
            expected_s = duel.took_s or max(one.took_s for one in duels)
            if expected_s and monotonic() + expected_s > until_s:
                return
            yield duel


class _Process:
    """A process of one variant, which works only in its turn; a context manager that ends it."""

    def __init__(self, variant: Variant, index: int, number: int) -> None:
        self._index, self._variant = index, variant
        self._spans_ms: dict[bool, list[float]] = {True: [], False: []}  # by whether batches were timed alone
        self._submission_ms: list[float] = []  # of those timed alone
        self.last = Turn()
        """The last turn, with values of the outputs of the smallest batch in the first round."""
        self._gate, self._opener = os.pipe()
        spec, size, alone = variant.spec, variant.batch_size, variant.cost.alone
        question = TakeTurns(spec=spec, batch_size=size, window_s=WINDOW_S, alone=alone, number=number, can=variant.can)
        self._answers = variant.children.ask(question, Turn, spec.trial_timeout_s or FIRST_TIMEOUT_S, self._gate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self.close_gate()
        os.close(self._gate)

    def start(self) -> None:
        self._ready = self._next()
        self._spans_ms[not self._variant.cost.alone] += self._ready.device_ms
        self._submission_ms += self._ready.submission_ms

    def window_per_unit(self) -> float:
        """Let the process take one window; return its samples per unit of the cost.

        UnknownCost if the device does not report it.
        """
        cost, watch, spans_ms = self._variant.cost, self._variant.watch, list[float]()
        until_s = monotonic() + cost.window_s
        if watch is not None:
            watch.begin()
        while not spans_ms or monotonic() < until_s:
            with suppress(OSError):  # the process died, which shows when it is read
                os.write(self._opener, b".")
            turn = self._next()
            spans_ms += turn.device_ms
            self._submission_ms += turn.submission_ms
        self._spans_ms[cost.alone] += spans_ms
        seen, step_s = watch.end() if watch is not None else None, fmean(spans_ms) / 1000
        power_w = None if seen is None else seen.power_w
        ready, instances = self._ready, self._variant.spec.instances
        peak_bytes = needed_bytes(self._variant.can, ready.peak_allocated_bytes, ready.peak_reserved_bytes)
        of_step = {"s": step_s, "GiB": instances * (peak_bytes or 0) / GIB, "J": (power_w or 0.0) * step_s}
        if not (spent := of_step[cost.unit]):
            raise UnknownCost(cost, "the device")
        return ready.samples / spent

    def median_speed(self) -> Speed:
        alone, back_to_back = self._spans_ms[True], self._spans_ms[False]
        waits = waits_for_host(self._submission_ms, alone)
        if not self._variant.can.events:  # every step is synchronised, and the windows are spread over more time
            alone = back_to_back = alone + back_to_back
        rate, size = 1000 * self._ready.samples / fmean(back_to_back), self._variant.batch_size
        return Speed(
            batch_size=size,
            samples_per_s=rate,
            latency_ms=median(alone),
            host_bound=waits,
            compile_s=self._ready.compile_s,
        )

    def finish(self) -> None:
        """Let the process end, and note its last turn; raise VariantFailed if it rejects its windows or its outputs."""
        self.close_gate()
        counts = False
        try:
            for turn in self._answers:
                self._check(turn)
                self.last, counts = turn, True
        except ChildFailed as death:
            if not counts:
                raise VariantFailed(self._index, death.failure) from None

    def _next(self) -> Turn:
        try:
            turn = next(self._answers, Turn(failure=misuse_failure()))
        except ChildFailed as death:
            raise VariantFailed(self._index, death.failure) from None
        self._check(turn)
        return turn

    def _check(self, turn: Turn) -> None:
        if turn.failure is not None:
            raise VariantFailed(self._index, turn.failure)

    def close_gate(self) -> None:
        """Let the process check its outputs and end."""
        if self._opener >= 0:
            os.close(self._opener)
            self._opener = -1
