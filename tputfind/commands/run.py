"""`tputfind run`: measure several models, even if some fail, and save and show all results."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec

from tputfind.commands.console import Given, command_line, finish, options_of, stop_signals, tell
from tputfind.commands.options import MEASURING
from tputfind.commands.outputs import csv_of_record, model_sources, read_places, record_sources
from tputfind.errors import BadRecord, BadRequest, Interrupted, TputfindError
from tputfind.processes import cores
from tputfind.processes.children import Children
from tputfind.record import files
from tputfind.record.identity import Question
from tputfind.record.record import Record
from tputfind.record.spec import Spec, read_spec
from tputfind.report.document import Document
from tputfind.report.outputs import Outputs, Places, Source, check_places, table_of
from tputfind.report.progress import StderrConsole, show_progress
from tputfind.runners import cluster, sweep
from tputfind.runners.cluster import Cluster
from tputfind.runners.devices import check_recipes, is_list, names
from tputfind.runners.host import Devices, Host
from tputfind.runners.places import Choice
from tputfind.runners.sweep import Job
from tputfind.session import outcome, resume
from tputfind.session.run import Measured
from tputfind.units import echo


def cluster_of(given: Given) -> Cluster | None:
    """Return the requested cluster, or None for this host; raise BadRequest if options cannot be combined."""
    named = [choice for choice in get_args(Choice) if given.get(choice)]
    if given["ray"] is None:
        if given["kinds"]:
            raise BadRequest("--kinds is for the devices of a cluster, and needs --ray")
        return None
    if given["all_busy"]:
        raise BadRequest("--all-busy is for the devices of one host", "run it on a node of the cluster, without --ray")
    if is_list(given["device"]):
        raise BadRequest(f"--device {given['device']}: with --ray, name one kind of device", "--each measures all")
    if len(named) > 1:
        raise BadRequest("--kinds and --each both say on which devices: give one", "--each measures all of each kind")
    resumed = None if given["resume"] is None else files.path_of("--resume", given["resume"])
    if resumed is not None and not resumed.is_dir():
        raise BadRequest(f"--resume {resumed}: with --ray, it names the folder of the records that are there already")
    return Cluster(given["ray"], named[0] if named else "next", resumed, given["trust_model_file"])


def main(given: Given, *, show_traceback: bool) -> int:
    return do(read_request(given), show_traceback=show_traceback)


class Request(NamedTuple):
    """The measurement and its output files.

    ``devices`` is None unless several are measured, ``cluster`` is None for this host. ``trust_model_file`` comes from
    the command line alone: a record cannot set it.
    """

    job: Job
    outputs: Outputs
    quiet: bool = False
    trust_model_file: bool = False
    devices: Devices | None = None
    cluster: Cluster | None = None


def read_request(given: Given) -> Request:
    """Return the request that a command line describes, checked before anything is measured."""
    output = None if given["output"] is None else files.path_of("--output", given["output"])
    if given["resume"] is not None and output is not None:
        raise BadRequest("--output cannot be combined with --resume, which writes into the record's own folder")
    asked = cluster_of(given)
    folder = output or (asked.resumed if asked else None) or Path("results")
    places = read_places(given, None if given["no_save"] else folder)
    options = options_of(given, (one.name for one in MEASURING))
    devices = None if asked else _devices_of(options, each=given["each"], all_busy=given["all_busy"])
    if devices is not None:
        if given["resume"] is not None:
            raise BadRequest("--resume goes on with one record, on its own device: leave --device out")
        options["device"] = None
    if given["resume"] is not None and asked is None:
        job, outputs = _read_record_to_resume(given, options, places)
    else:
        job, outputs = _read_new(given, options, places, asked, devices)
    return Request(job, outputs, given["quiet"], given["trust_model_file"], devices, asked)


def _read_new(
    given: Given, options: Mapping[str, object], places: Places, asked: Cluster | None, devices: Devices | None
) -> tuple[Job, Outputs]:
    if not given["models"]:
        raise BadRequest("no MODEL was named", "see tputfind --help")
    recipes = list(sweep.each_recipe(options))
    specs = [spec for model in given["models"] for spec in dict.fromkeys(read_spec(model, one) for one in recipes)]
    if devices is not None:
        check_recipes(given["models"][0], recipes, devices.names)
    begun = sorted(asked.resumed.glob("*.json")) if asked and asked.resumed else ()
    sources = [*record_sources(begun), *model_sources(specs)]
    any_device = devices is not None or asked is not None
    outputs = check_places(places, sources, question=Question(tuple(specs), any_device=any_device))
    return Job(specs, places.folder, command_line()), outputs


def _read_record_to_resume(given: Given, options: Mapping[str, object], places: Places) -> tuple[Job, Outputs]:
    models = given["models"]
    if len(models) > 1:
        raise BadRequest("--resume goes on with one record, and several models were named")
    path = files.path_of("--resume", given["resume"])
    record = files.load_record(path)
    patience = {name: options[name] for name in ("trial_timeout", "strict")}
    if not models and any(value is not None for name, value in options.items() if name not in patience):
        raise BadRequest("these options need a MODEL", "name the model too, or give --resume alone")
    if len(list(sweep.each_recipe(options))) > 1:
        raise BadRequest("--resume goes on with one record, and several recipes were asked for")
    spec = read_spec(models[0], options) if models else _merge_patience(record.spec, patience)
    if models and record.finished is not None and spec.model == record.spec.model:  # its answers are shown as they are
        resume.check_file(record)
    sources = [Source("the record to go on with", path), *model_sources([spec])]
    folder = None if places.folder is None else Path(os.path.realpath(path)).parent
    table = None if folder is None else table_of(path)
    question = Question((spec,), record.environment.device_name)
    outputs = check_places(places._replace(folder=folder), sources, question=question, table=table)
    return Job([spec], folder, command_line(), (record, path)), outputs


def _devices_of(options: Mapping[str, object], *, each: bool, all_busy: bool) -> Devices | None:
    """Return the devices to measure on if they are a list or are to be compared; None for a single device."""
    device = options.get("device")
    if all_busy and options.get("instances"):
        raise BadRequest("--all-busy keeps every device busy with one copy: leave --instances out")
    if options.get("gpus") or options.get("parallel"):  # one job on all of them
        if each or all_busy:
            raise BadRequest("--each and --all-busy measure devices one by one: leave --gpus and --parallel out")
        return None
    if not isinstance(device, str) or not (each or all_busy or is_list(device)):
        if each or all_busy:
            raise BadRequest(f"--{'each' if each else 'all-busy'} needs to know the devices", "give --device all")
        return None
    names(device)  # refuses a wrong one before anything is started
    return Devices(device, each=each or all_busy, all_busy=all_busy)


def _merge_patience(spec: Spec, patience: Mapping[str, object]) -> Spec:
    """Return a record's spec with the trial timeout and strictness of this command line, if they are set."""
    given = read_spec(spec.model, patience)
    return msgspec.structs.replace(
        spec, trial_timeout_s=given.trial_timeout_s or spec.trial_timeout_s, strict=given.strict or spec.strict
    )


