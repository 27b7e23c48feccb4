"""What one `tputfind compare` asks: records or folders of them read, paired, judged, written and shown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tputfind import options
from tputfind.analysis.compare import TOLERANCE, Comparison, compare, subject
from tputfind.analysis.gate import gate
from tputfind.commands.console import Given, finish, say
from tputfind.commands.outputs import records_read, taken_from
from tputfind.errors import BadRecord, BadRequest, TooNoisy, TputfindError
from tputfind.record import files
from tputfind.record.identity import name_of, work_key
from tputfind.record.record import Record
from tputfind.report.outputs import Outputs, Places, check_places

_SHARES: Final[dict[str, tuple[str, options.Reader]]] = {
    "tolerance": ("tolerance", options.share),
    "fail_slower": ("fail_slower", options.share),
}


def main(given: Given, *, show_traceback: bool) -> int:
    """Do what was given, and return the exit code.

    Raises:
        TputfindError: why it cannot be done.
    """
    places = taken_from(given)
    return do(read_request(given.pop("old"), given.pop("new"), places, **given), show_traceback=show_traceback)


class Request(NamedTuple):
    """Which records to compare with which, how, and where to write it.

    ``problems`` is what could not be looked at, ``notes`` what a reader should know and no gate fails on.
    """

    pairs: list[tuple[Record, Record]]
    tolerance: float
    fail_slower: float | None
    force: bool
    outputs: Outputs
    problems: list[TputfindError]
    notes: list[TputfindError]


def read_request(
    old: str, new: str, places: Places, *, tolerance: str | None, fail_slower: str | None, force: bool
) -> Request:
    """Return the request that a command line describes, with all records read.

    Args:
        old: a record, or a folder of them.
        new: the same.
        places: files to write.
        tolerance: the share up to which a difference is none, such as ``1%``, or None.
        fail_slower: the share beyond which a slower row is a regression, or None.
        force: compare unlike things too.

    Raises:
        BadRequest: an option is wrong, or the two have nothing in common.
        BadRecord: a file is no record.
    """
    asked, wrong = options.fields_of({"tolerance": tolerance, "fail_slower": fail_slower}, _SHARES)
    if wrong:
        raise BadRequest("; ".join(wrong))
    problems: list[TputfindError] = []
    notes: list[TputfindError] = []
    for name, place in (("OLD", old), ("NEW", new)):
        if not place:
            raise BadRequest(f"{name} is empty", "name a record, or a folder of records")
    if Path(old).is_dir() != Path(new).is_dir():
        for place in (old, new):
            if not os.path.lexists(place):
                raise BadRequest(f"{place} does not exist", "name two records, or two folders of records")
        raise BadRequest(
            "OLD and NEW must be two records, or two folders of them",
            f"{old if Path(old).is_dir() else new} is a folder",
        )
    if Path(old).is_dir():
        sources = records_read(path for folder in (old, new) for path in _in(Path(folder)))
        before, after = (_records(Path(folder), problems, notes) for folder in (old, new))
        pairs = _paired(before, after, problems)
    else:
        sources = records_read([old, new])
        pairs = [(files.load_record(old), files.load_record(new))]
    if not pairs:
        raise BadRequest(f"{old} and {new} hold no records of the same work", "name two records and --force")
    notes += _in_reverse(pairs)
    shares = {"tolerance": TOLERANCE, "fail_slower": None, **asked}
    return Request(
        pairs=pairs,
        force=force,
        outputs=check_places(places, sources, json="comparison"),
        problems=problems,
        notes=notes,
        **shares,  # type: ignore[arg-type]  # each reader returns its field's type
    )


def do(request: Request, *, show_traceback: bool) -> int:
    """Judge, write, show, and return the exit code.

    Raises:
        TputfindError: nothing could be compared.
    """
    compared: list[Comparison] = []
    problems = list(request.problems)
    for old, new in request.pairs:
        try:
            compared.append(compare(old, new, tolerance=request.tolerance, force=request.force))
        except BadRequest as unlike:
            problems.append(
                BadRequest(f"{_named(new)}: {unlike.message}", unlike.hint) if len(request.pairs) > 1 else unlike
            )
    if not compared:
        for problem in problems[1:]:
            say(problem, show_traceback=show_traceback)
        raise problems[0]
    from tputfind.report.renderers.files import forms
    from tputfind.report.views import compare as view

    document, outputs = view.document(compared), request.outputs
    outputs.write(forms(document))
    code = gate(compared, request.fail_slower, problems)
    for problem in [*request.notes, *problems]:  # before the table, with which a pipe may take all other output away
        say(problem, show_traceback=show_traceback)
    unwritten = finish(document, outputs, show_traceback=show_traceback)
    # An output that is missing must not pass where a pull request that is too noisy may.
    return (unwritten or code) if code == TooNoisy.exit_code else (code or unwritten)


def _in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _in_reverse(pairs: Sequence[tuple[Record, Record]]) -> Iterator[BadRequest]:
    """Yield a warning for each pair whose OLD began later than its NEW: a glob may have swapped them."""
    for old, new in pairs:
        if old.started > new.started:
            of = f" of {_named(new)}" if len(pairs) > 1 else ""
            begun = f"OLD{of} began later than NEW: {old.started} and {new.started}"
            yield BadRequest(begun, "the earlier record comes first")


class _Work(NamedTuple):
    """What two records of the same work have in common; ``model`` as seen from the folder that all models share."""

    model: str
    recipe: str
    rest: tuple[object, ...]


def _records(folder: Path, problems: list[TputfindError], notes: list[TputfindError]) -> dict[_Work, Record]:
    """Return the records of a folder by what they are of, of several the newest finished one; say what is left out."""
    read: list[Record] = []
    for path in _in(folder):
        try:
            read.append(files.load_record(path))
        except BadRecord as problem:
            problems.append(problem)
    homes = [Path(record.spec.model).parent for record in read if record.spec.own_code]
    shared = os.path.commonpath(homes) if len({home.is_absolute() for home in homes}) == 1 else ""
    found: dict[_Work, Record] = {}
    for record in sorted(read, key=lambda record: (record.finished is not None, record.started)):
        work = _work(record, shared)
        if work in found:
            notes.append(
                BadRequest(f"{folder} has several records of {_named(record)}: the newest finished one counts")
            )
        found[work] = record
    return found


def _work(record: Record, shared: str) -> _Work:
    spec = record.spec
    model = os.path.relpath(spec.model, shared) if shared and spec.own_code else spec.model
    rest = dict(work_key(record)) | {"model": None, "input": record.input_shape}
    rest |= {"grad_checkpoint": spec.grad_checkpoint, "memory_limit": spec.memory_limit_bytes}
    return _Work(model, name_of(spec), tuple(rest.values()))


def _paired(
    old: dict[_Work, Record], new: dict[_Work, Record], problems: list[TputfindError]
) -> list[tuple[Record, Record]]:
    for mine, others, which in ((old, new, "NEW"), (new, old, "OLD")):
        problems += [
            BadRequest(f"{which} has no record of {_named(record)}")
            for work, record in mine.items()
            if work not in others
        ]
    return [(record, new[work]) for work, record in old.items() if work in new]


def _named(record: Record) -> str:
    return f"{subject(record)} {name_of(record.spec)}"
