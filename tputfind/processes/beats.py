"""Progress files of the ranks of a job, written every 0.5 s: they show which rank waits in a collective in vain."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from struct import Struct, error
from typing import Final, NamedTuple

INTERVAL_S: Final = 0.5
_FORM: Final = Struct("<q?qq")


class Beat(NamedTuple):
    """The state of a rank: steps begun, whether a step is running, and collectives begun in the group of all ranks.

    ``before`` counts the collectives of all steps but the last one begun.
    """

    steps: int
    at_work: bool
    before: int
    collectives: int

    @property
    def ended(self) -> tuple[int, int]:
        """The number of steps that have ended, and of collectives begun by then."""
        return (self.steps - 1, self.before) if self.at_work else (self.steps, self.collectives)


def write(folder: Path, rank: int, beat: Beat) -> None:
    """Write the state of a rank; do nothing if the folder is gone, as at the end of a job."""
    with suppress(OSError):
        (folder / f"beat-{rank}").write_bytes(_FORM.pack(*beat))


def read(folder: Path, size: int) -> dict[int, Beat]:
    """Return the state of each rank that has written one."""
    states: dict[int, Beat] = {}
    for rank in range(size):
        with suppress(OSError, error):  # it is being written
            states[rank] = Beat(*_FORM.unpack((folder / f"beat-{rank}").read_bytes()))
    return states


def waits_in_vain(states: Mapping[int, Beat]) -> tuple[int, str] | None:
    """Return a rank that waits in a collective that another rank skipped, and the message; None if no rank does.

    A rank waits in vain if another rank has ended the same step with fewer collectives. Ranks write their states one
    after the other, so the caller must pass states that did not change for a second.
    """
    for (rank, waiting), (other, state) in permutations(states.items(), 2):
        steps, collectives = state.ended
        if waiting.at_work and waiting.steps <= steps and waiting.collectives > collectives:
            return rank, f"waits in a collective that rank {other} skipped: that rank has ended the step"
    return None


def latest(states: Mapping[int, Beat], ranks: Sequence[int]) -> int | None:
    """Return the rank that the others wait for: the only one with the fewest collectives begun; None if several have,
    or if a rank is not at work.
    """
    begun = {rank: states[rank].collectives for rank in ranks if rank in states and states[rank].at_work}
    last = [rank for rank, count in begun.items() if count == min(begun.values())]
    return last[0] if len(last) == 1 and len(begun) == len(ranks) else None