def do(request: Request, *, show_traceback: bool) -> int:
    """Measure, save, show, and return the exit code; raise TputfindError if that fails before anything is measured."""
    found: list[Measured] = []
    interrupted = False
    problems: list[TputfindError] = []
    host: Host | None = None
    with stop_signals() as ignore_signals:
        try:
            if request.devices is None:
                found.extend(_measure(request))
            else:
                with show_progress(StderrConsole(quiet=request.quiet)) as progress:
                    host = Host(request.job, request.devices, progress.of, trust_model_file=request.trust_model_file)
                    found.extend(host.measured())
        except KeyboardInterrupt:
            interrupted = True
        except TputfindError as error:
            if not found:
                raise
            problems.append(error)
        ignore_signals()  # the rest takes a second and must not be lost to a second signal
        problems += [one.ended_by for one in found if isinstance(one.ended_by, TputfindError)]
        interrupted |= any(isinstance(one.ended_by, KeyboardInterrupt) for one in found)
        interrupted |= host is not None and host.interrupted
        several = len(found) > 1 or host is not None
        kept = [one for one in found if _is_shown(one, several=several)]
        stopped = [one for one in found if isinstance(one.ended_by, KeyboardInterrupt)]
        left = [spec.model for spec in request.job.specs[len(found) :]] if host is None else host.not_begun
        not_begun = [*(one.record.spec.model for one in stopped if one not in kept), *left]
        saved, document = _write(kept, request.outputs, problems)
        if interrupted:
            problems.insert(0, _interruption(request, kept, [*saved, *request.outputs.saved], not_begun))
        if host is not None:
            problems += host.problems
    return finish(document, request.outputs, problems, saved, show_traceback=show_traceback)


