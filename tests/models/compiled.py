"""Models that compilers and CUDA graphs handle well or badly: each is a factory for ``compiled.py:NAME``."""

import torch
from torch import nn


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


class InPieces(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x).sin()
        torch._dynamo.graph_break()
        return y.cos()


class InPart(Small):
    """Leaves most of its work to Python, after one graph break."""

    @torch.compiler.disable
    def most(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.most(x) * 2


class Wrong(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x[:, :3])


class ForEver(nn.Module):
    """Is recompiled at every call, because its call counter is part of the program."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class NotAtAll(nn.Module):
    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Otherwise(nn.Module):
    """Computes a different result when compiled, from batch 4 on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if torch.compiler.is_compiling() and len(x) >= 4 else 1)


class WaitsForTheDevice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()


def _inputs(batch_size: int) -> torch.Tensor:
    return torch.randn(batch_size, 8)


def with_inputs(make):
    """Return a factory of a model that ``make`` returns, and of these inputs."""
    return lambda: (make(), _inputs)


small = with_inputs(Small)
in_pieces = with_inputs(InPieces)
in_part = with_inputs(InPart)
wrong = with_inputs(Wrong)
for_ever = with_inputs(ForEver)
otherwise = with_inputs(Otherwise)
waits_for_the_device = with_inputs(WaitsForTheDevice)
normalised = with_inputs(lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
nothing_to_train = with_inputs(nn.ReLU)


def compiled_something_else():
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    return NotAtAll(), _inputs


class Wide(nn.Module):
    """64 MiB of weights in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4096, 4096, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def wide():
    return Wide(), lambda batch_size: torch.randn(batch_size, 4096)
