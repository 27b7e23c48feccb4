"""Models whose memory or time does not grow as small batches suggest."""

import time

import torch
from torch import nn
from torch.nn import functional

ROW = 2**18
"""Numbers per sample: 1 MiB in fp32."""


class OfKnownMemory(nn.Module):
    """Holds three times its input besides the input: 4 MiB a sample in all."""

    def forward(self, x):
        twice = x * 2
        thrice = twice + x
        return (twice * thrice).sum(dim=1)


class Contrastive(nn.Module):
    """Compares all pairs of samples: memory grows with the square of the batch size."""

    def __init__(self, tower):
        super().__init__()
        self.tower = tower

    def forward(self, left, right):
        left, right = self.tower(left), self.tower(right)
        pairs = torch.arange(len(left), device=left.device)
        return {"loss": functional.cross_entropy(left @ right.T, pairs, reduction="none"), "left": left}


def contrastive():
    return Contrastive(nn.Linear(64, 16)), lambda batch: (torch.rand(batch, 64), torch.rand(batch, 64))


def wide_contrastive():
    tower = nn.Sequential(nn.Linear(64, 2048), nn.GELU(), nn.Linear(2048, 256))
    return Contrastive(tower), lambda batch: (torch.randn(batch, 64), torch.randn(batch, 64))


class Stalls(nn.Module):
    """Takes ten minutes from some batch size on."""

    def forward(self, x):
        if len(x) > 100:
            time.sleep(600)
        return x * 2


def stalls():
    return Stalls(), lambda batch: torch.rand(batch, 8)


class SlowToTime(nn.Module):
    """Takes little memory, and from batch 8 on one second a step, then 20 s from its fourth step on."""

    def __init__(self):
        super().__init__()
        self.slow_steps = 0

    def forward(self, x):
        if len(x) >= 8:
            self.slow_steps += 1
            time.sleep(1 if self.slow_steps < 4 else 20)
        else:
            time.sleep(0.001)
        return x * 2


def slow_to_time():
    return SlowToTime(), lambda batch: torch.rand(batch, 8)


def slow_inputs():
    """Return a model with inputs of 1 MiB a sample that take 20 ms each to make."""

    def inputs(batch):
        time.sleep(0.02 * batch)
        return torch.rand(batch, ROW)

    return OfKnownMemory(), inputs
