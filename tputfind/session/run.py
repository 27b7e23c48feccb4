"""The main job on one page: find the edge, time the rows, keep the record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Final, NamedTuple

import msgspec

from tputfind.declaration import with_options_of
from tputfind.errors import BadRequest, OutOfTime, TputfindError
from tputfind.processes.children import Children
from tputfind.record import files
from tputfind.record.record import TRIAL_STEPS, Edge, Record, Row
from tputfind.record.result import shown_progress
from tputfind.record.spec import Spec, read_spec
from tputfind.record.types import LARGEST_BATCH
from tputfind.search.edge import find_edge
from tputfind.session import live
from tputfind.session.expectations import first_batch
from tputfind.session.inspect import inspect, new_record, record_file_of
from tputfind.session.outcome import error_of
from tputfind.session.progress import Progress, Silent
from tputfind.session.session import Session
from tputfind.session.trials import TrialRunner
from tputfind.units import echoed

ROUNDS: Final = 3
"""Times the search is repeated when other processes allocate or free device memory during it."""

_SEARCH_SHARE: Final = 0.85
"""Of what is left of ``--budget``: the most that the search may take of it, so that something is timed."""
_TOLD: Final = ("doing", "did", "measured")


@with_options_of(Spec)
def find(
    model: str | Callable[..., object],
    *,
    inputs: Callable[[int], object] | None = None,
    output: str | Path | None = None,
    progress: bool | Progress | None = None,
    trust_model_file: bool = False,
    **options: object,
) -> Record:
    """Find the largest batch of a model and time every batch size: the command line's main job, from Python.

    In a script or a notebook, the model may be an object::

        tputfind.find(my_module, inputs=lambda batch: torch.randn(batch, 3, 32, 32), device="cuda")
        tputfind.find(lambda: Net(width=64), input_size=(3, 32, 32))

    It is pickled by cloudpickle, by value where it was defined in the script or notebook, and rebuilt in the fresh
    process of each trial. A module is copied there with its weights. The module itself is neither changed nor moved.
    What it holds of a GPU's memory counts as memory of others, so that the largest batch is one for what is left; a
    warning says so. As for every model, ``dtype`` says what the copy is converted to (``fp32`` by default), and
    ``phase`` whether it infers or trains, whatever mode the module is in. The record names it ``Net (live)``, with the
    SHA-256 of the pickled bytes. It holds no object: it can be shown and compared, and not resumed.

    Args:
        model: a torchvision name, ``timm:NAME``, ``hf:NAME``, a file of a model, ``file.py:factory``,
            ``package.module:factory``; or a ``torch.nn.Module``; or a function without parameters (a lambda, a closure,
            a partial, a class) that returns a module, or a module and what makes its inputs.
        inputs: what makes the inputs of a live module from a batch size: a tensor, a tuple of arguments or a dict of
            keyword arguments, of random numbers, with as many samples as it was asked for. A large batch repeats the
            samples of a small one, unless ``fresh_inputs=True``. ``input_size=(3, 224, 224)`` or
            ``input="ids:int64:Bx128:30000"`` do without it.
        output: a folder for the record; None saves nothing.
        progress: whether to show on stderr what is being done; or what is to be told instead.
        trust_model_file: load a file of a model or of weights even where that can run code of the file's.
        options: the command line's, with underscores: ``dtype="fp16"``, ``memory_limit="8GiB"``. Numbers are bytes,
            milliseconds (``max_latency``, ``slo``), seconds (``max_seconds``, ``budget``, ``trial_timeout``) or, for
            ``max_noise`` and for ``headroom`` below 1, a share.

    Returns:
        The record: ``record.rows`` and ``record.largest_batch``, all samples included. Its repr shows it as a table.

    Raises:
        BadRequest: an option is wrong, or the object cannot travel to another process (an open file, a lock, ...).
        TputfindError: the request, the device or the model does not allow it; ``NothingFits`` after saving the record.
            The model's own traceback, if there is one, is a note of the error and its ``traceback``.
    """
    spec = read_spec(live.name_of(model), options)
    shown: AbstractContextManager[Progress]
    if isinstance(progress, (bool, NoneType)):
        shown = shown_progress() if progress else nullcontext(Silent())
    elif all(callable(getattr(progress, name, None)) for name in _TOLD):
        shown = nullcontext(progress)
    else:
        kind = type(progress).__name__
        methods = "doing(what, seconds_left), did(what), measured(record)"
        raise BadRequest(f"progress: {echoed(progress)} is a {kind}, without methods {methods}")
    folder = None if output is None else files.path_of("output", output)
    if folder is not None:
        files.check_folder(folder)
    with (
        shown as told,
        _model_traceback_noted(),
        live.pickled(model, inputs) as file,
        Children(trust_model_file=trust_model_file, live=file) as children,
    ):
        if progress is True:
            told.about(spec.model)
        children.end_within(spec.budget_s)
        inspection = inspect(spec, children)
        if inspection.environment.can.own_memory and (held := live.memory_held(inspection.environment.device)):
            warnings.warn(held, stacklevel=2)
        words = " ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
        record_file = record_file_of(folder, spec, inspection)
        begun = new_record(spec, inspection, f"find {spec.model} {words}".strip())
        record_file.try_out(begun)
        record, _, ended_by = measure(begun, children, record_file, told)
        if ended_by is not None:
            raise ended_by
        if record_file.problem is not None:
            warnings.warn(f"the record was not saved: {record_file.problem}", stacklevel=2)
        return record


@contextmanager
def _model_traceback_noted() -> Iterator[None]:
    """Add the model's own traceback to an error as a note: Python shows it below the error."""
    try:
        yield
    except TputfindError as error:
        if error.traceback:
            error.add_note(f"The model's own traceback:\n{error.traceback.rstrip()}")
        raise


