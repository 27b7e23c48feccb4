"""What one `tputfind compare` asks: records or folders of them read, paired, judged, written and shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from tputfind import files, values
from tputfind.comparison import TOLERANCE, Comparison, compare, subject
from tputfind.errors import BadRecord, BadRequest, Regression, TputfindError
from tputfind.job import say, terminal_that_may_be_gone
from tputfind.places import Places, check_apart, check_places
from tputfind.recipes import name_of
from tputfind.record import Record


class Request(NamedTuple):
    """Which records to compare with which, how, and where to write it; ``skipped`` is what could not be read."""

    pairs: list[tuple[Record, Record]]
    tolerance: float
    fail_slower: float | None
    force: bool
    places: Places
    skipped: list[TputfindError]


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
    check_places(places, None, 1)
    shares = {"--tolerance": tolerance, "--fail-slower": fail_slower}
    read: dict[str, float | None] = {}
    for name, text in shares.items():
        try:
            read[name] = None if text is None else values.share(text)
        except ValueError as error:
            raise BadRequest(f"{name}: {error}") from None
    skipped: list[TputfindError] = []
    if Path(old).is_dir() != Path(new).is_dir():
        raise BadRequest("OLD and NEW must be two records, or two folders of them")
    if Path(old).is_dir():
        pairs = _paired(_records(Path(old), skipped), _records(Path(new), skipped), skipped)
    else:
        pairs = [(files.load_record(old), files.load_record(new))]
    if not pairs:
        raise BadRequest(f"{old} and {new} hold no records of the same work", "name two records and --force")
    check_apart(places, [old, new])
    tolerated = read["--tolerance"]
    return Request(pairs, TOLERANCE if tolerated is None else tolerated, read["--fail-slower"], force, places, skipped)


def do(request: Request, *, show_traceback: bool) -> int:
    """Judge, write, show, and return the exit code.

    Raises:
        TputfindError: nothing could be compared.
    """
    compared: list[Comparison] = []
    problems = list(request.skipped)
    for old, new in request.pairs:
        try:
            compared.append(compare(old, new, tolerance=request.tolerance, force=request.force))
        except BadRequest as unlike:
            problems.append(_of(unlike, new) if len(request.pairs) > 1 else unlike)
    if not compared:
        for problem in problems[1:]:
            say(problem, show_traceback=show_traceback)
        raise problems[0]
    from tputfind.report import compare as report

    for path, written in ((request.places.json, report.to_json), (request.places.md, report.to_markdown)):
        if path:
            files.write_whole(Path(path), written(compared))
    regression = None if request.fail_slower is None else _regression(compared, request.fail_slower)
    printing: list[TputfindError] = []
    with terminal_that_may_be_gone(printing):
        report.print_comparisons(compared, Console())
    for problem in [*problems, *([regression] if regression else [])]:
        say(problem, show_traceback=show_traceback)
    if regression:
        return regression.exit_code
    # A gate that could not look at everything has not been passed.
    told = [*printing, *(problems if request.fail_slower is not None else [])]
    return told[0].exit_code if told else 0


def _of(problem: BadRequest, record: Record) -> BadRequest:
    return BadRequest(f"{subject(record)} {name_of(record.spec)}: {problem.message}", problem.hint)


def _regression(compared: Sequence[Comparison], share: float) -> Regression | None:
    """Return the error that names what became slower by more than a share, or does not run any more."""
    found = [
        f"{one.model} {one.recipe} batch {row.new_batch}: "
        + (row.reason if row.lost else f"{100 * (1 - (row.ratio or 0.0)):.1f} % slower")
        for one in compared
        for row in one.slower_than(share)
    ]
    # The fastest row is one of the batch sizes too, mostly.
    told = "; ".join(dict.fromkeys(found))
    return Regression(f"slower by more than {100 * share:g} %: {told}") if found else None


def _records(folder: Path, skipped: list[TputfindError]) -> dict[tuple[str, ...], Record]:
    """Return the records of a folder by what they are of, the newest of each; what is none is skipped, and said."""
    found: dict[tuple[str, ...], Record] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            record = files.load_record(path)
        except BadRecord as problem:
            skipped.append(problem)
            continue
        work = _work(record)
        if work not in found or found[work].started < record.started:
            found[work] = record
    return found


def _work(record: Record) -> tuple[str, ...]:
    spec = record.spec
    return (
        subject(record), name_of(spec), spec.optimizer or "", spec.transfer, spec.weights or "", record.input_shape,
        record.environment.device_name,
    )  # fmt: skip


def _paired(
    old: dict[tuple[str, ...], Record], new: dict[tuple[str, ...], Record], skipped: list[TputfindError]
) -> list[tuple[Record, Record]]:
    for mine, others, which in ((old, new, "NEW"), (new, old, "OLD")):
        skipped += [
            BadRequest(f"{which} has no record of {subject(record)} {name_of(record.spec)}")
            for work, record in mine.items()
            if work not in others
        ]
    return [(record, new[work]) for work, record in old.items() if work in new]
