"""The user's own models: ``file.py:factory`` and ``package.module:factory``."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Final, TypeGuard

from torch import nn

from tputfind.errors import BadRequest, UnknownModel
from tputfind.record.spec import Spec
from tputfind.step import Step
from tputfind.units import shorten_text
from tputfind.worker.inputs import Call, Inputs, MakeInputs
from tputfind.worker.models import torchvision_models, user_code
from tputfind.worker.models.lightning import as_training, example_call, is_lightning
from tputfind.worker.models.source import LONGEST_PATH, Source, found, given_inputs
from tputfind.worker.models.steps import is_step, is_step_maker, raise_own_step, source_of_maker, step_source
from tputfind.worker.settings import noting_imports

RETURN: Final = "return a torch.nn.Module, or a module and a callable batch -> inputs; or a tputfind.Step"
_TAKES_SIZE: Final = "if it makes a step, give it the batch size as an argument without a default"


def find(spec: Spec) -> Source:
    if spec.weights is not None:
        raise BadRequest(f"--weights: {spec.model} is a factory, which loads its weights itself")
    home, _, attribute = spec.model.rpartition(":")
    module = import_home(spec.model)
    factory = getattr(module, attribute, None)
    if isinstance(factory, (Step, nn.Module)):
        what = "step" if isinstance(factory, Step) else "module"
        raise BadRequest(
            f"{spec.model} is a {what} that was made as {home} was imported, before its memory counts",
            "name a function that makes and returns it",
        )
    if not callable(factory):
        what = "has no" if factory is None else "holds something that cannot be called under"
        callables = [name for name, value in vars(module).items() if callable(value)]
        if home == "torchvision" and (names := torchvision_models.near_names(attribute)):
            # Names of torchvision need no prefix, unlike those of timm and hf.
            callables = [attribute] if attribute in names else names
        near = get_close_matches(attribute, callables, n=3)
        raise UnknownModel(
            f"{home} {what} {shorten_text(attribute)!r}", f"did you mean {' or '.join(near)}?" if near else ""
        )
    file = getattr(module, "__file__", None)
    path = Path(file) if file else None
    if is_step_maker(factory):
        return source_of_maker(spec, _hide_arguments(spec.model, factory), path)
    user_code.check_takes_nothing(spec.model, factory)
    factory = _hide_arguments(spec.model, factory)
    if spec.phase == "step":
        return step_source(spec, factory, path)
    inputs = given_inputs(spec)
    return Source(lambda: read_factory_result(spec, factory(), inputs), inputs, path=path)


def _hide_arguments(model: str, factory: Callable[..., object]) -> Callable[..., object]:
    """Return the factory, wrapped so that it sees an empty command line; see ``user_code.without_arguments``."""

    @wraps(factory)
    def call_factory(*arguments: object) -> object:
        with user_code.without_arguments(model, "as it is called", user_code.NO_EXIT):
            return factory(*arguments)

    return call_factory


_imported: dict[str, ModuleType | BaseException] = {}
"""Imported modules, or the errors of their imports, by file and modification time, or by package."""


def import_home(model: str) -> ModuleType:
    """Return the module that defines a factory, imported once in this process; errors as for ``find``."""
    home, _, attribute = model.rpartition(":")
    path = Path(home)
    key = f"{home} {path.stat().st_mtime_ns}" if found(path.is_file) else home
    if key not in _imported:
        try:
            with noting_imports(), user_code.without_arguments(home, "as it is imported", user_code.NO_MAIN):
                is_file = home.endswith(".py")
                _imported[key] = _import_file(path, attribute) if is_file else _import_package(home)
        except BaseException as error:  # the user's file can raise anything, SystemExit too
            _imported[key] = error
    module = _imported[key]
    if isinstance(module, BaseException):
        raise module
    return module


def read_factory_result(spec: Spec, made: object, inputs: Call | None) -> tuple[nn.Module, Inputs]:
    """Return the result of a factory as a module and its inputs; raise IsOwnStep for a step."""
    module, make = made if _is_pair(made) else (made, None)
    if spec.phase == "train" and is_lightning(module) and (make is None or inputs is None):
        return as_training(spec, module, make, inputs)
    if isinstance(made, nn.Module):
        inputs = inputs or example_call(made)
        if inputs is None:
            raise BadRequest(
                f"{spec.model} returns a module and does not say what it takes",
                "give the shape of one sample (--input-size 3x224x224) or --input, or return (module, batch -> inputs)",
            )
        return made, inputs
    if _is_pair(made):
        if inputs is not None:
            raise BadRequest(f"{spec.model} makes its own inputs: leave --input-size, --image-size and --input out")
        return made
    if is_step(made):
        raise_own_step(spec, made)
    if made is None:
        raise UnknownModel(f"{spec.model} returned nothing", RETURN)
    is_function = callable(made) and not isinstance(made, type)
    raise UnknownModel(
        f"{spec.model} returned {type(made).__name__}, not a module", _TAKES_SIZE if is_function else RETURN
    )


def _is_pair(made: object) -> TypeGuard[tuple[nn.Module, MakeInputs]]:
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):
        return False
    return callable(made[1]) and not isinstance(made[1], nn.Module)  # such as a model and its loss


def _import_file(path: Path, attribute: str) -> ModuleType:
    if not found(path.is_file):
        near = get_close_matches(path.name, _python_files(path.parent), n=1)
        hint = f"did you mean {shorten_text(str(path.with_name(near[0])), LONGEST_PATH)}:{attribute}?" if near else ""
        raise UnknownModel(f"there is no file {shorten_text(str(path), LONGEST_PATH)}", hint)
    if user_code.is_entry_point(path, attribute):
        others = [name for name in user_code.callables_in(path) if name != attribute]
        also = f"; {shorten_text(str(path), LONGEST_PATH)} also defines {', '.join(others[:8])}" if others else ""
        what = f"{shorten_text(attribute)} is what {path.name} calls as a script, and returns nothing: it was not run"
        raise UnknownModel(what, f"name a function that returns the model{also}")
    root, _ = user_code.module_name(path.resolve(), 0)  # of a package, whose other modules it may import by full names
    sys.path[:0] = dict.fromkeys([str(path.resolve().parent), str(root)])
    # The name by which its other modules, and processes that it spawns, import it; but a file may be called torch.py.
    name = f"tputfind_model_{path.stem}" if path.stem in sys.modules else path.stem
    about = importlib.util.spec_from_file_location(name, path)
    assert about is not None  # the name ends in .py
    assert about.loader is not None
    module = importlib.util.module_from_spec(about)
    sys.modules[name] = module
    try:
        about.loader.exec_module(module)
    except ImportError as error:
        del sys.modules[name]
        package = user_code.package_of(error, path)
        if package is None:
            raise
        folder, name = package
        sys.path.insert(0, str(folder))
        return importlib.import_module(name)
    return module


def _python_files(folder: Path) -> list[str]:
    try:
        return sorted(file.name for file in folder.iterdir() if file.suffix == ".py")
    except OSError:
        return []


def _import_package(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but something that it imports does not
        hint = "write file.py:factory or package.module:factory"
        raise UnknownModel(f"there is no package or module {shorten_text(name)!r}", hint) from None
    except (TypeError, ValueError):  # importlib raises these for names such as "" and ".x"
        raise UnknownModel(f"{shorten_text(name)!r} is not the name of a package or module") from None
