"""torchvision's models in the form of their published weights; random weights need no download."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch import nn

from tputfind.errors import BadRequest, UnknownModel
from tputfind.processes.messages import NamedModel
from tputfind.record.environment import Capabilities
from tputfind.record.record import Notice
from tputfind.record.spec import Spec
from tputfind.record.types import size_argument
from tputfind.units import shorten_text
from tputfind.worker.inputs import Call, Drawn, Inputs, shape_text
from tputfind.worker.models.checked import weights_only
from tputfind.worker.models.detection import OBJECTS, targets_of
from tputfind.worker.models.saved import file_of, load, refuse_pickle
from tputfind.worker.models.source import LONGEST_PATH, Source, asked_shape, found
from tputfind.worker.models.user_code import factories_of
from tputfind.worker.structures import patch_attribute

FRAMES: Final = 16
"""Frames per clip: the published GMACs of torchvision's video models are for 16, and some accept no other number."""
_SEGMENTED: Final = 520, 520
"""Height and width at which segmentation models are evaluated; their transforms resize and do not crop."""
_FLOWN: Final = 520, 960
"""Height and width: the larger test size of RAFT's weights, a frame of Sintel or FlyingThings in multiples of 8."""
_DETECTED: Final = {"320_fpn": (320, 640), "ssd300": (300, 300), "ssdlite320": (320, 320)}
"""Sizes to which detectors resize their images, by a part of the name; images of that size stay as they are."""
_DETECTED_ELSE: Final = 800, 1333


class _Family(NamedTuple):
    """A family of torchvision's models: its module, the form of its inputs, and the arguments of its builders.

    A model takes ``arguments`` tensors of a sample's shape. A family that ``classifies`` returns scores by class, so
    that the built-in training loss applies.
    """

    module: str
    arguments: int = 1
    detects: bool = False
    quantized: bool = False
    classifies: bool = True


FAMILIES: Final = {
    "classification": _Family(""),
    "quantized": _Family("quantization", quantized=True),
    "detection": _Family("detection", detects=True, classifies=False),
    "segmentation": _Family("segmentation", classifies=False),
    "video": _Family("video"),
    "optical flow": _Family("optical_flow", arguments=2, classifies=False),
}


def find(spec: Spec) -> Source:
    from torchvision import models

    names = {name: family for family in FAMILIES for name in _names(family)}
    if spec.model not in names:
        raise _unknown_name(spec.model, list(names))
    family = FAMILIES[names[spec.model]]
    if spec.phase == "train" and family.quantized:
        raise BadRequest(
            f"--phase train: {spec.model} computes in int8", "a factory may return a model that makes its own loss"
        )
    file, weights = file_of(spec), _published_weights(spec)
    published = weights or models.get_model_weights(spec.model).DEFAULT
    own_shape = _own_shape(spec.model, names[spec.model], published)
    shape = asked_shape(spec, own_shape, own_channels=True)
    resized = size_argument(spec.model, shape) if shape != own_shape else {}
    if weights and resized:
        raise BadRequest(f"--weights {spec.weights} of {spec.model} are for samples of {shape_text([own_shape])} alone")
    inputs: Call = (Drawn(shape, image=family.detects, listed=family.detects),) * family.arguments, {}
    if family.detects and spec.phase == "train":
        inputs = (*inputs[0], targets_of(spec.model, published.meta, shape)), {}

    def build() -> tuple[nn.Module, Inputs]:
        weighted = {"weights": None if resized else published}
        arguments = weighted | resized | ({"quantize": True} if family.quantized else {})
        with warnings.catch_warnings(), weights_only() if weights else _keep_random_weights():
            warnings.simplefilter("ignore")  # some builders announce changes to their initial weights
            try:
                module: nn.Module = models.get_model(spec.model, **arguments)
            except OSError as error:  # from urllib: published weights are downloaded once, and kept
                raise BadRequest(f"--weights {spec.weights}: they cannot be fetched: {error}") from None
        if file is not None:
            load(module, file, spec.model)
        transform = getattr(module, "transform", None)
        if family.detects and transform is not None:  # one of several sizes, drawn at random in training
            transform.min_size = transform.min_size[-1:]
        return module, inputs

    is_random = file is None and not weights
    return Source(
        build,
        inputs,
        None if resized else published.meta["num_params"],
        path=file,
        unfit=lambda device: _why_unfit_for_int8(spec, device) if family.quantized else "",
        caveats=tuple(_detector_notices(spec, own_shape, shape) if family.detects else _training_notices(spec, family)),
        deferrable=is_random and not family.quantized,
        finish=_fill_heads if is_random else lambda _: None,
    )


def near_names(name: str) -> list[str]:
    """Return up to three names of torchvision's models with a similar spelling."""
    return get_close_matches(name.lower(), [one for family in FAMILIES for one in _names(family)], n=3)


_FOREIGN: Final = {
    ".onnx": "ONNX is not measured, only PyTorch is",
    ".tflite": "TensorFlow Lite is not measured, only PyTorch is",
    **dict.fromkeys((".engine", ".plan", ".trt"), "a TensorRT engine is not measured, only PyTorch is"),
    ".gguf": "GGUF is not measured, only PyTorch is",
    **dict.fromkeys((".h5", ".keras"), "a Keras model is not measured, only PyTorch is"),
    **dict.fromkeys((".pkl", ".pickle"), "a pickle is not loaded: it can run any code"),
    ".joblib": "a joblib file is not loaded: it can run any code",
    ".safetensors": "it holds weights, without the module that they are of",
}
"""Suffixes of files that users may take for models, and why these files are not measured."""


