"""Whether a comparison lets a change pass: what `tputfind compare --fail-slower` fails on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tputfind.analysis.compare import ONE_PROCESS, Comparison, Judgement
from tputfind.errors import BadRequest, Regression, TooNoisy, TputfindError


def gate(compared: Sequence[Comparison], share: float | None, problems: list[TputfindError]) -> int:
    """Return the exit code of a gate at this share, and add what it comes to to the problems; None passes everything.

    A regression counts most, then a record that could not be judged at all, then rows that are too noisy to judge.
    """
    if share is None:
        return 0
    regressions = [told for one in compared for told in _regressions(one, share)]
    for one in compared:
        problems += _not_judged(one)
    code = BadRequest.exit_code if problems else 0
    unsure = [told for one in compared for told in _unsure(one, share)]
    if unsure:
        what = f"too noisy to exclude that it is {100 * share:g} % slower: {'; '.join(unsure)}"
        problems.append(TooNoisy(what, "measure in more processes, or on a quiet machine"))
    if any(_is_fastest_unsure(one, share) for one in compared):
        code = code or TooNoisy.exit_code
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


def _not_judged(one: Comparison) -> Iterator[BadRequest]:
    """Yield why the fastest rows cannot be judged, however quiet the machine is."""
    best = one.best
    if best is None:
        reason = "one of them has no row that was timed"
    elif best.verdict == "not_comparable" or best.reason == ONE_PROCESS:
        reason = best.reason
    else:
        return
    yield BadRequest(f"{one.model} {one.recipe} could not be judged: {reason}")


def _is_fastest_unsure(one: Comparison, share: float) -> bool:
    """Whether the fastest rows were judged and may be slower, though not certainly, or because of the host alone."""
    best = one.best
    return best is not None and _was_judged(best) and best.may_be_slower_than(share) and not _is_slower(best, share)


def _was_judged(row: Judgement) -> bool:
    return row.verdict != "not_comparable" and row.reason != ONE_PROCESS


def _is_slower(row: Judgement, share: float) -> bool:
    return row.slower_than(share) and (row.lost or not row.host_bound)


def _unsure(one: Comparison, share: float) -> Iterator[str]:
    """Yield the batch sizes of a comparison that may be slower, though not certainly."""
    rows = [row for row in one.rows if _was_judged(row) and row in one.may_be_slower_than(share)]
    named = {f"{row.new_batch}": "" for row in rows}
    if one.best is not None and _is_fastest_unsure(one, share):
        old, new = one.best.old_batch, one.best.new_batch
        bound = ", bound by the host" if one.best.host_bound else ""
        named[f"{new}" if old == new else f"{old} and {new}"] = f" (the fastest{bound})"
    if named:
        yield f"{one.model} {one.recipe} at batch {', '.join(batch + remark for batch, remark in named.items())}"
