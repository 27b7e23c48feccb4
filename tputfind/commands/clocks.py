"""`tputfind clocks`: check the options, measure, write and show the timings."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from tputfind import options as values
from tputfind import units
from tputfind.commands.console import Given, command_line, finish, options_of, stop_signals
from tputfind.commands.outputs import model_sources, read_places
from tputfind.errors import BadRequest
from tputfind.processes.children import Children
from tputfind.record.clocks import MOST_REPEATS, Asked
from tputfind.record.identity import Question
from tputfind.record.spec import Spec, read_spec
from tputfind.report.outputs import check_places, forms
from tputfind.report.progress import StderrConsole, show_progress
from tputfind.report.views import clocks as view
from tputfind.session import clocks

_FEWEST_TIMINGS: Final = 3
_LONGEST_HOST_WORK_MS: Final = 60_000.0


def main(given: Given, *, show_traceback: bool) -> int:
    places, quiet, trust = read_places(given), given.pop("quiet"), given.pop("trust_model_file")
    models = given.pop("models")
    asked = read_request(models, options_of(given, given))
    outputs = check_places(places, model_sources(asked.specs), json="clocks", question=Question(asked.specs))
    with stop_signals() as ignore_signals:
        children = Children(trust_model_file=trust)
        with children, show_progress(StderrConsole(quiet=quiet)) as progress:
            found = clocks.measure(asked, children, progress, command_line())
        ignore_signals()  # the rest is short and must not be lost to a signal
        document = view.document(found)
        outputs.write(forms(document))
    return finish(document, outputs, show_traceback=show_traceback)


def read_request(models: Sequence[str], options: Mapping[str, object]) -> Asked:
    """Return the request that a command line describes; raise BadRequest with all problems in one line."""
    # The host's work varies more than the device's, so a pipeline takes more timings.
    own: dict[str, object] = {
        "batch_size": 32,
        "repeats": 50 if len(models) == 1 else 200,
        "drop": 5,
        "host_work": 10.0,
    }
    given = own | {name: value for name, value in options.items() if value is not None}
    fields, problems = values.fields_of({name: given.pop(name) for name in own}, _READERS)
    if not 1 <= len(models) <= 2:
        problems.append("name one MODEL, or two for a pipeline")
    if len(models) == 1 and options.get("host_work") is not None:
        problems.append("--host-work is what the CPU does between two models, and one was named")
    specs: list[Spec] = []
    for model in models:
        try:
            specs.append(read_spec(model, given | {"batch_sizes": [fields.get("batch_size", 1)]}))
        except BadRequest as problem:
            problems.append(problem.message)
    asked = Asked(tuple(specs), **fields) if not problems else None  # type: ignore[arg-type]  # as _READERS says
    if asked is not None and asked.repeats - asked.drop < _FEWEST_TIMINGS:
        problems.append(f"--drop {asked.drop} leaves fewer than {_FEWEST_TIMINGS} of --repeats {asked.repeats}")
    if any(spec.warmup == 0 for spec in specs):
        problems.append("--warmup 0: what is timed warm needs at least one step of it")
    if asked is None or problems:
        raise BadRequest("; ".join(dict.fromkeys(problems)), "see tputfind clocks --help")
    return asked


def _host_work_ms(value: object) -> float:
    span_ms = values.positive_ms(value)
    if span_ms > _LONGEST_HOST_WORK_MS:
        raise ValueError(f"{units.echo(value)} is more than 1min")
    return span_ms


_READERS: Final[dict[str, tuple[str, values.Reader]]] = {
    "batch_size": ("batch_size", values.whole),
    "repeats": ("repeats", partial(values.whole, least=2, most=MOST_REPEATS)),
    "drop": ("drop", partial(values.whole, least=0, most=MOST_REPEATS)),
    "host_work": ("host_work_ms", _host_work_ms),
}
