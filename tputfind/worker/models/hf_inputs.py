"""The inputs of a transformers model, from the arguments of its ``forward`` and its configuration."""

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from tputfind.errors import BadRequest
from tputfind.record.spec import Spec
from tputfind.worker.inputs import Drawn, Each, Inputs
from tputfind.worker.models.hf_labels import CHOICES, draw_labels
from tputfind.worker.models.hf_model import Model, Packed, Part, Prompt, Same, most_tokens
from tputfind.worker.models.hf_rules import BESIDE, MAIN, RULES
from tputfind.worker.structures import tensors_of


@dataclass(frozen=True)
class Modality:
    """How a language model takes a modality other than text.

    ``argument`` is the main input of the modality's encoder, and ``encode`` the method that returns features.
    ``tokens`` are the configuration's names for the placeholder token of one feature in the prompt. ``beside`` are
    further arguments that the modality needs.
    """

    argument: str
    encode: str
    tokens: tuple[str, ...]
    beside: tuple[str, ...] = ()


MODALITIES: Final = (
    Modality(
        "pixel_values",
        "get_image_features",
        ("image_token_id", "image_token_index", "video_token_id", "video_token_index"),
        (
            "image_grid_thw",
            "mm_token_type_ids",
            "token_type_ids",
            "image_sizes",
            "spatial_shapes",
            "image_position_ids",
        ),
    ),
    Modality("pixel_values", "get_video_features", ("video_token_id", "video_token_index")),
    Modality(
        "input_features",
        "get_audio_features",
        ("audio_token_id", "audio_token_index"),
        ("input_features_mask", "feature_attention_mask"),
    ),
    Modality("input_values", "get_audio_features", ("audio_token_id", "audio_token_index")),
)

Places = dict[str, tuple[int, int]]
"""By argument other than text: the placeholder token of its features in a prompt, and the number of features."""


@dataclass(frozen=True)
class Heard:
    """The modalities other than text that a language model gets, and the errors of those that are left out."""

    places: Places
    refused: dict[str, Exception]


class NoRule(LookupError):
    """Raised if no rule draws an argument."""


def find_places(spec: Spec, kind: Any, config: Any) -> Heard:
    """Return the number of features that a language model makes of an image and of a piece of audio; it is run once.

    Its weights are uninitialized: pages of zeros that take no memory until they are written.
    """
    takes = set(inspect.signature(kind.forward).parameters)
    heard = Heard({}, {})
    for name in takes - set(RULES):
        if name.endswith(("_pixel_values", "_input_features")):
            heard.refused[name] = NoRule(f"no rule draws {name}")
    if "input_ids" not in takes or not takes & {modality.argument for modality in MODALITIES}:
        return heard
    with _skip_weight_init():
        # Encoders are fed in fp32, whatever the configuration says; the dtype is also written there.
        module = kind._from_config(deepcopy(config), dtype=torch.float32).eval()  # noqa: SLF001
        model = Model(spec, module, config)
    for modality in MODALITIES:
        is_done = modality.argument in heard.places.keys() | heard.refused.keys()
        if (
            is_done
            or modality.argument not in takes
            or not _encode(model, modality)
            or model.look(*modality.tokens) is None
        ):
            continue
        try:
            heard.places[modality.argument] = int(model.look(*modality.tokens)), _count_features(model, modality)
        except Exception as error:  # whatever the code of the model raises
            heard.refused[modality.argument] = error
    return heard


def _skip_weight_init() -> AbstractContextManager[Any]:
    """Return a context in which models keep their weights as allocated, without initialization."""
    for name in ("transformers.initialization", "transformers.modeling_utils"):  # the former from 5.0 on
        module = sys.modules.get(name)
        if hasattr(module, "no_init_weights"):
            return module.no_init_weights()  # type: ignore[union-attr,no-any-return]
    return nullcontext()


def draw_inputs(spec: Spec, module: nn.Module, config: Any, heard: Heard) -> Inputs:
    """Return a model's inputs: by default its main input and all other arguments that ``forward`` requires."""
    model = Model(spec, module, config, sum(count for _, count in heard.places.values()))
    names = _arguments(model, heard)
    unknown = [name for name in names if name not in RULES]
    if unknown or not names:
        example = " ".join(f"--input {name}:float:BxLENGTHxWIDTH" for name in names or model.takes[:1])
        kind = type(module).__name__
        problem = (
            f"no rule says what {kind} takes as {', '.join(unknown)}" if unknown else f"{kind} has no forward pass"
        )
        raise BadRequest(f"{spec.model}: {problem}", f"describe every input: {example}" if example else "")
    _check_options(model, names)
    rules = ((name, RULES[name](model)) for name in names)
    parts: dict[str, Part] = {name: part for name, part in rules if part is not None}
    if "input_ids" in parts:
        parts |= _prompt(model, parts, heard.places)
        parts |= _tokens_of_head(model, parts)
    if spec.phase == "train":
        parts |= draw_labels(model, parts)
    if "logits_to_keep" in model.takes and spec.phase == "infer":
        # As in generation, the prompt yields all keys and values, and the logits of the next token.
        parts |= {"logits_to_keep": 1, "use_cache": True}
    caches = {"cache", "use_cache", "logits_to_keep"} & set(model.takes)
    if caches and (spec.phase == "train" or not _can_cache(model)):  # transformers' Trainer uses no cache either
        parts |= {"use_cache": False}
    if any(isinstance(part, (Packed, Same, Prompt)) for part in parts.values()):
        return lambda size: {name: _make_argument(part, size) for name, part in parts.items()}
    return (), dict(parts)


