"""The labels from which a transformers model computes its own loss, by the head of its class."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from tputfind.worker.inputs import Drawn, Each
from tputfind.worker.models.detection import OBJECTS, draw_boxes
from tputfind.worker.models.hf_model import Model, Packed, Part, Prompt, Same
from tputfind.worker.models.hf_rules import ENTITIES

_SPOKEN: Final = 16
"""Tokens in the transcript of a speech sample."""
CHOICES: Final = 4
"""Texts in a sample of multiple choice, as in SWAG."""
_Labels = dict[str, Part]
_Parts = Mapping[str, Part]


def draw_labels(model: Model, parts: _Parts) -> _Labels:
    """Return the labels for a model's own loss, as far as ``forward`` takes them; empty if no rule applies."""
    name = type(model.module).__name__
    rule = next((rule for ending, rule in _RULES.items() if name.endswith(ending)), _contrastive)
    return {name: part for name, part in rule(model, parts).items() if name in model.takes}


def _class(count: int, shape: tuple[int, ...] = ()) -> Drawn:
    return Drawn(shape, dtype=torch.int64, below=int(count))


def _contrastive(_model: Model, parts: _Parts) -> _Labels:
    both = "input_ids" in parts and len(set(parts) & {"pixel_values", "input_features"}) > 0
    return {"return_loss": True} if both else {}


def _tokens(model: Model, parts: _Parts) -> _Labels:
    text = _text(parts.get("decoder_input_ids", parts.get("input_ids")))
    if text is None:
        return {}
    if model.module.main_input_name == "inputs":  # a decoder that computes all positions, however many tokens there are
        text = replace(text, sample_shape=(int(model.look("max_position_embeddings")),))
    return {"labels": text}


def _text(part: Part | None) -> Drawn | None:
    """Return a text part whose length includes the features of images and audio; None if the part is not text."""
    if isinstance(part, Prompt):
        length = part.text.sample_shape[0] + sum(count for _, count in part.places)
        return replace(part.text, sample_shape=(length,))
    return part if isinstance(part, Drawn) else None


def _pretraining(model: Model, parts: _Parts) -> _Labels:
    pair, labels = Drawn((), dtype=torch.int64), _tokens(model, parts)
    text, regions = labels.get("labels"), parts.get("visual_embeds")
    if isinstance(text, Drawn) and isinstance(regions, Drawn):
        labels["labels"] = replace(text, sample_shape=(text.sample_shape[0] + regions.sample_shape[0],))
    return labels | dict.fromkeys(("next_sentence_label", "sentence_order_label", "sentence_image_labels"), pair)


def _classes(model: Model, _parts: _Parts) -> _Labels:
    count = int(model.config.num_labels)
    if model.config.problem_type == "multi_label_classification":
        return {"labels": Drawn((count,))}
    if model.config.problem_type == "regression" or count == 1:
        return {"labels": Drawn((count,) if count > 1 else ())}
    return {"labels": _class(count)}


def _class_of_each_token(model: Model, parts: _Parts) -> _Labels:
    text = _text(parts.get("input_ids"))
    return {} if text is None else {"labels": _class(model.config.num_labels, text.sample_shape)}


