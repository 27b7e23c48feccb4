"""Files written whole or not at all, under names that no earlier run has taken."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from tputfind.errors import BadRecord, BadRequest, TputfindError
from tputfind.record import Record, from_json
from tputfind.units import echoed

_MOST_BYTES: Final = 2**28
"""Of a record: ten thousand rows of three processes take a tenth of it."""


def check_writable(path: Path) -> None:
    """Make sure that a file can be written at ``path``, before anything is measured for it.

    Raises:
        BadRequest: it cannot, and why.
    """
    if path.is_dir():
        raise BadRequest(f"cannot write {path}: it is a folder")
    if not path.exists() or path.is_file():
        check_folder(path.resolve().parent)


def check_folder(folder: Path) -> None:
    """Make the folder if it is missing, and make sure that files can be written in it.

    Raises:
        BadRequest: they cannot, and why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadRequest(f"cannot write in {folder}: {error.strerror}", "choose another place to write to") from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file by way of a temporary one beside it: readers see the old file or the new one, never half of it.

    What a link points to is replaced, not the link; a device or a pipe (``/dev/stdout``) is written to as it is.

    Raises:
        BadRequest: the disk is full or the folder gone; the old file, if there was one, is untouched.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = path.resolve()
        with _temporary_beside(path, data) as temporary:
            temporary.replace(path)
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}") from None


def load_record(path: str | Path) -> Record:
    """Read a record that a run saved.

    Raises:
        BadRequest: the path is none.
        BadRecord: the file is missing, unreadable, cut short, edited out of shape, or of a newer schema.
    """
    if not isinstance(path, (str, Path)):
        raise BadRequest(f"path: {echoed(path)} is a {type(path).__name__}, and no str or Path")
    try:
        data = _read(Path(path))
    except OSError as error:
        raise BadRecord(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # of a name that no file can have
        raise BadRecord(f"cannot read {echoed(str(path))}: {error}") from None
    return from_json(data, str(path))


def _read(path: Path) -> bytes:
    """Return what a file holds; a pipe that nobody writes to is empty, and no reading goes on for ever.

    Raises:
        BadRecord: it holds more than any record.
        OSError: it cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123  # of an open descriptor
        os.set_blocking(file.fileno(), True)
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise BadRecord(f"{path} is not a tputfind record: it is larger than {_MOST_BYTES // 2**20} MiB")
    return data


def write_new(folder: Path, stem: str, data: bytes) -> Path:
    """Write a new record whole, as ``stem``.json in the folder, and return its path.

    Where that name, or its CSV's, is taken, the time is added: ``resnet50-fp16-nvidia-h200-20261120T235328.json``. The
    file appears with its content, and two runs at once do not take the same name.

    Raises:
        BadRequest: the disk is full or the folder gone.
    """
    now = f"{datetime.now().astimezone():%Y%m%dT%H%M%S}"
    for name in (stem, f"{stem}-{now}", *(f"{stem}-{now}-{count}" for count in range(2, 100))):
        path = folder / f"{name}.json"
        if path.with_suffix(".csv").exists():
            continue
        try:
            with _temporary_beside(path, data) as temporary:
                _place_new(temporary, path)
        except FileExistsError:
            continue
        except OSError as error:
            raise BadRequest(f"cannot write {path}: {error.strerror}") from None
        return path
    raise BadRequest(f"cannot find a free name for {stem} in {folder}")


def _place_new(temporary: Path, path: Path) -> None:
    """Give a finished file a name that must not be taken yet."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with path.open("xb") as file:
            file.write(temporary.read_bytes())


@contextmanager
def _temporary_beside(path: Path, data: bytes) -> Iterator[Path]:
    """Write a file beside ``path`` and on to the disk; what is left of it is removed at the end."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


class Keeper:
    """Keeps a record as it grows: in ``record``, and in a file, at ``path``, if there is a folder for it."""

    def __init__(self, folder: Path | None, wanted: str) -> None:
        """Take the folder, which may be none, and the name wanted, without an ending."""
        self._folder = folder
        self._wanted = wanted
        self.record: Record | None = None
        self.path: Path | None = None
        self.problem: TputfindError | None = None

    @classmethod
    def of(cls, record: Record, path: Path | None) -> Self:
        """Return what goes on keeping a record in the file that it lies in, if that is to be written."""
        keeper = cls(None, "")
        keeper.record, keeper.path = record, path
        return keeper

    def save(self, record: Record) -> None:
        """Write the record whole; the first time under a name that was free.

        A disk that is full or gone ends no run: the ``problem`` is kept, and the next stage tries again.
        """
        self.record = record
        try:
            if self.path is not None:
                write_whole(self.path, record.to_json())
            elif self._folder is not None:
                self.path = write_new(self._folder, self._wanted, record.to_json())
            self.problem = None
        except TputfindError as problem:
            self.problem = problem

    def save_again(self) -> None:
        """Write the record once more: the last time may have been interrupted."""
        if self.record is not None:
            self.save(self.record)


def slug(text: str) -> str:
    """Return text as part of a file name: lower case letters, digits, dots and underscores, the rest one hyphen."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.") or "unnamed"
