"""ResNet-50 that a variable of the environment makes slower, as a change to a model might."""

import os
import time

import torch
from torchvision.models import resnet50


class Slower(torch.nn.Module):
    """The model, and then so many cycles of the GPU, or ms of the CPU."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.cycles = int(os.environ.get("SLOWER_CYCLES", "0"))
        self.ms = float(os.environ.get("SLOWER_MS", "0"))

    def forward(self, x):
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        if self.ms:
            time.sleep(self.ms / 1000)
        return self.model(x)


def model():
    """ResNet-50 as it is, or slower."""
    return Slower(resnet50()), lambda batch: torch.randn(batch, 3, 224, 224)


def linear():
    """A small one."""
    return Slower(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])), lambda batch: torch.randn(
        batch, 512
    )