def _can_cache(model: Model) -> bool:
    """Return whether transformers makes a cache for the layers; it does not for hybrids without any attention layer."""
    kinds = getattr(model.text, "layer_types", None)
    attends = hasattr(model.text, "num_attention_heads")
    counted = all(getattr(config, "num_hidden_layers", None) is not None for config in (model.text, model.decoder))
    return counted and not (
        attends and kinds and not any("attention" in kind and "linear" not in kind for kind in kinds)
    )


def _arguments(model: Model, heard: Heard) -> list[str]:
    takes, chosen = set(model.takes), set(model.required)
    if hasattr(model.module, "get_text_features"):  # it compares a text with another input
        chosen |= takes & {"input_ids", "pixel_values", "input_features", "input_values"}
    for image in ("pixel_values", "flattened_patches"):
        if {"input_ids", image} <= takes:  # it takes a text about an image
            chosen |= {"input_ids", image}
    if {"pixel_values_videos", "input_values"} <= takes:  # it takes a video and its sound
        chosen |= {"pixel_values_videos", "input_values"}
    chosen -= set(heard.refused) - set(model.required)
    for modality in MODALITIES:
        if modality.argument in heard.places:
            chosen |= {"input_ids", *_modality_arguments(model, modality)}
    if "Entity" in type(model.module).__name__:  # a head that classifies entities, which are optional elsewhere
        chosen |= {name for name in takes & set(RULES) if name.startswith("entity_")}
    main = model.module.main_input_name
    if main == "inputs" and "input_ids" in takes:  # two names of one argument
        main = "input_ids"
    if not chosen & MAIN:
        mains = [name for name in ([main] if isinstance(main, str) else main) if name in takes]
        chosen |= set(mains or [name for name in model.takes if name in MAIN][:1])
    for name, beside in BESIDE.items():
        if name in chosen:
            chosen |= takes & set(beside)
    if model.config.is_encoder_decoder:
        chosen |= takes & {"decoder_input_ids", "decoder_input_values"}
    return [name for name in model.takes if name in chosen]


def _modality_arguments(model: Model, modality: Modality) -> set[str]:
    encode = _encode(model, modality)
    if encode is None:
        return set()
    parameters = inspect.signature(encode).parameters.values()
    required = {
        each.name for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    }
    return {modality.argument, *modality.beside, *required} & set(model.takes)


def _encode(model: Model, modality: Modality) -> Callable[..., object] | None:
    """Return the method of the model, or of its base model, that computes a modality's features; None without one."""
    modules = [model.module, *(getattr(model.module, name, None) for name in ("model", "vlm"))]
    found = [getattr(module, modality.encode) for module in modules if hasattr(module, modality.encode)]
    parameters = [inspect.signature(encode).parameters for encode in found]
    counts = [len(names) if modality.argument in names else 0 for names in parameters]
    if any(counts):  # others pass their arguments on
        return found[counts.index(max(counts))]  # type: ignore[no-any-return]
    towers = (module for module in modules if modality.argument == "input_features" and hasattr(module, "audio_tower"))
    return next((partial(_project_audio, module) for module in towers), None)


def _project_audio(module: Any, input_features: torch.Tensor) -> torch.Tensor:
    """Return the features that a model without a method for them, such as Qwen2-Audio, puts among its tokens."""
    projected: torch.Tensor = module.multi_modal_projector(module.audio_tower(input_features).last_hidden_state)
    return projected


def _prompt(model: Model, parts: dict[str, Part], places: Places) -> dict[str, Part]:
    """Return the arguments that depend on the number of features of a sample's images and audio."""
    text = parts["input_ids"]
    if not places or not isinstance(text, Drawn):
        return {}
    length = text.sample_shape[0] + sum(count for _, count in places.values())
    kinds = [kind for kind, (_, count) in enumerate(places.values(), 1) for _ in range(count)]
    follow: dict[str, Part] = {
        "attention_mask": Drawn((length,), dtype=torch.int64, ones=True),
        "mm_token_type_ids": Same(torch.tensor([*kinds, *[0] * text.sample_shape[0]])),
    }
    # PaliGemma attends to the image and the text in both directions, Gemma 3 to the image alone.
    is_prefix = any(getattr(config, "model_type", "").startswith("paligemma") for config in model.configs)
    zeros = Drawn((length,), dtype=torch.int64, below=1)
    follow["token_type_ids"] = zeros if is_prefix else follow["mm_token_type_ids"]
    audio = next(one for one in MODALITIES if one.argument == "input_features")
    encode = _encode(model, audio) if audio.argument in places else None
    if encode is not None and "input_features_mask" not in inspect.signature(encode).parameters:
        # The mask is that of features, and not of frames.
        follow["input_features_mask"] = Drawn((places[audio.argument][1],), dtype=torch.bool, ones=True)
    given = {name: follow[name] for name in follow if name in parts}
    return {"input_ids": Prompt(text, tuple(places.values()))} | given


