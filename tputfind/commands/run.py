"""What one command line asks: several models measured, whatever becomes of each, and everything kept and shown."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from tputfind.analysis import recipes
from tputfind.commands.console import Given, finish, stop_signals, tell, typed
from tputfind.commands.options import MEASURING
from tputfind.commands.outputs import Outputs, Places, Source, check_places, sources_of, table_of, taken_from
from tputfind.errors import BadRequest, Interrupted, NoSuchDevice, TputfindError
from tputfind.processes.children import Children
from tputfind.processes.messages import Inspection
from tputfind.record import files, identity
from tputfind.record.record import Record
from tputfind.record.spec import Spec, read_spec
from tputfind.report.progress import ShownProgress
from tputfind.session import resume, run


def main(given: Given, *, show_traceback: bool) -> int:
    """Do what was given, and return the exit code.

    Raises:
        TputfindError: why it cannot be done.
    """
    output = None if given["output"] is None else files.path_of("--output", given["output"])
    if given["resume"] is not None and output is not None:
        raise BadRequest("--output cannot be combined with --resume, which writes into the record's own folder")
    places = taken_from(given, None if given["no_save"] else output or Path("results"))
    options = {one.name: None if given[one.name] is False else given[one.name] for one in MEASURING}
    how = {name: given[name] for name in ("quiet", "trust_model_file")}
    job = read_job(given["models"], options, places, given["resume"], **how)
    return do(job, show_traceback=show_traceback)


class Job(NamedTuple):
    """What to measure and where to write it: records into ``folder``, unless it is None.

    ``resumed`` is a record to go on with, and the file it lies in. ``trust_model_file`` is of this command line alone:
    a record cannot ask for it.
    """

    specs: Sequence[Spec]
    folder: Path | None
    outputs: Outputs
    resumed: tuple[Record, Path] | None = None
    quiet: bool = False
    trust_model_file: bool = False


def read_job(
    models: Sequence[str],
    options: Mapping[str, object],
    places: Places,
    resumed: str | None,
    *,
    quiet: bool,
    trust_model_file: bool = False,
) -> Job:
    """Return the job that a command line describes, checked before anything is measured for it.

    Raises:
        BadRequest: a model, an option or a place is wrong, or they do not go together.
        BadRecord: the record to resume cannot be read.
    """
    if resumed is None:
        if not models:
            raise BadRequest("no MODEL was named", "see tputfind --help")
        specs = [read_spec(model, one) for model in models for one in recipes.each(options)]
        if places.json is not None and len(specs) > 1:
            raise BadRequest(
                "--json holds one record, and several models were named", "--output keeps one file for each"
            )
        outputs = check_places(places, sources_of(specs))
        return Job(specs, places.folder, outputs, quiet=quiet, trust_model_file=trust_model_file)
    if len(models) > 1:
        raise BadRequest("--resume goes on with one record, and several models were named")
    path = Path(resumed)
    record = files.load_record(path)
    patience = {name: options.get(name) for name in ("trial_timeout", "strict")}
    given = [name for name, value in options.items() if value is not None and name not in patience]
    if given and not models:
        raise BadRequest("these options need a MODEL", "name the model too, or give --resume alone")
    if len(list(recipes.each(options))) > 1:
        raise BadRequest("--resume goes on with one record, and several recipes were asked for")
    spec = read_spec(models[0], options) if models else _with(record.spec, patience)
    sources = [Source("the record to go on with", path), *sources_of([spec])]
    folder = None if places.folder is None else Path(os.path.realpath(path)).parent
    table = None if folder is None else table_of(path)
    outputs = check_places(places._replace(folder=folder), sources, table=table)
    return Job([spec], folder, outputs, (record, path), quiet, trust_model_file)


def _with(spec: Spec, patience: Mapping[str, object]) -> Spec:
    """Return a record's spec with what was given anew."""
    given = read_spec(spec.model, patience)
    return msgspec.structs.replace(
        spec, trial_timeout_s=given.trial_timeout_s or spec.trial_timeout_s, strict=given.strict or spec.strict
    )


def do(job: Job, *, show_traceback: bool) -> int:
    """Measure, save, show, and return the exit code."""
    record_files: list[files.RecordFile] = []
    problems: list[TputfindError] = []
    with stop_signals() as ignore_signals:
        try:
            _measure_all(job, record_files, problems)
        except KeyboardInterrupt:
            interrupted = True
        else:
            interrupted = False
        ignore_signals()  # what follows takes a second, and must not be lost to a second signal
        if interrupted:
            for record_file in record_files:
                record_file.save_again()
        kept = [record_file for record_file in record_files if record_file.record is not None]
        saved = _write(kept, job.outputs, problems)
        if interrupted:
            problems.insert(0, _interruption(kept, saved, [spec.model for spec in job.specs[len(record_files) :]]))
    records = [record_file.record for record_file in kept if record_file.record is not None]
    return finish(partial(_show, records), problems, saved, show_traceback=show_traceback)


