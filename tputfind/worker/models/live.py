"""Objects of the user's process: a module, or a function that builds one, passed to ``tputfind.find``."""

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tputfind.errors import BadRequest, UnknownModel
from tputfind.processes.children import LIVE_OBJECT
from tputfind.processes.failures import said
from tputfind.record.spec import Spec
from tputfind.step import Step, context
from tputfind.worker.inputs import Inputs
from tputfind.worker.models.factory import read_factory_result
from tputfind.worker.models.lightning import is_lightning
from tputfind.worker.models.source import Source, given_inputs
from tputfind.worker.models.steps import is_step_maker, raise_own_step, source_of_maker, step_source


def find(spec: Spec) -> Source:
    """Return the source of the object passed to this run; errors as for ``find_model``.

    Only the open file from the parent process is ever unpickled. A record cannot name a file to unpickle.
    """
    number = os.environ.get(LIVE_OBJECT)
    if not number:
        raise UnknownModel(
            f"{spec.model} was an object of a Python process, and no file holds it",
            "hand the object to tputfind.find, or name file.py:factory",
        )
    if spec.weights is not None:
        raise BadRequest(f"weights: {spec.model} has its own")
    path = Path("/proc/self/fd", number)
    if spec.phase == "step":
        made, make_inputs = _unpickle(spec, path)
        if make_inputs is not None:
            raise BadRequest(f"{spec.model} is a step, which makes its own batches: leave inputs out")
        if is_step_maker(made):
            return source_of_maker(spec, made, path)
        return step_source(spec, lambda: made if isinstance(made, Step) else made(), path)
    inputs = given_inputs(spec)

    def build() -> tuple[nn.Module, Inputs]:
        model, make_inputs = _unpickle(spec, path)
        if isinstance(model, Step) or is_step_maker(model):
            raise_own_step(spec)
        made = model if isinstance(model, nn.Module) else model()
        if make_inputs is not None:
            if isinstance(made, tuple):
                raise BadRequest(f"{spec.model} makes its own inputs: leave inputs out")
            made = made, make_inputs
        if isinstance(made, nn.Module) and inputs is None and not is_lightning(made):
            raise BadRequest(
                f"{spec.model} does not say what it takes",
                "give inputs=lambda batch: torch.randn(batch, 3, 224, 224), or input_size=(3, 224, 224)",
            )
        return read_factory_result(spec, made, inputs)

    return Source(build, inputs, path=path)


def _unpickle(spec: Spec, path: Path) -> tuple[Any, Any]:
    """Return the object with its tensors on the CPU, and the callable that makes its inputs, or None without one.

    In a step of the user's own, tensors that were on an accelerator are loaded onto the measured device. Torch reads
    each tensor into its own memory, as in a factory; a memory-mapped file would count and run differently.
    """
    try:
        if zipfile.is_zipfile(path):
            where = _restore_storage if spec.phase == "step" else "cpu"
            pair: tuple[Any, Any] = torch.load(str(path), map_location=where, weights_only=False)
        else:
            with path.open("rb") as file:
                pair = pickle.load(file)  # noqa: S301  # the user's own object, from the user's own process
    except (ImportError, AttributeError) as error:  # an object pickled by its name, which this process lacks
        raise BadRequest(
            f"{spec.model} cannot be rebuilt in another process: {said(error)}",
            "define it in the script or notebook itself, or call cloudpickle.register_pickle_by_value(MODULE) first",
        ) from None
    return pair


def _restore_storage(storage: Any, location: str) -> Any:
    restore: Any = torch.serialization.default_restore_location
    return restore(storage, "cpu" if location == "cpu" else f"{context().device}")
