"""Where a measurement says what it is doing, and the words for it."""

from typing import Protocol

from tputfind.record.record import TRIAL_STEPS, Failure, LimitedBy, Record, Row, Trial


class Progress(Protocol):
    """Where a run tells what it is doing."""

    def about(self, subject: str) -> None:
        """Name the model that the next words are about."""

    def doing(self, what: str, seconds_left: float | None) -> None:
        """Something starts; ``seconds_left`` is a guess for the whole stage, or None."""

    def did(self, what: str) -> None:
        """Something has ended, so."""

    def measured(self, record: Record) -> None:
        """The record has grown."""


class Silent:
    """Progress that nobody watches."""

    def about(self, *_: object) -> None:
        """Say nothing."""

    doing = did = measured = about


def question(batch_size: int, steps: int, fits: int = 0, fails: int = 0) -> str:
    """Return what a trial is to show, and between which batch sizes the search looks: one that fits, one too large.

    Either is 0 while there is none.
    """
    asked = f"does batch {batch_size} fit?" if steps == TRIAL_STEPS else f"does batch {batch_size} last {steps} steps?"
    if fits and fails:
        return f"{asked} looking between {fits} and {fails}"
    return f"{asked} looking above {fits}" if fits else f"{asked} looking below {fails}" if fails else asked


def timing(batch_size: int, number: int, rows_left: int) -> str:
    """Return what a process is to time; the first of a row, with number 0, says how many rows follow in their first."""
    if number:
        return f"timing batch {batch_size} again, process {number + 1}: answers may rest on it"
    following = f", {rows_left} more to follow" if rows_left else ""
    return f"timing batch {batch_size}{following}"


def verdict(trial: Trial, obstacle: LimitedBy | None) -> str:
    if trial.failure is not None and trial.failure.kind == "timeout":
        return f"is too slow to know: {trial.failure.message}"
    if trial.failure is not None:
        return f"does not fit: {_in_short(trial.failure)}"
    if obstacle == "latency":
        return f"fits but takes {trial.step_ms:.0f} ms"
    return "fits" if trial.steps == TRIAL_STEPS else f"lasts {trial.steps} steps"


def result(row: Row, number: int) -> str:
    if row.failure is not None:
        return _in_short(row.failure)
    return f"{row.samples_per_s:.1f} samples/s, process {number + 1}"


def _in_short(failure: Failure) -> str:
    """Say why; torch's own account of memory that ran out is several lines long."""
    return "out of memory" if failure.kind == "out_of_memory" else failure.plain
