"""Resuming a record that was cut short, or a race: only with the same request, device and method."""

import re
from collections.abc import Iterator
from hashlib import file_digest
from pathlib import Path

import msgspec

from tputfind.analysis.race import Contender, Outcome, Race
from tputfind.analysis.turns import Goal
from tputfind.errors import BadRecord
from tputfind.processes.messages import Inspection
from tputfind.record import identity
from tputfind.record.record import Failure, Record
from tputfind.record.spec import Spec, apply_findings
from tputfind.record.types import METHOD
from tputfind.session.inspect import now

_FROM_OUTSIDE = ("killed by SIGTERM", "killed by SIGHUP", "killed by SIGINT", "the measuring process was killed")
_CHANGED = "the file that the model is made by was changed"


def resumed_record(record: Record, spec: Spec, inspection: Inspection) -> Record:
    """Return a record that was cut short, ready to be resumed; BadRecord if it does not match the request."""
    spec = apply_findings(spec, record.spec)
    check_same(record, spec, inspection)
    return msgspec.structs.replace(
        without_accidents(record), spec=spec, edge=None, safe=None, resumed=(*record.resumed, now())
    )


def can_go_on(record: Record) -> bool:
    """Whether a record was cut short and can be resumed alone; records of devices that were busy together cannot."""
    return record.finished is None and record.spec.load != "all_busy"


def check_same(record: Record, spec: Spec, now: Inspection) -> None:
    """Make sure that a measurement now would continue the record; BadRecord, with the differences, otherwise."""
    if record.spec.load == "all_busy":
        raise BadRecord(
            f"the record is of {record.spec.busy_devices} devices that were busy together, and one cannot go on alone",
            "measure anew with --all-busy",
        )
    if record.method != METHOD:
        raise BadRecord(
            f"the record was measured by method {record.method}, and this version measures by method {METHOD}",
            "measure anew: the figures of the two must not stand side by side",
        )
    check_spec(record, spec)
    model_then, model_now = (record.input_shape, record.parameters), (now.input_shape, now.parameters)
    differing = list(_differing(record.environment, now.environment))
    if model_then != model_now:
        differing.append(f"the model's input and parameters ({model_then} then, {model_now} now)")
    if record.source_sha256 != now.source_sha256:
        differing.append(_CHANGED)
    if differing:
        raise _resume_error(differing)


def check_file(record: Record) -> None:
    """Make sure, before the file of a model is run, that it is unchanged since the record; BadRecord otherwise.

    The record of a live object raises BadRecord too, since no file holds the object.
    """
    spec = record.spec
    if spec.source == "live":
        raise BadRecord(
            f"the record cannot be resumed: {spec.model} was an object of a Python process, and no file holds it",
            "hand it to tputfind.find again, which measures anew",
        )
    path = Path(spec.model.rpartition(":")[0] if spec.source == "factory" else spec.model)
    if not spec.own_code or not path.is_file() or record.source_sha256 is None:
        return
    with path.open("rb") as file:
        if file_digest(file, "sha256").hexdigest() != record.source_sha256:
            raise _resume_error([_CHANGED])


def _resume_error(differing: list[str]) -> BadRecord:
    return BadRecord(
        f"the record cannot be resumed here, since this differs: {'; '.join(differing)}",
        "resume it where it was begun, or measure anew without --resume",
    )


def without_accidents(record: Record) -> Record:
    """Return the record without the trials and rows that failed because the run was cut short.

    A time-out may have been too short, and a signal to one process may have ended the whole run. Timings by other
    processes of the same row are kept.
    """
    trials = tuple(trial for trial in record.trials if not _is_accident(trial.failure))
    mended = (msgspec.structs.replace(row, failure=None) if _is_accident(row.failure) else row for row in record.rows)
    rows = tuple(row for row in mended if row.failure is not None or row.timings)
    single_rows = tuple(row for row in record.single_rows if not _is_accident(row.failure))
    return msgspec.structs.replace(record, trials=trials, rows=rows, single_rows=single_rows)


def _is_accident(failure: Failure | None) -> bool:
    return failure is not None and _is_accident_of(failure.kind, failure.message)


def _is_accident_of(kind: str, message: str) -> bool:
    message = re.sub(r"^(rank|instance) \d+: ", "", message)
    return kind == "timeout" or message.startswith(_FROM_OUTSIDE)


def check_spec(record: Record, spec: Spec) -> None:
    """Make sure that the request matches the record's; BadRecord otherwise."""
    differing = list(_differing(record.spec, apply_findings(spec, record.spec)))
    if differing:
        raise BadRecord(
            f"the record is of another measurement: {'; '.join(differing)}",
            "give its own model and options, or --resume alone",
        )


def _differing(then: msgspec.Struct, now: msgspec.Struct) -> Iterator[str]:
    for name, before, after in identity.differing(then, now, "work", "told", "asked"):
        yield f"{name} ({before} then, {after} now)"


def resumed_contenders(race: Race, goal: Goal, plain: Spec, device_name: str, sha256: str | None) -> list[Contender]:
    """Return the contenders of a race, which goes on as a race of ``plain`` on this device; BadRecord if it cannot.

    Those that failed because the run was cut short are untried, as in ``without_accidents``.
    """
    theirs = race.specs[0]
    here = identity.Question((msgspec.structs.replace(plain, budget_s=theirs.budget_s),), device_name)
    differing = identity.unlike_questions(identity.question_of(race), here)
    if race.method != METHOD:
        differing.append(f"method ({race.method} there, {METHOD} here)")
    if race.goal != goal:
        differing.append(f"goal ({race.goal} there, {goal} here)")
    if race.source_sha256 != sha256:
        differing.append(_CHANGED)
    if differing:
        raise BadRecord(
            f"the race cannot go on here, since this differs: {'; '.join(differing)}",
            "give the model and the options of that race, or race anew without --resume",
        )
    free = {name: getattr(plain, name) for name, role in identity.roles(Spec).items() if role == "free"}
    free["budget_s"] = plain.budget_s

    def as_here(spec: Spec) -> Spec:
        return msgspec.structs.replace(spec, **free)

    def outcome(one: Contender) -> Outcome:
        kind, _, message = one.reason.partition(": ")
        return "untried" if one.outcome == "failed" and _is_accident_of(kind, message) else one.outcome

    return [
        msgspec.structs.replace(
            one, spec=as_here(one.spec), against=one.against and as_here(one.against), outcome=outcome(one)
        )
        for one in race.contenders
    ]


def recorded_winner(race: Race, winner: Spec, inspection: Inspection | None = None) -> Record | None:
    """Return the record of a race that goes on, if it holds this winner in full; None if that is to be measured.

    Without an ``inspection``, only the specs are compared, and the record's batch sizes may be any.
    """
    record = race.record
    if record is None or record.finished is None or not (record.edge is None or record.edge.closed):
        return None
    is_whole = record.edge is not None or record.spec.batch_sizes is not None
    if inspection is not None and (not is_whole or any(row.ended_by == "budget" for row in record.rows)):
        return None
    winner = msgspec.structs.replace(winner, budget_s=record.spec.budget_s)
    try:
        if inspection is None:
            check_spec(record, msgspec.structs.replace(winner, batch_sizes=record.spec.batch_sizes))
        else:
            check_same(record, winner, inspection)
    except BadRecord:
        return None
    return record
