"""The inputs of a model of transformers, from the arguments of its ``forward`` and from its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import nn

from tputfind.errors import BadRequest
from tputfind.record.spec import Spec
from tputfind.worker.inputs import Drawn, Inputs, tensors_of

_SEQUENCE_LENGTH: Final = 512
"""Tokens of a sample, unless the model takes fewer or the user asks for another number."""
_IMAGE_SIZE: Final = 224
"""Height and width for models that take any and name none."""
_AUDIO_SAMPLES: Final = 16_000
"""One second at 16 kHz, for models of raw audio."""
_SPECTROGRAM_FRAMES: Final = 512
"""Frames of a spectrogram, for models that take any number."""
_VIDEO_FRAMES: Final = 8
"""Frames of a clip, for models that name no number."""
_VISION: Final = ("vision_config", "image_config", "backbone_config", "vit_config", "encoder")
_AUDIO: Final = ("audio_config", "audio_encoder_config", "encoder_config", "speech_config")


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


Part = Drawn | Packed | Same | Prompt | int | bool


@dataclass(frozen=True)
class Modality:
    """How a language model takes something else than text.

    ``argument`` is the main input of its encoder, ``encode`` the method that returns features, ``tokens`` the names in
    a configuration of the token that stands for one feature in the prompt; ``beside`` are arguments to give with it.
    """

    argument: str
    encode: str
    tokens: tuple[str, ...]
    beside: tuple[str, ...] = ()


MODALITIES: Final = (
    Modality(
        "pixel_values",
        "get_image_features",
        ("image_token_id", "image_token_index"),
        ("image_grid_thw", "mm_token_type_ids", "image_sizes", "pixel_attention_mask", "image_position_ids"),
    ),
    Modality(
        "input_features",
        "get_audio_features",
        ("audio_token_id", "audio_token_index"),
        ("input_features_mask", "feature_attention_mask"),
    ),
)


class Model:
    """A built model, or its copy on the meta device, as the rules see it.

    ``takes`` holds the names of the arguments of ``forward``, ``required`` those without a default.
    """

    def __init__(self, spec: Spec, module: Any, config: Any) -> None:
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
        for name in ("text_config", "thinker_config", "text_encoder", "text_encoder_config", "encoder"):
            inner = getattr(self.config, name, None)
            if hasattr(inner, "get_text_config"):
                return inner.get_text_config()
        try:
            return self.config.get_text_config()
        except ValueError:  # there are several
            return self.config


def _configs(config: Any) -> Iterator[Any]:
    """Yield a configuration and those inside."""
    yield config
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if hasattr(inner, "sub_configs"):
            yield from _configs(inner)


def draw_inputs(spec: Spec, module: nn.Module, config: Any) -> Inputs:
    """Return what a model takes: by default what its main input is, and all that ``forward`` requires beside it.

    Raises:
        BadRequest: ``forward`` requires an argument that no rule knows, or an option does not fit.
    """
    model = Model(spec, module, config)
    names = _arguments(model)
    unknown = [name for name in names if name not in RULES]
    if unknown or not names:
        wanted = ", ".join(unknown or model.takes[:3])
        example = " ".join(f"--input {name}:float:BxLENGTHxWIDTH" for name in (unknown or model.takes)[:1])
        raise BadRequest(
            f"{spec.model}: no rule says what {wanted} of {type(module).__name__} is",
            f"give all of {', '.join(names or model.takes[:3])}, such as {example}",
        )
    _check_options(model, names)
    rules = ((name, RULES[name](model)) for name in names)
    parts: dict[str, Part] = {name: part for name, part in rules if part is not None}
    if "input_ids" in parts:
        parts |= _prompt(model, parts)
    if "logits_to_keep" in model.takes and spec.phase == "infer":
        # As generation does for the prompt: all keys and values, the logits of the next token.
        parts |= {"logits_to_keep": 1, "use_cache": True}
    if any(isinstance(part, (Packed, Same, Prompt)) for part in parts.values()):
        return lambda size: {name: _made(part, size) for name, part in parts.items()}
    return (), dict(parts)


def _arguments(model: Model) -> list[str]:
    """Return the names of the arguments to give, in their order."""
    chosen = set(model.required)
    if hasattr(model.module, "get_text_features"):  # of a text and of what it is to match
        chosen |= {"input_ids", "pixel_values", "input_features", "input_values"} & set(model.takes)
    for modality in _modalities(model):
        chosen |= {"input_ids", modality.argument, *modality.beside} & set(model.takes)
    main = model.module.main_input_name
    mains = [name for name in ([main] if isinstance(main, str) else main) if name in model.takes]
    if not chosen & MAIN:
        chosen |= set(mains or [name for name in model.takes if name in MAIN][:1])
    if "decoder_input_ids" in model.takes and model.config.is_encoder_decoder:
        chosen |= {"decoder_input_ids"}
    if "input_ids" in chosen:
        chosen |= {"attention_mask"} & set(model.takes)
    return [name for name in model.takes if name in chosen]


def _modalities(model: Model) -> list[Modality]:
    """Return what a language model takes beside text."""
    return [
        modality
        for modality in MODALITIES
        if "input_ids" in model.takes and modality.argument in model.takes and hasattr(model.module, modality.encode)
        and model.look(*modality.tokens) is not None
    ]


def _prompt(model: Model, parts: dict[str, Part]) -> dict[str, Part]:
    """Return the arguments that follow from how many features the images and the audio of a sample have."""
    places = []
    for modality in _modalities(model):
        encode = getattr(model.module, modality.encode)
        takes = inspect.signature(encode).parameters
        with torch.inference_mode():
            features = encode(**{name: _made(part, 1) for name, part in parts.items() if name in takes})
        rows = sum(each.numel() // each.shape[-1] for each in tensors_of(getattr(features, "pooler_output", features)))
        places.append((int(model.look(*modality.tokens)), rows))
    if not places:
        return {}
    text = parts["input_ids"]
    assert isinstance(text, Drawn)
    length = text.sample_shape[0] + sum(count for _, count in places)
    kinds = [kind for kind, (_, count) in enumerate(places, 1) for _ in range(count)]
    follow: dict[str, Part] = {
        "attention_mask": Drawn((length,), dtype=torch.int64, ones=True),
        "mm_token_type_ids": Same(torch.tensor([*kinds, *[0] * text.sample_shape[0]])),
    }
    return {"input_ids": Prompt(text, tuple(places))} | {name: follow[name] for name in follow if name in parts}


def _check_options(model: Model, names: list[str]) -> None:
    spec = model.spec
    tokens = {"input_ids", "decoder_input_ids"} & set(names)
    pixels = {"pixel_values", "pixel_values_videos"} & set(names)
    if not pixels and (spec.image_size is not None or spec.input_size is not None):
        raise BadRequest(f"{spec.model} takes {'tokens: --sequence-length says how many' if tokens else 'no pixels'}")
    if not tokens and spec.sequence_length is not None:
        raise BadRequest(f"{spec.model} takes {'pixels: --image-size says how many' if pixels else 'no tokens'}")


def _made(part: Part, size: int) -> object:
    """Return the values of an argument for a batch size."""
    if isinstance(part, Same):
        return torch.cat([part.sample] * size) if part.packed else torch.stack([part.sample] * size)
    if isinstance(part, Prompt):
        text = _numbers((size, *part.text.sample_shape), part.text)
        for token, _ in part.places:
            text[text == token] = 0
        return torch.cat([*(torch.full((size, count), token) for token, count in part.places), text], 1)
    if isinstance(part, Packed):
        first, *rest = part.rows.sample_shape
        return _numbers((size * first, *rest), part.rows)
    if isinstance(part, Drawn):
        shape, axis = part.sample_shape, part.axis
        return _numbers(shape if axis is None else (*shape[:axis], size, *shape[axis:]), part)
    return part


def _numbers(shape: tuple[int, ...], drawn: Drawn) -> torch.Tensor:
    empty = torch.empty(shape, dtype=drawn.dtype or torch.float32)
    if drawn.ones:
        return empty.fill_(1)
    return empty.normal_() if empty.is_floating_point() else empty.random_(0, drawn.below)


def _tokens(model: Model, *names: str) -> Drawn:
    vocabulary = getattr(model.text, "vocab_size", None) or model.look("vocab_size", default=2)
    if isinstance(vocabulary, (list, tuple)):
        vocabulary = min(vocabulary)
    return Drawn((_text_length(model),), dtype=torch.int64, below=vocabulary)


def _text_length(model: Model) -> int:
    """Return the number of tokens of a sample.

    Raises:
        BadRequest: the positions of the model reach for fewer than --sequence-length.
    """
    spec, most = model.spec, most_tokens(model.module, model.text)
    length = spec.sequence_length or min(most or _SEQUENCE_LENGTH, _SEQUENCE_LENGTH)
    if most is not None and length > most:
        raise BadRequest(f"--sequence-length: {spec.model} takes up to {most}, not {length}")
    return length


def most_tokens(module: nn.Module, config: Any) -> int | None:
    """Return how many tokens the positions of a model reach for; None if nothing bounds them."""
    for name, inner in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(inner, nn.Embedding) and inner.padding_idx is not None:
            return inner.num_embeddings - inner.padding_idx - 1
    return _first_number(config, "max_encoder_position_embeddings", "max_source_positions", "max_position_embeddings")


def _first_number(config: Any, *names: str) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _decoder_tokens(model: Model) -> Drawn:
    """Return as many tokens as the encoder takes, as far as the positions of the decoder reach."""
    config = model.config
    inner = next((each for name in ("decoder", "decoder_config", "text_config", "t2u_config")
                  if hasattr(each := getattr(config, name, None), "to_dict")), config)
    most = _first_number(inner, "max_decoder_position_embeddings", "max_target_positions", "max_position_embeddings")
    asked = model.spec.sequence_length
    length = min(asked or _SEQUENCE_LENGTH, most or asked or _SEQUENCE_LENGTH)
    if asked is not None and length < asked and "input_ids" not in model.takes:
        raise BadRequest(f"--sequence-length: the decoder of {model.spec.model} takes up to {most}, not {asked}")
    vocabulary = _first_number(inner, "decoder_vocab_size", "vocab_size") or model.look("vocab_size", default=2)
    return Drawn((length,), dtype=torch.int64, below=vocabulary)


def _image_size(model: Model) -> tuple[int, int]:
    if model.spec.input_size is not None:
        return model.spec.input_size[-2], model.spec.input_size[-1]
    own = model.look("image_size", within=_VISION) or model.spec.image_size or _IMAGE_SIZE
    if isinstance(own, (list, tuple)):
        return int(own[0]), int(own[-1])
    return int(own), int(own)


def _channels(model: Model) -> int:
    if model.spec.input_size is not None:
        return model.spec.input_size[0]
    return model.look("num_channels", "in_channels", "in_chans", within=_VISION, default=3)


def _pixels(model: Model) -> Part:
    if "grid_thw" in model.takes or "image_grid_thw" in model.takes:
        return _patches(model)
    frames = model.look("num_frames", "frames_per_clip")
    image = (_channels(model), *_image_size(model))
    if model.look("image_grid_pinpoints"):
        return Drawn((_crops(model), *image))
    return Drawn((int(frames), *image) if frames else image)


def _sizes(model: Model) -> Same | None:
    """Return height and width of an image for models whose features depend on them."""
    kinds = [getattr(config, "model_type", "") for config in model.configs]
    if model.look("image_grid_pinpoints") is None and "pixtral" not in kinds and "image_sizes" not in model.required:
        return None
    return Same(torch.tensor(_image_size(model)))


def _crops(model: Model) -> int:
    """Return how many crops of an image of the model's own size are given, the whole image among them."""
    own = _image_size(model)
    pinpoints = model.look("image_grid_pinpoints")
    area = min((height * width for height, width in pinpoints if height >= own[0] and width >= own[1]), default=0)
    return 1 + area // prod(own)


