"""`tputfind compare`: pair records or time models in turn, then judge, write and show."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from tputfind import options
from tputfind.analysis.compare import TOLERANCE, Comparison, allocator_settings, compare, gate, weights_name
from tputfind.commands.console import Given, finish, options_of, say, stop_signals, terminal_that_may_be_gone
from tputfind.commands.options import IN_TURN
from tputfind.commands.outputs import model_sources, read_places, record_sources
from tputfind.errors import BadRecord, BadRequest, Interrupted, TooNoisy, TputfindError
from tputfind.processes.children import Children
from tputfind.record import files
from tputfind.record.identity import Question, name_of, work_key
from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.report.outputs import Outputs, Places, Source, check_places
from tputfind.report.progress import StderrConsole, show_progress
from tputfind.runners import compare as in_turn

_SHARES: Final[dict[str, tuple[str, options.Reader]]] = {
    "tolerance": ("tolerance", options.share),
    "fail_slower": ("fail_slower", options.share),
}
_OF_A_RUN: Final = ("quiet", "trust_model_file")
"""Options that do not change the measurement; a comparison of records accepts them, too."""


def main(given: Given, *, show_traceback: bool) -> int:
    places = read_places(given)
    shares, wrong = options.fields_of({name: given[name] for name in _SHARES}, _SHARES)
    measuring = options_of(given, (option.name for option in IN_TURN))
    names = [option.flag for option in IN_TURN if measuring[option.name] is not None and option.name not in _OF_A_RUN]
    if not given["run"] and names:
        wrong.append(f"{', '.join(names)}: records hold what was measured; --run measures anew")
    if given["run"] and given["force"]:
        wrong.append("--force is for records: with --run, two models are compared as they are")
    if wrong:
        raise BadRequest("; ".join(wrong))
    problems: list[TputfindError] = []  # records that could not be compared
    notes: list[TputfindError] = []  # notes for the reader, on which no gate fails
    gates = Gates(**shares)  # type: ignore[arg-type]  # as _SHARES says
    interrupted, stopped = False, list[TputfindError]()
    with stop_signals() as ignore_signals:
        if given["run"]:
            found, outputs = _measure_in_turns(given["compared"], measuring, places, gates, ignore_signals)
            compared, interrupted = [found.comparison], found.interrupted
            stopped = [] if found.problem is None else [found.problem]
        else:
            compared, outputs = _compare_records(
                given["compared"], places, gates, problems, notes, force=given["force"]
            )
        if not compared:
            for problem in problems[1:]:
                say(problem, show_traceback=show_traceback)
            raise problems[0]
        from tputfind.report.outputs import forms
        from tputfind.report.views import compare as view

        document = view.document(compared)
        outputs.write(forms(document))
    code = gate(compared, gates.fail_slower, problems)
    with terminal_that_may_be_gone([], stream=2):
        for problem in [*notes, *problems]:  # before the table: a closed pipe may end all later output
            say(problem, show_traceback=show_traceback)
    said = "the rounds until then are saved" if outputs.saved else "nothing was saved: --save names a file"
    stopped += [Interrupted(f"interrupted; {said}")] if interrupted else []
    unwritten = finish(document, outputs, [*stopped, *outputs.problems], show_traceback=show_traceback)
    # A missing output must fail even if a pull request may pass with a comparison that is too noisy.
    return (unwritten or code) if stopped or code == TooNoisy.exit_code else (code or unwritten)


def _measure_in_turns(
    models: Sequence[str],
    measuring: Mapping[str, object],
    places: Places,
    gates: Gates,
    ignore_signals: Callable[[], None],
) -> tuple[in_turn.Compared, Outputs]:
    quiet, trust = bool(measuring["quiet"]), bool(measuring["trust_model_file"])
    recipe = {name: value for name, value in measuring.items() if name not in _OF_A_RUN}
    asked = in_turn.read_request(models, recipe, *gates)
    outputs = check_places(places, model_sources(asked.specs), json="comparison", question=Question(asked.specs))
    with ExitStack() as stack:
        children = stack.enter_context(Children(trust_model_file=trust))
        progress = stack.enter_context(show_progress(StderrConsole(quiet=quiet)))
        found = in_turn.measure(asked, (children.copy(), children.copy()), progress)
        ignore_signals()  # the rest is short and must not be lost to a signal
    return found, outputs


def _compare_records(
    places_of_records: Sequence[str],
    places: Places,
    gates: Gates,
    problems: list[TputfindError],
    notes: list[TputfindError],
    *,
    force: bool,
) -> tuple[list[Comparison], Outputs]:
    if len(places_of_records) != 2:
        raise BadRequest(f"name OLD and NEW: {len(places_of_records)} are given", "see tputfind compare --help")
    old, new = places_of_records
    pairs, sources = _pairs(old, new, problems, notes)
    outputs = check_places(places, sources, json="comparison")
    compared: list[Comparison] = []
    for before, after in pairs:
        try:
            compared.append(compare(before, after, tolerance=gates.tolerance, force=force))
        except BadRequest as unlike:
            problems.append(
                BadRequest(f"{_record_name(after)}: {unlike.message}", unlike.hint) if len(pairs) > 1 else unlike
            )
    return compared, outputs


def _pairs(
    old: str, new: str, problems: list[TputfindError], notes: list[TputfindError]
) -> tuple[list[tuple[Record, Record]], list[Source]]:
    """Return the pairs of records to compare, and the files that they were read from."""
    for name, place in (("OLD", old), ("NEW", new)):
        if not place:
            raise BadRequest(f"{name} is empty", "name a record, or a folder of records")
    both = Path(old), Path(new)
    olds, news = (_read(place, problems) for place in both)
    if len(olds) == len(news) == 1 and not any(map(files.is_folder, both)):
        pairs = [(olds[0], news[0])]
    else:
        read = olds, news
        homes = _homes(*({one.spec.model for one in side if _is_file(one.spec)} for side in read))
        of_weights = _homes(*({one.spec.weights for one in side if one.spec.weights is not None} for side in read))
        sides = [[_Marked(one, *both) for one in side] for side, *both in zip(read, homes, of_weights, strict=True)]
        several = _multiple_marks(sides[0]) & _multiple_marks(sides[1])
        older, newer = (_newest_of_each_work(*named, several, notes) for named in zip((old, new), sides, strict=True))
        pairs = _match_records(older, newer, problems)
    if not pairs:
        problems.append(BadRequest(f"{old} and {new} hold no records of the same work", "name two records and --force"))
    for before, after in pairs:
        if before.started > after.started:  # a glob may have swapped them
            of = f" of {_record_name(after)}" if len(pairs) > 1 else ""
            begun = f"OLD{of} began later than NEW: {before.started} and {after.started}"
            notes.append(BadRequest(begun, "the earlier record comes first"))
    return pairs, record_sources(path for place in both for path in _files(place))


def _files(place: Path) -> list[Path]:
    return sorted(place.glob("*.json")) if files.is_folder(place) else [place]


def _read(place: Path, problems: list[TputfindError]) -> list[Record]:
    """Return the records of a file or a folder; unreadable files of a folder become problems."""
    read: list[Record] = []
    for path in _files(place):
        try:
            read += files.load_records(path)
        except BadRecord as problem:
            if not files.is_folder(place):
                raise
            problems.append(problem)
    return read


class Gates(NamedTuple):
    """Thresholds of verdicts and exit codes, as fractions of a throughput."""

    tolerance: float = TOLERANCE
    fail_slower: float | None = None


_Work = tuple[object, ...]


def _is_file(spec: Spec) -> bool:
    return spec.source == "file" or (spec.source == "factory" and ".py:" in spec.model)


def _homes(*paths: set[str]) -> Sequence[str]:
    """Return the folders of two checkouts from which most of their paths are the same."""
    choices: list[list[str]] = []
    for side in paths:
        parents = [Path(path).parent for path in side]
        comparable = len({parent.is_absolute() for parent in parents}) == 1
        shared = Path(os.path.commonpath(parents)) if comparable else None
        choices.append([""] if shared is None else [str(shared), *map(str, shared.parents)])

    def matches(homes: Sequence[str]) -> int:
        old, new = ({_relative(path, home) for path in side} for side, home in zip(paths, homes, strict=True))
        return len(old & new)

    return max(product(*choices), key=matches)


def _relative(model: str, home: str) -> str:
    return os.path.relpath(model, home) if home else model


class _Marked:
    """A record with its work, and with its device and its weights: records of several in both folders are matched."""

    def __init__(self, record: Record, home: str, home_of_weights: str) -> None:
        """Name the files of a record by their paths from these folders."""
        weights = record.spec.weights
        self.record = record
        self.work = _work(record, home)
        self.marks = record.environment.device, None if weights is None else _relative(weights, home_of_weights)


def _multiple_marks(side: Sequence[_Marked]) -> set[tuple[_Work, int]]:
    """Return each work with the number of a mark that has several values among its records."""
    values = defaultdict[tuple[_Work, int], set[object]](set)
    for one in side:
        for number, mark in enumerate(one.marks):
            values[one.work, number].add(mark)
    return {key for key, found in values.items() if len(found) > 1}


def _newest_of_each_work(
    place: str, side: Sequence[_Marked], several: set[tuple[_Work, int]], notes: list[TputfindError]
) -> dict[_Work, Record]:
    """Return the records of a place by their works, the newest finished one for each; note the records left out.

    Marks of which both places have ``several`` count as part of the work.
    """
    found: dict[_Work, Record] = {}
    for one in sorted(side, key=lambda one: (one.record.finished is not None, one.record.started)):
        record, work = one.record, one.work
        work += tuple(mark for number, mark in enumerate(one.marks) if (one.work, number) in several)
        if work in found:
            notes.append(
                BadRequest(f"{place} has several records of {_record_name(record)}: the newest finished one counts")
            )
        found[work] = record
    return found


def _work(record: Record, home: str) -> _Work:
    """Return the key of a record, with the file of its model relative to a folder."""
    spec = record.spec
    model = _relative(spec.model, home) if _is_file(spec) else spec.model
    rest = dict(work_key(record)) | {"model": None, "input": record.input_shape, "weights": weights_name(record)}
    rest |= dict.fromkeys(("image_size", "input_size", "sequence_length"))  # the shape says it
    rest["allocator_conf"] = allocator_settings(record)
    rest |= {"grad_checkpoint": spec.grad_checkpoint, "memory_limit": spec.memory_limit_bytes}
    return (model, name_of(spec), *rest.values())


def _match_records(
    old: dict[_Work, Record], new: dict[_Work, Record], problems: list[TputfindError]
) -> list[tuple[Record, Record]]:
    for mine, others, which in ((old, new, "NEW"), (new, old, "OLD")):
        problems += [
            BadRequest(f"{which} has no record of {_record_name(record)}")
            for work, record in mine.items()
            if work not in others
        ]
    return [(record, new[work]) for work, record in old.items() if work in new]


def _record_name(record: Record) -> str:
    return f"{record.spec.model} {name_of(record.spec)}"
