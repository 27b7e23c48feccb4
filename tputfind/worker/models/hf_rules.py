"""Rules that draw an argument of a transformers model, by the argument's name in ``forward``."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, isqrt, prod
from typing import Final

import torch
from torch import nn

from tputfind.errors import BadRequest
from tputfind.worker.inputs import Drawn
from tputfind.worker.models.hf_model import Model, Packed, Part, Same, first_number, most_tokens

_SEQUENCE_LENGTH: Final = 512
"""Tokens per sample, unless the model takes fewer or the user sets another number."""
_IMAGE_SIZE: Final = 224
"""Height and width in pixels for models that accept any size and name none."""
_DETECTION_SIZE: Final = 640
"""Height and width in pixels for detectors that accept any size and name none."""
_AUDIO_SAMPLES: Final = 16_000
"""One second at 16 kHz, for models of raw audio."""
_SPECTROGRAM_FRAMES: Final = 800
"""Frames of a spectrogram, for models that accept any number."""
_VIDEO_FRAMES: Final = 8
"""Frames of a clip, for models that name no number."""
_VISION: Final = ("vision_config", "image_config", "backbone_config", "vit_config", "encoder")
_AUDIO: Final = ("audio_config", "audio_encoder_config", "encoder_config", "speech_config")
_ENCODED: Final = 64
"""Number of states from an encoder that is not part of the model."""
REGIONS: Final = 36
"""Regions that a detector finds in an image, for models that take regions."""
ENTITIES: Final = 2
"""Entities that a text mentions, for heads that classify entities or pairs of them."""
_MENTION: Final = 3
"""Tokens of a mention of an entity."""
_PATCHES_AS_IMAGES: Final = {"kimi_k25_vision", "paddleocr_vl_vision"}
"""Types of encoders whose patches are small images instead of rows of numbers."""
_FRAMES_FIRST: Final = ("speech_to_text", "univnet")
"""Types that convolve along time and transpose the spectrogram themselves."""
_BINS_FIRST: Final = {"qwen3_asr_encoder", "qwen3_asr_audio_encoder"}
"""Types that take the bins of a spectrogram first and convolve along bins and time."""
_PAIRS: Final = ("efficientloftr", "lightglue", "superglue")
"""Types of models that compare two images."""


def _ones(*shape: int) -> Drawn:
    return Drawn(shape, dtype=torch.int64, ones=True)


def _integers(below: int, *shape: int) -> Drawn:
    return Drawn(shape, dtype=torch.int64, below=below)


def _tokens(model: Model) -> Drawn:
    vocabulary = getattr(model.text, "vocab_size", None) or model.look("vocab_size", default=2)
    if isinstance(vocabulary, (list, tuple)):
        vocabulary = min(vocabulary)
    tables = {name.rpartition(".")[2]: len(table) for name, table in model.module.named_buffers() if table.dim()}
    if "af2_to_esm" in tables:  # amino acids, which ESMFold translates to its own tokens
        return _integers(tables["af2_to_esm"] - 1, _text_length(model))
    if "audio_tokens_offsets" in tables and hasattr(model.config, "codebook_vocab_size"):
        # Kyutai's speech to text takes a text token and a code of each codebook.
        return _integers(
            min(vocabulary, model.config.codebook_vocab_size), _text_length(model), tables["audio_tokens_offsets"]
        )
    return _integers(vocabulary, _text_length(model))


def _text_length(model: Model) -> int:
    """Return the number of tokens per sample."""
    spec, most = model.spec, most_tokens(model.module, model.text)
    most = None if most is None else most - model.reserved
    if most is not None and "returns_to_go" in model.takes:  # a step is a return, a state and an action
        most //= 3
    usual = most or _SEQUENCE_LENGTH if model.config.model_type == "imagegpt" else _SEQUENCE_LENGTH
    if spec.phase == "train" and getattr(model.config, "axial_pos_embds", False):
        usual = prod(model.config.axial_pos_shape)  # Reformer is trained on this number alone
    length = spec.sequence_length or min(most or usual, usual)
    if most is not None and length > most:
        raise BadRequest(f"--sequence-length: {spec.model} takes up to {most}, not {length}")
    return length


def _image_places(model: Model) -> Same:
    """Return a mask of the tokens that stand for an image: the first, one per feature."""
    count = int(model.look("latent_query_num", default=1))
    return Same(torch.tensor([True] * count + [False] * (_text_length(model) - count)))


def _decoder_tokens(model: Model) -> Part:
    """Return decoder tokens: as many as the encoder takes, up to the decoder's positions."""
    config = model.config
    names = ("decoder", "decoder_config", "text_config", "t2u_config")
    inners = (getattr(config, name, None) for name in names)
    inner = next((each for each in inners if hasattr(each, "to_dict")), config)
    most = first_number(inner, "max_decoder_position_embeddings", "max_target_positions", "max_position_embeddings")
    asked = model.spec.sequence_length
    length = min(asked or _SEQUENCE_LENGTH, most or asked or _SEQUENCE_LENGTH)
    if asked is not None and length < asked and "input_ids" not in model.takes:
        raise BadRequest(f"--sequence-length: the decoder of {model.spec.model} takes up to {most}, not {asked}")
    vocabulary = first_number(inner, "decoder_vocab_size", "vocab_size") or model.look("vocab_size", default=2)
    if config.model_type in ("musicgen", "musicgen_melody"):  # a row for each codebook of a sample
        return Packed(_integers(vocabulary, int(config.decoder.num_codebooks), length))
    codebooks = None if inner is config else first_number(inner, "num_channels", "num_codebooks")
    return Drawn((length, codebooks) if codebooks else (length,), dtype=torch.int64, below=vocabulary)


