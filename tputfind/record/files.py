"""Files that are written whole or not at all, under names that no earlier run has used."""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Self

from tputfind.errors import BadRecord, BadRequest, TputfindError
from tputfind.options import nearest
from tputfind.record import clocks, forecast
from tputfind.record.clocks import Methods, Pipeline
from tputfind.record.forecast import Forecasts
from tputfind.record.record import Record, Records, decode_record, decode_records
from tputfind.record.untrusted import command_of, decode_json
from tputfind.units import echo

_MOST_BYTES: Final = 2**26
"""Maximum size of a record, some 500 times the usual one."""

_LIKE_A_RECORD: Final = 2**16
"""Bytes."""
_LONGEST_ENDING: Final = ".-20261120T235328-99.json.89abcdef.tmp"
"""The longest text that is added to a record's name, including while it is written."""
_USUAL_LONGEST_NAME: Final = 255


def path_of(name: str, given: object) -> Path:
    """Return the path given for an option; raise BadRequest if it is empty, unprintable or no path."""
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(text, str):
        raise BadRequest(f"{name} {echo(text)} is not a path")
    if not text:
        raise BadRequest(f"{name} is empty", "leave it out, or name a file or folder")
    if not text.isprintable():
        raise BadRequest(f"{name} {text!r} has characters that cannot be shown")
    return Path(text)


def check_writable(path: Path) -> None:
    """Raise BadRequest, which says why, if a file cannot be written at ``path``."""
    with _translate_errors(f"cannot write {path}"):
        try:
            descriptor = descriptor_of(path)
            mode = (path.stat() if descriptor is None else os.fstat(descriptor)).st_mode
        except FileNotFoundError:
            mode = stat.S_IFREG
        if stat.S_ISDIR(mode):
            raise BadRequest(f"cannot write {path}: it is a folder")
        if stat.S_ISREG(mode) and descriptor is None:
            real = Path(os.path.realpath(path))
            check_folder(real.parent)
            if len(os.fsencode(real.name)) > _longest_name(real.parent):
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def check_folder(folder: Path) -> None:
    """Create the folder if it is missing; raise BadRequest, which says why, if it cannot take a file like a record."""
    with _translate_errors(f"cannot write in {folder}", "choose another place to write to"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_LIKE_A_RECORD))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file through a temporary one in the same folder: readers see the old file or the new one, never a part.

    A link's target is replaced, not the link. A device, a pipe or an open file of this process (``/dev/stdout``) is
    written to directly. If writing fails with BadRequest, the old file is untouched.
    """
    with _translate_errors(f"cannot write {path}"):
        descriptor = descriptor_of(path)
        if descriptor is not None:
            with os.fdopen(os.dup(descriptor), "wb") as stream:
                stream.write(data)
            return
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = Path(os.path.realpath(path))
        with _temporary_file(path, data) as temporary:
            temporary.replace(path)


def descriptor_of(path: Path) -> int | None:
    """Return the file descriptor that a name such as ``/dev/stdout`` stands for; None for any other name."""
    found = re.fullmatch(r"/dev/(?:(stdout)|(stderr)|fd/(\d{1,9}))|/proc/self/fd/(\d{1,9})", str(path))
    if found is None:
        return None
    return 1 if found[1] else 2 if found[2] else int(found[3] or found[4])


def load_record(path: str | Path) -> Record:
    """Read a record that a run saved.

    Raises:
        BadRequest: ``path`` is not a path.
        BadRecord: the file is missing, unreadable, cut short, malformed, or of a schema that this version does not
            read.
    """
    return decode_record(content(path), str(path))


def load_records(path: str | Path) -> Records:
    """Read the one or several records of a file; errors as for ``load_record``."""
    return decode_records(content(path), str(path))


def load(path: str | Path) -> Record | Records | Methods | Pipeline | Forecasts:
    """Read the result of a run, ``tputfind clocks`` or ``tputfind forecast``; errors as for ``load_record``."""
    return decode(content(path), str(path))


def decode(data: bytes, name: str) -> Record | Records | Methods | Pipeline | Forecasts:
    """Return the result from the bytes of such a file; ``name`` names them in errors, which are of their content."""
    match command_of(data):
        case "clocks":
            kind: Any = Methods | Pipeline
            found: Methods | Pipeline = decode_json(data, name, kind, clocks.SCHEMA)
            return found
        case "forecast":
            return decode_json(data, name, Forecasts, forecast.SCHEMA)
        case _:
            records = decode_records(data, name)
            return records if len(records) > 1 else records[0]


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, False if that cannot be seen."""
    return os.path.isdir(path)  # noqa: PTH112  # Path.is_dir raises PermissionError


def content(path: str | Path) -> bytes:
    """Return the bytes of a file; errors as for ``load_record``, without those of its content."""
    if not isinstance(path, (str, Path)):
        raise BadRequest(f"path: {echo(path)} is a {type(path).__name__}, not a str or Path")
    if path == "":
        raise BadRequest("the name of a record is empty", "name a .json file that a run saved")
    try:
        data = _read(Path(path))
    except OSError as error:
        raise BadRecord(f"cannot read {path}: {error.strerror}", _hint_for_unreadable(Path(path), error)) from None
    except ValueError as error:  # no file can have this name
        raise BadRecord(f"cannot read {echo(str(path))}: {error}") from None
    if hint := _hint_for_table(Path(path)):
        raise BadRecord(f"{path} is a table", hint)
    return data


