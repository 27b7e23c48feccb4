"""What one `tputfind forecast` asks: read and checked, measured, written and shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console

from tputfind.commands.console import Given, finish, stop_signals, typed
from tputfind.commands.outputs import model_sources, read_places
from tputfind.errors import BadRequest
from tputfind.processes.children import Children
from tputfind.record.identity import Question
from tputfind.record.spec import Spec, read_spec
from tputfind.report.outputs import Outputs, Places, check_places, forms
from tputfind.report.progress import show_progress
from tputfind.report.views import forecast
from tputfind.session import forecast as forecast_run


def main(given: Given, *, show_traceback: bool) -> int:
    """Do what was given, and return the exit code.

    Raises:
        TputfindError: why it cannot be done.
    """
    places = read_places(given)
    model, memory = given.pop("model"), given.pop("memory")
    how = {name: given.pop(name) for name in ("on_fake", "quiet", "trust_model_file")}
    return do(read_request(model, given, memory, places, **how), show_traceback=show_traceback)


class Request(NamedTuple):
    """What to forecast, from what, and where to write it."""

    spec: Spec
    memories_bytes: tuple[int, ...]
    on_fake: bool
    outputs: Outputs
    quiet: bool
    trust_model_file: bool = False


def read_request(
    model: str,
    options: Mapping[str, object],
    memory: str | None,
    places: Places,
    *,
    on_fake: bool,
    quiet: bool,
    trust_model_file: bool = False,
) -> Request:
    """Return the request that a command line describes, checked before anything is measured for it.

    Args:
        model: as ``spec.read_spec`` takes it.
        options: likewise.
        memory: sizes, apart by commas.
        places: files to write.
        on_fake: whether to do without a device.
        quiet: whether to show no progress.
        trust_model_file: whether to load files of models even where that can run code of theirs.

    Raises:
        BadRequest: what is wrong, all of it in one line.
    """
    problems: list[str] = []
    sizes, wrong = forecast_run.read_memories(memory or ())
    problems += [wrong] if wrong else []
    try:
        spec = read_spec(model, options)
    except BadRequest as problem:
        problems.append(problem.message)
    if on_fake and options.get("device") not in (None, "cpu"):
        problems.append("--on-fake does without a device: leave --device out")
    if problems:
        raise BadRequest("; ".join(problems), "see tputfind forecast --help")
    outputs = check_places(places, model_sources([spec]), json="forecast", question=Question((spec,)))
    return Request(spec, sizes, on_fake, outputs, quiet, trust_model_file)


def do(request: Request, *, show_traceback: bool) -> int:
    """Forecast, write, show, and return the exit code.

    Raises:
        TputfindError: the device or the model does not allow it.
    """
    children = Children(trust_model_file=request.trust_model_file)
    with stop_signals(), children, show_progress(Console(stderr=True, quiet=request.quiet)) as progress:
        progress.about(request.spec.model)
        found = forecast_run.forecast_with(
            request.spec, request.memories_bytes, children, progress, typed(), on_fake=request.on_fake
        )
    document, outputs = forecast.document(found), request.outputs
    outputs.write(forms(document))
    return finish(document, outputs, show_traceback=show_traceback)