def _tokens_of_head(model: Model, parts: dict[str, Part]) -> dict[str, Part]:
    """Return the arguments that a head needs in another form than other heads."""
    name, text = type(model.module).__name__, parts["input_ids"]
    if not isinstance(text, Drawn):
        return {}
    if name.endswith(("ForMultipleChoice", "DoubleHeadsModel")):
        if name.endswith("DoubleHeadsModel"):  # some do not flatten the mask, which is of ones
            parts.pop("attention_mask", None)
        return {
            name: replace(part, sample_shape=(CHOICES, *part.sample_shape))
            for name, part in parts.items()
            if isinstance(part, Drawn) and (part.sample_shape == text.sample_shape or name.startswith("visual_"))
        }
    token, count = _marks(model, name)
    if token is None or count >= text.sample_shape[0]:
        return {}
    return {"input_ids": Prompt(replace(text, sample_shape=(text.sample_shape[0] - count,)), ((token, count),))}


def _marks(model: Model, name: str) -> tuple[int | None, int]:
    """Return the token that a head looks for in every sample, and its count; (None, 0) without such a token."""
    if name.endswith("ForSequenceClassification") and model.config.is_encoder_decoder:
        return getattr(model.text, "eos_token_id", None), 1
    if name.endswith("ForQuestionAnswering") and model.config.model_type == "longformer":
        return model.config.sep_token_id, 3
    return None, 0


def _count_features(model: Model, modality: Modality) -> int:
    """Run the model's encoder on one sample and return the number of features."""
    encode: Callable[..., Any] | None = _encode(model, modality)
    assert encode is not None
    takes = inspect.signature(encode).parameters
    names = _modality_arguments(model, modality) & set(takes)
    if unknown := names - set(RULES):
        raise NoRule(f"no rule draws {', '.join(sorted(unknown))}")
    parts = {name: RULES[name](model) for name in names}
    with torch.inference_mode():
        features = encode(**{name: _make_argument(part, 1) for name, part in parts.items() if part is not None})
    projected = getattr(features, "pooler_output", features)
    found = tensors_of(features.last_hidden_state if projected is None else projected)
    widths = {each.shape[-1] for each in found}
    width = None if projected is None else getattr(model.text, "hidden_size", None)
    if not found or (width is not None and widths != {width}):
        raise ValueError(f"its features are {', '.join(map(str, sorted(widths)))} wide, its tokens {width}")
    count = sum(each.numel() // each.shape[-1] for each in found)
    if modality.encode == "get_audio_features":  # Gemma 3n pads the features of any audio to this number
        count = max(count, int(model.look("audio_soft_tokens_per_image", default=0)))
    most = most_tokens(model.module, model.text)
    if most is not None and model.reserved + count >= most:
        raise ValueError(f"its {count} features leave none of {most} positions to a token")
    model.reserved += count
    return count


def _check_options(model: Model, names: list[str]) -> None:
    spec = model.spec
    tokens = {"input_ids", "decoder_input_ids"} & set(names)
    pixels = {"pixel_values", "pixel_values_videos"} & set(names)
    if not pixels and (spec.image_size is not None or spec.input_size is not None):
        raise BadRequest(f"{spec.model} takes {'tokens: --sequence-length says how many' if tokens else 'no pixels'}")
    if not tokens and spec.sequence_length is not None:
        raise BadRequest(f"{spec.model} takes {'pixels: --image-size says how many' if pixels else 'no tokens'}")


def _make_argument(part: Part, size: int) -> object:
    if isinstance(part, Same):
        return torch.cat([part.sample] * size) if part.packed else torch.stack([part.sample] * size)
    if isinstance(part, Prompt):
        text = _numbers((size, *part.text.sample_shape), part.text)
        for token, _ in part.places:
            text[text == token] = 0
        return torch.cat([*(torch.full((size, count), token) for token, count in part.places), text], 1)
    if isinstance(part, Each):
        return [part.make(torch.device("cpu")) for _ in range(size)]
    if isinstance(part, Packed):
        first, *rest = part.rows.sample_shape
        return _numbers((size * first, *rest), part.rows)
    if isinstance(part, Drawn):
        return _numbers(part.shape(size), part)
    return part


def _numbers(shape: tuple[int, ...], drawn: Drawn) -> torch.Tensor:
    empty = torch.empty(shape, dtype=drawn.dtype or torch.float32)
    if drawn.ones:
        return empty.fill_(1)
    return empty.normal_() if empty.is_floating_point() else empty.random_(0, drawn.below)
