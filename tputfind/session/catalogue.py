"""The names of torchvision's models, without the seconds that importing torchvision takes."""

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
    """The models that torchvision lists; ``versions`` (``0.26``) are those for which the list was compared."""

    versions: tuple[str, ...]
    models: tuple[NamedModel, ...]


def stored_models(pattern: str = "*") -> list[NamedModel] | None:
    """Return the models whose name or family matches a pattern, from the stored list.

    Returns None for other zoos than torchvision, and if torchvision is missing or its version was never compared.
    """
    kept = msgspec.json.decode(resources.files("tputfind.session").joinpath(FILE).read_bytes(), type=Catalogue)
    try:
        installed = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return None
    known = ".".join(installed.split(".")[:2]) in kept.versions
    return _filter_models(kept.models, pattern) if known and _zoo(pattern) == "torchvision" else None


def ask_zoo(pattern: str, children: Children) -> list[NamedModel]:
    """Return the models that the zoo itself lists, filtered by a pattern on the name or the family.

    BrokenInstall as for ``check_torchvision``; UnknownModel if the zoo is not installed.
    """
    check_torchvision(children)
    return _filter_models(children.ask(ListModels(_zoo(pattern)), NamedModel), pattern)


def elsewhere() -> Iterator[str]:
    """Yield one line for each other package of models: how to list its models, or how to install it."""
    for name, (package, prefix) in SOURCES.items():
        if not prefix or package is None:
            continue
        if find_spec(package) is None:
            yield f"{name}:NAME takes {package}, which is not installed: pip install 'tputfind[{name}]'"
        else:
            yield f"{name}:NAME is a model of {package}: tputfind models '{name}:*'"


def check_torchvision(children: Children) -> None:
    """Raise BrokenInstall if torchvision does not work with the installed torch."""
    problem = children.preload("torchvision")
    if problem:
        raise BrokenInstall(f"torchvision does not work with this torch: {problem}", REINSTALL)


def _zoo(pattern: str) -> SourceName:
    with_prefix = (name for name, source in SOURCES.items() if source.prefix and pattern.startswith(name))
    return next(with_prefix, "torchvision")


def _filter_models(models: Iterable[NamedModel], pattern: str) -> list[NamedModel]:
    return [model for model in models if fnmatchcase(model.name, pattern) or model.family == pattern]
