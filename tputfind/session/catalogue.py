"""The names of torchvision's models without importing it, which takes seconds."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from importlib import metadata, resources
from importlib.util import find_spec
from typing import Final

import msgspec

from tputfind.errors import BrokenInstall
from tputfind.processes.children import REINSTALL, Children
from tputfind.processes.messages import ListModels, NamedModel
from tputfind.record.types import SOURCES, SourceName

FILE: Final = "torchvision.json"


class Catalogue(msgspec.Struct, frozen=True):
    """What torchvision lists in the ``versions`` (``0.26``) for which that was compared."""

    versions: tuple[str, ...]
    models: tuple[NamedModel, ...]


def at_hand(pattern: str = "*") -> list[NamedModel] | None:
    """Return the models that match a pattern or are of that family; None where nobody knows without asking.

    That is so of other zoos than torchvision, and of a torchvision whose version was never compared.
    """
    kept = msgspec.json.decode(resources.files("tputfind.session").joinpath(FILE).read_bytes(), type=Catalogue)
    try:
        installed = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return None
    known = ".".join(installed.split(".")[:2]) in kept.versions
    return _matching(kept.models, pattern) if known and _zoo(pattern) == "torchvision" else None


def asked(pattern: str, children: Children) -> list[NamedModel]:
    """Return what the zoo itself lists, family by family.

    Raises:
        BrokenInstall: torchvision does not work with the torch that is there.
        UnknownModel: the zoo is not installed.
    """
    check_torchvision(children)
    return _matching(children.ask(ListModels(_zoo(pattern)), NamedModel), pattern)


def elsewhere() -> Iterator[str]:
    """Yield lines about the models that other packages have."""
    for name, (package, prefix) in SOURCES.items():
        if not prefix or package is None:
            continue
        if find_spec(package) is None:
            yield f"{name}:NAME takes {package}, which is not installed: pip install 'tputfind[{name}]'"
        else:
            yield f"{name}:NAME is a model of {package}: tputfind models '{name}:*'"


def check_torchvision(children: Children) -> None:
    """Raise BrokenInstall where torchvision does not work with the torch that is there."""
    problem = children.preload("torchvision")
    if problem:
        raise BrokenInstall(f"torchvision does not work with this torch: {problem}", REINSTALL)


def _zoo(pattern: str) -> SourceName:
    with_prefix = (name for name, source in SOURCES.items() if source.prefix and pattern.startswith(name))
    return next(with_prefix, "torchvision")


def _matching(models: Iterable[NamedModel], pattern: str) -> list[NamedModel]:
    return [model for model in models if fnmatchcase(model.name, pattern) or model.family == pattern]
