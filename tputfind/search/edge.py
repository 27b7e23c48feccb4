"""Find the edge: the largest batch that passes, with the next one tried and not passing."""

from __future__ import annotations

from collections.abc import Callable

from tputfind.record import Edge, LimitedBy

Ask = Callable[[int], LimitedBy | None]
"""A question about one batch size: None where it passes, else what stands in its way."""


def find_edge(
    ask: Ask, prove: Ask, *, granularity: int, max_batch: int, linear: bool = False, first: int | None = None
) -> Edge:
    """Return the largest multiple of ``granularity`` up to ``max_batch`` that passes both questions.

    Doubles until a batch does not pass, then bisects; ``linear`` counts up instead. The batch left over is put to
    ``prove``, the longer question. Where it fails there although it passed ``ask``, short answers are not to be relied
    on, and the search goes on below with ``prove`` alone.

    Neither question is asked twice of a batch. For an edge e >= 1 that both questions agree on, ``ask`` is called at
    most 2 ceil(log2 e) + 2 times. If the answers are not monotone, the result is still an edge with both sides tried.

    Args:
        ask: a short trial of a batch size.
        prove: the full run of a batch size.
        granularity: the step of the answer, at least 1.
        max_batch: the cap, at least ``granularity``; no larger batch is tried.
        linear: count up one step at a time.
        first: a guess at the answer; it is asked first, and saves questions where it is good.
    """
    cap = max_batch // granularity
    passed = [0]
    fails_at = cap + 1
    limited_by: LimitedBy = "cap"
    proven = 0
    question = ask
    guess = max(0, min((first or 0) // granularity, cap))
    while True:
        largest = passed[-1]
        if fails_at - largest > 1:
            unit = guess or _next(largest, fails_at, cap, linear)
            guess = 0
        elif largest == proven:
            tried = None if limited_by == "cap" else fails_at * granularity
            return Edge(largest_batch=largest * granularity, limited_by=limited_by, fails_at=tried)
        else:
            unit, question = largest, prove
        obstacle = question(unit * granularity)
        if obstacle is not None:
            if unit == largest:
                passed.pop()
            fails_at, limited_by = unit, obstacle
            continue
        if question is prove:
            proven = unit
        if unit != largest:
            passed.append(unit)


def _next(largest: int, fails_at: int, cap: int, linear: bool) -> int:
    """Return the next batch to ask, in steps of the granularity, strictly between the two."""
    if linear:
        return largest + 1
    if fails_at > cap:
        return min(2 * largest or 1, cap)
    return (largest + fails_at) // 2
