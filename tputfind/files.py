"""Files written whole or not at all, under names that no earlier run has taken."""

from __future__ import annotations

import os
import re
import tempfile
from datetime import datetime
from pathlib import Path

from tputfind.errors import BadRecord, BadRequest, TputfindError
from tputfind.record import Record, from_json


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
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}") from None


def load_record(path: str | Path) -> Record:
    """Read a record that a run saved.

    Raises:
        BadRecord: the file is missing, unreadable, cut short, edited out of shape, or of a newer schema.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadRecord(f"cannot read {path}: {error.strerror}") from None
    return from_json(data, str(path))


def claim_stem(folder: Path, stem: str) -> Path:
    """Claim a name in the folder for a new record and its report, and return it without an ending.

    The record's file is created empty, so that two runs at once do not take the same name. Where the name is taken the
    time is added: ``resnet50-fp16-nvidia-h200-20261120T235328``.
    """
    now = f"{datetime.now().astimezone():%Y%m%dT%H%M%S}"
    candidates = [stem, f"{stem}-{now}", *(f"{stem}-{now}-{count}" for count in range(2, 100))]
    for candidate in candidates:
        path = folder / candidate
        if path.with_name(f"{candidate}.csv").exists():
            continue
        try:
            path.with_name(f"{candidate}.json").open("x").close()
        except FileExistsError:
            continue
        except OSError as error:
            raise BadRequest(f"cannot write in {folder}: {error.strerror}") from None
        return path
    raise BadRequest(f"cannot find a free name for {stem} in {folder}")


class Keeper:
    """Keeps a record as it grows: in ``record``, and in a folder if there is one, in ``stem``.json."""

    def __init__(self, folder: Path | None, wanted: str) -> None:
        """Take the folder, which may be none, and the name wanted, without an ending."""
        self._folder = folder
        self._wanted = wanted
        self.record: Record | None = None
        self.stem: Path | None = None
        self.problem: TputfindError | None = None

    def save(self, record: Record) -> None:
        """Write the record whole; the first time under a name that was free.

        A disk that is full or gone ends no run: the ``problem`` is kept, and the next stage tries again.
        """
        self.record = record
        if self._folder is None:
            return
        try:
            if self.stem is None:
                self.stem = claim_stem(self._folder, self._wanted)
            write_whole(self.stem.with_name(f"{self.stem.name}.json"), record.to_json())
            self.problem = None
        except TputfindError as problem:
            self.problem = problem


def slug(text: str) -> str:
    """Return text as part of a file name: lower case letters, digits, dots and underscores, the rest one hyphen."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.") or "unnamed"
