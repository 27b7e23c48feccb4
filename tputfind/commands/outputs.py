"""Where a command writes: the folder and the files that it was told, checked before anything is measured for them."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from tputfind.errors import BadRequest, TputfindError
from tputfind.record import files
from tputfind.record.spec import Spec
from tputfind.report import kinds
from tputfind.report.charts import draw
from tputfind.report.kinds import Kind


class Places(NamedTuple):
    """Where a job writes: a folder for records and their CSV, and single files; each may be none.

    ``overwrite`` lets the single files replace what is no report of this tool's.
    """

    folder: Path | None
    csv: str | None = None
    json: str | None = None
    md: str | None = None
    html: str | None = None
    plot: str | None = None
    overwrite: bool = False


def taken_from(given: dict[str, Any], folder: Path | None = None) -> Places:
    """Take the places out of what was given to a command, and return them."""
    named = {word: given.pop(word, None) for word in ("csv", "json", "md", "html", "plot")}
    return Places(folder, **named, overwrite=given.pop("overwrite"))


class Source(NamedTuple):
    """A file that a run reads, and what it is to the run."""

    what: str
    path: Path


class Output(NamedTuple):
    """A file that is to be written, what it is written for (an option, in most cases), and what it will be."""

    wanted_by: str
    path: Path
    kind: Kind


class Outputs:
    """The files that a command writes, checked before anything is measured for them; one that fails costs no other.

    ``saved`` are those that were written, ``problems`` says which could not be.
    """

    def __init__(self, named: Mapping[str, Output], sources: Sequence[Source], *, overwrite: bool) -> None:
        """Take the outputs by the word of their option, and what must not be written over."""
        self._named = named
        self._sources = list(sources)
        self._overwrite = overwrite
        self.saved: list[str] = []
        self.problems: list[TputfindError] = []

    def check(self, output: Output) -> None:
        """Refuse an output that cannot be written, or would replace what it must not.

        Raises:
            BadRequest: what is in its way.
        """
        path = output.path
        files.check_writable(path)
        if files.descriptor_of(path) is not None or not path.is_file():
            return
        told = f"{output.wanted_by} {path}"
        for source in self._sources:
            if _same(path, source.path):
                raise BadRequest(f"{told} is {source.what}, and would be written over", "name another file")
        if not self._overwrite and not _may_be_replaced(path, output.kind):
            ours = f"{kinds.NAMES[output.kind]} of tputfind's"
            raise BadRequest(f"{told} is there already, and is no {ours}", "name another file, or give --overwrite")

    def check_all(self, table: Output | None = None) -> None:
        """Refuse what ``check`` does, and two that are the same file.

        Args:
            table: the CSV of a record that is gone on with. ``--csv`` may name it too: it holds the same.

        Raises:
            BadRequest: which output, and what is in its way.
        """
        outputs = [*self._named.values(), *([table] if table is not None else [])]
        for _ in range(2):  # once more, since a folder that was made for one may be where another is to lie
            for output in outputs:
                self.check(output)
        for one, other in combinations(outputs, 2):
            if _same(one.path, other.path) and (other is not table or one.kind != table.kind):
                raise BadRequest(f"two of {', '.join(each.wanted_by for each in outputs)} name the same file")

    def protect(self, sources: Iterable[Source]) -> None:
        """Keep more files from being written over."""
        self._sources += sources

    def write(
        self, contents: Mapping[str, Callable[[], bytes]], more: Iterable[tuple[Output, Callable[[], bytes]]] = ()
    ) -> None:
        """Make and write the files that were named, and more; what cannot be is among the problems afterwards.

        Args:
            contents: makes what is written, by the word of its option; what was not asked for is not made.
            more: other outputs, which are written first.
        """
        wanted = [*more, *((self._named[word], make) for word, make in contents.items() if word in self._named)]
        for output, make in wanted:
            try:
                self._write(output, make())
            except TputfindError as problem:
                self.problems.append(problem)
            except Exception as defect:  # of ours, or of a library: shown in full, and the other files are written
                what = f"{output.path} could not be made: {type(defect).__name__}: {defect}"
                self.problems.append(TputfindError(what, "this is a fault of tputfind's", traceback.format_exc()))

    def _write(self, output: Output, data: bytes) -> None:
        """Write a file, unless it became one that must not be written over since it was checked."""
        if files.descriptor_of(output.path) is not None or not _holds(output.path, data):
            self.check(output)
            files.write_whole(output.path, data)
        self.saved.append(str(output.path))


def check_places(
    places: Places, sources: Sequence[Source] = (), *, json: Kind = "record", table: Output | None = None
) -> Outputs:
    """Return the outputs of a command, after checking that each can and may be written.

    Args:
        places: what the command line names.
        sources: what the command reads.
        json: what ``--json`` holds.
        table: the CSV of a record that is gone on with, or None.

    Raises:
        BadRequest: an output cannot be written, or would be written over what must be kept.
    """
    named: dict[str, Output] = {}
    for word in ("csv", "json", "md", "html", "plot"):
        place: str | None = getattr(places, word)
        if place is not None:
            if place.endswith("/"):
                raise BadRequest(f"cannot write {place}: it is a folder")
            named[word] = Output(f"--{word}", files.path_of(f"--{word}", place), _kind(word, place, json))
    for word in ("html", "plot"):
        if word in named and json == "record":  # pages of other results have no plots
            draw.check_installed(f"--{word}")
    outputs = Outputs(named, sources, overwrite=places.overwrite)
    if places.folder is not None:
        files.check_folder(places.folder)
    outputs.check_all(table)
    return outputs


def _kind(word: str, place: str, json: Kind) -> Kind:
    found: dict[str, Kind] = {"csv": "csv", "json": json, "md": "md", "html": "html"}
    if word in found:
        return found[word]
    for ending in draw.ENDINGS:
        if Path(place).suffix.lower() == f".{ending}":
            return ending
    raise BadRequest(f"--plot {place}: the name says what is drawn by its ending: .png, .svg or .pdf")


def _same(one: Path, other: Path) -> bool:
    """Whether two names are of the same file, or will be."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return one.samefile(other)
    except OSError:  # one of them is missing
        return False


