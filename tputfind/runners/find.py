"""The command line's main job, from Python: one model in one recipe or several."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import NoneType
from typing import Any, Final, overload

from tputfind.analysis.recipes import LISTED
from tputfind.declaration import add_options_of
from tputfind.errors import BadRequest, TputfindError
from tputfind.processes.children import Children
from tputfind.record import files
from tputfind.record.record import Record, Records
from tputfind.record.result import shown_progress
from tputfind.record.spec import Spec, own_step, read_spec
from tputfind.runners.sweep import Job, each_recipe, sweep
from tputfind.session import pickling
from tputfind.session.progress import Progress, Silent
from tputfind.session.run import Measured
from tputfind.step import Step
from tputfind.units import echo

Several = list[str] | tuple[str, ...]
_TOLD: Final = ("doing", "did", "measured")
"""Methods that a listener must have."""


@overload
def find(
    model: str | Callable[..., object] | None = None,
    *,
    step: Callable[..., object] | Step | None = None,
    dtype: str = ...,
    layout: str = ...,
    mode: str = ...,
    inputs: Callable[[int], object] | None = None,
    output: str | Path | None = None,
    progress: bool | Progress | None = None,
    trust_model_file: bool = False,
    **options: object,
) -> Record: ...
@overload
def find(
    model: str | Callable[..., object] | None = None,
    *,
    step: Callable[..., object] | Step | None = None,
    dtype: str | Several = ...,
    layout: str | Several = ...,
    mode: str | Several = ...,
    inputs: Callable[[int], object] | None = None,
    output: str | Path | None = None,
    progress: bool | Progress | None = None,
    trust_model_file: bool = False,
    **options: object,
) -> Records: ...
@add_options_of(Spec)
def find(
    model: str | Callable[..., object] | None = None,
    *,
    step: Callable[..., object] | Step | None = None,
    inputs: Callable[[int], object] | None = None,
    output: str | Path | None = None,
    progress: bool | Progress | None = None,
    trust_model_file: bool = False,
    **options: object,
) -> Record | Records:
    """Find the largest batch of a model and time every batch size: the command line's main job, from Python.

    In a script or a notebook, the model may be an object::

        tputfind.find(my_module, inputs=lambda batch: torch.randn(batch, 3, 32, 32), device="cuda")
        tputfind.find(lambda: Net(width=64), input_size=(3, 32, 32))

    The object is pickled by cloudpickle, by value if it was defined in the script or notebook, and rebuilt in the fresh
    process of each trial. A module is copied there with its weights. The module itself is neither changed nor moved.
    GPU memory that it holds counts as memory of other processes, and reduces the largest batch; a warning says so. As
    for every model, ``dtype`` sets the dtype of the copy (``fp32`` by default), and ``phase`` whether it infers or
    trains, whatever mode the module is in. The record names it ``Net (live)``, with the SHA-256 of the pickled bytes.
    It holds no object: it can be shown and compared, but not resumed.

    Args:
        model: a torchvision name, ``timm:NAME``, ``hf:NAME``, a file of a model, ``file.py:factory``,
            ``package.module:factory``; or a ``torch.nn.Module``; or a function without parameters (a lambda, a closure,
            a partial, a class) that returns a module, or a module and the function that makes its inputs.
        step: a step of one's own instead of a model: a function of the batch size that returns a callable, a
            ``tputfind.Step``, or a function without parameters that returns one.
        inputs: a function of the batch size that makes the inputs of a live module: a tensor, a tuple of arguments or a
            dict of keyword arguments, of random numbers, with as many samples as the batch size. A large batch repeats
            the samples of a small one, unless ``fresh_inputs=True``. With ``input_size=(3, 224, 224)`` or
            ``input="ids:int64:Bx128:30000"`` it is not needed.
        output: a folder for the record; None saves nothing.
        progress: whether to show progress on stderr; or a listener that receives it instead.
        trust_model_file: load a file of a model or of weights even if that can run code of the file.
        options: the command line's, with underscores: ``dtype="fp16"``, ``memory_limit="8GiB"``. Numbers are bytes,
            milliseconds (``max_latency``, ``slo``), seconds (``max_seconds``, ``budget``, ``trial_timeout``) or, for
            ``max_noise`` and for ``headroom`` below 1, a fraction. ``dtype``, ``layout`` and ``mode`` take several
            values (``dtype=["fp16", "bf16"]`` or ``"fp16,bf16"``): each combination is measured.

    Returns:
        The record: ``record.rows`` and ``record.largest_batch``, all samples included. Its repr shows it as a table.
            For several values, a list of records: a combination that cannot run has one failed row, and one that
            ``budget`` left no time for has none.

    Raises:
        BadRequest: an option is wrong, or the object cannot be pickled (an open file, a lock, ...).
        TputfindError: the request, the device or the model does not allow it; ``NothingFits`` after saving the record.
            The model's own traceback, if there is one, is a note of the error and its ``traceback``.
    """
    what = _model_or_step(model, step)
    name = pickling.name_of(what)
    specs = list(dict.fromkeys(read_spec(name, recipe) for recipe in each_recipe(options)))
    if step is not None:
        specs = list(dict.fromkeys(map(own_step, specs)))
    is_list = any(isinstance(value := options.get(one), (list, tuple)) or "," in str(value) for one in LISTED)
    shown = show_progress(progress)
    folder = None if output is None else files.path_of("output", output)
    if folder is not None:
        files.check_folder(folder)
    words = " ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
    job = Job(specs, folder, f"find {specs[0].model} {words}".strip())
    found: list[Measured] = []
    with (
        shown as told,
        add_model_traceback(),
        pickling.pickle_model(what, inputs) as file,
        Children(trust_model_file=trust_model_file, live=file) as children,
    ):
        for measured in sweep(job, children, told):
            environment = measured.record.environment
            if not found and environment.can.own_memory and (held := pickling.memory_warning(environment.device)):
                warnings.warn(held, stacklevel=2)
            found.append(measured)
            if isinstance(measured.ended_by, KeyboardInterrupt):
                raise measured.ended_by
            if measured.ended_by is None and measured.file.problem is not None:
                warnings.warn(f"the record was not saved: {measured.file.problem}", stacklevel=2)
        failures = [one.ended_by for one in found if one.ended_by is not None]
        if len(failures) == len(found):
            raise failures[0]
    return Records(one.record for one in found) if is_list else found[0].record


def _model_or_step(
    model: str | Callable[..., object] | None, step: Callable[..., object] | Step | None
) -> str | Callable[..., object] | Step:
    """Return the model or the step; BadRequest unless exactly one is given."""
    if isinstance(step, str):
        raise BadRequest(f"step: {echo(step)} is a name: hand it over as the model")
    given = [one for one in (model, step) if one is not None]
    if len(given) != 1:
        raise BadRequest(f"give a model or a step{', not both' if given else ''}")
    return given[0]


def show_progress(progress: object) -> AbstractContextManager[Progress]:
    """Return the context in which progress is shown, or sent to a listener; BadRequest if it is not a listener."""
    if isinstance(progress, (bool, NoneType)):
        return shown_progress() if progress else nullcontext(Silent())
    if all(callable(getattr(progress, name, None)) for name in _TOLD):
        return nullcontext(_Listener(progress))
    kind = type(progress).__name__
    methods = "doing(what, seconds_left), did(what), measured(record)"
    raise BadRequest(f"progress: {echo(progress)} is a {kind}, without methods {methods}")


class _Listener:
    """A listener of the caller's; its method ``about`` is optional."""

    def __init__(self, listener: Any) -> None:
        self.doing, self.did, self.measured = (getattr(listener, name) for name in _TOLD)
        self.about = getattr(listener, "about", Silent().about)


@contextmanager
def add_model_traceback() -> Iterator[None]:
    """Add the model's own traceback to an error as a note: Python shows it below the error."""
    try:
        yield
    except TputfindError as error:
        if error.traceback:
            error.add_note(f"The model's own traceback:\n{error.traceback.rstrip()}")
        raise