def _image_size(model: Model) -> tuple[int, int]:
    if model.spec.input_size is not None:
        return model.spec.input_size[-2], model.spec.input_size[-1]
    ratios = model.look("scaled_images_ratios")  # DepthPro: its smallest copy of an image is one patch
    patches = int(model.look("patch_size") / min(ratios)) if ratios else None
    detects = model.look("num_queries", "num_object_queries") is not None
    free = _DETECTION_SIZE if detects else _IMAGE_SIZE
    modules = model.module.modules()
    backbone = next((each.img_size for each in modules if isinstance(getattr(each, "img_size", None), tuple)), None)
    timm_own = (getattr(model.config, "pretrained_cfg", None) or {}).get("input_size") or [None]
    asked, fixed = model.spec.image_size, patches or backbone  # of a timm backbone
    if asked and fixed and fixed not in (asked, (asked, asked)):
        raise BadRequest(f"--image-size {asked}: {model.spec.model} takes images of {fixed} alone")
    own = patches or asked or model.look("image_size", "max_img_size", within=_VISION)
    positions = any(name.endswith("position_embeddings") for name, _ in model.module.named_parameters())
    if detects and not asked and not positions and not getattr(model.config, "image_size", None):
        own = patches  # the backbone was trained on smaller images, and takes any
    own = own or backbone or timm_own[-1] or free
    if isinstance(own, (list, tuple)):
        return int(own[0]), int(own[-1])
    windows = None if model.spec.image_size else model.look("num_windows")
    unit = int(windows * model.look("patch_size", within=_VISION, default=1)) if windows else 1
    return ceil(own / unit) * unit, ceil(own / unit) * unit


def _channels(model: Model) -> int:
    if model.spec.input_size is not None:
        return model.spec.input_size[0]
    return int(model.look("num_channels", "in_channels", "in_chans", within=_VISION, default=3))


def _pixels(model: Model) -> Part:
    if "grid_thw" in model.takes or "image_grid_thw" in model.takes:
        patches = _patches(model)
        return Drawn(patches.rows.sample_shape) if hasattr(model.config, "vlm_config") else patches  # as in ColQwen2
    if {"spatial_shapes", "image_position_ids", "pixel_position_ids"} & set(model.takes):
        return Drawn(_patches(model).rows.sample_shape)
    if "prompt_pixel_values" in model.takes:
        return _half(model)
    if "aspect_ratio_mask" in model.takes:  # it takes several images in tiles
        return Drawn((1, _tiles(model), _channels(model), *_image_size(model)))
    if "pixel_attention_mask" in model.takes or _has_images_by_token(model):  # it takes several images
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


def _has_images_by_token(model: Model) -> bool:
    """Return whether an image mask says for every token which of several images it sees, as in Idefics."""
    return {"image_attention_mask", "perceiver_embeddings"} <= set(model.takes)


