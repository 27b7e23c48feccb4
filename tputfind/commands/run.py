"""What one command line asks: several models measured, whatever becomes of each, and everything kept and shown."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from tputfind.commands.clusters import cluster_of
from tputfind.commands.console import Given, finish, stop_signals, tell, typed
from tputfind.commands.options import MEASURING
from tputfind.commands.outputs import Outputs, Places, Source, check_places, sources_of, table_of, taken_from
from tputfind.errors import BadRequest, Interrupted, TputfindError
from tputfind.fleet import cluster, sweep
from tputfind.fleet.cluster import Cluster
from tputfind.fleet.sweep import Job
from tputfind.processes.children import Children
from tputfind.record import files
from tputfind.record.record import Record
from tputfind.record.spec import Spec, read_spec
from tputfind.report.progress import ShownProgress
from tputfind.session import outcome, resume
from tputfind.session.run import Measured


def main(given: Given, *, show_traceback: bool) -> int:
    """Do what was given, and return the exit code.

    Raises:
        TputfindError: why it cannot be done.
    """
    output = None if given["output"] is None else files.path_of("--output", given["output"])
    if given["resume"] is not None and output is not None:
        raise BadRequest("--output cannot be combined with --resume, which writes into the record's own folder")
    asked = cluster_of(given)
    folder = output or (asked.resumed if asked else None) or Path("results")
    places = taken_from(given, None if given["no_save"] else folder)
    options = {one.name: None if given[one.name] is False else given[one.name] for one in MEASURING}
    how = {name: given[name] for name in ("quiet", "trust_model_file")}
    request = read_request(given["models"], options, places, None if asked else given["resume"], **how)
    return do(request._replace(cluster=asked), show_traceback=show_traceback)


class Request(NamedTuple):
    """What to measure and where to write it.

    ``trust_model_file`` is of this command line alone: a record cannot ask for it. ``cluster`` is None for this host.
    """

    job: Job
    outputs: Outputs
    quiet: bool = False
    trust_model_file: bool = False
    cluster: Cluster | None = None


def read_request(
    models: Sequence[str],
    options: Mapping[str, object],
    places: Places,
    resumed: str | None,
    *,
    quiet: bool,
    trust_model_file: bool = False,
) -> Request:
    """Return the request that a command line describes, checked before anything is measured for it.

    Raises:
        BadRequest: a model, an option or a place is wrong, or they do not go together.
        BadRecord: the record to resume cannot be read.
    """
    if resumed is None:
        if not models:
            raise BadRequest("no MODEL was named", "see tputfind --help")
        recipes = list(sweep.each_recipe(options))
        specs = [spec for model in models for spec in dict.fromkeys(read_spec(model, one) for one in recipes)]
        if places.json is not None and len(specs) > 1:
            raise BadRequest(
                "--json holds one record, and several models were named", "--output keeps one file for each"
            )
        outputs = check_places(places, sources_of(specs))
        return Request(Job(specs, places.folder, typed()), outputs, quiet, trust_model_file)
    if len(models) > 1:
        raise BadRequest("--resume goes on with one record, and several models were named")
    path = Path(resumed)
    record = files.load_record(path)
    patience = {name: options.get(name) for name in ("trial_timeout", "strict")}
    given = [name for name, value in options.items() if value is not None and name not in patience]
    if given and not models:
        raise BadRequest("these options need a MODEL", "name the model too, or give --resume alone")
    if len(list(sweep.each_recipe(options))) > 1:
        raise BadRequest("--resume goes on with one record, and several recipes were asked for")
    spec = read_spec(models[0], options) if models else _with(record.spec, patience)
    sources = [Source("the record to go on with", path), *sources_of([spec])]
    folder = None if places.folder is None else Path(os.path.realpath(path)).parent
    table = None if folder is None else table_of(path)
    outputs = check_places(places._replace(folder=folder), sources, table=table)
    return Request(Job([spec], folder, typed(), (record, path)), outputs, quiet, trust_model_file)


def _with(spec: Spec, patience: Mapping[str, object]) -> Spec:
    """Return a record's spec with what was given anew."""
    given = read_spec(spec.model, patience)
    return msgspec.structs.replace(
        spec, trial_timeout_s=given.trial_timeout_s or spec.trial_timeout_s, strict=given.strict or spec.strict
    )


