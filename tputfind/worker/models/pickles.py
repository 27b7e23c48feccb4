"""Recognizes files of ``torch.save`` by the opcodes of their pickles, without unpickling."""

import io
import json
import pickletools
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tputfind.errors import UnknownModel
from tputfind.units import shorten_text

_MOST_BYTES: Final = 2**24
"""Maximum bytes read of a pickle: the objects of a file come first, and a module of thousands of layers takes less."""
_MOST_EVENTS: Final = 100_000
_LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""Start of a file of torch before 1.6: a pickled magic number; a version and a dict about the system follow."""
_BEFORE_THE_OBJECT: Final = 3
_OF_TENSORS: Final = ("torch._utils ", "torch._tensor ", "torch ", "torch.storage ", "collections OrderedDict", "numpy")
"""Prefixes of the globals that rebuild tensors and plain values."""
_CHECKPOINTS: Final = "state_dict", "model_state_dict", "model"
"""Keys under which a checkpoint stores its state dict."""
_SHOWN: Final = 3


class Pickled(NamedTuple):
    """The content of a file of ``torch.save``.

    ``name`` is the class of an object (``net.Net``) or describes other content; ``keys`` are those of a dict.
    """

    holds: Literal["object", "state dict", "other"]
    name: str = ""
    keys: tuple[str, ...] = ()


def refuse_pickle(path: Path) -> None:
    """Refuse a file of ``torch.save``.

    Raises:
        UnknownModel: it is one; the hint has the lines of a factory that loads it.
    """
    found = pickled_in(path)
    if found is None:
        return
    load = f"torch.load({json.dumps(str(path))}"
    into = f"put this into load.py, and name load.py:model in the place of {path}: "
    match found.holds:
        case "object" if found.name.startswith("__main__."):
            own = found.name.removeprefix("__main__.")
            raise UnknownModel(
                f"{path} is a pickled object of the class {own} of a script (torch.save of a whole module)",
                f"torch.save(model.state_dict(), {json.dumps(str(path))}) in that script, and load that in a factory",
            )
        case "object":
            raise UnknownModel(
                f"{path} is a pickled object of the class {found.name} (torch.save of a whole module), "
                "which runs code of whoever made it when it is loaded",
                f"{into}import torch; model = lambda: {load}, map_location='cpu', weights_only=False)",
            )
        case "state dict":
            inside = "".join(f"[{key!r}]" for key in _CHECKPOINTS if key in found.keys)
            lines = f"net = Net(); net.load_state_dict({load}, map_location='cpu'){inside}); model = lambda: net"
            raise UnknownModel(
                f"{path} is a state dict ({_few(found.keys)}): weights, without the module that they are of",
                f"{into}import torch; from YOUR_FILE import Net; {lines}; "
                f"or give --weights {path} beside the name of its model",
            )
        case _:
            raise UnknownModel(
                f"{path} is a file of torch.save that holds {found.name}, not a module",
                f"a factory may load it and return a module: {load}, map_location='cpu', weights_only=False)",
            )


def _few(keys: tuple[str, ...]) -> str:
    return ", ".join((*map(shorten_text, keys[:_SHOWN]), *(["..."] if len(keys) > _SHOWN else []))) or "empty"


def pickled_in(path: Path) -> Pickled | None:
    """Return the content of a file of ``torch.save``; None for TorchScript and any other file."""
    try:
        data = _pickle_of(path)
        return None if data is None else _read(data)
    except (OSError, ValueError, zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, IndexError):
        return None


def _pickle_of(path: Path) -> io.BytesIO | None:
    """Return the pickle of the object in a file of ``torch.save``, from its start; None for any other file."""
    with path.open("rb") as file:
        start = file.read(len(_LEGACY))
        if start[:2] == b"PK":
            with zipfile.ZipFile(file) as archive:
                names = {name.partition("/")[2]: name for name in archive.namelist()}
                if "data.pkl" not in names or "constants.pkl" in names:  # TorchScript has the latter
                    return None
                with archive.open(names["data.pkl"]) as entry:
                    return io.BytesIO(entry.read(_MOST_BYTES))
        if start[:1] != b"\x80":
            return None
        data = io.BytesIO(start + file.read(_MOST_BYTES))
    if start == _LEGACY:
        for _ in range(_BEFORE_THE_OBJECT):
            for _ in pickletools.genops(data):
                pass
    return data


def _read(data: io.BytesIO) -> Pickled:
    events = list(islice(_events(data), _MOST_EVENTS))
    classes = [value for event, value in events if event == "global"]
    others = [shorten_text(value.replace(" ", ".")) for value in classes if not value.startswith(_OF_TENSORS)]
    outermost = next(((event, value) for event, value in events if event != "string"), ("other", ""))
    if outermost[0] == "global" and not outermost[1].startswith(_OF_TENSORS):
        return Pickled("object", others[0])
    if outermost[0] == "dict" or outermost == ("global", "collections OrderedDict"):
        parts = {part for value in classes for part in value.split(" ")}  # strings too, in protocol 4
        texts = dict.fromkeys(value for event, value in events if event == "string" and value not in parts)
        keys = tuple(text for text in texts if (text.isidentifier() or "." in text) and text not in _STORED)
        if others:
            return Pickled("other", f"a dict with an object of the class {others[0]}")
        if any(value.startswith("torch") for value in classes):
            return Pickled("state dict", keys=keys)
        return Pickled("other", f"a dict without tensors ({_few(keys)})")
    return Pickled("other", "a tensor" if outermost[0] == "global" else "neither a module nor a dict")


_STORED: Final = {"storage", "cpu", "cuda", "_metadata", "version"}


def _events(data: io.BytesIO) -> Iterator[tuple[str, str]]:
    """Yield the classes, strings and containers of a pickle in their order; the word ``module`` is left out."""
    memo: dict[int, str] = {}
    recent: list[str] = []
    last = ""
    for opcode, argument, _ in pickletools.genops(data):
        match opcode.name:
            case "GLOBAL":
                yield "global", str(argument)
            case "STACK_GLOBAL":
                yield "global", " ".join(recent[-2:])
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8" | "UNICODE":
                last = str(argument)
                recent.append(last)
                if last != "module":  # torch before 1.6 writes it before each module's class
                    yield "string", last
            case "BINGET" | "LONG_BINGET" if isinstance(argument, int):
                recent.append(memo.get(argument, ""))
            case "BINPUT" | "LONG_BINPUT" if isinstance(argument, int):
                memo[argument] = last
            case "MEMOIZE":
                memo[len(memo)] = last
            case "EMPTY_DICT" | "DICT":
                yield "dict", ""
            case "EMPTY_LIST" | "LIST" | "EMPTY_TUPLE":
                yield "list", ""
