"""Checks model files before torch's loaders read them, because those loaders run code from a file.

``torch.export.load`` unpickles entries, evaluates strings and loads libraries. A file that holds data only is loaded
through the same open file; any other is refused, unless the user trusts it.
"""

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import torch

from tputfind.errors import BadRequest
from tputfind.processes.children import TRUSTED
from tputfind.processes.failures import said
from tputfind.step import context
from tputfind.worker.models import programs

HINT: Final = "--trust-model-file loads it nevertheless: what is in the file then runs as you"
_CONFIG: Final = re.compile(r"(data/(?:weights|constants)/).*_(?:weights|constants)_config\.json", re.DOTALL)
_PICKLED: Final = re.compile(r"data/(?:sample_inputs|weights|constants)/.*\.pt", re.DOTALL)
_OBJECT: Final = re.compile(r"(?:custom|opaque)_obj")
_WRITES_FILES: Final = re.compile(rb"\b(?:save|from_file)\b")
_FOREIGN_CLASS: Final = re.compile(rb"\bclasses\.(?!quantized\.|xnnpack\.)")
_MOST_INFLATED_BYTES: Final = 2**28
"""Maximum bytes by which an archive's content may exceed its size; torch compresses only code."""
_FORCED: Final = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def trusts_files() -> bool:
    """Return whether the user allows this run's files to run code."""
    return os.environ.get(TRUSTED) == "1"


@contextmanager
def weights_only() -> Iterator[None]:
    """Restrict torch's unpickling to tensors and plain values, whatever its callers request."""
    before = os.environ.get(_FORCED)
    os.environ[_FORCED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCED]
        else:
            os.environ[_FORCED] = before


def load_program(path: Path) -> Any:
    """Return the exported program in a file; raise BadRequest, with the entry's name, if an entry could run code."""
    if trusts_files():
        return torch.export.load(path)
    # Not torch.export.load, which falls back to older layouts if this fails.
    from torch.export.pt2_archive._package import load_pt2

    with path.open("rb") as file:
        _check_program(path, file)
        file.seek(0)
        with weights_only():
            return load_pt2(file).exported_programs["model"]


def load_script(path: Path) -> Any:
    """Return the module in a TorchScript file; errors as for ``load_program``."""
    with path.open("rb") as file:
        if not trusts_files():
            _check_script(path, file)
        same = f"/proc/self/fd/{file.fileno()}"  # given the open file, torch would copy it into memory
        script: Any = torch.jit.load(same, map_location="cpu")  # type: ignore[no-untyped-call]
        if any(True for _ in (*script.parameters(), *script.buffers())):
            return script
        # The weights of a frozen script are constants, which no ``to`` moves.
        return torch.jit.load(same, map_location=f"{context().device}")  # type: ignore[no-untyped-call]


class _Archive:
    """The entries of an archive, read by torch's own reader: another zip reader might see other entries."""

    def __init__(self, path: Path, file: io.BufferedReader) -> None:
        self.path = path
        self._reader: Any = torch._C.PyTorchFileReader(file)  # noqa: SLF001  # as torch does
        self.names: list[str] = self._reader.get_all_records()
        if len({name.lower() for name in self.names}) < len(self.names):
            self.refuse(next(iter(self._duplicate_names())), "is there twice")
        if _inflated_bytes(file) > path.stat().st_size + _MOST_INFLATED_BYTES:
            self.refuse("an entry", "is far larger than the file")

    def __getitem__(self, name: str) -> bytes:
        held: bytes = self._reader.get_record(name)
        return held

    def _duplicate_names(self) -> Iterator[str]:
        seen: set[str] = set()
        for name in self.names:
            if name.lower() in seen:
                yield name
            seen.add(name.lower())

    def refuse(self, entry: str, why: str) -> NoReturn:
        raise BadRequest(f"{self.path} is not loaded: {entry} {why}", HINT)

    def check_pickle(self, name: str) -> None:
        try:
            with weights_only():
                torch.load(io.BytesIO(self[name]), map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises whatever reading a pickle brings about
            if self[name]:
                self.refuse(name, f"holds more than tensors and plain values: {refused_global(error)}")


def _inflated_bytes(file: io.BufferedReader) -> int:
    """Return the sum of the sizes in the entries' headers, in bytes; 0 if Python sees no archive.

    Python reads the headers, because not every torch version gives the sizes.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile:
        return 0


def _check_program(path: Path, file: io.BufferedReader) -> None:
    archive = _Archive(path, file)
    if "archive_format" not in archive.names:
        archive.refuse("its layout", "is that of an older torch, or of none")
    for name in archive.names:
        if name.startswith("data/aotinductor/"):
            archive.refuse(name, "is compiled code")
        if _PICKLED.fullmatch(name):
            archive.check_pickle(name)
        elif config := _CONFIG.fullmatch(name):
            _check_config(archive, name, config[1])
        elif name.startswith("models/"):
            wrong = programs.first_wrong(archive[name])
            if wrong:
                archive.refuse(name, wrong)


def _check_config(archive: _Archive, name: str, folder: str) -> None:
    for held in json.loads(archive[name])["config"].values():
        entry = str(held["path_name"])
        if _OBJECT.match(entry):
            archive.refuse(os.path.join(folder, entry), "is an object, which makes itself by running code")  # noqa: PTH118
        if held["use_pickle"]:
            archive.check_pickle(os.path.join(folder, entry))  # noqa: PTH118  # as torch joins them


def _check_script(path: Path, file: io.BufferedReader) -> None:
    """Refuse TorchScript that can write files, which it may do while it is loaded, or that makes C++ objects."""
    try:
        archive = _Archive(path, file)
    except RuntimeError:
        return  # not an archive: torch.jit.load has a better message
    if "model.json" in archive.names:
        archive.refuse("its layout", "is that of a torch before 1.1")
    for name in archive.names:
        if name.endswith(".py"):
            if found := _WRITES_FILES.search(archive[name]):
                archive.refuse(name, f"can write files: {found[0].decode()}")
            if _FOREIGN_CLASS.search(archive[name]):
                archive.refuse(name, "makes objects of C++")


def refused_global(error: Exception) -> str:
    """Return the global that torch refused to unpickle, or else the first line of the error."""
    found = re.search(r"GLOBAL ([\w.]+)", f"{error}")
    return found[1] if found else said(error)