def _is_shown(measured: Measured, *, several: bool) -> bool:
    """Whether a result has trials or rows, or is one of several that an error ended before its first trial."""
    record, ended_by = measured.record, measured.ended_by
    return bool(record.trials or record.rows) or (several and isinstance(ended_by, TputfindError))


def _measure(request: Request) -> Iterator[Measured]:
    """Yield the result of each spec; a record that is finished is yielded as it is."""
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
        with show_progress(StderrConsole(quiet=request.quiet)) as progress:
            yield from cluster.sweep(job, request.cluster, progress)
        return
    with _children(request) as children, show_progress(StderrConsole(quiet=request.quiet)) as progress:
        yield from sweep.sweep(job, children, progress)


def _children(request: Request) -> Children:
    """Return the runner of child processes; a resumed record keeps its processes on the same cores."""
    resumed = request.job.resumed
    kept_to = None if resumed is None else resumed[0].environment.cores
    if kept_to is None:
        return Children(trust_model_file=request.trust_model_file)
    try:
        kept = cores.read(kept_to) & cores.here()
    except ValueError:
        raise BadRecord(f"the record names no cores: {echo(kept_to)}") from None
    if not kept:
        raise BadRecord(f"the record was made on cores {kept_to}, and this process may use none of them")
    return Children(trust_model_file=request.trust_model_file, cores=kept)


def _check_what_is_run(request: Request, record: Record, path: Path) -> None:
    """Announce which user code a resumed record runs: whoever received the record may not have looked at it."""
    spec = request.job.specs[0]
    if spec.model == record.spec.model:
        resume.check_file(record)
    if spec.source == "factory" and not request.quiet:
        tell(f"{path} goes on with {spec.model}, which is imported and called")


def _write(
    kept: Sequence[Measured], outputs: Outputs, problems: list[TputfindError]
) -> tuple[list[str], Document | None]:
    """Write all files, and note failures as problems; return the paths of the records, and what to show, if any."""
    from tputfind.report.outputs import forms
    from tputfind.report.views.records import document as document_of

    if not kept:
        return [], None
    document = document_of([one.record for one in kept])
    in_files = [(one.record, one.file.path) for one in kept if one.file.path is not None]
    outputs.protect(Source("the record of this run", path) for _, path in in_files)
    outputs.write(forms(document), [csv_of_record(*one) for one in in_files])
    problems += [one.file.problem for one in kept if one.file.problem is not None]
    problems += outputs.problems
    saved = [str(one.file.path) for one in kept if one.file.path and one.file.problem is None]
    return saved, document if any(one.record.rows or one.record.edge for one in kept) else None


def _interruption(
    request: Request, kept: Sequence[Measured], saved: Sequence[str], not_begun: Sequence[str]
) -> Interrupted:
    if request.cluster is not None:
        again = f"go on with the same command, and --resume {shlex.quote(str(request.job.folder))} in place of --output"
        what = "what was measured until then is saved" if saved else "nothing was saved"
        return Interrupted(f"interrupted; {what}", again if saved and request.job.folder else "")
    rest = f"; not begun: {', '.join(not_begun)}" if not_begun and kept else ""
    if saved:
        what = "what was measured until then is saved"
    else:
        what = "an earlier state is saved" if any(one.file.path for one in kept) else "nothing was saved"
    goes_on = [str(one.file.path or "") for one in kept if resume.can_go_on(one.record)]
    unfinished = [path for path in goes_on if path]
    if goes_on and not unfinished and len(kept) == 1:  # with --no-save, the record may be a file of --save
        unfinished = [path for path in saved if path.endswith(".json")]
    trust = ["--trust-model-file"] if request.trust_model_file else []
    commands = [shlex.join(["tputfind", "--resume", path, *trust]) for path in unfinished]
    hint = f"go on with: {'; '.join(commands)}" if commands else ""
    return Interrupted(f"interrupted; {what}{rest}", hint)
