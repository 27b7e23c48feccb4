"""A script that changes torch settings at its top, like training scripts."""

import random

import numpy as np
import torch
from torch import nn

torch.set_num_interop_threads(1)  # refused once any parallel work has started
torch.set_num_threads(1)
torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("medium")
torch.backends.cudnn.benchmark = True


class Net(nn.Linear):
    def forward(self, x):
        if torch.backends.cuda.matmul.allow_tf32 or torch.get_float32_matmul_precision() != "highest":
            raise AssertionError("fp32 is not IEEE fp32 here")
        if not torch.backends.cudnn.benchmark or torch.get_num_threads() != 1:
            raise AssertionError("a setting of the file was lost")
        return super().forward(x)


def net():
    def inputs(batch):
        torch.set_float32_matmul_precision("high")
        return torch.randn(batch, 64)

    return Net(64, 64), inputs


def newer_switch():
    torch.backends.fp32_precision = "tf32"
    return Net(64, 64), lambda batch: torch.randn(batch, 64)


class Seeded(nn.Module):
    """Returns its input, which depends on every random generator."""

    def forward(self, x):
        return x


def seeded():
    def inputs(batch):
        drawn = float(np.random.rand())  # noqa: NPY002  # as users draw
        return torch.full((batch, 1), random.random() + drawn + float(torch.rand(())))

    return Seeded(), inputs
