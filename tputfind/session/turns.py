"""Variants timed in turn: a process of each is kept ready, and their short windows alternate in a balanced order.

What slows one window slows its neighbours, and cancels in their ratio.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from random import Random
from statistics import fmean
from time import monotonic
from types import TracebackType
from typing import Final, NamedTuple, Self

import msgspec

from tputfind.analysis.compare import Tried
from tputfind.analysis.turns import LOOKS, Round, Turns, is_steady, order_of_block
from tputfind.errors import BadRequest
from tputfind.processes.children import ChildFailed, Children
from tputfind.processes.failures import for_want_of_memory, of_misuse
from tputfind.processes.messages import TakeTurns, Turn
from tputfind.record.environment import Capabilities
from tputfind.record.record import Failure
from tputfind.record.spec import Spec
from tputfind.session.trials import FIRST_TIMEOUT_S, diagnosis_of

WINDOW_S: Final = 0.02
"""Shorter windows would be mostly steps that lead in; in longer ones more can happen to one and not to the other."""
_FEWEST_BLOCKS: Final = 3
"""So that one that was disturbed does not count."""
_MOST_BLOCKS: Final = 100
_OF_STARTING: Final = 2.0
"""Windows take this many times as long as it took to start the processes: more would be better spent on others."""
_LONG_S: Final = 4.0
"""Blocks that take longer together are enough, however few: steps so long are disturbed by nothing short."""


class Variant(NamedTuple):
    """One way to run the work at a batch size; ``children`` asks its processes, and ``can`` is what its device does."""

    spec: Spec
    batch_size: int
    children: Children
    can: Capabilities


class VariantFailed(Exception):
    """Raised when a variant does not run, with its number."""

    def __init__(self, variant: int, failure: Failure) -> None:
        super().__init__(failure.message)
        self.variant = variant
        self.failure = failure


def take_round(variants: Sequence[Variant], number: int, random: Random, *, together: bool = True) -> Round:
    """Return what one fresh process of each variant did in turn; windows take about twice as long as starting did.

    Args:
        variants: what takes turns.
        number: of the round, from 0; the first one checks outputs, and starts the variants in their order.
        random: draws the orders in which they start, and in which windows are taken.
        together: keep all processes ready. False has one after the other: memory may not do for all of them.

    Raises:
        VariantFailed: one of them does not run.
        TputfindError: a process refused the question.
        OutOfTime: the end that ``Children.end_within`` set has come.
    """
    order = list(range(len(variants)))
    if number:  # a later variant that fails in the first round fails where those before it run
        random.shuffle(order)
    groups = [order] if together else [[index] for index in order]
    per_s: list[list[float]] = [[] for _ in variants]
    wanted: int | None = None  # as many blocks as the first group took
    for group in groups:
        with ExitStack() as stack:
            begin_s, done = monotonic(), 0
            processes = {index: stack.enter_context(_Process(variants[index], index, number)) for index in group}
            for process in processes.values():
                process.start()
            until_s = monotonic() + _OF_STARTING * (monotonic() - begin_s)
            while _goes_on(done, until_s) if wanted is None else done < wanted:
                for index in order_of_block(group, random):
                    per_s[index].append(processes[index].window_per_s())
                done += 1
                if together and is_steady(Round(tuple(map(tuple, per_s)))):
                    break
            wanted = done
            for process in processes.values():
                process.finish()
    return Round(tuple(map(tuple, per_s)))


def _goes_on(done: int, until_s: float) -> bool:
    """Return whether another block is taken."""
    left_s = until_s - monotonic()
    return done < _MOST_BLOCKS and (left_s > 0 or (done < _FEWEST_BLOCKS and (done == 0 or left_s > -_LONG_S)))


class Duel:
    """Two variants, and what was timed of them in turn."""

    def __init__(self, old: Variant, new: Variant) -> None:
        """Take both; one that runs in another mode of autograd only is replaced by one in that mode."""
        self.variants = [old, new]
        self.tried = Tried(Turns(batch_sizes=(old.batch_size, new.batch_size)))
        self.took_s = 0.0  # its last round
        self._together = True

    @property
    def batch_size(self) -> int:
        """That of OLD."""
        return self.variants[0].batch_size

    def goes_on(self, is_certain: Callable[[Tried], bool]) -> bool:
        """Return whether another round is to be taken: somebody looks at the verdict after some of them only."""
        count = len(self.tried.turns.rounds)
        if self.tried.failure is not None or count >= LOOKS[-1]:
            return False
        return count not in LOOKS or not is_certain(self.tried)

    def take_round(self, random: Random) -> None:
        """Take one more round, or find out why that cannot be, or how it can; errors as for ``take_round``."""
        turns, begin_s = self.tried.turns, monotonic()
        try:
            taken = take_round(self.variants, len(turns.rounds), random, together=self._together)
        except VariantFailed as failed:
            if self._together and for_want_of_memory(failed.failure):
                self._together = False  # one after the other, each may have enough
            elif not self._runs_otherwise(failed):
                self.tried = self.tried._replace(failed=failed.variant, failure=failed.failure)
        else:
            self.tried = self.tried._replace(turns=msgspec.structs.replace(turns, rounds=(*turns.rounds, taken)))
        self.took_s = monotonic() - begin_s

    def _runs_otherwise(self, failed: VariantFailed) -> bool:
        """Return whether a variant that failed runs in another mode of autograd, and have it run so from now on."""
        variant = self.variants[failed.variant]
        if failed.failure.kind != "error" or variant.spec.grad_mode != "inference":
            return False
        found = None
        with suppress(BadRequest):  # other batch sizes may run: these are the ones that were asked for
            found = diagnosis_of(variant.children, variant.spec, variant.batch_size, variant.can).grad_mode
        if found is not None:
            spec = msgspec.structs.replace(variant.spec, grad_mode=found)
            self.variants[failed.variant] = variant._replace(spec=spec)
        return found is not None


def due(duels: Sequence[Duel], is_certain: Callable[[Tried], bool], until_s: float) -> Iterator[Duel]:
    """Yield the duels that are to take another round, until each is certain or there is no time for one more.

    Args:
        duels: those that go on take rounds by turns.
        is_certain: whether what was timed needs no further round.
        until_s: the end, by the monotonic clock; the first round of all is yielded in any case. Another one is expected
            to take as long as the one before.
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
        self._index = index
        self._gate, self._opener = os.pipe()
        spec = variant.spec
        question = TakeTurns(
            spec=spec, batch_size=variant.batch_size, window_s=WINDOW_S, number=number, can=variant.can
        )
        allowed_s = spec.trial_timeout_s or FIRST_TIMEOUT_S
        self._answers = variant.children.ask(question, Turn, allowed_s, self._gate)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._answers.close()
        self._close_gate()
        os.close(self._gate)

    def start(self) -> None:
        """Wait until the process is warm."""
        self._next()

    def window_per_s(self) -> float:
        """Let the process take one window; return its samples per second."""
        with suppress(OSError):  # it died, which shows as it is heard
            os.write(self._opener, b".")
        turn = self._next()
        return 1000 * turn.samples / fmean(turn.device_ms)

    def finish(self) -> None:
        """Let the process end; see whether it has anything against its own windows."""
        self._close_gate()
        try:
            for turn in self._answers:
                self._check(turn)
        except ChildFailed as death:
            raise VariantFailed(self._index, death.failure) from None

    def _next(self) -> Turn:
        try:
            turn = next(self._answers, Turn(failure=of_misuse()))
        except ChildFailed as death:
            raise VariantFailed(self._index, death.failure) from None
        self._check(turn)
        return turn

    def _check(self, turn: Turn) -> None:
        if turn.failure is not None:
            raise VariantFailed(self._index, turn.failure)

    def _close_gate(self) -> None:
        if self._opener >= 0:
            os.close(self._opener)
            self._opener = -1
