"""Where a command writes: the folder and the files that it was told, checked before anything is measured for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tputfind import files
from tputfind.errors import BadRequest
from tputfind.report import plots


class Places(NamedTuple):
    """Where a job writes: a folder for records and their CSV, and single files, each of which may be none."""

    folder: Path | None
    csv: str | None = None
    json: str | None = None
    md: str | None = None
    html: str | None = None
    plot: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """The single files that are to be written, by the options that name them."""
        return {f"--{kind}": place for kind, place in self._asdict().items() if kind != "folder" and place}


def check_places(places: Places, folder: Path | None, count: int) -> None:
    """Refuse places that cannot be written to before anything is measured for them; ``folder`` is the records'."""
    if places.plot and Path(places.plot).suffix.lower().removeprefix(".") not in plots.ENDINGS:
        raise BadRequest(f"--plot {places.plot}: the name says what is drawn by its ending: .png, .svg or .pdf")
    for option in ("--html", "--plot"):
        if option in places.named:
            plots.check_installed(option)
    if places.json and count > 1:
        raise BadRequest("--json holds one record, and several models were named", "--output keeps one file for each")
    if folder is not None:
        files.check_folder(folder)
    for place in places.named.values():
        if place.endswith("/"):
            raise BadRequest(f"cannot write {place}: it is a folder")
        files.check_writable(Path(place))
    if len({Path(place).resolve() for place in places.named.values()}) < len(places.named):
        raise BadRequest(f"two of {', '.join(places.named)} name the same file")


def check_apart(places: Places, records: Sequence[str]) -> None:
    """Refuse to write over a record that is read."""
    sources = {Path(record).resolve() for record in records}
    for place in places.named.values():
        if Path(place).resolve() in sources:
            raise BadRequest(f"{place} is one of the records, and would be written over", "name another file")
