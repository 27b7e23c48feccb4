"""The inputs of a model of transformers, from the arguments of its ``forward`` and from its configuration."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, Final

import torch
from torch import nn

from tputfind.errors import BadRequest
from tputfind.processes.failures import said
from tputfind.record.spec import Spec
from tputfind.worker.inputs import Drawn, Inputs, tensors_of

_SEQUENCE_LENGTH: Final = 512
"""Tokens of a sample, unless the model takes fewer or the user asks for another number."""
_IMAGE_SIZE: Final = 224
"""Height and width for models that take any and name none."""
_DETECTION_SIZE: Final = 640
"""Height and width for detectors that take any and name none."""
_AUDIO_SAMPLES: Final = 16_000
"""One second at 16 kHz, for models of raw audio."""
_SPECTROGRAM_FRAMES: Final = 800
"""Frames of a spectrogram, for models that take any number."""
_VIDEO_FRAMES: Final = 8
"""Frames of a clip, for models that name no number."""
_VISION: Final = ("vision_config", "image_config", "backbone_config", "vit_config", "encoder")
_AUDIO: Final = ("audio_config", "audio_encoder_config", "encoder_config", "speech_config")


_ENCODED: Final = 64
"""States of an encoder that is not part of the model."""
_REGIONS: Final = 36
"""Regions of an image that a detector has found, for models that take those."""
_PATCHES_AS_IMAGES: Final = {"kimi_k25_vision", "paddleocr_vl_vision"}
"""Types of encoders whose patches are images of their own, not rows of numbers."""
_FRAMES_FIRST: Final = ("speech_to_text", "univnet")
"""Types that convolve along time and transpose a spectrogram by themselves."""
_PAIRS: Final = ("efficientloftr", "lightglue", "superglue")
"""Types of models that compare two images."""


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
        ("image_token_id", "image_token_index", "video_token_id", "video_token_index"),
        ("image_grid_thw", "mm_token_type_ids", "image_sizes", "spatial_shapes", "image_position_ids"),
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


Places = dict[str, tuple[int, int]]
"""For an argument that is not text: the token that stands for its features in a prompt, and how many it makes."""


@dataclass(frozen=True)
class Heard:
    """What a language model takes beside text, and why the rest of what its ``forward`` names is not given."""

    places: Places
    refused: dict[str, str]


def find_places(spec: Spec, kind: Any, config: Any) -> Heard:
    """Return how many features a language model makes of an image and of a piece of audio, by making them once.

    The model that makes them has weights of zeros, which take no memory.
    """
    takes = set(inspect.signature(kind.forward).parameters)
    heard = Heard({}, {})
    if "input_ids" not in takes or not takes & {modality.argument for modality in MODALITIES}:
        return heard
    with _without_weights():
        model = Model(spec, kind._from_config(config).eval(), config)  # noqa: SLF001  # as AutoModel.from_config does
    for modality in _modalities(model):
        try:
            heard.places[modality.argument] = int(model.look(*modality.tokens)), _count_features(model, modality)
        except Exception as error:  # whatever the code of the model raises
            heard.refused[modality.argument] = said(error)
    return heard


def _without_weights() -> AbstractContextManager[Any]:
    """Return a context in which models leave their weights as the system gives the memory."""
    for name in ("transformers.initialization", "transformers.modeling_utils"):  # the former from 5.0 on
        module = sys.modules.get(name)
        if hasattr(module, "no_init_weights"):
            return module.no_init_weights()  # type: ignore[union-attr,no-any-return]
    return nullcontext()


def draw_inputs(spec: Spec, module: nn.Module, config: Any, heard: Heard) -> Inputs:
    """Return what a model takes: by default what its main input is, and all that ``forward`` requires beside it.

    Raises:
        BadRequest: ``forward`` requires an argument that no rule knows, or an option does not fit.
    """
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
        parts |= _prompt(parts, heard.places)
    if "logits_to_keep" in model.takes and spec.phase == "infer":
        # As generation does for the prompt: all keys and values, the logits of the next token.
        parts |= {"logits_to_keep": 1, "use_cache": True}
    if {"cache", "use_cache", "logits_to_keep"} & set(model.takes) and not _can_cache(model):
        parts |= {"use_cache": False}
    if any(isinstance(part, (Packed, Same, Prompt)) for part in parts.values()):
        return lambda size: {name: _made(part, size) for name, part in parts.items()}
    return (), dict(parts)


def _can_cache(model: Model) -> bool:
    """Whether transformers makes a cache for the layers: not for hybrids that have no attention among them."""
    kinds = getattr(model.text, "layer_types", None)
    attends = hasattr(model.text, "num_attention_heads")
    return getattr(model.text, "num_hidden_layers", None) is not None and not (
        attends and kinds and not any("attention" in kind and "linear" not in kind for kind in kinds)
    )


def _arguments(model: Model, heard: Heard) -> list[str]:
    """Return the names of the arguments to give, in their order."""
    takes, chosen = set(model.takes), set(model.required)
    if hasattr(model.module, "get_text_features"):  # of a text and of what it is to match
        chosen |= takes & {"input_ids", "pixel_values", "input_features", "input_values"}
    if {"input_ids", "pixel_values"} <= takes:  # of a text about an image
        chosen |= {"input_ids", "pixel_values"}
    if {"pixel_values_videos", "input_values"} <= takes:  # of a video and its sound
        chosen |= {"pixel_values_videos", "input_values"}
    chosen -= set(heard.refused) - set(model.required)
    for modality in MODALITIES:
        if modality.argument in heard.places:
            chosen |= {"input_ids", *_with_modality(model, modality)}
    main = model.module.main_input_name
    if not chosen & MAIN:
        mains = [name for name in ([main] if isinstance(main, str) else main) if name in takes]
        chosen |= set(mains or [name for name in model.takes if name in MAIN][:1])
    for name, beside in BESIDE.items():
        if name in chosen:
            chosen |= takes & set(beside)
    if model.config.is_encoder_decoder:
        chosen |= takes & {"decoder_input_ids"}
    return [name for name in model.takes if name in chosen]


def _modalities(model: Model) -> list[Modality]:
    """Return what a language model takes beside text."""
    return [
        modality
        for modality in MODALITIES
        if {"input_ids", modality.argument} <= set(model.takes)
        and _encode(model, modality) is not None
        and model.look(*modality.tokens) is not None
    ]


def _with_modality(model: Model, modality: Modality) -> set[str]:
    """Return the arguments that are given for a modality."""
    encode = _encode(model, modality)
    assert encode is not None
    parameters = inspect.signature(encode).parameters.values()
    required = {
        each.name for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    }
    return {modality.argument, *modality.beside, *required} & set(model.takes)


def _encode(model: Model, modality: Modality) -> Callable[..., object] | None:
    """Return the method that computes the features of a modality, of the model or of the one under its head."""
    for module in (model.module, getattr(model.module, "model", None)):
        if hasattr(module, modality.encode):
            return getattr(module, modality.encode)  # type: ignore[no-any-return]
    return None


def _prompt(parts: dict[str, Part], places: Places) -> dict[str, Part]:
    """Return the arguments that follow from how many features the images and the audio of a sample have."""
    text = parts["input_ids"]
    if not places or not isinstance(text, Drawn):
        return {}
    length = text.sample_shape[0] + sum(count for _, count in places.values())
    kinds = [kind for kind, (_, count) in enumerate(places.values(), 1) for _ in range(count)]
    follow: dict[str, Part] = {
        "attention_mask": Drawn((length,), dtype=torch.int64, ones=True),
        "mm_token_type_ids": Same(torch.tensor([*kinds, *[0] * text.sample_shape[0]])),
    }
    given = {name: follow[name] for name in follow if name in parts}
    return {"input_ids": Prompt(text, tuple(places.values()))} | given


def _count_features(model: Model, modality: Modality) -> int:
    """Return how many features the model makes of one sample, which it is run for.

    Raises:
        ValueError: their width is not that of its tokens, or they leave no position to one.
        Exception: whatever the code of the model raises.
    """
    encode = _encode(model, modality)
    assert encode is not None
    takes = inspect.signature(encode).parameters
    parts = {name: RULES[name](model) for name in _with_modality(model, modality) if name in takes}
    with torch.inference_mode():
        features = encode(**{name: _made(part, 1) for name, part in parts.items() if part is not None})
    found = tensors_of(getattr(features, "pooler_output", features))
    widths, width = {each.shape[-1] for each in found}, getattr(model.text, "hidden_size", None)
    if not found or (width is not None and widths != {width}):
        raise ValueError(f"its features are {', '.join(map(str, sorted(widths)))} wide, its tokens {width}")
    count = sum(each.numel() // each.shape[-1] for each in found)
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


def _tokens(model: Model) -> Drawn:
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
    most = None if most is None else most - model.reserved
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


def _image_places(model: Model) -> Same:
    """Return which tokens stand for an image: the first, as many as its features."""
    count = int(model.look("latent_query_num", default=1))
    return Same(torch.tensor([True] * count + [False] * (_text_length(model) - count)))


def _decoder_tokens(model: Model) -> Drawn:
    """Return as many tokens as the encoder takes, as far as the positions of the decoder reach."""
    config = model.config
    inner = next(
        (
            each
            for name in ("decoder", "decoder_config", "text_config", "t2u_config")
            if hasattr(each := getattr(config, name, None), "to_dict")
        ),
        config,
    )
    most = _first_number(inner, "max_decoder_position_embeddings", "max_target_positions", "max_position_embeddings")
    asked = model.spec.sequence_length
    length = min(asked or _SEQUENCE_LENGTH, most or asked or _SEQUENCE_LENGTH)
    if asked is not None and length < asked and "input_ids" not in model.takes:
        raise BadRequest(f"--sequence-length: the decoder of {model.spec.model} takes up to {most}, not {asked}")
    vocabulary = _first_number(inner, "decoder_vocab_size", "vocab_size") or model.look("vocab_size", default=2)
    codebooks = None if inner is config else _first_number(inner, "num_channels", "num_codebooks")
    return Drawn((length, codebooks) if codebooks else (length,), dtype=torch.int64, below=vocabulary)


def _image_size(model: Model) -> tuple[int, int]:
    if model.spec.input_size is not None:
        return model.spec.input_size[-2], model.spec.input_size[-1]
    ratios = model.look("scaled_images_ratios")  # of DepthPro, whose smallest copy of an image is one patch
    patches = int(model.look("patch_size") / min(ratios)) if ratios else None
    free = _DETECTION_SIZE if model.look("num_queries", "num_object_queries") else _IMAGE_SIZE
    backbone: dict[str, Any] = next(
        (config.model_args for config in model.configs if getattr(config, "model_args", None)), {}
    )
    own = (
        patches
        or backbone.get("img_size")
        or model.look("image_size", "max_img_size", within=_VISION)
        or model.spec.image_size
        or free
    )
    if isinstance(own, (list, tuple)):
        return int(own[0]), int(own[-1])
    return int(own), int(own)


def _channels(model: Model) -> int:
    if model.spec.input_size is not None:
        return model.spec.input_size[0]
    return int(model.look("num_channels", "in_channels", "in_chans", within=_VISION, default=3))


def _pixels(model: Model) -> Part:
    if "grid_thw" in model.takes or "image_grid_thw" in model.takes:
        return _patches(model)
    if {"spatial_shapes", "image_position_ids", "pixel_position_ids"} & set(model.takes):
        return Drawn(_patches(model).rows.sample_shape)
    if "prompt_pixel_values" in model.takes:
        return _half(model)
    if "aspect_ratio_mask" in model.takes:  # of several images in tiles
        return Drawn((1, _tiles(model), _channels(model), *_image_size(model)))
    if {"pixel_attention_mask", "image_attention_mask"} & set(model.takes):  # of several images
        return Drawn((1, _channels(model), *_image_size(model)))
    frames = model.look("num_frames", "frames_per_clip")
    if "video" in model.config.model_type and "pixel_values_videos" not in model.takes:
        frames = frames or _VIDEO_FRAMES
    image = (_channels(model), *_image_size(model))
    if model.look("image_grid_pinpoints"):
        return Drawn((_crops(model), *image))
    if model.config.model_type in _PAIRS:
        return Drawn((2, *image))
    return Drawn((int(frames), *image) if frames else image)


def _half(model: Model) -> Drawn:
    """Return the upper half of an image, whose lower half is another argument."""
    height, width = _image_size(model)
    return Drawn((_channels(model), height // 2, width))


def _tiles(model: Model) -> int:
    return int(model.look("max_num_tiles", default=1))


def _flattened_patches(model: Model) -> Same:
    """Return patches of an image, each after its row and its column, which count from 1."""
    count = int(model.look("max_patches", "seq_len", within=_VISION, default=2048))
    width = int(model.look("patch_size", within=_VISION, default=16)) ** 2 * 3
    columns = isqrt(count)
    places = torch.stack([torch.arange(count) // columns, torch.arange(count) % columns], 1) + 1
    return Same(torch.cat([places, torch.rand(count, width)], 1))


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
    merged = model.look("spatial_merge_size", "merge_size", "pooling_kernel_size", within=_VISION, default=2)
    side = model.spec.image_size or _IMAGE_SIZE
    along = max(1, side // (int(patch) * int(merged))) * int(merged)
    return 1, along, along


def _patches(model: Model) -> Packed:
    """Return the patches of an image, flat, as image processors for images of any size make them."""
    patch = int(model.look("patch_size", within=_VISION, default=14))
    frames = int(model.look("temporal_patch_size", "patch_temporal", within=_VISION, default=1))
    image = (_channels(model), patch, patch)
    if _PATCHES_AS_IMAGES & {getattr(config, "model_type", "") for config in model.configs}:
        return Packed(Drawn((prod(_grid(model)), *image)))
    return Packed(Drawn((prod(_grid(model)), frames * prod(image))))


def _pixel_mask(model: Model) -> Drawn:
    """Return which pixels belong to the image, or which patches, of models that are given a list of patches."""
    if "spatial_shapes" in model.takes:
        return Drawn((prod(_grid(model)),), dtype=torch.int64, ones=True)
    pixels = _pixels(model)
    assert isinstance(pixels, Drawn)
    shape = pixels.sample_shape
    return Drawn((*shape[:-3], *shape[-2:]), dtype=torch.int64, ones=True)


def _patch_positions(model: Model) -> Same:
    """Return the place of every patch: column and row."""
    _, rows, columns = _grid(model)
    return Same(torch.cartesian_prod(torch.arange(columns), torch.arange(rows)))


def _hidden_states(model: Model) -> Part:
    if "grid_thw" in model.takes:
        return _patches(model)
    first = next((each.in_channels for each in model.module.modules() if isinstance(each, nn.Conv1d)), None)
    if first is not None:
        return Drawn((first, _AUDIO_SAMPLES if first == 1 else _ENCODED))
    return Drawn((_SEQUENCE_LENGTH, int(model.look("hidden_size", default=1))))


def _spectrogram(model: Model) -> tuple[int, int, bool]:
    """Return the bins and frames of a spectrogram, and whether the bins come first: encoders that convolve along time
    first have them so.
    """
    names = ("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "mel_bins", "num_mels")
    others = ("feature_projection_input_dim", "input_feat_size", "input_size", "input_dim")
    modules = model.module.named_modules()
    linear = next((each.in_features for name, each in modules if name.endswith("input_linear")), None)
    bins = linear or int(model.look(*others, *names, within=_AUDIO, default=128))
    first = model.config.model_type not in _FRAMES_FIRST and any(
        isinstance(each, nn.Conv1d) and each.in_channels == bins for each in model.module.modules()
    )
    positions = model.look("max_source_positions", within=_AUDIO) if first else None
    return bins, 2 * int(positions) if positions else _SPECTROGRAM_FRAMES, first


def _features(model: Model) -> Drawn:
    bins, frames, bins_first = _spectrogram(model)
    spectrum = model.look("spec_size", within=_AUDIO)
    if spectrum:  # of CLAP, which folds a spectrogram into an image
        return Drawn((1, int(spectrum) ** 2 // bins, bins))
    return Drawn((bins, frames) if bins_first else (frames, bins))


def _frames(model: Model) -> Drawn:
    return Drawn((_spectrogram(model)[1],), dtype=torch.int64, ones=True)


def _encoded(model: Model) -> Drawn:
    """Return the states of another encoder, which a model attends to."""
    width = int(model.look("encoder_hidden_size", "hidden_size", default=1))
    return Drawn((_ENCODED, width))


def _raw_audio(model: Model) -> Drawn:
    bins = model.look("num_mel_bins")
    if bins and model.look("max_length"):
        return Drawn((int(model.look("max_length")), int(bins)))
    channels = model.look("audio_channels")
    if (
        channels
        or "padding_mask" in model.takes
        or model.look("hop_length", "upsampling_ratios", "downsampling_ratios")
    ):
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


BESIDE: Final = {
    "input_ids": ("attention_mask", "bbox", "visual_feats", "visual_pos"),
    "input_features": ("input_features_mask", "is_longer"),
    "states": ("actions", "rewards", "returns_to_go", "timesteps", "attention_mask"),
    "pixel_values": (
        "spatial_shapes",
        "image_attention_mask",
        "image_embeds_position_mask",
        "aspect_ratio_ids",
        "aspect_ratio_mask",
        "cross_attention_mask",
    ),
    "spatial_shapes": ("pixel_attention_mask",),
    "query_embeds": ("encoder_hidden_states",),
    "qformer_input_ids": ("qformer_attention_mask",),
}
"""Arguments that are given with another, if ``forward`` takes them."""
MAIN: Final = {
    "states",
    "input_ids",
    "pixel_values",
    "pixel_values_videos",
    "input_features",
    "input_values",
    "past_values",
    "latents",
    "hidden_states",
    "flattened_patches",
    "audio_mel",
    "inputs",
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
    "input_features_mask": _frames,
    "feature_attention_mask": _frames,
    "is_longer": lambda _: Drawn((1,), dtype=torch.bool, below=1),
    "bbox": lambda model: Drawn((_text_length(model), 4), dtype=torch.int64, below=1),
    "inputs_embeds": lambda model: Drawn((_text_length(model), int(model.look("hidden_size", default=1)))),
    "query_embeds": lambda model: Drawn(
        (int(model.look("num_query_tokens", default=32)), int(model.look("hidden_size")))
    ),
    "qformer_input_ids": lambda model: Drawn(
        (32,), dtype=torch.int64, below=int(model.look("vocab_size", within=("qformer_config",)))
    ),
    "pixel_attention_mask": _pixel_mask,
    "pixel_mask": _pixel_mask,
    "spatial_shapes": lambda model: Same(torch.tensor(_grid(model)[1:])),
    "qformer_attention_mask": lambda _: Drawn((32,), dtype=torch.int64, ones=True),
    "states": lambda model: Drawn((_text_length(model), int(model.look("state_dim")))),
    "encoder_hidden_states": _encoded,
    "aspect_ratio_ids": lambda _: Drawn((1,), dtype=torch.int64, ones=True),
    "aspect_ratio_mask": lambda model: Drawn((1, _tiles(model)), dtype=torch.int64, ones=True),
    "cross_attention_mask": lambda model: Drawn((_text_length(model), 1, _tiles(model)), dtype=torch.int64, ones=True),
    "visual_feats": lambda model: (
        Drawn((_REGIONS, int(model.look("visual_feat_dim")))) if model.look("visual_feat_dim") else None
    ),
    "visual_pos": lambda model: Drawn((_REGIONS, int(model.look("visual_pos_dim", default=4)))),
    "flattened_patches": _flattened_patches,
    "inputs": _pixels,
    "latents": lambda model: Drawn((int(model.look("hidden_size")), _ENCODED)),
    "image_attention_mask": lambda model: Drawn((_text_length(model), 1), dtype=torch.int64, ones=True),
    "image_embeds_position_mask": _image_places,
    "actions": lambda model: Drawn((_text_length(model), int(model.look("act_dim")))),
    "rewards": lambda model: Drawn((_text_length(model), 1)),
    "returns_to_go": lambda model: Drawn((_text_length(model), 1)),
    "timesteps": lambda model: Drawn((_text_length(model),), dtype=torch.int64, below=int(model.look("max_ep_len"))),
    "prompt_pixel_values": _half,
    "prompt_masks": _half,
    "audio_mel": _features,
    "audio_mel_mask": lambda model: Drawn(_frames(model).sample_shape, dtype=torch.bool, below=1),
    "task_inputs": lambda model: Drawn(
        (int(model.look("task_seq_len", default=77)),),
        dtype=torch.int64,
        below=int(model.look("text_encoder_vocab_size", default=2)),
    ),
    "merge_sizes": lambda _: Same(torch.tensor([1]), packed=True),
    "image_position_ids": _patch_positions,
    "pixel_position_ids": _patch_positions,
    "input_values": _raw_audio,
    "past_values": _past,
    "past_values_padding": lambda model: Drawn(_past(model).sample_shape, dtype=torch.int64, below=1),
    "freq": lambda _: Drawn((1,), dtype=torch.int64, below=3),
    "past_time_features": _times,
    "past_observed_mask": lambda model: Drawn(_past(model).sample_shape, ones=True),
}
"""How to draw an argument of ``forward``, by its name; None if the model does not need it."""
