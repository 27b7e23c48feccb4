"""Models whose inputs are nested lists, dicts and tuples: each is a factory for ``nested.py:NAME``."""

import torch
from torch import nn


class OfList(nn.Module):
    def forward(self, images: list) -> torch.Tensor:
        return torch.stack([image["image"].flatten().cumsum(0) for image in images])


class OfAll(nn.Module):
    def forward(self, pair: tuple, options: dict) -> dict:
        left, right = pair
        return {"sum": (left.sum(dim=1) + options["bias"]) * options["scale"], "right": [right * 2]}


def list_of_dicts():
    return OfList(), lambda batch_size: ([{"image": torch.randn(3, 8, 8), "id": 1} for _ in range(batch_size)],)


def nested():
    def inputs(batch_size: int) -> tuple:
        pair = (torch.randn(batch_size, 4, 3), torch.randn(batch_size, 5))
        return pair, {"bias": torch.ones(3), "scale": 2.0}

    return OfAll(), inputs


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embedding(ids) * mask[..., None])


def tokens():
    return Tokens()


class OfPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(3, 4)

    def forward(self, packed: nn.utils.rnn.PackedSequence, scale: torch.Tensor) -> torch.Tensor:
        return self.recurrent(packed)[1][0] * scale


def packed():
    def inputs(batch_size: int) -> tuple:
        sequences = [torch.randn(5, 3) for _ in range(batch_size)]
        return nn.utils.rnn.pack_sequence(sequences), torch.ones(batch_size, 1)

    return OfPacked(), inputs


class Bag:
    """Holds a tensor and moves it in place, like batches of some libraries."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def to(self, device: torch.device) -> None:
        self.values = self.values.to(device)


class OfBag(nn.Module):
    def forward(self, bag: Bag, scale: torch.Tensor) -> torch.Tensor:
        return bag.values * scale


def bag():
    return OfBag(), lambda batch_size: (Bag(torch.randn(batch_size, 3)), torch.ones(batch_size, 1))
