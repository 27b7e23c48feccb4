"""The main job on one page: find the edge, time the rows, save the record."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from tputfind.analysis.answers import sizes_that_divide
from tputfind.errors import OutOfTime, TputfindError
from tputfind.processes.children import Children
from tputfind.record import files
from tputfind.record.record import TRIAL_STEPS, Edge, Record, Row
from tputfind.record.types import LARGEST_BATCH
from tputfind.search.edge import find_edge
from tputfind.session.expectations import first_batch
from tputfind.session.outcome import error_of
from tputfind.session.progress import Progress
from tputfind.session.session import Session
from tputfind.session.trials import TrialRunner

ROUNDS: Final = 3
"""Maximum number of searches if other processes allocate or free device memory during them."""

_SEARCH_SHARE: Final = 0.85
"""Maximum fraction of the remaining ``--budget`` for the search; the rest is for timing."""


class Measured(NamedTuple):
    """A record as far as it came, its file, and the error that ended the run early; None if none did."""

    record: Record
    file: files.RecordFile
    ended_by: TputfindError | KeyboardInterrupt | None = None


def measure(
    record: Record, children: Children, record_file: files.RecordFile, progress: Progress, first: Sequence[int] = ()
) -> Measured:
    """Search, time and record; the record is saved after every stage, so that an early end loses nothing.

    The ``first`` batch sizes are timed before the search: the first of them in full, the others once. Results that the
    record holds already are not measured again. If ``--budget`` ends the run, the record is finished as it is. The
    error that ended it, such as OutOfTime before anything was timed, or an interruption is the result's ``ended_by``.
    """
    session = Session(record, TrialRunner(children, record.spec, record.environment), record_file, progress)
    try:
        _measure_until_budget_ends(session, children, progress, first)
    except TputfindError as error:
        return Measured(session.record, record_file, error)
    except KeyboardInterrupt as interruption:
        session.save_again()
        return Measured(session.record, record_file, interruption)
    return Measured(session.record, record_file, error_of(session.record))


def _measure_until_budget_ends(session: Session, children: Children, progress: Progress, first: Sequence[int]) -> None:
    try:
        session.until_it_runs(lambda: _search_and_time(session, children, progress, first))
    except OutOfTime:
        if not session.record.rows and session.record.edge is None:
            raise
        session.finish()


def _search_and_time(session: Session, children: Children, progress: Progress, first: Sequence[int]) -> None:
    spec = session.record.spec
    if spec.batch_sizes is not None:
        session.time_rows(spec.batch_sizes)
    else:
        session.time_rows(first[:1])
        session.time_once(first[1:])
        if spec.budget_s is None:
            _time_first(session)
        try:
            with children.for_a_share(_SEARCH_SHARE):
                edge = _search(session, progress)
        except OutOfTime:
            found = session.edge_so_far()
            if found is None:
                raise
            edge = found
        _time_up_to(session, edge, progress)
    session.time_singly()
    session.finish()


def _time_first(session: Session) -> None:
    """Time the powers of two up to the first batch of the search, once, so that a table shows within seconds.

    Skipped under a budget, which is spent on the largest batch first.
    """
    spec = session.record.spec
    guess = min(first_batch(session.record) or 0, spec.max_batch or LARGEST_BATCH)
    first = max(guess // spec.granularity, 1) * spec.granularity
    if session.try_to_time(first) is None:
        session.time_once(spec.sizes_up_to(first))


def _time_up_to(session: Session, edge: Edge, progress: Progress) -> None:
    """Time the powers of two up to an edge, the edge and the safe batch; search again if the edge's row fails."""
    while True:
        session.drop_outdated_rows(edge)
        if edge.largest_batch == 0 and session.record.trials and not session.record.rows:
            smallest = min(session.record.trials, key=lambda trial: trial.batch_size)
            session.update(rows=(Row(batch_size=smallest.batch_size, failure=smallest.failure),))
        session.update(edge=edge)
        safe = _search_safe(session, edge) if edge.closed else None
        session.update(safe=safe)
        spec = session.record.spec
        sizes = {*spec.sizes_up_to(edge.largest_batch), *sizes_that_divide(spec, edge.largest_batch)}
        timed = {row.batch_size for row in session.record.rows if row.failure is None}
        sizes |= {edge.largest_batch, *(size for size in timed if size <= edge.largest_batch)}
        session.time_rows(sorted((sizes | {safe.largest_batch if safe else 0}) - {0}))
        row = session.row(edge.largest_batch)
        if row is None or row.failure is None:
            break
        progress.did(f"batch {edge.largest_batch} failed in a further process: searching on below it")
        edge = _search(session, progress)
    session.probe_non_monotonic(edge)


def _search(session: Session, progress: Progress) -> Edge:
    """Find the edge; its largest batch has then been timed in full, in a process of its own, and soaked."""
    spec = session.record.spec
    for _ in range(ROUNDS):
        edge = find_edge(
            session.try_to_time,
            session.prove,
            granularity=spec.granularity,
            max_batch=spec.max_batch or LARGEST_BATCH,
            linear=spec.search == "linear",
            first=first_batch(session.record),
            forecast=session.expected_edge,
            worth=session.is_worth_a_trial,
            index_limits=session.index_limits,
        )
        steady = session.edge_is_current(edge)
        if steady:
            break
        progress.did("other processes took or freed memory of the device: asking the edge again")
    if edge.limited_by == "timeout" and edge.fails_at is None and session.lacks_time():
        edge = msgspec.structs.replace(edge, limited_by="cut_short")  # by the budget, not by the limit of a search
    soaked_batches = spec.soak if edge.largest_batch else 0
    return msgspec.structs.replace(
        edge,
        memory_limit_bytes=session.runner.memory_limit_bytes,
        soaked_batches=soaked_batches,
        steady=steady,
        expandable_forecast=session.edge_if_expandable() if edge.limited_by == "memory" else None,
    )


def _search_safe(session: Session, edge: Edge) -> Edge | None:
    """Find the largest batch that leaves the headroom free; None without ``--headroom``, or if no batch fits.

    The batch must pass its row and, under the lowered limit, as many steps as the largest batch was timed or soaked
    for.
    """
    spec, limit_bytes, full = session.record.spec, session.runner.lowered_limit_bytes, session.row(edge.largest_batch)
    if limit_bytes is None or full is None or edge.largest_batch == 0:
        return None
    steps = TRIAL_STEPS + max(spec.soak, full.steps)
    whole_bytes = session.runner.memory_limit_bytes or session.record.environment.memory_total_bytes or limit_bytes
    share = limit_bytes / whole_bytes if edge.limited_by == "memory" else 1.0
    expected = partial(session.expected_edge, memory_limit_bytes=limit_bytes)
    safe = find_edge(
        lambda batch_size: session.try_batch(batch_size, memory_limit_bytes=limit_bytes),
        lambda batch_size: (
            session.try_batch(batch_size, steps=steps, memory_limit_bytes=limit_bytes) or session.time_alone(batch_size)
        ),
        granularity=spec.granularity,
        max_batch=edge.largest_batch,
        first=expected(0, None) or int(share * edge.largest_batch),
        forecast=expected,
    )
    if safe.limited_by == "cap":  # the largest batch itself leaves the headroom
        safe = edge
    soaked_batches = spec.soak if safe.largest_batch else 0
    return msgspec.structs.replace(safe, memory_limit_bytes=limit_bytes, soaked_batches=soaked_batches)
