"""The names of torchvision's models without importing it, which takes seconds."""

from __future__ import annotations

from importlib import metadata, resources
from typing import Final

import msgspec

from tputfind.errors import BrokenInstall
from tputfind.measure.children import REINSTALL, Children
from tputfind.measure.messages import ListModels, NamedModel

FILE: Final = "torchvision.json"


class Catalogue(msgspec.Struct, frozen=True):
    """What torchvision lists in the ``versions`` (``0.26``) for which that was compared."""

    versions: tuple[str, ...]
    models: tuple[NamedModel, ...]


def at_hand() -> tuple[NamedModel, ...] | None:
    """Return the models that the installed torchvision has; None where its version was never compared."""
    kept = msgspec.json.decode(resources.files("tputfind.measure").joinpath(FILE).read_bytes(), type=Catalogue)
    try:
        installed = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return None
    return kept.models if ".".join(installed.split(".")[:2]) in kept.versions else None


def check_torchvision(children: Children) -> None:
    """Raise BrokenInstall where torchvision does not work with the torch that is there."""
    problem = children.preload("torchvision")
    if problem:
        raise BrokenInstall(f"torchvision does not work with this torch: {problem}", REINSTALL)


def asked(children: Children) -> tuple[NamedModel, ...]:
    """Return what torchvision itself lists, family by family.

    Raises:
        BrokenInstall: it does not work with the torch that is there.
    """
    check_torchvision(children)
    return tuple(children.ask(ListModels(), NamedModel))