def _hint_for_unreadable(path: Path, error: OSError) -> str:
    """Return a hint which file to name instead of one that cannot be read; empty if there is no hint."""
    if beside := _hint_for_table(path):
        return beside
    if isinstance(error, IsADirectoryError):
        return f"name its files: {path / '*.json'}"
    if not isinstance(error, FileNotFoundError):
        return ""
    try:
        records = [one.name for one in path.parent.glob("*.json")]
    except OSError:
        return ""
    near = nearest(path.name, records)
    if near:
        return f"did you mean {path.parent / near[0]}?"
    if ":" in path.name or path.suffix != ".json":
        return "a record is a .json file that a run saved; two models are compared with --run"
    return "a record is a .json file that a run saved, by default in the folder results"


def _hint_for_table(path: Path) -> str:
    """Return a hint with the record of a CSV file in the same folder; empty if there is none."""
    if path.suffix != ".csv":
        return ""
    record = path.with_suffix(".json")
    return f"{record} beside it is the record" if os.path.isfile(record) else ""  # noqa: PTH113  # see is_folder


def _read(path: Path) -> bytes:
    """Return the bytes of a file; a pipe without a writer is empty, so that reading never blocks for ever."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123  # a descriptor has no path
        os.set_blocking(file.fileno(), True)
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise BadRecord(f"{path} is not a tputfind record: it is larger than {_MOST_BYTES // 2**20} MiB")
    return data


def write_new(folder: Path, stem: str, data: bytes) -> Path:
    """Write a new record whole as ``stem``.json in the folder, and return its path.

    If that name or its CSV's exists, the time is added: ``resnet50-fp16-nvidia-h200-20261120T235328.json``. The file
    appears with its full content, and two simultaneous runs never use the same name.
    """
    stem = _shorten_name(stem, _longest_name(folder) - len(_LONGEST_ENDING))
    now = f"{datetime.now().astimezone():%Y%m%dT%H%M%S}"
    for name in (stem, f"{stem}-{now}", *(f"{stem}-{now}-{count}" for count in range(2, 100))):
        path = folder / f"{name}.json"
        with _translate_errors(f"cannot write {path}"):
            if os.path.lexists(path.with_suffix(".csv")):
                continue
            try:
                with _temporary_file(path, data) as temporary:
                    _place_new(temporary, path)
            except FileExistsError:
                continue
            return path
    raise BadRequest(f"cannot find a free name for {stem} in {folder}")


def _place_new(temporary: Path, path: Path) -> None:
    """Give a finished file its name; raise FileExistsError if the name exists."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with path.open("xb") as file:
            try:
                file.write(temporary.read_bytes())
                file.flush()
            except OSError:
                path.unlink()
                raise


@contextmanager
def _temporary_file(path: Path, data: bytes) -> Iterator[Path]:
    """Write a temporary file in the folder of ``path``, synced to disk; remove it at the end."""
    ending = f".{token_hex(4)}.tmp"
    temporary = path.with_name(f".{_shorten_name(path.name, _longest_name(path.parent) - len(ending) - 1)}{ending}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _longest_name(folder: Path) -> int:
    try:
        return os.pathconf(folder, "PC_NAME_MAX")
    except (OSError, ValueError):
        return _USUAL_LONGEST_NAME


def _shorten_name(name: str, most_bytes: int) -> str:
    """Return a name, cut to ``most_bytes`` if longer; a hash keeps names with a common beginning distinct."""
    encoded = os.fsencode(name)
    if len(encoded) <= most_bytes:
        return name
    mark = f"-{sha256(encoded).hexdigest()[:8]}"
    return encoded[: most_bytes - len(mark)].decode(errors="ignore") + mark


@contextmanager
def _translate_errors(what: str, hint: str = "") -> Iterator[None]:
    """Turn an error of the file system into a BadRequest: ``what`` failed, and the reason."""
    try:
        yield
    except OSError as error:
        raise BadRequest(f"{what}: {error.strerror or error}", hint) from None
    except ValueError as error:  # the name has a NUL
        if isinstance(error, TputfindError):
            raise
        raise BadRequest(f"{what}: {error}", hint) from None


class RecordFile:
    """The file of a growing record, at ``path`` once it exists; without a folder no file is written."""

    def __init__(self, folder: Path | None, wanted: str) -> None:
        """Take the folder, or None, and the wanted name without an ending."""
        self._folder = folder
        self._wanted = wanted
        self.path: Path | None = None
        self.problem: TputfindError | None = None

    @classmethod
    def at(cls, path: Path | None) -> Self:
        """Return the file of a record that was loaded from ``path``; None if it is not to be written."""
        record_file = cls(None, "")
        record_file.path = path
        return record_file

    def save(self, record: Record) -> None:
        """Write the record whole; keep an error, as of a full disk, in ``problem``: the next call tries again."""
        try:
            if self.path is not None:
                write_whole(self.path, record.to_json())
            elif self._folder is not None:
                self.path = write_new(self._folder, self._wanted, record.to_json())
            self.problem = None
        except TputfindError as problem:
            self.problem = problem


def slug(text: str) -> str:
    """Return text as part of a file name: lower-case letters, digits, dots and underscores; a hyphen for the rest."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.") or "unnamed"
