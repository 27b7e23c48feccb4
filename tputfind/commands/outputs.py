"""Files that a command reads and writes: those on its command line, and those that a model is made of."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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
    """Return the files that measuring these models reads, except what a user's own code reads; import nothing."""
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
