"""A race of variants: which way of running a model is best, what became of the others, and what was left untried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tputfind.analysis.compare import Judgement
from tputfind.analysis.turns import Turns
from tputfind.record.identity import name_of
from tputfind.record.record import Record
from tputfind.record.result import Result
from tputfind.record.spec import Spec
from tputfind.record.types import Amount, Count

Goal = Literal["throughput", "latency"]
Outcome = Literal["first", "faster", "behind", "not_faster", "undecided", "failed", "untried"]
REGRET: Final = 0.02
"""A variant that cannot be faster by more than this share is not worth further rounds."""
FACTORS: Final = ("dtype", "layout", "device", "mode")
"""What variants differ in, in the order in which it is varied: what takes a compiler comes last."""


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of a race, and what became of it beside ``against``, the leader of that moment.

    ``judgement`` has the leader as OLD; it is None of the first leader, and of what was not timed, for this ``reason``.
    """

    spec: Spec
    outcome: Outcome
    against: Spec | None = None
    judgement: Judgement | None = None
    turns: Turns | None = None
    seconds: Amount = 0.0
    reason: str = ""

    @property
    def may_be_faster(self) -> bool:
        """Whether the interval leaves room for a variant that is faster than the leader."""
        return self.judgement is not None and self.judgement.high is not None and self.judgement.high > 1


class Race(Result, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="race"):
    """A race of variants at one batch size, in the order in which they ran, and the record of the winner.

    One that was ``interrupted`` names the leader of that moment as the winner.
    """

    KIND = "race"
    goal: Goal
    batch_size: Count
    device_name: str
    started: str
    budget_s: Annotated[float, Meta(gt=0)]
    seconds: Amount
    contenders: tuple[Contender, ...]
    winner: Spec
    record: Record | None = None
    interrupted: bool = False

    @property
    def ties(self) -> list[Contender]:
        """The variants that cannot be told from a leader, and are no simpler."""
        return [one for one in self.contenders if one.outcome == "not_faster" and one.may_be_faster]

    @property
    def undecided(self) -> list[Contender]:
        """The variants that may be faster than a leader by more than ``REGRET``: the budget ended their rounds."""
        return [one for one in self.contenders if one.outcome == "undecided"]

    @property
    def untried(self) -> list[Contender]:
        """The variants that the budget left out."""
        return [one for one in self.contenders if one.outcome == "untried"]


def is_settled(judgement: Judgement) -> bool:
    """Return whether it is certain that NEW is faster, or that it is not by more than ``REGRET``."""
    if judgement.low is None or judgement.high is None:
        return judgement.verdict == "not_comparable"
    return judgement.low > 1 or judgement.high < 1 + REGRET


def outcome_of(judgement: Judgement) -> Outcome:
    """Return what becomes of a challenger: it leads only if it is certainly faster than the leader."""
    if not is_settled(judgement) or judgement.low is None or judgement.high is None:
        return "undecided"
    if judgement.low > 1:
        return "faster"
    return "behind" if judgement.high < 1 else "not_faster"


def challengers(leader: Spec, levels: Mapping[str, tuple[str, ...]], met: set[Spec]) -> Iterator[Spec]:
    """Yield the variants that differ from a leader in one factor, and were not met yet; the cheapest first.

    Factors that hardly interact are not multiplied out: each is varied beside the leader that the others have left.
    What has not run at all goes before what has run beside another leader.

    Args:
        leader: the variant that leads now.
        levels: what each factor may be, by its field of ``Spec``.
        met: variants that have raced, or could not.
    """
    again = []
    for factor in FACTORS:
        ran = {getattr(spec, factor) for spec in met}
        for level in levels.get(factor, ()):
            with suppress(ValueError):  # these do not go together
                challenger = msgspec.structs.replace(leader, **{factor: level})
                if level not in ran:
                    yield challenger
                elif challenger not in met:
                    again.append(challenger)
    yield from again


def recipe_of(spec: Spec) -> str:
    """Name a variant: its recipe, and its cores where they are not all."""
    return " ".join([name_of(spec), *([spec.device] if ":" in spec.device else [])])
