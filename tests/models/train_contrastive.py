"""A contrastive loss compares all pairs of samples, so memory grows with the square of the batch.

The step is a function of the batch size and does not depend on tputfind.
"""

import sys
from collections.abc import Callable
from time import perf_counter

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def step(batch_size: int) -> Callable[[], torch.Tensor]:
    tower = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).to(DEVICE)
    optimizer = torch.optim.SGD(tower.parameters(), lr=0.1, momentum=0.9)
    left, right = (torch.randn(batch_size, 64, device=DEVICE) for _ in range(2))
    pairs = torch.arange(batch_size, device=DEVICE)

    def train() -> torch.Tensor:
        similarity = normalize(tower(left), dim=-1) @ normalize(tower(right), dim=-1).T / 0.07
        loss = cross_entropy(similarity, pairs) + cross_entropy(similarity.T, pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


def loop(batch_size: int, steps: int) -> list[float]:
    """Train as a script does, and return the seconds of each step."""
    train, seconds = step(batch_size), []
    for _ in range(steps):
        start_s = perf_counter()
        loss = train()
        seconds.append(perf_counter() - start_s)
    del loss
    return seconds


if __name__ == "__main__":
    print(loop(int(sys.argv[1]), 10))
