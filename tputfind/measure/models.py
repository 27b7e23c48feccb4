"""From the name a user writes to a module and the inputs it takes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from torch import nn

from tputfind.errors import BadRequest, UnknownModel
from tputfind.measure.messages import NamedModel
from tputfind.spec import Spec

MakeInputs = Callable[[int], object]
"""From a batch size to the inputs of one step: a tensor, a tuple of arguments, or a dict of keyword arguments."""

_SIZE_ARGUMENT: Final = {"vit_": "image_size", "maxvit_": "input_size"}
"""torchvision builders that are fixed to one image size, and the argument that says which, by the start of the name."""


_SLOW_IMPORTS: Final = "torchvision", "timm", "transformers"
_PATH: Final = list(sys.path)
"""As of the server, which imports this module before it forks."""


class Source(NamedTuple):
    """A model that has been found but not built: ``build`` returns the module, in fp32 on the CPU, and what makes its
    inputs, or None for a tensor of ``sample_shape``.
    """

    build: Callable[[], tuple[nn.Module, MakeInputs | None]]
    sample_shape: tuple[int, ...] | None
    parameters: int | None
    path: Path | None = None
    """The file that the user's factory lies in."""


def shape_text(shape: tuple[int, ...]) -> str:
    """Print the shape of one sample: ``3x224x224``; ``1`` where a sample is a single number."""
    return "x".join(map(str, shape)) or "1"


def find_model(spec: Spec) -> Source:
    """Return the source of the model that the spec names.

    Raises:
        UnknownModel: there is no such model, file, package or factory.
        BadRequest: the input's shape is neither known nor given.
        Exception: whatever the user's file or package raises while it is imported.
    """
    return _from_factory(spec) if ":" in spec.model else _from_torchvision(spec)


def slow_imports() -> tuple[str, ...]:
    """Return the packages that a model has imported and the server had better import once, for every process to come.

    Beside the model's file may lie another of that name (a clone of its source, say): that one is the model's own.
    """

    def the_servers(name: str) -> bool:
        about = PathFinder.find_spec(name, _PATH)
        return about is not None and about.origin == getattr(sys.modules.get(name), "__file__", None)

    return tuple(name for name in _SLOW_IMPORTS if name in sys.modules and the_servers(name))


def named_models() -> Iterator[NamedModel]:
    """Yield the models that can be named, in alphabetical order."""
    for name in _classification_names():
        weights = _default_weights(name)
        size = _own_size(weights)
        yield NamedModel(name=name, input_shape=f"3x{size}x{size}", parameters=weights.meta["num_params"])


def _from_torchvision(spec: Spec) -> Source:
    names = _classification_names()
    if spec.model not in names:
        raise _unknown_name(spec.model, names)
    weights = _default_weights(spec.model)
    size = spec.image_size or _own_size(weights)
    shape = spec.input_size or (3, size, size)
    arguments = _builder_arguments(spec.model, shape)

    def build() -> tuple[nn.Module, None]:
        from torchvision import models

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some builders announce changes to their initial weights
            return models.get_model(spec.model, weights=None, **arguments), None

    return Source(build, shape, weights.meta["num_params"])


def _builder_arguments(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    for start, argument in _SIZE_ARGUMENT.items():
        if name.startswith(start):
            return {argument: shape[-1] if argument == "image_size" else shape[-2:]}
    return {}


def _classification_names() -> list[str]:
    from torchvision import models

    return list(models.list_models(module=models))


def _default_weights(name: str) -> Any:
    from torchvision import models

    return models.get_model_weights(name).DEFAULT


def _own_size(weights: Any) -> int:
    """Return the image size that the model's published accuracy is for; metadata only, nothing is downloaded."""
    return int(weights.transforms().crop_size[0])


def _unknown_name(name: str, names: list[str]) -> UnknownModel:
    from torchvision import models

    if name in models.list_models():
        return UnknownModel(
            f"{name!r} is not a classification model, and of torchvision's own only those can be named so far",
            "write a factory that returns the model and its inputs: file.py:factory",
        )
    if Path(name).suffix == ".py" or Path(name).exists():
        return UnknownModel(f"{name!r} does not say which factory", f"write {name}:FACTORY")
    near = get_close_matches(name.lower(), names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "tputfind models lists what can be named"
    return UnknownModel(f"there is no model {name!r}", hint)


def _from_factory(spec: Spec) -> Source:
    home, _, attribute = spec.model.rpartition(":")
    module = _import_file(Path(home)) if home.endswith(".py") else _import_package(home)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        what = "has no" if factory is None else "holds something that cannot be called under"
        callables = [name for name, value in vars(module).items() if callable(value)]
        near = get_close_matches(attribute, callables, n=3)
        raise UnknownModel(f"{home} {what} {attribute!r}", f"did you mean {' or '.join(near)}?" if near else "")
    shape = spec.input_size or ((3, spec.image_size, spec.image_size) if spec.image_size else None)

    def build() -> tuple[nn.Module, MakeInputs | None]:
        return _check_made(spec, factory(), shape)

    file = getattr(module, "__file__", None)
    return Source(build, shape, None, Path(file) if file else None)


def _check_made(spec: Spec, made: object, shape: tuple[int, ...] | None) -> tuple[nn.Module, MakeInputs | None]:
    """Return what a factory made as a module and its inputs, or refuse it."""
    if isinstance(made, nn.Module):
        if shape is None:
            raise BadRequest(
                f"{spec.model} returns a module and does not say what it takes",
                "give the shape of one sample (--input-size 3x224x224), or return (module, batch -> inputs)",
            )
        return made, None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module) and callable(made[1]):
        if shape is not None:
            raise BadRequest(f"{spec.model} makes its own inputs, so --input-size and --image-size say nothing to it")
        return made
    raise UnknownModel(
        f"{spec.model} returned {type(made).__name__}, which is no module",
        "return a torch.nn.Module, or a module and a callable batch -> inputs",
    )


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownModel(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    name = f"tputfind_model_{path.stem}"  # a file may be called torch.py
    about = importlib.util.spec_from_file_location(name, path)
    assert about is not None  # the name ends in .py
    assert about.loader is not None
    module = importlib.util.module_from_spec(about)
    sys.modules[name] = module
    about.loader.exec_module(module)
    return module


def _import_package(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and imports something that is not
        hint = "write file.py:factory or package.module:factory"
        raise UnknownModel(f"there is no package or module {name!r}", hint) from None
    except (TypeError, ValueError):  # what importlib says to names such as "" and ".x"
        raise UnknownModel(f"{name!r} is no name of a package or module") from None
