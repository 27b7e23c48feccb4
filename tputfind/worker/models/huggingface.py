"""``hf:NAME``: transformers models, built from their configuration."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from tputfind.errors import BadRequest, UnknownModel
from tputfind.processes.failures import said
from tputfind.processes.messages import NamedModel
from tputfind.record.record import Notice
from tputfind.record.spec import Spec
from tputfind.units import shorten_text
from tputfind.worker.inputs import Inputs
from tputfind.worker.models.hf_inputs import Heard, NoRule, draw_inputs, find_places
from tputfind.worker.models.hf_model import configs_of, first_number
from tputfind.worker.models.saved import file_of, load
from tputfind.worker.models.source import LONGEST_PATH, Source, given_inputs, import_package

PREFIX: Final = "hf:"
_HEADS: Final = (
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AutoModelForSeq2SeqLM"),
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "AutoModelForSpeechSeq2Seq"),
    ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "AutoModelForImageTextToText"),
    ("MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "AutoModelForMultimodalLM"),
    ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM"),
    ("MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES", "AutoModel"),
    ("MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES", "AutoModelForObjectDetection"),
    ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "AutoModelForImageClassification"),
    ("MODEL_MAPPING_NAMES", "AutoModel"),
)
"""Mappings of model types to classes, and the auto class of each; the first with the type counts."""
_OF_DECODERS: Final = ("AutoModelForCausalLM",)
_OF_ENCODER_DECODERS: Final = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")
_LONGEST_NAME: Final = 30
"""Maximum characters of a name in a notice, so that it fits on a line."""
_LONGEST_REASON: Final = 50
"""Maximum characters of an error in a notice."""
_NOTHING_FETCHED: Final = "only --weights DEFAULT fetches; hf:bert, hf:FOLDER and hf:config.json do without"


def find(spec: Spec) -> Source:
    transformers = import_package("transformers", "hf")
    transformers.utils.logging.set_verbosity_error()
    file, name = file_of(spec), spec.model.removeprefix(PREFIX)
    if spec.weights not in (None, "DEFAULT") and file is None:
        named = shorten_text(spec.weights or "", LONGEST_PATH)
        raise BadRequest(f"--weights: there is no file {named!r}; DEFAULT are those that lie beside the config")
    config = _set_sizes(spec, _config(transformers, name, fetch=spec.weights == "DEFAULT"))
    if getattr(config, "quantization_config", None) is not None and spec.weights is None:
        raise BadRequest(f"{spec.model} is quantized, which random weights are not", "--weights DEFAULT loads its own")
    if "/" in f"{getattr(config, '_attn_implementation', None)}":
        raise BadRequest(f"{spec.model} names a kernel on the hub for its attention, which is code that is not here")
    kind = class_of(transformers, config)
    heard = find_places(spec, kind, config) if spec.inputs is None else Heard({}, {})

    def build() -> tuple[nn.Module, Inputs]:
        module = _make_module(kind, spec, name, config)
        if file is not None:
            load(module, file, spec.model)
        described = given_inputs(spec) if spec.inputs is not None else None
        return module, described or draw_inputs(spec, module, config, heard)

    return Source(
        build,
        path=file,
        made_of=config.to_json_string(),
        caveats=tuple(_caveats(spec, kind, config, heard)),
        deferrable=spec.weights is None,
    )


def _caveats(spec: Spec, kind: Any, config: Any, heard: Heard) -> Iterator[Notice]:
    """Yield a notice of the measured class if the configuration names none, and one for each omitted argument."""
    if not config.architectures:
        yield Notice(
            kind="measured_class",
            seen=f"{shorten_text(spec.model, _LONGEST_NAME)} is measured as {kind.__name__}",
            cause="its configuration names no class",
            advice="name another under architectures in config.json",
        )
    for argument, error in heard.refused.items():
        unknown = isinstance(error, NoRule)
        yield Notice(
            kind="left_out",
            seen=f"{argument} is left out: {shorten_text(said(error), _LONGEST_REASON)}",
            cause="tputfind does not know this input" if unknown else "the configuration does not fit",
            advice="describe every input with --input" if unknown else "use one of a published model",
        )


def named_models() -> Iterator[NamedModel]:
    """Yield the types of models whose default configuration can be named."""
    auto = import_package("transformers", "hf").models.auto.modeling_auto
    for name in sorted(set().union(*(getattr(auto, mapping, {}) for mapping, _ in _HEADS))):
        yield NamedModel(name=f"{PREFIX}{name}", family="hf", input_shape="")


def _config(transformers: Any, name: str, *, fetch: bool) -> Any:
    """Return the configuration of a model type (``bert``), of a folder or file, or of a name on the hub.

    The hub's configuration is read from the local cache; it is fetched only if ``fetch`` is set.
    """
    types = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    try:
        if name in types and not Path(name).is_file() and not Path(name, "config.json").exists():
            return transformers.AutoConfig.for_model(name)
        return transformers.AutoConfig.from_pretrained(name, local_files_only=not fetch, trust_remote_code=False)
    except Exception as error:  # from the hub, from the file system, or from an invalid configuration
        near = [one for one in get_close_matches(name.lower(), types, n=3) if one != name]
        hint = f"did you mean {' or '.join(PREFIX + one for one in near)}?" if near else _NOTHING_FETCHED
        raise UnknownModel(
            f"there is no configuration {shorten_text(name)!r} here: {shorten_text(said(error), LONGEST_PATH)}", hint
        ) from None


def class_of(transformers: Any, config: Any) -> Any:
    """Return the class from which the configuration was saved, else the most common class of its type.

    That is the class with the head of an encoder-decoder, a decoder, a detector or an image classifier, and without a
    head for all other types. If there is none, it raises UnknownModel.
    """
    if config.architectures:
        saved_from = getattr(transformers, config.architectures[0], None)
        if saved_from is None:
            raise UnknownModel(f"transformers has no class {config.architectures[0]!r}, which the configuration names")
        return saved_from
    auto, kind = transformers.models.auto.modeling_auto, config.model_type
    for mapping, head in _HEADS:
        if kind not in getattr(auto, mapping, {}):
            continue
        if head in _OF_ENCODER_DECODERS and not config.is_encoder_decoder:
            continue
        if head in _OF_DECODERS and (config.is_encoder_decoder or kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES):
            continue
        classes = getattr(transformers, head)._model_mapping[type(config)]  # noqa: SLF001  # as from_config does
        return classes[0] if isinstance(classes, tuple) else classes
    raise UnknownModel(f"transformers has no model for configurations of type {kind!r}", "tputfind models 'hf:*'")


def _make_module(kind: Any, spec: Spec, name: str, config: Any) -> nn.Module:
    if spec.weights == "DEFAULT":
        quantization = getattr(config, "quantization_config", None)
        is_quantized = quantization is not None and not getattr(quantization, "dequantize", False)
        try:
            fetched: nn.Module = kind.from_pretrained(
                name, config=config, dtype=torch.float32, weights_only=True, trust_remote_code=False
            )
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            raise BadRequest(f"--weights DEFAULT: those of {name} cannot be had: {said(error)}") from None
        if is_quantized and getattr(fetched, "hf_quantizer", None) is None:
            raise BadRequest(
                f"--weights DEFAULT: those of {name} are quantized, and transformers loads them only dequantized here",
                "they need a device, or packages, for their format: load them with transformers to see its warning",
            )
        return fetched
    made: nn.Module = kind._from_config(config)  # noqa: SLF001  # as AutoModel.from_config does
    return made


def _set_sizes(spec: Spec, config: Any) -> Any:
    """Set the requested image size and channels in the configuration, and missing image tokens; return it."""
    side = spec.image_size
    sides = list(spec.input_size[-2:]) if spec.input_size else [side, side] if side else []
    for each in configs_of(config) if sides else ():
        own = getattr(each, "image_size", None)
        if isinstance(own, (int, list, tuple)):
            each.image_size = sides[0] if isinstance(own, int) and sides[0] == sides[1] else sides
        if spec.input_size and (each is config or own is not None) and hasattr(each, "num_channels"):
            each.num_channels = spec.input_size[0]
    for token in ("image_token_id", "image_token_index", "video_token_index"):
        if getattr(config, token, 0) is None:  # a processor would add it to the vocabulary
            setattr(config, token, config.get_text_config().vocab_size - 1)
    if (config.architectures or [""])[0].endswith("ForSequenceClassification"):
        text = config.get_text_config()
        if getattr(text, "pad_token_id", 0) is None:  # a decoder takes batches only with one, as users set it
            text.pad_token_id = first_number(text, "eos_token_id") or 0
    return config
