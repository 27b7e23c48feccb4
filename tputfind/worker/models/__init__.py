"""Finds the module and its inputs for the model name that a user writes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final, NamedTuple

from tputfind.errors import BadRequest
from tputfind.processes.messages import NamedModel
from tputfind.record.spec import Spec
from tputfind.record.types import SOURCES, SourceName
from tputfind.worker.models import factory, huggingface, live, saved, timm_models, torchvision_models
from tputfind.worker.models.lightning import LIGHTNING
from tputfind.worker.models.source import Source

_SLOW_IMPORTS: Final = (*(source.package for source in SOURCES.values() if source.package is not None), *LIGHTNING)


class _Models(NamedTuple):
    find: Callable[[Spec], Source]
    named_models: Callable[[], Iterator[NamedModel]] = lambda: iter(())


_MODELS: Final[dict[SourceName, _Models]] = {
    "torchvision": _Models(torchvision_models.find, torchvision_models.named_models),
    "timm": _Models(timm_models.find, timm_models.named_models),
    "hf": _Models(huggingface.find, huggingface.named_models),
    "file": _Models(saved.find),
    "factory": _Models(factory.find),
    "live": _Models(live.find),
}
_DYNAMO: Final = "torch._dynamo"
_PATH: Final = list(sys.path)
"""The import path of the server, which imports this package before it forks."""


def find_model(spec: Spec) -> Source:
    """Return the source of the model that the spec names; UnknownModel without one, BadRequest for unfit inputs."""
    if spec.sequence_length is not None and spec.source != "hf":
        raise BadRequest(f"--sequence-length is for hf: models; {spec.model} is given the shape of a sample")
    if spec.source == "factory":
        _check_own_packages(spec)
    return _MODELS[spec.source].find(spec)


def import_user_file(spec: Spec) -> None:
    """Import the file of a factory before any other work, because some settings must be made before threads start."""
    if spec.source == "factory":
        with suppress(BaseException):  # which ``find_model`` raises again
            factory.import_home(spec.model)


def _check_own_packages(spec: Spec) -> None:
    """Raise BadRequest if an earlier model imported another package than that in the folder of this one."""
    home = Path(spec.model.rpartition(":")[0])
    folder = home.parent if home.suffix == ".py" else Path.cwd()
    for name in _SLOW_IMPORTS:
        imported = getattr(sys.modules.get(name), "__file__", None)
        own = PathFinder.find_spec(name, [str(folder.resolve())])
        if imported is None or own is None or own.origin is None:
            continue
        if Path(own.origin).resolve() not in (Path(imported).resolve(), home.resolve()):
            raise BadRequest(
                f"{spec.model} has its own {name}, and an earlier model of this run imported {imported}",
                "measure it in a run of its own",
            )


def named_models(of: SourceName) -> Iterator[NamedModel]:
    """Yield the models of a source that can be named; raise UnknownModel if its package is not installed."""
    return _MODELS[of].named_models()


def slow_imports() -> tuple[str, ...]:
    """Return the slow packages that a model has imported, so that the server can import them once for later processes.

    A package of the same name next to the model's file (a clone of its source, say) is the model's own and is omitted.
    """

    def the_servers(name: str) -> bool:
        about = PathFinder.find_spec(name, _PATH)
        return about is not None and about.origin == getattr(sys.modules.get(name), "__file__", None)

    compiler = [_DYNAMO] if _DYNAMO in sys.modules else []  # optimizers and nested tensors import it, too
    own = [name for name in sys.modules if name.startswith("transformers.models.") and ".modeling_" in name]
    slow = [name for name in (*_SLOW_IMPORTS, *own, *compiler) if name in sys.modules]
    return tuple(name for name in slow if the_servers(name.partition(".")[0]))