class Measured(NamedTuple):
    """A record as far as it came, the file it is saved in, and what ended the run early, None where nothing did."""

    record: Record
    file: files.RecordFile
    ended_by: TputfindError | KeyboardInterrupt | None = None


def measure(record: Record, children: Children, record_file: files.RecordFile, progress: Progress) -> Measured:
    """Search, time and record; the file gets the record after every stage, so that what was measured is kept.

    What the record holds already is not measured again. Where ``--budget`` ends it, the record is finished with what
    there is. What ends it early is one of these:

    - OutOfTime: the budget ended before anything was timed.
    - ModelFailed: the model fails at the smallest batch.
    - NothingFits: no batch fits; the record was saved.
    - DeviceInUse: ``--strict``, and others hold memory of the device.
    - KeyboardInterrupt: somebody had enough.
    """
    session = Session(record, TrialRunner(children, record.spec, record.environment), record_file, progress)
    try:
        session.until_it_runs(lambda: _search_and_time(session, children, progress))
    except OutOfTime as late:
        if not session.record.rows and session.record.edge is None:
            return Measured(session.record, record_file, late)
        session.finish()
    except TputfindError as error:
        return Measured(session.record, record_file, error)
    except KeyboardInterrupt as interruption:
        session.save_again()
        return Measured(session.record, record_file, interruption)
    return Measured(session.record, record_file, error_of(session.record))


def _search_and_time(session: Session, children: Children, progress: Progress) -> None:
    spec = session.record.spec
    if spec.batch_sizes is not None:
        session.time_rows(spec.batch_sizes)
    else:
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
    session.finish()


def _time_first(session: Session) -> None:
    """Time, once, the powers of two up to the batch that the search asks about first: a table stands in seconds.

    Not under a budget, which goes to the largest batch first.
    """
    spec = session.record.spec
    guess = min(first_batch(session.record) or 0, spec.max_batch or LARGEST_BATCH)
    first = max(guess // spec.granularity, 1) * spec.granularity
    if session.try_to_time(first) is None:
        session.time_once(spec.sizes_up_to(first))


def _time_up_to(session: Session, edge: Edge, progress: Progress) -> None:
    """Time the powers of two up to an edge, the edge and the safe batch; search on where the edge's row fails yet."""
    while True:
        session.update(edge=edge)
        safe = _search_safe(session, edge) if edge.closed else None
        session.update(safe=safe)
        sizes = {*session.record.spec.sizes_up_to(edge.largest_batch), edge.largest_batch}
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
            forecast=session.expected,
            worth=session.is_worth_a_trial,
            index_limits=session.index_limits,
        )
        steady = session.edge_is_current(edge)
        if steady:
            break
        progress.did("other processes took or freed memory of the device: asking the edge again")
    if edge.largest_batch == 0 and not session.record.rows:
        smallest = min(session.record.trials, key=lambda trial: trial.batch_size)
        session.update(rows=(Row(batch_size=smallest.batch_size, failure=smallest.failure),))
    soaked_batches = spec.soak if edge.largest_batch else 0
    return msgspec.structs.replace(
        edge,
        memory_limit_bytes=session.memory_limit_bytes,
        soaked_batches=soaked_batches,
        steady=steady,
        expandable_forecast=session.edge_if_expandable() if edge.limited_by == "memory" else None,
    )


def _search_safe(session: Session, edge: Edge) -> Edge | None:
    """Find the largest batch with the headroom kept free; None where that was not asked for, or nothing fits at all.

    It is proven by its row and by as many steps, under the lowered limit, as the largest batch was timed for or soaked.
    """
    spec, limit_bytes, full = session.record.spec, session.lowered_limit_bytes, session.row(edge.largest_batch)
    if limit_bytes is None or full is None or edge.largest_batch == 0:
        return None
    steps = TRIAL_STEPS + max(spec.soak, full.steps)
    whole_bytes = session.memory_limit_bytes or session.record.environment.memory_total_bytes or limit_bytes
    share = limit_bytes / whole_bytes if edge.limited_by == "memory" else 1.0
    expected = partial(session.expected, memory_limit_bytes=limit_bytes)
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
    if safe.limited_by == "cap":  # the largest batch itself leaves as much
        safe = edge
    soaked_batches = spec.soak if safe.largest_batch else 0
    return msgspec.structs.replace(safe, memory_limit_bytes=limit_bytes, soaked_batches=soaked_batches)
