"""The progress of a measurement: the listener's interface, and the words that it shows."""

from typing import Protocol

from tputfind.processes.failures import for_want_of_memory
from tputfind.record.record import TRIAL_STEPS, Failure, LimitedBy, Record, Row, Trial


class Progress(Protocol):
    """The listener of a run's progress."""

    def about(self, subject: str) -> None:
        """Name the model that the next messages are about."""

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Report that something starts; ``seconds_left`` estimates the rest of the whole stage, None if unknown."""

    def did(self, what: str) -> None:
        """Report how something ended."""

    def measured(self, record: Record) -> None:
        """Report that the record has grown."""


class Silent:
    """A listener that shows nothing."""

    def about(self, *_: object) -> None:
        """Show nothing."""

    doing = did = measured = about


def question(batch_size: int, steps: int, fits: int = 0, fails: int = 0) -> str:
    """Return the question of a trial, with the batch sizes between which the search looks.

    ``fits`` is the largest batch size known to fit, ``fails`` the smallest known not to fit; 0 if there is none yet.
    """
    asked = f"does batch {batch_size} fit?" if steps == TRIAL_STEPS else f"does batch {batch_size} last {steps} steps?"
    if fits and fails:
        return f"{asked} looking between {fits} and {fails}"
    return f"{asked} looking above {fits}" if fits else f"{asked} looking below {fails}" if fails else asked


def timing(batch_size: int, number: int, rows_left: int) -> str:
    """Return the message for a timing process; for the first process of a row, it adds the number of rows left."""
    if number:
        return f"timing batch {batch_size} again, process {number + 1}"
    following = f", {rows_left} more to follow" if rows_left else ""
    return f"timing batch {batch_size}{following}"


def verdict(trial: Trial, obstacle: LimitedBy | None) -> str:
    if trial.failure is not None and trial.failure.kind == "timeout":
        return f"is too slow to know: {trial.failure.message}"
    if trial.failure is not None:
        limit = for_want_of_memory(trial.failure) or trial.failure.kind in ("index_limit", "kernel_limit")
        return f"{'does not fit' if limit else 'fails'}: {_summary(trial.failure)}"
    if obstacle == "latency":
        return f"fits but is too slow: {trial.step_ms:.0f} ms a step"
    return "fits" if trial.steps == TRIAL_STEPS else f"lasts {trial.steps} steps"


def result(row: Row, number: int) -> str:
    if row.failure is not None:
        return _summary(row.failure)
    return f"{row.samples_per_s:.1f} samples/s, process {number + 1}"


def _summary(failure: Failure) -> str:
    """Return the reason of a failure; torch's own text about memory is several lines long."""
    return "out of memory" if failure.kind == "out_of_memory" else failure.plain
