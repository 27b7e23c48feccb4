"""Training in DistributedDataParallel, as torchrun starts it; a step of the same for tputfind."""

import sys
from time import perf_counter

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import tputfind

TOKENS, WIDTH = 1024, 128


class Trainer:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        layers = [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)]
        self.model = DistributedDataParallel(nn.Sequential(*layers).to(device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def train(self, tokens: torch.Tensor) -> torch.Tensor:
        loss = self.model(tokens).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def batch_of(size: int, device: torch.device) -> torch.Tensor:
    return torch.randn(size, TOKENS, WIDTH, device=device)


def step() -> tputfind.Step:
    trainer = Trainer(device := tputfind.context().device)
    kept = {"modules": trainer.model, "optimizers": trainer.optimizer}
    return tputfind.Step(trainer.train, lambda size: batch_of(size, device), **kept)


def loop(batch_size: int, steps: int, where: str = "cpu") -> list[float]:
    """Train as a script does, and return the seconds of each step."""
    distributed.init_process_group("gloo" if where == "cpu" else "nccl")
    device = torch.device(where, distributed.get_rank()) if where != "cpu" else torch.device(where)
    trainer, batch, seconds = Trainer(device), batch_of(batch_size, device), []
    for _ in range(steps):
        start_s = perf_counter()
        loss = trainer.train(batch)
        if where != "cpu":
            torch.get_device_module(device).synchronize()
        seconds.append(perf_counter() - start_s)
    del loss
    return seconds


if __name__ == "__main__":
    print(loop(int(sys.argv[1]), 10))
