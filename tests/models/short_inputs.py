"""Factories whose inputs hold a wrong number of samples from some batch size on."""

import torch
from torch import nn

HELD = 4
images = torch.randn(HELD, 3, 8, 8)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 10))


class Takes(nn.Module):
    """Takes images and labels; uses the labels only with ``looks``."""

    def __init__(self, *, looks: bool) -> None:
        super().__init__()
        self.net, self.looks = net(), looks

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.net(x)
        return nn.functional.cross_entropy(scores, labels) if self.looks else scores


def tensor():
    return net(), lambda batch_size: images[:batch_size]


def labelled_that_the_model_fails_over():
    return Takes(looks=True), labelled_images


def labelled_images(batch_size: int) -> dict[str, torch.Tensor]:
    """Return images that end, each with a label."""
    return {"x": images[:batch_size], "labels": torch.randint(0, 10, (batch_size,))}


def candidates():
    return Takes(looks=False), lambda size: (torch.randn(size, 3, 8, 8), torch.randn(min(size, HELD), 3, 8, 8))


def boxes():
    """Return images with one box each in small batches, and with one more in others."""
    return Takes(looks=False), lambda size: (torch.randn(size, 3, 8, 8), torch.randn(size + (size > HELD), 4))


def more_than_asked():
    return net(), lambda batch_size: torch.randn(batch_size if batch_size < 2 * HELD else batch_size + 1, 3, 8, 8)
