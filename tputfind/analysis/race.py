"""A race of variants: the best recipe, the outcome of each other variant, and the variants left untried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tputfind.analysis.compare import Judgement
from tputfind.analysis.turns import COSTS, Cost, Goal, Speed, Turns
from tputfind.errors import BadRecord
from tputfind.record.identity import name_of
from tputfind.record.record import Record, Row
from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.types import METHOD, Above0, Amount, Count
from tputfind.record.untrusted import command_of, decode_json
from tputfind.stats import percentile

SCHEMA: Final = 1
Outcome = Literal["first", "faster", "behind", "not_faster", "undecided", "failed", "untried"]
OUTCOMES: Final[dict[Outcome, str]] = {
    "first": "led at first",
    "faster": "better",
    "behind": "worse",
    "not_faster": "not better",
    "undecided": "undecided",
    "failed": "FAILED",
    "untried": "untried",
}
"""The outcomes in words."""
Levels = Mapping[str, tuple[str | int, ...]]
REGRET: Final = 0.02
"""A variant that cannot be faster by more than this fraction gets no further rounds."""
FACTORS: Final = ("dtype", "layout", "allocator", "instances", "device", "mode")
"""The factors of variants, in the order in which they are varied; compilation takes longest and comes last."""


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of a race, and its outcome against ``against``, the leader at that moment.

    ``judgement`` has the leader as OLD. It is None for the first leader, and for a variant that was not timed for this
    ``reason``. ``of_winner`` is the ratio of its samples per unit of the cost to those of the winner, estimated
    from all rounds of the race.
    """

    spec: Spec
    outcome: Outcome
    against: Spec | None = None
    judgement: Judgement | None = None
    turns: Turns | None = None
    seconds: Amount = 0.0
    reason: str = ""
    of_winner: Above0 | None = None

    @property
    def may_be_faster(self) -> bool:
        """Whether the interval admits that the variant is faster than the winner."""
        if self.judgement is None or self.judgement.ratio is None:
            return False
        if self.judgement.high is None:
            return True
        known = self.judgement.ratio if self.of_winner is None else self.of_winner
        return known * self.judgement.high / self.judgement.ratio > 1


