"""Searches by forecast on an H200 with torch 2.11, of models whose fits and failures alternate."""

import msgspec

from support.folders import GOLDEN
from tputfind.record.record import Failure, Trial
from tputfind.record.trace import Trace

OUT_OF_MEMORY = Failure(kind="out_of_memory", message="it is full")


class Tried(msgspec.Struct, kw_only=True):
    """One trial of the search."""

    batch_size: int
    peak_reserved_bytes: int | None
    trace: Trace


class Searched(msgspec.Struct, kw_only=True):
    """A search by forecast, and all answers of it and of bisection for the same model."""

    search: str
    fits: list[int]
    fails: list[int]
    trials: list[Tried]

    @property
    def limit_bytes(self) -> int:
        return self.trials[0].trace.memory_bytes

    @property
    def edge(self) -> int:
        return max(tried.batch_size for tried in self.trials if tried.trace.complete)

    def taken(self) -> tuple[Trial, ...]:
        return tuple(
            Trial(
                batch_size=tried.batch_size,
                memory_limit_bytes=self.limit_bytes,
                peak_reserved_bytes=tried.peak_reserved_bytes,
                trace=tried.trace,
                failure=None if tried.trace.complete else OUT_OF_MEMORY,
            )
            for tried in self.trials
        )


SEARCHES = {
    searched.search: searched
    for searched in msgspec.json.decode((GOLDEN / "alternating-searches.json").read_bytes(), type=list[Searched])
}
