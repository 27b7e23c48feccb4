"""What a reader must know to use the numbers of a record: seen, likely cause, what to try."""

from __future__ import annotations

from tputfind.analysis.notices.device import of_health
from tputfind.analysis.notices.failures import ADVICE, advice, of_failures, of_outputs
from tputfind.analysis.notices.noise import of_noise
from tputfind.analysis.notices.run import of_budget, of_others, of_search
from tputfind.analysis.notices.timing import of_allocator, of_breaks, of_copies, of_hosts, of_windows
from tputfind.record.record import Notice, Record

__all__ = ["ADVICE", "advice", "of"]


def of(record: Record) -> tuple[Notice, ...]:
    """Return the notices of a record: of the model, the search, failures, the rows; each kind once for all its rows."""
    timed = [row for row in record.rows if row.failure is None and row.timings]
    found = [
        *record.caveats,
        *of_search(record),
        *of_budget(record),
        *of_others(record),
        *of_failures(record),
        *of_outputs(record, timed),
    ]
    found += [*of_windows(record, timed), *of_noise(record, timed), *of_health(record, timed)]
    found += [*of_allocator(timed), *of_copies(timed), *of_hosts(record, timed), *of_breaks(timed)]
    return tuple(found)