def _fill_heads(module: nn.Module) -> None:
    """Draw the weights of linear layers that are built as zeros (ViT's head), so that outputs differ."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and not layer.weight.any():
            nn.init.normal_(layer.weight, std=0.02)


def named_models() -> Iterator[NamedModel]:
    """Yield the models that can be named, family by family, in alphabetical order."""
    from torchvision import models

    for family, about in FAMILIES.items():
        for name in _names(family):
            weights = models.get_model_weights(name).DEFAULT
            shapes = [_own_shape(name, family, weights)] * about.arguments
            shape, parameters = shape_text(shapes), weights.meta["num_params"]
            yield NamedModel(name=name, family=family, input_shape=shape, parameters=parameters)


def _names(family: str) -> list[str]:
    from torchvision import models

    module = FAMILIES[family].module
    return list(models.list_models(module=getattr(models, module) if module else models))


def _own_shape(name: str, family: str, weights: Any) -> tuple[int, ...]:
    """Return the shape of a sample for which the published figures hold, without any download."""
    if family == "segmentation":
        return 3, *_SEGMENTED
    if family == "optical flow":
        return 3, *_FLOWN
    if family == "detection":
        return 3, *next((size for part, size in _DETECTED.items() if part in name), _DETECTED_ELSE)
    crop = weights.transforms().crop_size
    size = (crop[0], crop[-1])
    return (3, FRAMES, *size) if family == "video" else (3, *size)


def _published_weights(spec: Spec) -> Any:
    """Return the published weights that the spec names; None if it names none, or a file."""
    from torchvision import models

    known = models.get_model_weights(spec.model).__members__
    if spec.weights is None or spec.weights in known:
        return None if spec.weights is None else known[spec.weights]
    if file_of(spec) is None:
        names, named = ", ".join(known), shorten_text(spec.weights, LONGEST_PATH)
        raise BadRequest(f"--weights: {named!r} is neither a file nor weights of {spec.model}: it has {names}")
    return None


@contextmanager
def _keep_random_weights() -> Iterator[None]:
    """Let builders build the model of published weights, but keep its random weights.

    Without a weights argument they build another model: detectors with other normalization layers, segmentation without
    its second head, Inception without the transform of its input.
    """
    from torchvision.models import WeightsEnum

    with (
        patch_attribute(WeightsEnum, "get_state_dict", lambda *_, **__: {}),
        patch_attribute(nn.Module, "load_state_dict", lambda *_, **__: None),
    ):
        yield


def _why_unfit_for_int8(spec: Spec, can: Capabilities) -> str:
    if not can.is_cpu:
        return "its int8 operators are for the CPU: --device cpu"
    return "" if spec.dtype == "fp32" else "it computes in int8, whatever its inputs are: leave --dtype out"


def _detector_notices(spec: Spec, own: tuple[int, ...], asked: tuple[int, ...]) -> Iterator[Notice]:
    if spec.phase == "train":
        yield Notice(
            kind="drawn_targets",
            seen=f"each image has {OBJECTS} objects as targets, drawn at random",
            cause="a detector trains on targets beside its images",
            advice="a factory may return the model and what makes its images and targets",
        )
    elif spec.weights is None:
        yield Notice(
            kind="random_weights",
            seen="the model has random weights, so what it detects is chance",
            cause="sorting out boxes and masks takes time by how many there are",
            advice="use --weights DEFAULT",
        )
    inside = _size_in_detector(own[1:], asked[1:])
    if inside != asked[1:]:
        yield Notice(
            kind="resized",
            seen=f"{spec.model} resizes samples of {shape_text([asked])} to {shape_text([(asked[0], *inside)])} inside",
            cause="torchvision's detectors do so with any image",
            advice="a factory of your own can build one with another min_size and max_size",
        )


def _training_notices(spec: Spec, family: _Family) -> Iterator[Notice]:
    if spec.phase == "train" and not family.classifies:
        yield Notice(
            kind="stand_ins",
            seen="the loss is a stand-in: the mean square of the outputs",
            cause=f"{spec.model} makes none, and scores no classes of whole samples",
            advice="a factory may return a model that makes its own",
        )


def _size_in_detector(own: tuple[int, ...], asked: tuple[int, ...]) -> tuple[int, ...]:
    """Return an image's size after a detector's resizing: a fixed square, or the largest size within the bounds."""
    if own[0] == own[1]:
        return own
    scale = min(own[0] / min(asked), own[1] / max(asked))
    return tuple(int(length * scale) for length in asked)


def _unknown_name(name: str, names: list[str]) -> UnknownModel:
    quoted = shorten_text(name, LONGEST_PATH)
    if foreign := _FOREIGN.get(Path(name).suffix.lower()):
        return UnknownModel(
            f"{quoted}: {foreign}", "a factory may load it and return a torch.nn.Module: file.py:FACTORY"
        )
    if Path(name).suffix == ".py" and not found(Path(name).exists):
        return UnknownModel(f"there is no file {quoted}")
    if Path(name).suffix != ".py" and found(Path(name).is_file):
        refuse_pickle(Path(name))
    if Path(name).suffix == ".py" or found(Path(name).exists):
        defines = factories_of(Path(name)) if Path(name).suffix == ".py" else ""
        hint = "; ".join(filter(None, (f"write {quoted}:FACTORY", defines)))
        return UnknownModel(f"{quoted!r} does not say which factory", hint)
    near = get_close_matches(name.lower(), names, n=3)
    if name.isdecimal():
        return UnknownModel(
            f"there is no model {shorten_text(name)!r}", "commas stand between numbers: --batch-sizes 1,2,4"
        )
    hint = f"did you mean {' or '.join(near)}?" if near else "tputfind models lists what can be named"
    return UnknownModel(f"there is no model {shorten_text(name)!r}", hint)
