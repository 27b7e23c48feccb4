"""Models that take a known number of bytes, or fail in a known way: each a factory for ``plain.py:NAME``."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

MIB = 2**20


class Scratch(nn.Module):
    """Takes ``bytes_per_sample`` while it runs, and returns little."""

    def __init__(self, bytes_per_sample: int) -> None:
        super().__init__()
        self.bytes_per_sample = bytes_per_sample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scratch = torch.empty(len(x) * self.bytes_per_sample, dtype=torch.uint8, device=x.device)
        scratch[:1] = 1
        return x + scratch[0]


class TakesMoreLater(nn.Module):
    """Takes 1 MiB a sample at first and 2 MiB from its sixth step on."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return Scratch(MIB if self.steps <= 5 else 2 * MIB)(x)


class FailsAbove(nn.Module):
    """Raises the error of a wrong shape above a batch size."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.largest:
            raise ValueError(f"this model was made for {self.largest} samples and got {len(x)}")
        return x * 2


class Aborts(nn.Module):
    """Aborts the process above a batch size."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.largest:
            print("the last words of this process", flush=True)
            os.abort()
        return x * 2


class Sleeps(nn.Module):
    """Takes 10 ms a sample, and little memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01 * len(x))
        return x * 2


def small_inputs(batch_size: int) -> torch.Tensor:
    return torch.randn(batch_size, 1)


def mebibytes():
    return Scratch(MIB), small_inputs


def four_mebibytes():
    return Scratch(4 * MIB), small_inputs


def takes_more_later():
    return TakesMoreLater(), small_inputs


def fails():
    return FailsAbove(0), small_inputs


def fails_above_12():
    return FailsAbove(12), small_inputs


def aborts_above_5():
    return Aborts(5), small_inputs


def sleeps():
    return Sleeps(), small_inputs


def module_alone():
    return nn.Linear(16, 4)


def prints():
    print("a word of the model's own")
    return nn.Linear(16, 4)


def keyword_inputs():
    class Adds(nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return left + right

    return Adds(), lambda batch_size: {"left": torch.randn(batch_size, 3), "right": torch.randn(batch_size, 3)}


def inputs_of_another_size():
    return nn.Linear(16, 4), lambda batch_size: torch.randn(7 * batch_size + 1, 16)


def inputs_of_one_size():
    return nn.Linear(16, 4), lambda batch_size: torch.randn(1, 16)


def batch_on_the_second_axis():
    return nn.Linear(16, 4), lambda batch_size: torch.randn(7, batch_size, 16)


class Raises(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


class SaysNothing(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def exits():
    return Raises(SystemExit(0)), small_inputs


def says_nothing():
    return Raises(SaysNothing()), small_inputs


def says_what_no_text_holds():
    return Raises(ValueError("half a character \ud800")), small_inputs


def runs_out_of_something_else():
    return Raises(RuntimeError("the queue ran out of memory slots")), small_inputs


class Leaves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os._exit(0)


def leaves():
    return Leaves(), small_inputs


class FailsLater(nn.Module):
    """Raises at its sixth step: trials pass, rows do not."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if self.steps > 5:
            raise ValueError("the sixth step")
        return x * 2


def fails_later():
    return FailsLater(), small_inputs


class MixedRanks(nn.Module):
    """Holds weights of rank 4 and a buffer of rank 5."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.register_buffer("offsets", torch.zeros(1, 2, 3, 4, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x) + self.offsets.sum()


def mixed_ranks():
    return MixedRanks()


def returns_text():
    return "resnet50"


def raises():
    raise KeyError("weights")


not_callable = 5
