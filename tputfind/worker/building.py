"""Builds the module of a source: a library's where it runs, and any other on the host, from where it is moved."""

from __future__ import annotations

import gc
from contextlib import suppress

import torch
from torch import nn

from tputfind.errors import TputfindError
from tputfind.processes.failures import Circumstances, for_want_of_memory, of_exception
from tputfind.record.spec import Spec
from tputfind.worker.deferred import Deferral
from tputfind.worker.inputs import Inputs
from tputfind.worker.models.source import Source
from tputfind.worker.settings import seed_all


def build(
    source: Source, spec: Spec, dtype: torch.dtype | None, device: torch.device, *, filled: bool = True
) -> tuple[nn.Module, Inputs]:
    """Return a module and its inputs.

    A library's model lies on the device already, in the dtype and layout, if its constructor can be repeated there; any
    other lies on the host, as its source builds it. If not ``filled``, the weights of a library's model may have no
    memory: they lie on the meta device.

    Raises:
        TputfindError: the source cannot build what the spec asks for.
        Exception: whatever the model's own code raises, or torch if there is no memory.
    """
    if source.deferrable:
        built = _built_in_place(source, spec, dtype, device, filled=filled)
        if built is not None:
            return built
        gc.collect()  # modules hold themselves in cycles
        with suppress(AttributeError):
            torch.get_device_module(device).empty_cache()
        seed_all(spec.seed)
    module, inputs = source.build()
    source.finish(module)
    return module, inputs


def _built_in_place(
    source: Source, spec: Spec, dtype: torch.dtype | None, device: torch.device, *, filled: bool
) -> tuple[nn.Module, Inputs] | None:
    """Return a library's module as ``build`` does; None if it has to be built on the host."""
    try:
        with Deferral() as deferral:
            module, inputs = source.build()
        if filled:
            deferral.fill(module, dtype, spec.layout, device)
            source.finish(module)
    except TputfindError:
        raise
    except Exception as error:  # what a constructor does is not known beforehand, nor what an operation raises
        if for_want_of_memory(of_exception(error, Circumstances())):
            raise
        return None
    return module, inputs
