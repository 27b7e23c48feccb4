"""Notices to the reader of a record: the observation, its likely cause, what to try."""

from fnmatch import fnmatchcase
from typing import Final

from tputfind.analysis.notices.model import model_notices
from tputfind.analysis.notices.noise import merge_noise, noise_notices
from tputfind.analysis.notices.run import ADVICE, advice, run_notices
from tputfind.analysis.notices.timing import timing_notices
from tputfind.record.record import Notice, Record

__all__ = ["ADVICE", "advice", "of", "shown_notices"]

_FIRST: Final = (
    *("*_wrong_output", "cached", "memory_grows", "inputs_written", "fell_back", "settings_*", "grad_mode"),
    *("granularity", "host_busy", "samples_by_word", "random_sizes", "inputs_repeated", "fresh_inputs", "stand_ins"),
    *("host_lengths", "dtypes", "quantized", "eval_left_out", "output_drained"),
    "unused_parameters",
    *("inputs_restored", "recompiled", "smaller_batches_fail", "failed_when_*", "trial_*", "row_*"),
    *("memory_of_others*", "loss_not_finite", "output_*", "random_weights", "drawn_targets", "default_latency_limit"),
    *("no_safe_batch", "larger_batches_fit", "throttled"),
    *("host_bound", "copy_bound", "fragmentation", "allocator_retries", "graph_breaks"),
)
"""Patterns of kinds, in the order of notices: those that change a decision come before the others."""
_LAST: Final = (
    *("few_latency_samples", "unfinished", "budget", "cut_short", "health_unknown"),
    *("outliers", "trend", "spread", "wide_interval", "not_settled", "max_noise_not_reached"),
)


def of(record: Record) -> tuple[Notice, ...]:
    """Return the notices of a record, each kind once for all its rows; those that change a decision come first."""
    timed = [row for row in record.rows if row.failure is None and row.timings]
    found = [
        *record.caveats,
        *run_notices(record, timed),
        *model_notices(record, timed),
        *timing_notices(record, timed),
        *noise_notices(record, timed),
    ]
    return tuple(sorted(found, key=lambda notice: _rank(notice.kind)))


def shown_notices(record: Record) -> list[Notice]:
    """Return the notices as shown: those of noise become one, and old records get the current texts."""
    return merge_noise(of(record))


def _rank(kind: str) -> int:
    if kind in _LAST:
        return len(_FIRST) + 1 + _LAST.index(kind)
    return next((place for place, pattern in enumerate(_FIRST) if fnmatchcase(kind, pattern)), len(_FIRST))