def do(request: Request, *, show_traceback: bool) -> int:
    """Measure, save, show, and return the exit code."""
    found: list[Measured] = []
    interrupted = False
    with stop_signals() as ignore_signals:
        try:
            found.extend(_measured(request))
        except KeyboardInterrupt:
            interrupted = True
        ignore_signals()  # what follows takes a second, and must not be lost to a second signal
        problems = [one.ended_by for one in found if isinstance(one.ended_by, TputfindError)]
        interrupted |= any(isinstance(one.ended_by, KeyboardInterrupt) for one in found)
        kept = [one for one in found if one.record.trials or one.record.rows]
        saved = _write(kept, request.outputs, problems)
        if interrupted:
            problems.insert(0, _interruption(request, kept, saved, len(found)))
    return finish(partial(_show, [one.record for one in kept]), problems, saved, show_traceback=show_traceback)


def _measured(request: Request) -> Iterator[Measured]:
    """Yield what becomes of each spec; of a record that is finished, what it says already."""
    job = request.job
    if job.resumed is not None:
        record, path = job.resumed
        if record.finished is not None:
            resume.check_spec(record, job.specs[0])
            tell(f"{path} is finished: there is nothing left to measure")
            yield Measured(record, files.RecordFile.at(path if job.folder else None), outcome.error_of(record))
            return
        _check_what_is_run(request, record, path)
    if request.cluster is not None:
        with ShownProgress(Console(stderr=True, quiet=request.quiet)) as progress:
            yield from cluster.sweep(job, request.cluster, progress)
        return
    children = Children(trust_model_file=request.trust_model_file)
    with children, ShownProgress(Console(stderr=True, quiet=request.quiet)) as progress:
        yield from sweep.sweep(job, children, progress)


def _check_what_is_run(request: Request, record: Record, path: Path) -> None:
    """Name the user's code that a record has run: who was given the record may not have looked.

    Raises:
        BadRecord: it is not the code that the record is of.
    """
    spec = request.job.specs[0]
    if spec.model == record.spec.model:
        resume.check_file(record)
    if spec.source == "factory" and not request.quiet:
        tell(f"{path} goes on with {spec.model}, which is imported and called")


def _write(kept: Sequence[Measured], outputs: Outputs, problems: list[TputfindError]) -> list[str]:
    """Write every file that was asked for; return what was written, what could not be goes to the problems."""
    from tputfind.report import csv, markdown
    from tputfind.report.page import page

    if not kept:
        return []
    records = [one.record for one in kept]
    in_files = [(one.record, one.file.path) for one in kept if one.file.path is not None]
    outputs.protect(Source("the record of this run", path) for _, path in in_files)
    contents: dict[str, Callable[[], bytes]] = {
        "csv": partial(csv.to_csv, records),
        "json": records[0].to_json,
        "md": partial(markdown.to_markdown, records),
        "html": partial(page.to_html, records),
    }
    outputs.write(contents, [(table_of(path), partial(csv.to_csv, [record])) for record, path in in_files])
    problems += [one.file.problem for one in kept if one.file.problem is not None]
    problems += outputs.problems
    return [str(one.file.path) for one in kept if one.file.path and one.file.problem is None] + outputs.saved


def _show(records: Sequence[Record]) -> None:
    from tputfind.report import terminal

    if any(record.rows for record in records):
        terminal.print_report(records, Console())


def _interruption(request: Request, kept: Sequence[Measured], saved: Sequence[str], begun: int) -> Interrupted:
    """Return the error that says what an interruption left, and how to go on."""
    if request.cluster is not None:
        again = f"go on with the same command and --resume {request.job.folder}"
        what = "what was measured until then is saved" if saved else "nothing was saved"
        return Interrupted(f"interrupted; {what}", again if saved and request.job.folder else "")
    not_begun = [spec.model for spec in request.job.specs[begun:]]
    rest = f"; not begun: {', '.join(not_begun)}" if not_begun and kept else ""
    if not saved:
        return Interrupted(f"interrupted; nothing was saved{rest}")
    unfinished = [one.file.path for one in kept if one.file.path and one.record.finished is None]
    hint = f"go on with: {shlex.join(['tputfind', '--resume', str(unfinished[0])])}" if unfinished else ""
    return Interrupted(f"interrupted; what was measured until then is saved{rest}", hint)
