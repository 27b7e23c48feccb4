"""Whether a comparison lets a change pass: what `tputfind compare --fail-slower` fails on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tputfind.analysis.compare import Comparison
from tputfind.errors import BadRequest, Regression, TputfindError


def gate(compared: Sequence[Comparison], share: float | None, problems: list[TputfindError]) -> int:
    """Return the exit code of a gate at this share, and say what it comes to; without one nothing fails.

    A gate that could not look at everything has not been passed.
    """
    if share is None:
        return 0
    regressions = [told for one in compared for told in _regressions(one, share)]
    for one in compared:
        problems += _open(one, share)
    code = BadRequest.exit_code if problems else 0
    unsure = [told for one in compared for told in _unsure(one, share)]
    if unsure:
        problems.append(BadRequest(f"too noisy to exclude that it is {100 * share:g} % slower: {'; '.join(unsure)}"))
    if not regressions:
        return code
    problems.append(Regression(f"slower by more than {100 * share:g} %: {'; '.join(regressions)}"))
    return Regression.exit_code


def _regressions(one: Comparison, share: float) -> Iterator[str]:
    found = one.slower_than(share)
    sizes = {row.new_batch for row in found if row is not one.best}
    for row in found:
        what = f"batch {row.new_batch}"
        if row is one.best:
            if row.old_batch == row.new_batch and row.new_batch in sizes:
                continue
            what = f"the fastest (batch {row.old_batch} and {row.new_batch})"
        told = row.reason if row.lost else f"{100 * (1 - (row.ratio or 0.0)):.1f} % slower"
        yield f"{one.model} {one.recipe}, {what}: {told}"


def _open(one: Comparison, share: float) -> Iterator[BadRequest]:
    """Yield why a comparison leaves open whether the fastest rows are slower."""
    if one.best is None or one.best.verdict == "not_comparable":
        reason = one.best.reason if one.best else "one of them has no row that was timed"
    elif one.best.may_be_slower_than(share) and not one.best.slower_than(share):
        reason = one.best.reason or "the processes differ too much to tell"
    else:
        return
    yield BadRequest(f"{one.model} {one.recipe} could not be judged: {reason}", "measure in more processes")


def _unsure(one: Comparison, share: float) -> Iterator[str]:
    batches = [str(row.new_batch) for row in one.may_be_slower_than(share)]
    if batches:
        yield f"{one.model} {one.recipe} at batch {', '.join(batches)}"