def _measure_all(job: Job, record_files: list[files.RecordFile], failures: list[TputfindError]) -> None:
    """Look at every model before measuring any; then measure each, and keep what becomes of it in the two lists."""
    if job.resumed is not None and job.resumed[0].finished is not None:
        resume.check_spec(job.resumed[0], job.specs[0])
        record_files.append(files.RecordFile.of(job.resumed[0], job.resumed[1] if job.folder else None))
        tell(f"{job.resumed[1]} is finished: there is nothing left to measure")
        try:
            run.check_answered(job.resumed[0])
        except TputfindError as failure:
            failures.append(failure)
        return
    if job.resumed is not None:
        _check_what_is_run(job, *job.resumed)
    command = typed()
    children = Children(trust_model_file=job.trust_model_file)
    with children, ShownProgress(Console(stderr=True, quiet=job.quiet)) as progress:
        inspections = _look_at_all(job.specs, children, progress)
        _try_out(job, inspections, command)
        for number, (spec, inspection) in enumerate(zip(job.specs, inspections, strict=True), 1):
            progress.about(_subject(job.specs, number))
            if isinstance(inspection, NoSuchDevice):
                failures.append(inspection)
                like = next(one for one in inspections if isinstance(one, Inspection))
                known = msgspec.structs.replace(like, input_shape="", parameters=None, source_sha256=None, caveats=())
                record_files.append(run.record_file_of(job.folder, spec, known))
                record_files[-1].save(run.failed_record(run.new_record(spec, known, command), inspection))
                continue
            record = run.new_record(spec, inspection, command)
            record_file = run.record_file_of(job.folder, spec, inspection)
            if job.resumed is not None:
                record = run.resumed_record(job.resumed[0], spec, inspection)
                record_file = files.RecordFile.of(record, job.resumed[1] if job.folder else None)
            record_files.append(record_file)
            try:
                run.measure(record, children, record_file, progress)
            except TputfindError as failure:
                failures.append(failure)
                if len(job.specs) > 1 and not (record_file.record or record).rows:
                    record_file.save(run.failed_record(record_file.record or record, failure))


def _check_what_is_run(job: Job, record: Record, path: Path) -> None:
    """Name the user's code that a record has run: who was given the record may not have looked.

    Raises:
        BadRecord: it is not the code that the record is of.
    """
    spec = job.specs[0]
    if spec.model == record.spec.model:
        resume.check_file(record)
    if spec.source == "factory" and not job.quiet:
        tell(f"{path} goes on with {spec.model}, which is imported and called")


def _try_out(job: Job, inspections: Sequence[Inspection | NoSuchDevice], command: str) -> None:
    """Make sure that what every model comes to can be saved, before any is measured; BadRequest otherwise."""
    for spec, inspection in zip(job.specs, inspections, strict=True):
        if isinstance(inspection, Inspection):
            record = run.new_record(spec, inspection, command)
            record_file = run.record_file_of(job.folder, spec, inspection)
            if job.resumed is not None:
                record_file = files.RecordFile.of(record, job.resumed[1] if job.folder else None)
            record_file.try_out(record)


def _look_at_all(specs: Sequence[Spec], children: Children, progress: ShownProgress) -> list[Inspection | NoSuchDevice]:
    """Look at every model in every recipe before any is measured; what a device or a model cannot do ends no list.

    Raises:
        TputfindError: none of them can be measured, or one was asked for wrongly.
    """
    found: list[Inspection | NoSuchDevice] = []
    for number, spec in enumerate(specs, 1):
        progress.about(_subject(specs, number))
        progress.doing("looking at the model and the device", None)
        try:
            found.append(run.inspect(spec, children))
        except NoSuchDevice as refusal:
            found.append(refusal)
    refusals = [one for one in found if isinstance(one, NoSuchDevice)]
    if len(refusals) == len(found):
        raise refusals[0]
    return found


def _subject(specs: Sequence[Spec], number: int) -> str:
    """Say which model is being measured, and where several are, in which recipe, and which of how many it is."""
    spec = specs[number - 1]
    return spec.model if len(specs) == 1 else f"{number}/{len(specs)} {spec.model} {identity.name_of(spec)}"


def _write(record_files: Sequence[files.RecordFile], outputs: Outputs, problems: list[TputfindError]) -> list[str]:
    """Write every file that was asked for; return what was written, what could not be goes to the problems."""
    from tputfind.report import csv, markdown
    from tputfind.report.page import page

    records = [record_file.record for record_file in record_files if record_file.record is not None]
    if not records:
        return []
    paths = [record_file.path for record_file in record_files if record_file.path is not None]
    outputs.protect(Source("the record of this run", path) for path in paths)
    tables = [
        (table_of(record_file.path), partial(csv.to_csv, [record_file.record]))
        for record_file in record_files
        if record_file.path is not None and record_file.record is not None
    ]
    contents: dict[str, Callable[[], bytes]] = {
        "csv": partial(csv.to_csv, records),
        "json": records[0].to_json,
        "md": partial(markdown.to_markdown, records),
        "html": partial(page.to_html, records),
    }
    outputs.write(contents, tables)
    problems += [record_file.problem for record_file in record_files if record_file.problem is not None]
    problems += outputs.problems
    return [
        str(record_file.path) for record_file in record_files if record_file.path and record_file.problem is None
    ] + outputs.saved


def _show(records: Sequence[Record]) -> None:
    from tputfind.report import terminal

    if any(record.rows for record in records):
        terminal.print_report(records, Console())


def _interruption(
    record_files: Sequence[files.RecordFile], saved: Sequence[str], not_begun: Sequence[str]
) -> Interrupted:
    """Return the error that says what an interruption left, and how to go on."""
    rest = f"; not begun: {', '.join(not_begun)}" if not_begun and record_files else ""
    if not saved:
        return Interrupted(f"interrupted; nothing was saved{rest}")
    unfinished = [
        record_file.path
        for record_file in record_files
        if record_file.path and record_file.record and record_file.record.finished is None
    ]
    hint = f"go on with: {shlex.join(['tputfind', '--resume', str(unfinished[0])])}" if unfinished else ""
    return Interrupted(f"interrupted; what was measured until then is saved{rest}", hint)
