"""Files that a command reads and writes: those on its command line, and those that a model is made of."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.report.outputs import Output, Places, Source, table_of


def read_places(given: dict[str, Any], folder: Path | None = None) -> Places:
    """Remove the options that name output files from the arguments of a command, and return them."""
    return Places(folder, given.pop("save") or (), given.pop("overwrite"))


def csv_of_record(record: Record, path: Path) -> tuple[Output, Callable[[], bytes]]:
    def make() -> bytes:
        from tputfind.report.renderers.csv import render_csv
        from tputfind.report.views.records import data

        return render_csv(data([record]))

    return table_of(path), make


def record_sources(names: Iterable[str | Path]) -> list[Source]:
    return [Source("one of the records", Path(name)) for name in names]


def model_sources(specs: Iterable[Spec]) -> list[Source]:
    """Return the files that measuring these models reads, except what a user's own code opens; import nothing."""
    return list(dict.fromkeys(source for spec in specs for source in _model_sources(spec)))


def _model_sources(spec: Spec) -> Iterator[Source]:
    if spec.weights is not None:
        yield Source("the file of weights", Path(spec.weights))
    home = spec.model.rpartition(":")[0]
    if spec.source == "file":
        yield Source("the file of the model", Path(spec.model))
    elif spec.source == "hf":
        place = Path(spec.model.partition(":")[2])
        yield Source("the configuration of the model", place)
        with suppress(OSError):  # in most cases not a folder
            yield from (Source("one of the files of the model", file) for file in sorted(place.iterdir()))
    elif spec.source == "factory" and home.endswith(".py"):
        yield Source("the file of the model", Path(home))
    elif spec.source == "factory":
        yield from (Source("a file of the model's package", file) for file in _files_of_package(home))


def _files_of_package(name: str) -> Iterator[Path]:
    """Yield the files that importing ``package.module`` runs, as far as they are found on the module search path."""
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
