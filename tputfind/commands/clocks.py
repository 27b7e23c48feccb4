"""What one `tputfind clocks` asks: read and checked, measured, written and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console

from tputfind import options as values
from tputfind import units
from tputfind.commands.console import Given, finish, stop_signals, typed
from tputfind.commands.outputs import model_sources, read_places
from tputfind.errors import BadRequest
from tputfind.processes.children import Children
from tputfind.record.clocks import MOST_REPEATS, Asked
from tputfind.record.identity import Question
from tputfind.record.spec import Spec, read_spec
from tputfind.record.types import LARGEST_BATCH
from tputfind.report.outputs import check_places, forms
from tputfind.report.progress import show_progress
from tputfind.report.views import clocks as view
from tputfind.session import clocks

_DEFAULTS: Final = {"batch_size": "32", "repeats": "50", "drop": "5"}
_FEWEST_TIMINGS: Final = 3
"""Fewer cannot be compared with others."""
_OF_A_PIPELINE: Final = {"repeats": "200"}
"""The host's work varies more than the device's."""
_DEFAULT_HOST_WORK_MS: Final = 10.0
_LONGEST_HOST_WORK_MS: Final = 60_000.0


def main(given: Given, *, show_traceback: bool) -> int:
    """Time what was given, write, show, and return the exit code.

    Raises:
        TputfindError: why it cannot be done.
    """
    places, quiet, trust = read_places(given), given.pop("quiet"), given.pop("trust_model_file")
    asked = read_asked(given.pop("models"), given)
    outputs = check_places(places, model_sources(asked.specs), json="clocks", question=Question(asked.specs))
    with stop_signals() as ignore_signals:
        children = Children(trust_model_file=trust)
        with children, show_progress(Console(stderr=True, quiet=quiet)) as progress:
            found = clocks.measure(asked, children, progress, typed())
        ignore_signals()  # what follows takes a moment, and must not be lost to a signal
        document = view.document(found)
        outputs.write(forms(document))
    return finish(document, outputs, show_traceback=show_traceback)


def read_asked(models: Sequence[str], options: Mapping[str, object]) -> Asked:
    """Return what a command line asks for.

    Args:
        models: one or two.
        options: as ``spec.read_spec`` takes them, and ``batch_size``, ``repeats``, ``drop`` and ``host_work``, as text.
            None means: not given.

    Raises:
        BadRequest: what is wrong, all of it in one line.
    """
    defaults = _DEFAULTS if len(models) == 1 else _DEFAULTS | _OF_A_PIPELINE
    given = defaults | {name: value for name, value in options.items() if value is not None}
    problems: list[str] = []
    if not 1 <= len(models) <= 2:
        problems.append("name one MODEL, or two for a pipeline")
    batch_size = _count("batch_size", given, problems, 1, LARGEST_BATCH)
    repeats = _count("repeats", given, problems, 2, MOST_REPEATS)
    drop = _count("drop", given, problems, 0, MOST_REPEATS)
    if not problems and repeats - drop < _FEWEST_TIMINGS:
        problems.append(f"--drop {drop} leaves fewer than {_FEWEST_TIMINGS} of --repeats {repeats}")
    host_work_ms = _host_work_ms(given.pop("host_work", None), len(models), problems)
    specs: list[Spec] = []
    for model in models:
        try:
            specs.append(read_spec(model, given | {"batch_sizes": [batch_size]}))
        except BadRequest as problem:
            problems.append(problem.message)
    if any(spec.warmup == 0 for spec in specs):
        problems.append("--warmup 0: what is timed warm needs at least one step of it")
    if problems:
        raise BadRequest("; ".join(dict.fromkeys(problems)), "see tputfind clocks --help")
    return Asked(tuple(specs), batch_size, repeats, drop, host_work_ms)


def _count(name: str, given: dict[str, object], problems: list[str], least: int, most: int) -> int:
    """Take an option that is a whole number out of those given, and return it; what is wrong goes to the problems."""
    value = given.pop(name)
    try:
        return values.whole(value, least, most)
    except ValueError:
        wanted = f"a whole number from {least} to {most}"
        problems.append(f"--{name.replace('_', '-')}: {units.echoed(value)} is not {wanted}")
    return least


def _host_work_ms(text: object, models: int, problems: list[str]) -> float:
    if text is None:
        return _DEFAULT_HOST_WORK_MS
    if models == 1:
        problems.append("--host-work is what the CPU does between two models, and one was named")
    try:
        span_ms = units.parse_ms(str(text))
    except ValueError as error:
        problems.append(f"--host-work: {error}")
        return _DEFAULT_HOST_WORK_MS
    if not 0 < span_ms <= _LONGEST_HOST_WORK_MS:
        problems.append(f"--host-work: {units.echoed(text)} is not above 0 and up to 1min")
    return span_ms