def _clip(model: Model) -> Drawn:
    frames = model.look("num_frames", "frames_per_clip", default=_VIDEO_FRAMES)
    return Drawn((int(frames), _channels(model), *_image_size(model)))


def _grid(model: Model) -> tuple[int, int, int]:
    """Return the patches of an image along time, height and width: a multiple of those that are merged."""
    patch = model.look("patch_size", within=_VISION, default=14)
    merged = model.look("spatial_merge_size", "merge_size", within=_VISION, default=2)
    side = model.spec.image_size or _IMAGE_SIZE
    along = max(1, side // (int(patch) * int(merged))) * int(merged)
    return 1, along, along


def _patches(model: Model) -> Packed:
    """Return the patches of an image, flat, as image processors for images of any size make them."""
    patch = int(model.look("patch_size", within=_VISION, default=14))
    frames = int(model.look("temporal_patch_size", within=_VISION, default=1))
    return Packed(Drawn((prod(_grid(model)), _channels(model) * frames * patch * patch)))


def _hidden_states(model: Model) -> Part:
    if "grid_thw" in model.takes:
        return _patches(model)
    return Drawn((_SEQUENCE_LENGTH, int(model.look("hidden_size", default=1))))


def _features(model: Model) -> Drawn:
    """Return a spectrogram: bins by frames if the positions of an encoder count frames, else frames by bins."""
    bins = model.look("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "mel_bins",
                      "feature_projection_input_dim", "input_size", "input_dim", "num_mels", within=_AUDIO, default=80)
    positions = model.look("max_source_positions", within=_AUDIO)
    if positions and model.look("num_mel_bins", within=_AUDIO) and not model.look("conv_kernel_sizes"):
        return Drawn((int(bins), 2 * int(positions)))
    return Drawn((_SPECTROGRAM_FRAMES, int(bins)))


def _raw_audio(model: Model) -> Drawn:
    bins = model.look("num_mel_bins")
    if bins and model.look("max_length"):
        return Drawn((int(model.look("max_length")), int(bins)))
    channels = model.look("audio_channels")
    if channels or "padding_mask" in model.takes or model.look("hop_length", "upsampling_ratios", "downsampling_ratios"):
        return Drawn((int(channels or 1), _AUDIO_SAMPLES))
    return Drawn((_AUDIO_SAMPLES,))


def _mask(model: Model) -> Drawn:
    return Drawn((_text_length(model),), dtype=torch.int64, ones=True)


def _past(model: Model) -> Drawn:
    length = int(model.look("context_length", "prediction_length", default=64))
    lags = model.look("lags_sequence")
    channels = int(model.look("num_input_channels", "input_size", default=1))
    length += max(lags) if lags else 0
    return Drawn((length, channels) if channels > 1 or model.look("num_input_channels") else (length,))


def _times(model: Model) -> Drawn:
    past = _past(model)
    return Drawn((past.sample_shape[0], int(model.look("num_time_features", default=1))))


MAIN: Final = {
    "input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values", "past_values", "latents",
    "hidden_states", "flattened_patches", "audio_mel", "inputs",
}
"""Arguments of which one is enough."""

RULES: Final[dict[str, Callable[[Model], Part | None]]] = {
    "mm_token_type_ids": _mask,
    "image_sizes": _sizes,
    "input_ids": _tokens,
    "attention_mask": _mask,
    "decoder_input_ids": _decoder_tokens,
    "pixel_values": _pixels,
    "pixel_values_videos": _clip,
    "grid_thw": lambda model: Same(torch.tensor([_grid(model)]), packed=True),
    "image_grid_thw": lambda model: Same(torch.tensor([_grid(model)]), packed=True),
    "hidden_states": _hidden_states,
    "input_features": _features,
    "input_features_mask": lambda model: Drawn((_features(model).sample_shape[0],), dtype=torch.int64, ones=True),
    "input_values": _raw_audio,
    "past_values": _past,
    "past_time_features": _times,
    "past_observed_mask": lambda model: Drawn(_past(model).sample_shape, ones=True),
}
"""How to draw an argument of ``forward``, by its name; None if the model does not need it."""
