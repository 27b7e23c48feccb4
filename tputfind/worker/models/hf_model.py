"""A transformers model as the input rules see it, and the kinds of parts that inputs consist of."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from tputfind.record.spec import Spec
from tputfind.worker.inputs import Drawn, Each


@dataclass(frozen=True)
class Packed:
    """Rows of all samples, concatenated along the first axis."""

    rows: Drawn


@dataclass(frozen=True)
class Same:
    """The same values for every sample; if ``packed``, the samples are concatenated along the first axis."""

    sample: torch.Tensor
    packed: bool = False


@dataclass(frozen=True)
class Prompt:
    """Text tokens after placeholder tokens for features of images or audio; ``places`` has (token, count) pairs."""

    text: Drawn
    places: tuple[tuple[int, int], ...]


Part = Drawn | Each | Packed | Same | Prompt | int | bool
_TEXTS: Final = ("text_config", "thinker_config", "text_encoder", "text_encoder_config", "encoder", "encoder_config")


class Model:
    """A built model, or its copy on the meta device, as the input rules see it.

    ``takes`` has the names of the arguments of ``forward``; ``required`` has those without a default. ``reserved`` is
    the number of positions that features of images and audio take.
    """

    def __init__(self, spec: Spec, module: Any, config: Any, reserved: int = 0) -> None:
        self.reserved = reserved
        self.spec = spec
        self.module = module
        self.config = config
        parameters = inspect.signature(module.forward).parameters.values()
        plain = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        self.takes = [each.name for each in plain]
        self.required = [each.name for each in plain if each.default is each.empty]
        self.configs = list(configs_of(config))

    def look(self, *names: str, within: tuple[str, ...] = (), default: Any = None) -> Any:
        """Return the first of these attributes that is a number other than 0 or a non-empty sequence, in any
        configuration.

        The inner configurations named by ``within`` are searched first.
        """
        inner = [getattr(config, name, None) for name in within for config in self.configs]
        nested = [each for config in inner if hasattr(config, "to_dict") for each in configs_of(config)]
        for config in (*nested, *self.configs):
            for name in names:
                value = getattr(config, name, None)
                if isinstance(value, (int, float, list, tuple)) and not isinstance(value, bool) and value:
                    return value
        return default

    @property
    def text(self) -> Any:
        """The configuration of the text model."""
        for name in _TEXTS:
            inner: Any = getattr(self.config, name, None)
            if hasattr(inner, "get_text_config") and hasattr(inner.get_text_config(), "vocab_size"):
                return inner.get_text_config()
        return self._text_config()

    @property
    def decoder(self) -> Any:
        """The configuration from which transformers makes a cache."""
        return self._text_config(decoder=True)

    def _text_config(self, **which: bool) -> Any:
        try:
            return self.config.get_text_config(**which)
        except ValueError:  # there are several text configurations
            return self.config


def configs_of(config: Any) -> Iterator[Any]:
    """Yield a configuration and all that it holds."""
    yield config
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if hasattr(inner, "sub_configs"):
            yield from configs_of(inner)


def most_tokens(module: nn.Module, config: Any) -> int | None:
    """Return the maximum number of tokens that the model's positions allow; None if there is no limit."""
    for name, inner in module.named_modules():
        padding, weight = getattr(inner, "padding_idx", None), getattr(inner, "weight", None)
        if name.endswith("position_embeddings") and isinstance(padding, int) and isinstance(weight, torch.Tensor):
            return len(weight) - padding - 1
    names = ("max_encoder_position_embeddings", "max_source_positions", "max_text_positions", "max_position_embeddings")
    return first_number(config, *names)


def first_number(config: Any, *names: str) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)
