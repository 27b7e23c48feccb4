"""A GAN: two networks, and two optimizers that step alternately.

``python train_gan.py 4`` trains it, and ``tputfind train_gan.py:step`` measures it.
"""

import sys
from time import perf_counter

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as judge

import tputfind

PATCHES, WIDTH = 65536, 32


class Gan:
    def __init__(self, device: torch.device) -> None:
        self.generator = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)
        self.critic = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1)).to(device)
        self.of_generator = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def train(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        noise, real = batch
        fake = self.generator(noise)
        self.of_critic.zero_grad()
        right, wrong = self.critic(real), self.critic(fake.detach())
        loss = judge(right, torch.ones_like(right)) + judge(wrong, torch.zeros_like(wrong))
        loss.backward()
        self.of_critic.step()
        self.of_generator.zero_grad()
        fooled = self.critic(fake)
        judge(fooled, torch.ones_like(fooled)).backward()
        self.of_generator.step()
        return loss.detach()


def batch_of(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, PATCHES, WIDTH, device=device), torch.randn(size, PATCHES, WIDTH, device=device)


def step() -> tputfind.Step:
    gan = Gan(device := tputfind.context().device)
    optimizers = (gan.of_generator, gan.of_critic)
    return tputfind.Step(gan.train, lambda size: batch_of(size, device), optimizers=optimizers)


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def loop(batch_size: int, steps: int, where: str = "cpu") -> list[float]:
    """Train as a script does, and return the seconds of each step."""
    device = torch.device(where)
    gan, batch, seconds = Gan(device), batch_of(batch_size, device), []
    for _ in range(steps):
        start_s = perf_counter()
        loss = gan.train(batch)
        wait(device)
        seconds.append(perf_counter() - start_s)
    del loss
    return seconds


if __name__ == "__main__":
    print(loop(int(sys.argv[1]), 10))
