"""Models for several instances: one that sleeps, one that takes much memory, and one that fails on the second core."""

import os
import time

import torch
from torch import nn


class Sleeps(nn.Module):
    """Takes 5 ms per sample on any number of cores."""

    def forward(self, x):
        time.sleep(0.005 * len(x))
        return 2 * x


class LagsBehind(nn.Module):
    """Takes ten times as long on the last core."""

    def forward(self, x):
        time.sleep(0.1 if max(os.sched_getaffinity(0)) == os.cpu_count() - 1 else 0.01)
        return 2 * x


class Grows(nn.Module):
    """Returns 16 000 bytes per sample."""

    def forward(self, x):
        return x.repeat(1, 1000)


class FailsOnSecond(nn.Module):
    """Fails, dies or hangs in the process that runs on the last core."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        if max(os.sched_getaffinity(0)) == os.cpu_count() - 1:
            if self.how == "raises":
                raise ValueError("had enough")
            if self.how == "dies":
                os._exit(3)
            time.sleep(600)
        return 2 * x


def with_inputs(make):
    """Return a factory of a model that ``make`` returns, and of these inputs."""
    return lambda: (make(), lambda batch: torch.randn(batch, 4))


sleeps = with_inputs(Sleeps)
lags = with_inputs(LagsBehind)
grows = with_inputs(Grows)
raises = with_inputs(lambda: FailsOnSecond("raises"))
dies = with_inputs(lambda: FailsOnSecond("dies"))
hangs = with_inputs(lambda: FailsOnSecond("hangs"))
