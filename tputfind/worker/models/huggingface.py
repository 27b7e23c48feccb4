"""``hf:NAME``: models of transformers, from their configuration."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from tputfind.errors import BadRequest, UnknownModel
from tputfind.processes.failures import said
from tputfind.processes.messages import NamedModel
from tputfind.record.spec import Spec
from tputfind.units import shortened
from tputfind.worker.inputs import Call, Drawn, Inputs
from tputfind.worker.models.source import LONGEST_PATH, Source, given_inputs, imported
from tputfind.worker.models.weights import file_of, load

PREFIX: Final = "hf:"
_SEQUENCE_LENGTH: Final = 512
"""Of tokens, unless the model takes fewer or the user says otherwise."""
_IMAGE_SIZE: Final = 224
"""Of models that take any size and do not say which."""
_DECODERS: Final = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_HEADS: Final = (
    (_DECODERS, "AutoModelForCausalLM"),
    ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "AutoModelForImageClassification"),
    ("MODEL_MAPPING_NAMES", "AutoModel"),
)
"""The types of models for which there is a class, and the class; the first counts."""
_NOTHING_FETCHED: Final = "only --weights DEFAULT fetches; hf:bert, hf:FOLDER and hf:config.json do without"


def find(spec: Spec) -> Source:
    """Return the source of a model of transformers'; errors as for ``find_model``."""
    transformers = imported("transformers", "hf")
    transformers.utils.logging.set_verbosity_error()
    file, name = file_of(spec), spec.model.removeprefix(PREFIX)
    if spec.weights not in (None, "DEFAULT") and file is None:
        named = shortened(spec.weights or "", LONGEST_PATH)
        raise BadRequest(f"--weights: there is no file {named!r}; DEFAULT are those that lie beside the config")
    config = _sized(spec, _config(transformers, name, fetch=spec.weights == "DEFAULT"))
    if getattr(config, "quantization_config", None) is not None and spec.weights is None:
        raise BadRequest(f"{spec.model} is quantized, which random weights are not", "--weights DEFAULT loads its own")
    if "/" in f"{getattr(config, '_attn_implementation', None)}":
        raise BadRequest(f"{spec.model} names a kernel on the hub for its attention, which is code that is not here")
    kind = _class_of(transformers, config)

    def build() -> tuple[nn.Module, Inputs]:
        module = _made(kind, spec, name, config)
        if file is not None:
            load(module, file, spec.model)
        described = given_inputs(spec) if spec.inputs is not None else None
        return module, described or _inputs(spec, module, config)

    return Source(build, path=file, made_of=config.to_json_string())


def named_models() -> Iterator[NamedModel]:
    """Yield the types of models whose own configuration can be asked for by name."""
    auto = imported("transformers", "hf").models.auto.modeling_auto
    for name in sorted(set().union(*(getattr(auto, mapping) for mapping, _ in _HEADS))):
        yield NamedModel(name=f"{PREFIX}{name}", family="hf", input_shape="")


def _config(transformers: Any, name: str, *, fetch: bool) -> Any:
    """Return the configuration of a type of model (``bert``), in a folder or file, or of a name on the hub.

    That of the last is taken from the local cache, and fetched only together with weights.
    """
    types = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    try:
        if name in types and not Path(name).exists():
            return transformers.AutoConfig.for_model(name)
        return transformers.AutoConfig.from_pretrained(name, local_files_only=not fetch, trust_remote_code=False)
    except Exception as error:  # of the hub's, the file system's, or of a configuration that is not valid
        near = [one for one in get_close_matches(name.lower(), types, n=3) if one != name]
        hint = f"did you mean {' or '.join(PREFIX + one for one in near)}?" if near else _NOTHING_FETCHED
        raise UnknownModel(
            f"there is no configuration {shortened(name)!r} here: {shortened(said(error), LONGEST_PATH)}", hint
        ) from None


