"""ResNet-50 that an environment variable makes slower, like a change to a model."""

import os
import time

import torch
from torchvision.models import resnet50


class Slower(torch.nn.Module):
    """Waits for GPU cycles or CPU milliseconds, and then runs the model."""

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
    """Return ResNet-50 and its inputs, slowed on demand."""
    return Slower(resnet50()), lambda batch: torch.randn(batch, 3, 224, 224)


def linear():
    """Return a small model and its inputs."""
    return Slower(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])), lambda batch: torch.randn(
        batch, 512
    )
