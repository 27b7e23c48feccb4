"""A run's own folder among the temporary files, which no way to end leaves there for good.

The server makes it, holds a lock on it, and removes it in the end, which it outlives the parent for. Where the server
was killed too, the lock went with it, and the next start removes what is left.
"""

import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_OURS: Final = re.compile("tputfind-compiled-[0-9a-f]{16}")
"""Nothing else is ever removed: a user may well have a /tmp/tputfind-results."""


def new_path() -> Path:
    """Return where a folder may be made that nothing else has the name of."""
    return Path(tempfile.gettempdir(), f"tputfind-compiled-{secrets.token_hex(8)}")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Make the folder, hold it against every sweep, and remove it in the end; remove what was left beside it."""
    lock = _made(path)
    try:
        _sweep(path.parent)
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _made(path: Path) -> int:
    """Return the lock on a folder that was made, again where a sweep came between the two."""
    while True:
        path.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return lock
            os.close(lock)


def _sweep(temporary: Path) -> None:
    """Remove the folders of this user's runs that were killed: those that nobody holds."""
    with suppress(OSError):  # nothing of the run depends on it
        for entry in list(os.scandir(temporary)):
            if _OURS.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    with suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