def _masked_patches(model: Model, parts: _Parts) -> _Labels:
    """Return a mask of two fifths of an image's patches, and a token for each, for models that predict tokens."""
    image, side = parts.get("pixel_values"), model.look("patch_size")
    can_mask = any(name.endswith("mask_token") for name, _ in model.module.named_parameters())
    if not isinstance(image, Drawn) or not isinstance(side, int) or not can_mask:
        return {}
    height, width = image.sample_shape[-2:]
    masked = torch.arange((height // side) * (width // side)) % 5 < 2
    tokens = _class(getattr(model.config, "vocab_size", 1), (int(masked.sum()),))
    return {"bool_masked_pos": Same(masked), "labels": Packed(tokens)}


def _class_of_series(model: Model, _parts: _Parts) -> _Labels:
    return {"target_values": _class(model.config.num_targets)}


def _answer(model: Model, parts: _Parts) -> _Labels:
    """Return the position of an answer in a text, or the label of an answer to a question about an image."""
    if "labels" in model.takes and "start_positions" not in model.takes:
        count = model.look("num_qa_labels")
        if count is not None:  # lxmert
            return {"labels": _class(count)}
        if {"pixel_values", "visual_embeds"} & set(parts):
            return {"labels": Drawn((int(model.config.num_labels),), image=True)}
        text = _text(parts.get("input_ids"))
        return {} if text is None else {"labels": Drawn(text.sample_shape, dtype=torch.int64)}  # the cells of a table
    text = _text(parts.get("input_ids"))
    if text is None:
        return {}
    place = _class(text.sample_shape[0])
    return {"start_positions": place, "end_positions": place}


def _class_of_each_pixel(model: Model, parts: _Parts) -> _Labels:
    image = parts.get("pixel_values")
    return {"labels": _class(model.config.num_labels, image.sample_shape[-2:])} if isinstance(image, Drawn) else {}


def _number_of_each_pixel(model: Model, parts: _Parts) -> _Labels:
    """Return a depth or the probability of a class for each pixel; nothing if the model refuses to be trained."""
    image, forward = parts.get("pixel_values"), inspect.unwrap(type(model.module).forward)
    refuses = "NotImplementedError" in getattr(forward, "__code__", forward).co_names
    if refuses or not isinstance(image, Drawn):
        return {}
    return {"labels": parts.get("prompt_masks", Drawn(image.sample_shape[-2:], image=True))}


def _target(device: torch.device, *, classes: int) -> dict[str, torch.Tensor]:
    boxes = draw_boxes(device)
    middles, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    labels = torch.randint(0, classes, (OBJECTS,), device=device)
    return {"class_labels": labels, "boxes": torch.cat([middles, sides], 1)}


def _class_of_each_frame(model: Model, parts: _Parts) -> _Labels:
    audio, lengths = parts.get("input_values"), getattr(model.module, "_get_feat_extract_output_lengths", None)
    if not isinstance(audio, Drawn) or lengths is None:
        return {}
    frames = int(lengths(torch.tensor(audio.sample_shape[-1])))
    return {"labels": Drawn((frames, int(model.config.num_labels)))}


def _segments(model: Model, parts: _Parts) -> _Labels:
    image = parts.get("pixel_values")
    if not isinstance(image, Drawn):
        return {}
    height, width = image.sample_shape[-2:]
    classes = int(model.config.num_labels)
    return {
        "mask_labels": Each(lambda device: torch.randint(0, 2, (OBJECTS, height, width), device=device).float()),
        "class_labels": Each(lambda device: torch.randint(0, classes, (OBJECTS,), device=device)),
    }


def _future(model: Model, parts: _Parts) -> _Labels:
    past, length = parts.get("past_values"), model.config.prediction_length
    if not isinstance(past, Drawn) or length is None:
        return {}
    return {"future_values": Drawn((int(length), *past.sample_shape[1:]))}


def _spectrogram(model: Model, parts: _Parts) -> _Labels:
    frames = parts.get("decoder_input_values")
    if not isinstance(frames, Drawn):
        return {}
    return {
        "labels": replace(
            frames, sample_shape=(frames.sample_shape[0] * model.config.reduction_factor, *frames.sample_shape[1:])
        )
    }


def _transcript(model: Model, _parts: _Parts) -> _Labels:
    return {"labels": _class(model.config.vocab_size, (_SPOKEN,))}


_OF_TOKENS: Final = (
    "ForSpeechToText", "ForMaskedLM", "ForCausalLM", "ForSeq2SeqLM", "ForSpeechSeq2Seq", "ForConditionalGeneration",
    "ForImageTextToText", "ForCausalImageModeling", "ForVisionText2Text", "BertGenerationDecoder", "LMHeadModel",
    "ModelWithLMHead", "EncoderDecoderModel",
)  # fmt: skip
"""Endings of classes whose labels are tokens."""
_OF_CLASSES: Final = (
    "ForEntityClassification", "ForEntityPairClassification", "ForVisualReasoning", "ForSequenceClassification",
    "ForImageClassification", "ForVideoClassification", "ForAudioClassification", "ForImageClassificationLearned",
    "ForImageClassificationFourier", "ForImageClassificationConvProcessing",
)  # fmt: skip
"""Endings of classes whose label is a class or a number."""
_RULES: Final[dict[str, Callable[[Model, _Parts], _Labels]]] = {
    "ForPreTraining": _pretraining,
    "DoubleHeadsModel": lambda model, parts: {**_tokens(model, parts), "mc_labels": _class(CHOICES)},
    "ForMaskedImageModeling": _masked_patches,
    "ForRegression": lambda model, _parts: {"target_values": Drawn((int(model.config.num_targets),))},
    "ForTimeSeriesClassification": _class_of_series,
    "ForClassification": _class_of_series,
    "ForNextSentencePrediction": lambda _model, _parts: {"labels": Drawn((), dtype=torch.int64)},
    "ForTokenClassification": _class_of_each_token,
    "ForMultipleChoice": lambda _model, _parts: {"labels": _class(CHOICES)},
    "ForQuestionAnswering": _answer,
    "ForQuestionAnsweringSimple": _answer,
    "ForSemanticSegmentation": _class_of_each_pixel,
    "ForImageSegmentation": _number_of_each_pixel,
    "ForDepthEstimation": _number_of_each_pixel,
    "ForEntitySpanClassification": lambda model, _parts: {"labels": _class(model.config.num_labels, (ENTITIES,))},
    "ForObjectDetection": lambda model, _parts: {
        "labels": Each(partial(_target, classes=int(model.config.num_labels)))
    },
    "ForUniversalSegmentation": _segments,
    "ForInstanceSegmentation": _segments,
    "ForCTC": _transcript,
    "ForRNNT": _transcript,
    "ForTDT": _transcript,
    "ForPrediction": _future,
    "ForTextToSpeech": _spectrogram,
    "ForSpeechToSpeech": _spectrogram,
    "ForXVector": lambda model, _parts: {"labels": _class(model.config.num_labels)},
    "ForAudioFrameClassification": _class_of_each_frame,
    **dict.fromkeys(_OF_TOKENS, _tokens),
    **dict.fromkeys(_OF_CLASSES, _classes),
}
"""Rules for labels, by the ending of the class's name, which names the head."""
