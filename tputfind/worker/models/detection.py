"""Random targets for training detectors, in the form that torchvision's detectors take."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from tputfind.worker.inputs import Each

OBJECTS: Final = 7
"""Objects per image, the average of COCO."""
_SMALLEST: Final = 0.1
"""Minimum width and height of an object, as a fraction of the image's."""


def targets_of(model: str, about: Mapping[str, Any], shape: Sequence[int]) -> Each:
    """Return the targets of a torchvision detector, whose name shows whether it also takes masks or keypoints.

    ``about`` is the metadata of its weights, with the names of classes and keypoints. The shape of an image has its
    channels first.
    """
    keypoints = len(about["keypoint_names"]) if "keypointrcnn" in model else 0
    masks = "maskrcnn" in model
    classes = len(about["categories"])
    return Each(partial(_target, height=shape[-2], width=shape[-1], classes=classes, keypoints=keypoints, masks=masks))


def draw_boxes(device: torch.device) -> torch.Tensor:
    """Return the boxes of an image's objects as fractions of its width and height: left, top, right, bottom."""
    sides = _SMALLEST + (1 - _SMALLEST) / 2 * torch.rand(OBJECTS, 2, device=device)
    corner = torch.rand(OBJECTS, 2, device=device) * (1 - sides)
    return torch.cat([corner, corner + sides], 1)


def _target(
    device: torch.device, *, height: int, width: int, classes: int, keypoints: int, masks: bool
) -> dict[str, torch.Tensor]:
    boxes = draw_boxes(device) * torch.tensor([width, height, width, height], device=device)
    target = {"boxes": boxes, "labels": torch.randint(1, classes, (OBJECTS,), device=device)}
    if masks:
        target["masks"] = torch.randint(0, 2, (OBJECTS, height, width), dtype=torch.uint8, device=device)
    if keypoints:
        inside = torch.rand(OBJECTS, keypoints, 2, device=device)
        places = boxes[:, None, :2] + inside * (boxes[:, None, 2:] - boxes[:, None, :2])
        target["keypoints"] = torch.cat([places, torch.ones_like(places[..., :1])], -1)
    return target