def _class_of(transformers: Any, config: Any) -> Any:
    """Return the class that the configuration was saved from, else the one that its type is mostly used for.

    That is the head of a decoder or of an image classifier, and of encoders the model without one.
    """
    if config.architectures:
        saved_from = getattr(transformers, config.architectures[0], None)
        if saved_from is None:
            raise UnknownModel(f"transformers has no class {config.architectures[0]!r}, which the configuration names")
        return saved_from
    auto, kind = transformers.models.auto.modeling_auto, config.model_type
    for mapping, head in _HEADS:
        if kind in getattr(auto, mapping) and (
            mapping != _DECODERS or kind not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        ):
            return getattr(transformers, head)
    raise UnknownModel(f"transformers has no model for configurations of type {kind!r}", "tputfind models 'hf:*'")


def _made(kind: Any, spec: Spec, name: str, config: Any) -> nn.Module:
    if spec.weights == "DEFAULT":
        try:
            fetched: nn.Module = kind.from_pretrained(
                name, config=config, dtype=torch.float32, weights_only=True, trust_remote_code=False
            )
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            raise BadRequest(f"--weights DEFAULT: those of {name} cannot be had: {said(error)}") from None
        return fetched
    if hasattr(kind, "from_config"):
        chosen: nn.Module = kind.from_config(config, trust_remote_code=False)
        return chosen
    made: nn.Module = kind._from_config(config)  # noqa: SLF001  # as the former does
    return made


def _inputs(spec: Spec, module: Any, config: Any) -> Call:
    """Return what a module takes: tokens and their mask, or pixels. Of a decoder the step is the prefill.

    Raises:
        BadRequest: it takes something else, or several kinds at once.
    """
    takes = inspect.signature(module.forward).parameters
    several = config.is_encoder_decoder or (hasattr(config, "text_config") and hasattr(config, "vision_config"))
    if module.main_input_name == "pixel_values" and not several:
        return (), {"pixel_values": Drawn(_pixels(spec, config))}
    if module.main_input_name != "input_ids" or several:
        hint = f"give each --input that it needs, of {', '.join(takes)}"
        raise BadRequest(f"{spec.model} does not take tokens alone, or pixels alone", hint)
    if spec.image_size is not None or spec.input_size is not None:
        raise BadRequest(f"{spec.model} takes tokens: --sequence-length says how many")
    text = config.get_text_config()
    most = _most_tokens(module, text)
    length = spec.sequence_length or min(most or _SEQUENCE_LENGTH, _SEQUENCE_LENGTH)
    if most is not None and length > most:
        raise BadRequest(f"--sequence-length: {spec.model} takes up to {most}, not {length}")
    inputs: dict[str, object] = {"input_ids": Drawn((length,), dtype=torch.int64, below=text.vocab_size)}
    if "attention_mask" in takes:
        inputs["attention_mask"] = Drawn((length,), dtype=torch.int64, ones=True)
    if "logits_to_keep" in takes and spec.phase == "infer":
        # As generation does for the prompt: all keys and values, the logits of the next token.
        inputs |= {"logits_to_keep": 1, "use_cache": True}
    return (), inputs


def _most_tokens(module: nn.Module, config: Any) -> int | None:
    """Return how many tokens the positions of a model reach for; None where nothing bounds them."""
    for name, inner in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(inner, nn.Embedding) and inner.padding_idx is not None:
            return inner.num_embeddings - inner.padding_idx - 1
    most = getattr(config, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def _pixels(spec: Spec, config: Any) -> tuple[int, ...]:
    if spec.sequence_length is not None:
        raise BadRequest(f"{spec.model} takes pixels: --image-size says how many")
    if spec.input_size is not None:
        return spec.input_size
    if hasattr(config, "num_frames"):
        raise BadRequest(f"{spec.model} takes clips: give --input pixel_values:float:BxFRAMESx3xHEIGHTxWIDTH")
    own = getattr(config, "image_size", None) or spec.image_size or _IMAGE_SIZE
    height, width = (own, own) if isinstance(own, int) else (own[0], own[-1])
    return getattr(config, "num_channels", 3), height, width


def _sized(spec: Spec, config: Any) -> Any:
    """Return the configuration for the image size that was asked for."""
    size = spec.image_size or (spec.input_size[-1] if spec.input_size else None)
    if size is not None and isinstance(getattr(config, "image_size", None), int):
        config.image_size = size
    if spec.input_size is not None and hasattr(config, "num_channels"):
        config.num_channels = spec.input_size[0]
    return config
