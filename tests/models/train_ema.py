"""Accumulation over micro-batches, a gradient scaler, clipping, and a moving average of the weights."""

import sys
from time import perf_counter

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import tputfind

TIMES, PATCHES, WIDTH = 4, 16384, 32


class Trainer:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        layers = [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1), nn.Flatten(), nn.Linear(PATCHES, 10)]
        self.model = nn.Sequential(*layers).to(device)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        decayed = [weight for weight in self.model.parameters() if weight.dim() > 1]
        others = [weight for weight in self.model.parameters() if weight.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**40)

    def train(self, batch: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        for images, labels in batch:
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(self.model(images).float(), labels) / len(batch)
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.model)
        return loss.detach()


def batch_of(size: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    def micro_batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, PATCHES, WIDTH, device=device), torch.randint(10, (size,), device=device)

    return [micro_batch() for _ in range(TIMES)]


def step() -> tputfind.Step:
    trainer = Trainer(device := tputfind.context().device)
    kept = {"modules": trainer.model, "optimizers": trainer.optimizer, "samples": TIMES}
    return tputfind.Step(trainer.train, lambda size: batch_of(size, device), **kept)


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def loop(batch_size: int, steps: int, where: str = "cpu") -> list[float]:
    """Train as a script does, and return the seconds of each step."""
    device = torch.device(where)
    trainer, batch, seconds = Trainer(device), batch_of(batch_size, device), []
    for _ in range(steps):
        start_s = perf_counter()
        loss = trainer.train(batch)
        wait(device)
        seconds.append(perf_counter() - start_s)
    del loss
    return seconds


if __name__ == "__main__":
    print(loop(int(sys.argv[1]), 10))
