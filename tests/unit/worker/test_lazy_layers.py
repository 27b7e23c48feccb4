"""Lazy layers get their weights before anything is counted or measured."""

import pytest
import torch

from tputfind.record.spec import read_spec
from tputfind.worker.workload import Workload

_FILE = """
import torch
from torch import nn


class Derivative(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(4)

    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.layer(x).tanh().sum(), x, create_graph=True)[0]


def derivative():
    return Derivative(), lambda size: torch.randn(size, 3)


def norm():
    return nn.Sequential(nn.LazyBatchNorm1d(affine=False)), lambda size: torch.randn(size, 3)


def convolution():
    return nn.LazyConv2d(8, 3), lambda size: torch.randn(size, 3, 4, 4)
"""


@pytest.fixture
def workload(tmp_path):
    """Return a function that builds a model of the file above on the CPU."""
    (tmp_path / "lazy_layers.py").write_text(_FILE)
    return lambda name, **asked: Workload(read_spec(f"{tmp_path}/lazy_layers.py:{name}", asked), torch.device("cpu"))


@pytest.mark.parametrize("phase", ["infer", "train"])
def test_model_that_takes_derivatives_beside_lazy_layer_is_built(workload, phase):
    assert workload("derivative", phase=phase).parameters == 16


def test_lazy_layer_without_weights_gets_its_buffers(workload):
    built = workload("norm")

    assert list(built.caveats()) == []
    assert built._module[0].running_mean.shape == (3,)


def test_weights_of_lazy_convolution_are_channels_last_if_asked(workload):
    weight = workload("convolution", layout="nhwc")._module.weight

    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
