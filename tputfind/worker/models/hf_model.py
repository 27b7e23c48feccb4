"""A model of transformers as the rules for its inputs see it, and the parts that inputs are made of."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tputfind.record.spec import Spec
from tputfind.worker.inputs import Drawn, Each


@dataclass(frozen=True)
class Packed:
    """Rows of all samples, one sample after another along the first axis."""

    rows: Drawn


@dataclass(frozen=True)
class Same:
    """The same numbers for every sample; if ``packed``, the first axis of the samples is joined."""

    sample: torch.Tensor
    packed: bool = False


@dataclass(frozen=True)
class Prompt:
    """Tokens of text after those that stand for the features of images or audio: (token, how many of it)."""

    text: Drawn
    places: tuple[tuple[int, int], ...]


Part = Drawn | Each | Packed | Same | Prompt | int | bool


class Model:
    """A built model, or its copy on the meta device, as the rules see it.

    ``takes`` holds the names of the arguments of ``forward``, ``required`` those without a default; ``reserved`` is the
    number of positions that features of images and audio take.
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
        self.configs = list(_configs(config))

    def look(self, *names: str, within: tuple[str, ...] = (), default: Any = None) -> Any:
        """Return the first attribute that is a number above 0 or a sequence, in any of the configurations.

        The inner configurations that ``within`` names come first.
        """
        inner = [getattr(config, name, None) for name in within for config in self.configs]
        nested = [each for config in inner if hasattr(config, "to_dict") for each in _configs(config)]
        for config in (*nested, *self.configs):
            for name in names:
                value = getattr(config, name, None)
                if isinstance(value, (int, float, list, tuple)) and not isinstance(value, bool) and value:
                    return value
        return default

    @property
    def text(self) -> Any:
        """The configuration of the tokens."""
        for name in (
            "text_config",
            "thinker_config",
            "text_encoder",
            "text_encoder_config",
            "encoder",
            "encoder_config",
        ):
            inner: Any = getattr(self.config, name, None)
            if hasattr(inner, "get_text_config") and hasattr(inner.get_text_config(), "vocab_size"):
                return inner.get_text_config()
        return self._text_config()

    @property
    def decoder(self) -> Any:
        """The configuration that transformers makes a cache for."""
        return self._text_config(decoder=True)

    def _text_config(self, **which: bool) -> Any:
        try:
            return self.config.get_text_config(**which)
        except ValueError:  # there are several
            return self.config


def _configs(config: Any) -> Iterator[Any]:
    """Yield a configuration and those inside."""
    yield config
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if hasattr(inner, "sub_configs"):
            yield from _configs(inner)


def most_tokens(module: nn.Module, config: Any) -> int | None:
    """Return how many tokens the positions of a model reach for; None if nothing bounds them."""
    for name, inner in module.named_modules():
        padding, weight = getattr(inner, "padding_idx", None), getattr(inner, "weight", None)
        if name.endswith("position_embeddings") and isinstance(padding, int) and isinstance(weight, torch.Tensor):
            return len(weight) - padding - 1
    return first_number(config, "max_encoder_position_embeddings", "max_source_positions", "max_position_embeddings")


def first_number(config: Any, *names: str) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)
