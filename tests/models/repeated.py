"""Factories whose input functions log their batch sizes to the file named by ``CALLS``, one a line."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from torch import nn

FEW = 64
WIDTH = 1024
FACTOR = 128


def called(size: int) -> int:
    """Log a call of an input function."""
    if name := os.environ.get("CALLS"):
        with Path(name).open("a") as file:
            file.write(f"{size}\n")
    return size


def modest(size: int) -> int:
    """Log a call, and raise if its batch is too large."""
    if size > FEW:
        raise AssertionError(f"called for {size} samples")
    return called(size)


class Widens(nn.Module):
    """Returns outputs ``FACTOR`` times as large as its inputs, and has almost no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(FACTOR))

    def forward(self, x):
        return x[..., None] * self.scale


def widens():
    return Widens(), lambda batch: torch.randn(called(batch), WIDTH)


def refuses_many():
    return Widens(), lambda batch: torch.randn(modest(batch), 16)


class Scores(nn.Module):
    """Returns a loss of images, labels and a table of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 10)

    def forward(self, images, labels, table):
        return {"loss": nn.functional.cross_entropy(self.lin(torch.stack(images)) @ table, labels)}


def refuses_many_targets():
    def inputs(batch):
        images = [torch.randn(16) for _ in range(modest(batch))]
        return {"images": images, "labels": torch.randint(0, 10, (batch,)), "table": torch.eye(10)}

    return Scores(), inputs


class Triples(nn.Module):
    """Compares anchors with similar and dissimilar rows: three rows a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 8)

    def forward(self, rows):
        anchor, alike, other = self.lin(rows).unflatten(0, (-1, 3)).unbind(1)
        return ((anchor - alike) - (anchor - other)).square().sum(-1)


def refuses_many_triples():
    return Triples(), lambda batch: torch.randn(3 * modest(batch), 16)


class Contrasts(nn.Module):
    """Compares all pairs of samples, by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 8)

    def forward(self, x, mask):
        rows = self.lin(x)
        return (rows @ rows.T * mask).sum(1)


def pairs():
    return Contrasts(), lambda batch: (torch.randn(called(batch), 16), torch.ones(batch, batch))


class Pools(nn.Module):
    """Sums the nodes of each graph; raises if the number of graphs is not the number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 8)

    def forward(self, nodes, graph):
        count = int(graph.max()) + 1
        assert count == nodes.shape[0] // 5, "the graphs are not those of the batch"
        return nodes.new_zeros(count, 8).index_add_(0, graph, self.lin(nodes))


def graphs():
    return Pools(), lambda batch: (torch.randn(5 * called(batch), 4), torch.arange(batch).repeat_interleave(5))


class Crops(nn.Module):
    """Takes boxes after the number of their image, as floating-point numbers; dies if an image is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 8)

    def forward(self, images, boxes):
        numbers = boxes[:, 0].long()
        if int(numbers.max()) >= len(images):
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.lin(images)[numbers]


def crops():
    def inputs(batch):
        numbers = torch.arange(called(batch))[:, None].float()
        return torch.randn(batch, 16), torch.cat([numbers, 640 * torch.rand(batch, 4)], 1)

    return Crops(), inputs


class Lengths(nn.Module):
    """Takes an object that moves itself and whose samples cannot be counted from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 8)

    def forward(self, texts):
        return self.lin(texts.rows)


class Texts:
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def to(self, device: torch.device) -> Texts:
        return Texts(self.rows.to(device))


def objects():
    return Lengths(), lambda batch: (Texts(torch.randn(called(batch), 4)),)


HELD = 100
data = torch.randn(HELD, 4)


def objects_that_end():
    return Lengths(), lambda batch: (Texts(data[: called(batch)]),)
