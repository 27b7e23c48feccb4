"""``timm:NAME``: the models of timm, at the input size of their own configuration."""

import warnings
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

from torch import nn

from tputfind.errors import BadRequest, UnknownModel
from tputfind.processes.messages import NamedModel
from tputfind.record.spec import Spec
from tputfind.units import shorten_text
from tputfind.worker.inputs import Call, Drawn, Inputs
from tputfind.worker.models.saved import file_of, load
from tputfind.worker.models.source import Source, asked_shape, import_package

PREFIX: Final = "timm:"


def find(spec: Spec) -> Source:
    timm = import_package("timm", "timm")
    name = spec.model.removeprefix(PREFIX)
    if not timm.is_model(name):
        near = get_close_matches(name.lower(), timm.list_models(), n=3)
        hint = f"did you mean {' or '.join(PREFIX + one for one in near)}?" if near else "tputfind models 'timm:*'"
        raise UnknownModel(f"timm has no model {shorten_text(name)!r}", hint)
    try:
        own = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise UnknownModel(f"timm: {error}", f"tputfind models 'timm:{name.partition('.')[0]}*'") from None
    own_shape = tuple((own and own.input_size) or (3, 224, 224))
    shape = asked_shape(spec, own_shape)
    file = file_of(spec)
    if spec.weights not in (None, "DEFAULT") and file is None:
        raise BadRequest(f"--weights: there is no file {spec.weights!r}; DEFAULT are those that timm names for {name}")

    def build() -> tuple[nn.Module, Inputs]:
        module = _create(timm, name, shape, own_shape, pretrained=spec.weights is not None and file is None)
        if file is not None:
            load(module, file, spec.model)
        return module, inputs

    inputs: Call = (Drawn(shape),), {}
    return Source(build, inputs, path=file, deferrable=spec.weights is None)


def named_models() -> Iterator[NamedModel]:
    """Yield the models that can be named, in timm's order; parameters are unknown before a model is built."""
    timm = import_package("timm", "timm")
    for name in timm.list_models():
        own = timm.get_pretrained_cfg(name)
        shape = "x".join(map(str, own.input_size)) if own and own.input_size else ""
        yield NamedModel(name=f"{PREFIX}{name}", family="timm", input_shape=shape)


def _create(timm: Any, name: str, shape: tuple[int, ...], own: tuple[int, ...], *, pretrained: bool) -> nn.Module:
    """Create a model for samples of a shape; models for any size have no ``img_size`` argument."""
    channels: dict[str, Any] = {"in_chans": shape[0]} if shape[0] != own[0] else {}
    size: dict[str, Any] = {"img_size": shape[1:]} if shape[1:] != own[1:] else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            created: nn.Module = timm.create_model(name, pretrained=pretrained, **channels, **size)
        except TypeError as error:
            if not size or "img_size" not in f"{error}":
                raise
            created = timm.create_model(name, pretrained=pretrained, **channels)
        except (OSError, RuntimeError) as error:
            if not pretrained:
                raise
            raise BadRequest(f"--weights DEFAULT: those of {name} cannot be had: {error}") from None
    return created