def _may_be_replaced(path: Path, kind: Kind) -> bool:
    """Whether a file that is there is empty, or a report of the kind that is to be written."""
    try:
        return path.stat().st_size == 0 or kinds.is_report(path, kind)
    except OSError:  # what cannot be read is not known to be ours
        return False


def _holds(path: Path, data: bytes) -> bool:
    """Whether a file holds just this already."""
    try:
        return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def table_of(record: Path) -> Output:
    """Return the CSV that lies beside a record."""
    return Output("the record's CSV", record.with_suffix(".csv"), "csv")


def records_read(names: Iterable[str | Path]) -> list[Source]:
    """Return records as sources."""
    return [Source("one of the records", Path(name)) for name in names]


def sources_of(specs: Iterable[Spec]) -> list[Source]:
    """Return the files that measuring these models is known to read, without importing anything.

    What else a user's own file reads is not known beforehand.
    """
    return list(dict.fromkeys(source for spec in specs for source in _sources_of(spec)))


def _sources_of(spec: Spec) -> Iterator[Source]:
    if spec.weights is not None:
        yield Source("the file of weights", Path(spec.weights))
    home = spec.model.rpartition(":")[0]
    if spec.source == "file":
        yield Source("the file of the model", Path(spec.model))
    elif spec.source == "hf":
        place = Path(spec.model.partition(":")[2])
        yield Source("the configuration of the model", place)
        with suppress(OSError):  # no folder, in most cases
            yield from (Source("one of the files of the model", file) for file in sorted(place.iterdir()))
    elif spec.source == "factory" and home.endswith(".py"):
        yield Source("the file of the model", Path(home))
    elif spec.source == "factory":
        yield from (Source("a file of the model's package", file) for file in _files_of_package(home))


def _files_of_package(name: str) -> Iterator[Path]:
    """Yield the files that importing ``package.module`` runs, as far as they are found where modules are looked for."""
    searched: Sequence[str] = ["", *sys.path]
    for part in name.split("."):
        try:
            found = PathFinder.find_spec(part, searched)
        except (ImportError, OSError, ValueError):
            return
        if found is None:
            return
        searched = list(found.submodule_search_locations or ())
        if found.origin is not None:
            yield Path(found.origin)