def _half(model: Model) -> Drawn:
    height, width = _image_size(model)
    return Drawn((_channels(model), height // 2, width))


def _tiles(model: Model) -> int:
    return int(model.look("max_num_tiles", default=1))


def _flattened_patches(model: Model) -> Same:
    """Return the patches of an image, each after its row and column, counted from 1."""
    count = int(model.look("max_patches", "seq_len", within=_VISION, default=2048))
    width = int(model.look("patch_size", within=_VISION, default=16)) ** 2 * 3
    columns = isqrt(count)
    places = torch.stack([torch.arange(count) // columns, torch.arange(count) % columns], 1) + 1
    return Same(torch.cat([places, torch.rand(count, width)], 1))


def _sizes(model: Model) -> Same | None:
    """Return the height and width of an image; None for models whose features do not depend on them."""
    kinds = [getattr(config, "model_type", "") for config in model.configs]
    if model.look("image_grid_pinpoints") is None and "pixtral" not in kinds and "image_sizes" not in model.required:
        return None
    return Same(torch.tensor(_image_size(model)))


def _crops(model: Model) -> int:
    """Return the number of crops, the whole image included, of an image of the model's own size."""
    own = _image_size(model)
    pinpoints = model.look("image_grid_pinpoints")
    area = min((height * width for height, width in pinpoints if height >= own[0] and width >= own[1]), default=0)
    return 1 + area // prod(own)


def _clip(model: Model) -> Drawn:
    frames = model.look("num_frames", "frames_per_clip", default=_VIDEO_FRAMES)
    return Drawn((int(frames), _channels(model), *_image_size(model)))


def _grid(model: Model) -> tuple[int, int, int]:
    """Return the numbers of patches along time, height and width, in multiples of the patches that are merged."""
    patch = model.look("patch_size", within=_VISION, default=14)
    merged = model.look("spatial_merge_size", "merge_size", "pooling_kernel_size", within=_VISION, default=2)
    side = model.spec.image_size or _IMAGE_SIZE
    along = max(1, side // (int(patch) * int(merged))) * int(merged)
    return 1, along, along


def _patches(model: Model) -> Packed:
    """Return the flat patches of an image, as image processors for images of any size make them."""
    patch = int(model.look("patch_size", within=_VISION, default=14))
    frames = int(model.look("temporal_patch_size", "patch_temporal", within=_VISION, default=1))
    image = (_channels(model), patch, patch)
    if _PATCHES_AS_IMAGES & {getattr(config, "model_type", "") for config in model.configs}:
        return Packed(Drawn((prod(_grid(model)), *image)))
    return Packed(Drawn((prod(_grid(model)), frames * prod(image))))


def _pixel_mask(model: Model) -> Drawn:
    """Return the mask of the image's pixels, or of its patches for models that take a list of patches."""
    if "spatial_shapes" in model.takes:
        return _ones(prod(_grid(model)))
    pixels = _pixels(model)
    assert isinstance(pixels, Drawn)
    shape = pixels.sample_shape
    return _ones(*shape[:-3], *shape[-2:])


def _patch_positions(model: Model) -> Same:
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
    """Return the bins and frames of a spectrogram, and whether bins come first, as for encoders that start with a
    convolution along time.
    """
    names = ("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "mel_bins", "num_mels")
    others = ("feature_projection_input_dim", "input_feat_size", "input_size", "input_dim")
    modules = model.module.named_modules()
    linear = next((each.in_features for name, each in modules if name.endswith("input_linear")), None)
    bins = linear or int(model.look(*others, *names, within=_AUDIO, default=128))
    first = model.config.model_type not in _FRAMES_FIRST and any(
        isinstance(each, nn.Conv1d) and each.in_channels == bins for each in model.module.modules()
    )
    first = first or bool(_BINS_FIRST & {getattr(config, "model_type", "") for config in model.configs})
    positions = model.look("max_source_positions", within=_AUDIO) if first else None
    if {"input_values", "input_features"} <= set(model.required):  # both are of the same audio
        return bins, _AUDIO_SAMPLES // int(model.look("hop_length", default=_AUDIO_SAMPLES)), first
    return bins, 2 * int(positions) if positions else _SPECTROGRAM_FRAMES, first


def _features(model: Model) -> Drawn:
    bins, frames, bins_first = _spectrogram(model)
    spectrum = model.look("spec_size", within=_AUDIO)
    if spectrum:  # CLAP folds a spectrogram into an image
        return Drawn((1, int(spectrum) ** 2 // bins, bins))
    return Drawn((bins, frames) if bins_first else (frames, bins))


def _frames(model: Model) -> Drawn:
    return _ones(_spectrogram(model)[1])


def _image_or_audio(model: Model) -> Part:
    if type(model.module).__name__.endswith("ForOpticalFlow"):  # patches of 3x3 pixels around each, of two frames
        return Drawn((2, 27, *model.config.train_size))
    return _raw_audio(model) if "input_values" in model.takes else Drawn((3, *_image_size(model)))


def _raw_audio(model: Model) -> Drawn:
    bins = model.look("num_mel_bins")
    if bins and model.look("max_length"):
        return Drawn((int(model.look("max_length")), int(bins)))
    channels = model.look("audio_channels")
    resampled = model.look("hop_length", "upsampling_ratios", "downsampling_ratios")
    if channels or resampled or "padding_mask" in model.takes:
        return Drawn((int(channels or 1), _AUDIO_SAMPLES))
    unit = first_number(model.config, "samples_per_token") or 1
    return Drawn((ceil(_AUDIO_SAMPLES / unit) * unit,))


def _mask(model: Model) -> Drawn:
    return _ones(_text_length(model))


def _past(model: Model) -> Drawn:
    length = int(model.look("context_length", "prediction_length", default=64))
    lags = model.look("lags_sequence")
    channels = int(model.look("num_input_channels", "input_size", default=1))
    length += max(lags) if lags else 0
    return Drawn((length, channels) if channels > 1 or model.look("num_input_channels") else (length,))


def _times(model: Model, length: int) -> Drawn:
    """Return the features of moments, such as the day of the week, and those that are known for each moment."""
    counts = (model.look(name, default=0) for name in ("num_time_features", "num_dynamic_real_features"))
    return Drawn((length, int(sum(counts))))


def _future_length(model: Model) -> int:
    return int(model.look("prediction_length", default=1))


def _categories(model: Model) -> Drawn | None:
    count = model.look("num_static_categorical_features")
    return _integers(min(model.config.cardinality), int(count)) if count else None


def _static(model: Model) -> Drawn | None:
    count = model.look("num_static_real_features")
    return Drawn((int(count),)) if count else None


def _decoder_spectrogram(model: Model) -> Drawn:
    tokens = _decoder_tokens(model)
    assert isinstance(tokens, Drawn)
    return Drawn((tokens.sample_shape[0], int(model.config.num_mel_bins)))


BESIDE: Final = {
    "input_ids": (
        "attention_mask", "bbox", "lang_ids", "visual_feats", "visual_pos", "visual_embeds", "visual_attention_mask",
        "protein_input_ids", "protein_attention_mask",
    ),
    "flattened_patches": ("image_embeds_position_mask",),
    "decoder_input_values": ("speaker_embeddings",),
    "past_time_features": (
        "static_categorical_features", "static_real_features", "future_values", "future_time_features",
    ),
    "input_features": ("input_features_mask", "is_longer"),
    "states": ("actions", "rewards", "returns_to_go", "timesteps", "attention_mask"),
    "pixel_values": (
        "spatial_shapes", "image_attention_mask", "image_embeds_position_mask", "aspect_ratio_ids", "aspect_ratio_mask",
        "cross_attention_mask", "dataset_index",
    ),
    "spatial_shapes": ("pixel_attention_mask",),
    "query_embeds": ("encoder_hidden_states",),
    "qformer_input_ids": ("qformer_attention_mask",),
}  # fmt: skip
"""Arguments that are given together with another, if ``forward`` takes them."""
MAIN: Final = {
    "states", "input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values", "past_values",
    "latents", "hidden_states", "flattened_patches", "audio_mel", "inputs",
}  # fmt: skip
"""Main arguments: one of them is enough."""

RULES: Final[dict[str, Callable[[Model], Part | None]]] = {
    "mm_token_type_ids": _mask,
    "image_sizes": _sizes,
    "input_ids": _tokens,
    "attention_mask": _mask,
    "token_type_ids": _mask,
    "decoder_input_ids": _decoder_tokens,
    "decoder_input_values": _decoder_spectrogram,
    "speaker_embeddings": lambda model: Drawn((int(model.config.speaker_embedding_dim),)),
    "protein_input_ids": lambda model: _integers(
        int(model.look("vocab_size", within=("protein_encoder_config",))), _text_length(model)
    ),
    "protein_attention_mask": _mask,
    "padding_mask": lambda model: _ones(_raw_audio(model).sample_shape[-1]),
    "dataset_index": lambda model: _integers(int(model.look("num_experts"))) if model.look("num_experts") else None,
    "pixel_values": _pixels,
    "pixel_values_videos": _clip,
    "grid_thw": lambda model: Same(torch.tensor([_grid(model)]), packed=True),
    "image_grid_thw": lambda model: Same(torch.tensor([_grid(model)]), packed=True),
    "hidden_states": _hidden_states,
    "input_features": _features,
    "input_features_mask": lambda model: replace(_frames(model), dtype=torch.bool),
    "feature_attention_mask": _frames,
    "is_longer": lambda _: Drawn((1,), dtype=torch.bool, below=1),
    "bbox": lambda model: _integers(1, _text_length(model), 4),
    "lang_ids": lambda _: _integers(1),
    "inputs_embeds": lambda model: Drawn((_text_length(model), int(model.look("hidden_size", default=1)))),
    "query_embeds": lambda model: Drawn(
        (int(model.look("num_query_tokens", default=32)), int(model.look("hidden_size")))
    ),
    "qformer_input_ids": lambda model: _integers(int(model.look("vocab_size", within=("qformer_config",))), 32),
    "pixel_attention_mask": _pixel_mask,
    "pixel_mask": _pixel_mask,
    "spatial_shapes": lambda model: Same(torch.tensor(_grid(model)[1:])),
    "qformer_attention_mask": lambda _: _ones(32),
    "states": lambda model: Drawn((_text_length(model), int(model.look("state_dim")))),
    "encoder_hidden_states": lambda model: Drawn(
        (_ENCODED, int(model.look("encoder_hidden_size", "hidden_size", default=1)))
    ),
    "aspect_ratio_ids": lambda _: _ones(1),
    "aspect_ratio_mask": lambda model: _ones(1, _tiles(model)),
    "cross_attention_mask": lambda model: _ones(_text_length(model), 1, _tiles(model)),
    "visual_feats": lambda model: (
        Drawn((REGIONS, int(model.look("visual_feat_dim")))) if model.look("visual_feat_dim") else None
    ),
    "visual_pos": lambda model: Drawn((REGIONS, int(model.look("visual_pos_dim", default=4)))),
    "visual_embeds": lambda model: Drawn((REGIONS, int(model.look("visual_embedding_dim")))),
    "visual_attention_mask": lambda _: _ones(REGIONS),
    "entity_ids": lambda model: _integers(int(model.look("entity_vocab_size")), ENTITIES),
    "entity_attention_mask": lambda _: _ones(ENTITIES),
    "entity_position_ids": lambda model: _integers(_text_length(model), ENTITIES, _MENTION),
    "entity_start_positions": lambda model: _integers(_text_length(model), ENTITIES),
    "entity_end_positions": lambda model: _integers(_text_length(model), ENTITIES),
    "flattened_patches": _flattened_patches,
    "inputs": _image_or_audio,
    "latents": lambda model: Drawn((int(model.look("hidden_size")), _ENCODED)),
    "image_attention_mask": lambda model: _ones(_text_length(model), 1) if _has_images_by_token(model) else None,
    "image_embeds_position_mask": _image_places,
    "actions": lambda model: Drawn((_text_length(model), int(model.look("act_dim")))),
    "rewards": lambda model: Drawn((_text_length(model), 1)),
    "returns_to_go": lambda model: Drawn((_text_length(model), 1)),
    "timesteps": lambda model: _integers(int(model.look("max_ep_len")), _text_length(model)),
    "prompt_pixel_values": _half,
    "prompt_masks": _half,
    "audio_mel": _features,
    "audio_mel_mask": lambda model: Drawn(_frames(model).sample_shape, dtype=torch.bool, below=1),
    "task_inputs": lambda model: _integers(
        int(model.look("text_encoder_vocab_size", default=2)), int(model.look("task_seq_len", default=77))
    ),
    "classes_input_ids": _tokens,
    "classes_attention_mask": _mask,
    "classes_structure": lambda _: _ones(),
    "tasks_input_ids": _tokens,
    "tasks_attention_mask": _mask,
    "merge_sizes": lambda _: Same(torch.tensor([1]), packed=True),
    "image_merge_sizes": lambda _: Same(torch.tensor([1]), packed=True),
    "image_position_ids": _patch_positions,
    "pixel_position_ids": _patch_positions,
    "input_values": _raw_audio,
    "past_values": _past,
    "past_values_padding": lambda model: _integers(1, *_past(model).sample_shape),
    "freq": lambda _: _integers(3, 1),
    "past_time_features": lambda model: _times(model, _past(model).sample_shape[0]),
    "future_time_features": lambda model: _times(model, _future_length(model)),
    "future_values": lambda model: Drawn((_future_length(model), *_past(model).sample_shape[1:])),
    "static_categorical_features": _categories,
    "static_real_features": _static,
    "past_observed_mask": lambda model: Drawn(_past(model).sample_shape, ones=True),
}
"""Rules that draw an argument of ``forward``, by its name; a rule returns None if the model does not need it."""
