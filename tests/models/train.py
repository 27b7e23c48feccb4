"""Models to train whose outputs are unusual."""

import torch
from torch import nn


class LargeOutput(nn.Module):
    """Returns its loss, and scores that take 8 MiB for each sample and that no gradient needs."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return {"loss": self.lin(x).square().mean(), "scores": torch.ones(len(x), 2**21)}


class MaskedScores(nn.Module):
    """Returns scores of actions, of which a mask excludes all but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 4)

    def forward(self, x):
        return self.lin(x).masked_fill(torch.arange(4) < 3, float("-inf"))


def large_output():
    return LargeOutput(), lambda size: torch.randn(size, 8)


def masked_scores():
    return MaskedScores(), lambda size: torch.randn(size, 8)