class Race(Result, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="race"):
    """A race of variants at one batch size, in the order in which they ran, and the record of the winner.

    An ``interrupted`` race names the leader at that moment as the winner. ``seconds`` and ``budget_s`` are those of all
    its parts, if it was resumed. ``devices`` is how many raced in parallel. ``source_sha256`` is as in a record.
    ``timed`` are batch sizes of the first leader, as timed in one process before the race.
    """

    KIND = "race"
    schema: int = SCHEMA
    method: int = METHOD
    goal: Goal
    batch_size: Count
    device_name: str
    devices: Count = 1
    started: str
    budget_s: Annotated[float, Meta(gt=0)]
    seconds: Amount
    contenders: tuple[Contender, ...]
    winner: Spec
    record: Record | None = None
    interrupted: bool = False
    source_sha256: str | None = None
    timed: tuple[Speed, ...] = ()

    @property
    def cost(self) -> Cost:
        return COSTS[self.goal]

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The first leader, which is the spec of the request."""
        return (self.contenders[0].spec,)

    @property
    def recipe_of(self) -> Callable[[Spec], str]:
        """The function that names a variant: without ``nchw`` if all have it, as without images."""
        return partial(recipe_of, images=any(one.spec.layout != "nchw" for one in self.contenders))

    @property
    def ties(self) -> list[Contender]:
        """The variants that may be faster than a leader within the noise, and are no simpler."""
        return [one for one in self.contenders if one.outcome == "not_faster" and one.may_be_faster]

    @property
    def undecided(self) -> list[Contender]:
        """The variants that may be faster than the winner, or not be slower; the budget ended their rounds."""
        return [one for one in self.contenders if one.outcome == "undecided" and one.may_be_faster]

    @property
    def untried(self) -> list[Contender]:
        return [one for one in self.contenders if one.outcome == "untried"]


def speeds_of(rows: Iterable[Row]) -> Iterator[Speed]:
    for row in rows:
        latency_ms = percentile(row.latency_ms, 50)
        if row.samples_per_s and latency_ms:
            yield Speed(batch_size=row.batch_size, samples_per_s=row.samples_per_s, latency_ms=latency_ms)


def compile_times_s(race: Race, spec: Spec) -> Iterator[float]:
    """Yield the time that each process of a variant took to compile, in all rounds of the race."""
    for one in race.contenders:
        for taken in one.turns.rounds if one.turns is not None else ():
            for which, speed in zip((one.against, one.spec), taken.speeds, strict=False):
                if which == spec and speed.compile_s is not None:
                    yield speed.compile_s


def speeds(race: Race) -> list[tuple[Spec, Speed]]:
    """Return all variants and batch sizes whose throughput and latency are known, the latest timing of each.

    Variants that failed in a later round are left out.
    """
    failed = {one.spec for one in race.contenders if one.outcome == "failed"}
    known = {(race.specs[0], one.batch_size): one for one in race.timed}
    for one in race.contenders:
        for number, spec in enumerate((one.against, one.spec)):
            speed = None if one.turns is None else one.turns.median_speed(number)
            if spec is not None and speed is not None:
                known[spec, speed.batch_size] = speed
    known |= {(race.winner, one.batch_size): one for one in speeds_of(race.record.rows if race.record else ())}
    return [(spec, one) for (spec, _), one in known.items() if spec not in failed]


def pareto_front(known: Iterable[tuple[Spec, Speed]]) -> list[tuple[Spec, Speed]]:
    """Return those that no other exceeds in throughput at the same latency or less, by rising latency."""
    front: list[tuple[Spec, Speed]] = []
    for spec, one in sorted(known, key=lambda pair: (pair[1].latency_ms, -pair[1].samples_per_s)):
        if not front or one.samples_per_s > front[-1][1].samples_per_s:
            front.append((spec, one))
    return front


def decode_race(data: bytes, name: str) -> Race:
    """Return the race in a file's bytes; raise BadRecord, with the file's name, if there is none."""
    if command_of(data) != "tune":
        raise BadRecord(f"{name} holds no race", "tputfind tune --save RACE.json writes one")
    return decode_json(data, name, Race, SCHEMA)


def batch_of(spec: Spec, batch_size: int) -> int:
    """Return the batch size of each instance of a variant that races at ``batch_size``, which they share."""
    return max(batch_size // spec.instances // spec.granularity, 1) * spec.granularity


def outcome_of(judgement: Judgement) -> Outcome:
    """Return the outcome of a challenger; it is not faster if it certainly gains no more than ``REGRET``."""
    if judgement.low is None or judgement.high is None:
        return "undecided"
    if judgement.low > 1:
        return "faster"
    if judgement.high < 1:
        return "behind"
    return "not_faster" if judgement.high < 1 + REGRET else "undecided"


def challengers(leader: Spec, levels: Levels, met: set[Spec]) -> Iterator[Spec]:
    """Yield the variants that differ from the leader in one factor and have not raced yet, the cheapest first.

    The factors hardly interact, so they are varied one at a time instead of in all combinations. Levels that have not
    run at all come before levels that ran with another leader. ``levels`` are the values of each factor, by its field
    of ``Spec``; ``met`` are the variants that have raced, or could not.
    """
    again = []
    for factor in FACTORS:
        ran = {getattr(spec, factor) for spec in met}
        for level in levels.get(factor, ()):
            with suppress(ValueError):  # the spec rejects this combination
                challenger = msgspec.structs.replace(leader, **{factor: level})
                if challenger == leader:
                    continue
                if level not in ran:
                    yield challenger
                elif challenger not in met:
                    again.append(challenger)
    yield from again


def recipe_of(spec: Spec, *, images: bool = True) -> str:
    """Name a variant: its recipe as in ``name_of``, and its cores if it has only some."""
    return " ".join([name_of(spec, images=images), *([spec.device] if spec.cores else [])])
