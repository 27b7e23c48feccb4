"""The labels that a model of transformers makes its own loss from, by the head that its class has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch

from tputfind.worker.inputs import Drawn, Each
from tputfind.worker.models.detection import OBJECTS, draw_boxes
from tputfind.worker.models.hf_model import Model, Part, Prompt

_SPOKEN: Final = 16
"""Tokens that a sample of speech is transcribed to."""
_Labels = dict[str, Part]
_Parts = Mapping[str, Part]


def draw_labels(model: Model, parts: _Parts) -> _Labels:
    """Return what makes a model compute its own loss, beside its inputs; empty if no rule knows it.

    What ``forward`` does not take is left out.
    """
    name = type(model.module).__name__
    rule = next((rule for ending, rule in _RULES.items() if name.endswith(ending)), _of_pairs)
    return {name: part for name, part in rule(model, parts).items() if name in model.takes}


def _of_pairs(_model: Model, parts: _Parts) -> _Labels:
    """A loss that sets the samples against each other, as CLIP has it."""
    both = "input_ids" in parts and len(set(parts) & {"pixel_values", "input_features"}) > 0
    return {"return_loss": True} if both else {}


def _tokens(_model: Model, parts: _Parts) -> _Labels:
    text = parts.get("decoder_input_ids", parts.get("input_ids"))
    if isinstance(text, Prompt):
        length = text.text.sample_shape[0] + sum(count for _, count in text.places)
        return {"labels": Drawn((length,), dtype=torch.int64, below=text.text.below)}
    return {"labels": text} if isinstance(text, Drawn) else {}


def _pretraining(model: Model, parts: _Parts) -> _Labels:
    pair = Drawn((), dtype=torch.int64)
    return {**_tokens(model, parts), "next_sentence_label": pair, "sentence_order_label": pair}


def _classes(model: Model, _parts: _Parts) -> _Labels:
    count = int(model.config.num_labels)
    if model.config.problem_type == "multi_label_classification":
        return {"labels": Drawn((count,))}
    if model.config.problem_type == "regression" or count == 1:
        return {"labels": Drawn((count,) if count > 1 else ())}
    return {"labels": Drawn((), dtype=torch.int64, below=count)}


def _class_of_each_token(model: Model, parts: _Parts) -> _Labels:
    text = parts.get("input_ids")
    below = int(model.config.num_labels)
    return {"labels": Drawn(text.sample_shape, dtype=torch.int64, below=below)} if isinstance(text, Drawn) else {}


def _span(_model: Model, parts: _Parts) -> _Labels:
    text = parts.get("input_ids")
    if not isinstance(text, Drawn):
        return {}
    place = Drawn((), dtype=torch.int64, below=text.sample_shape[0])
    return {"start_positions": place, "end_positions": place}


def _class_of_each_pixel(model: Model, parts: _Parts) -> _Labels:
    image = parts.get("pixel_values")
    below = int(model.config.num_labels)
    return (
        {"labels": Drawn(image.sample_shape[-2:], dtype=torch.int64, below=below)} if isinstance(image, Drawn) else {}
    )


def _objects(model: Model, _parts: _Parts) -> _Labels:
    return {"labels": Each(partial(_target, classes=int(model.config.num_labels)))}


def _target(device: torch.device, *, classes: int) -> dict[str, torch.Tensor]:
    boxes = draw_boxes(device)
    middles, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    labels = torch.randint(0, classes, (OBJECTS,), device=device)
    return {"class_labels": labels, "boxes": torch.cat([middles, sides], 1)}


def _transcript(model: Model, _parts: _Parts) -> _Labels:
    return {"labels": Drawn((_SPOKEN,), dtype=torch.int64, below=int(model.config.vocab_size))}


_RULES: Final[dict[str, Callable[[Model, _Parts], _Labels]]] = {
    "ForPreTraining": _pretraining,
    "ForNextSentencePrediction": lambda _model, _parts: {"labels": Drawn((), dtype=torch.int64)},
    "ForTokenClassification": _class_of_each_token,
    "ForQuestionAnswering": _span,
    "ForSemanticSegmentation": _class_of_each_pixel,
    "ForObjectDetection": _objects,
    "ForCTC": _transcript,
    "ForSequenceClassification": _classes,
    "ForImageClassification": _classes,
    "ForVideoClassification": _classes,
    "ForAudioClassification": _classes,
    "ForMaskedLM": _tokens,
    "ForCausalLM": _tokens,
    "ForSeq2SeqLM": _tokens,
    "ForSpeechSeq2Seq": _tokens,
    "ForConditionalGeneration": _tokens,
    "ForImageTextToText": _tokens,
    "LMHeadModel": _tokens,
    "EncoderDecoderModel": _tokens,
}
"""By the ending of a class's name: the head, and what its loss is made from."""
