"""The result of an input function becomes the arguments of a model's forward pass."""

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tputfind.worker.inputs import as_call, forward_of


class Pair(NamedTuple):
    """A batch of two parts."""

    x: int
    y: int


PAIR = Pair(1, 2)
SPREAD = (1, 2), {}


@pytest.mark.parametrize(
    ("inputs", "forward", "call"),
    [
        (5, lambda x: x, ((5,), {})),
        ((1, 2), lambda x, y: (x, y), SPREAD),
        ((1, 2), lambda batch: batch, (((1, 2),), {})),
        ({"x": 1}, lambda x: x, ((), {"x": 1})),
        ({"a": 1}, lambda batch: batch, (({"a": 1},), {})),
        (PAIR, lambda batch, mask=None: (batch, mask), ((PAIR,), {})),
        (PAIR, lambda y, x: (x, y), ((), {"x": 1, "y": 2})),
        (PAIR, lambda x, mask=None, y=None: (x, mask, y), ((), {"x": 1, "y": 2})),
        ({"x": 1, "y": 2, "z": 3}, lambda x, y=None: (x, y), ((), {"x": 1, "y": 2, "z": 3})),
        ({"x": 1, "batch": 2}, lambda batch: batch, (({"x": 1, "batch": 2},), {})),
        ({"x": 1, "y": 2}, lambda batch, **more: (batch, more), (({"x": 1, "y": 2},), {})),
        (PAIR, lambda a, b: (a, b), (PAIR, {})),
        (PAIR, lambda *parts, **more: (parts, more), (PAIR, {})),
        (
            {"ids": 1, "labels": 2, "mask": 3},
            lambda inputs, labels=None, mask=None: (inputs, labels, mask),
            (({"ids": 1, "labels": 2, "mask": 3},), {}),
        ),
        ([1, 2], lambda images: images, (([1, 2],), {})),
        ([1, 2], lambda x, y: (x, y), SPREAD),
        ([1, 2], None, (([1, 2],), {})),
        ((1, 2), None, SPREAD),
    ],
)
def test_inputs_become_the_arguments_that_forward_accepts(inputs, forward, call):
    assert as_call(inputs, forward) == call


class OfDict(nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return batch["x"]


@pytest.mark.parametrize("wrap", [AveragedModel, nn.DataParallel, torch.jit.script, torch.compile])
def test_forward_of_a_wrapped_module_takes_the_arguments_of_the_inner_one(wrap):
    assert as_call({"x": 1}, forward_of(wrap(OfDict()))) == (({"x": 1},), {})
