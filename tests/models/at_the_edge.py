"""Models that do not pass an error on when memory runs out, or that return less then."""

import os
import queue
import threading

import torch
from torch import nn

ROW = 2**18
"""Numbers per sample: 1 MiB in fp32."""


class CatchesAll(nn.Module):
    """Doubles its input; if that fails, calls another function with it."""

    def __init__(self, instead):
        super().__init__()
        self.instead = instead

    def forward(self, x):
        try:
            return x * 2
        except RuntimeError as error:
            print(f"fatal: {error}", flush=True)
            return self.instead(x)


class StartsThread(nn.Module):
    """Starts a thread with a stack of 4 MiB a sample."""

    def forward(self, x):
        before = threading.stack_size(len(x) * 2**22)
        thread = threading.Thread(target=len, args=(x,))
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        thread.join()
        return x * 2


class Waits(nn.Module):
    """Waits for ever for the output of a thread that fails."""

    def forward(self, x):
        outputs = queue.Queue()
        threading.Thread(target=lambda: outputs.put(x * 2), daemon=True).start()
        return outputs.get()


class Keeps(nn.Module):
    """Returns the mean of its last six outputs."""

    def __init__(self):
        super().__init__()
        self.outputs = []

    def forward(self, x):
        self.outputs = [*self.outputs[-5:], x * 2]
        return torch.stack(self.outputs).mean(0)


class SumsAtTimes(nn.Module):
    """Returns one output for the whole batch at every third call of a large batch."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += len(x) > 8
        return (x * 2).sum(0) if self.calls % 3 == 1 else x * 2


def rows(batch):
    return torch.rand(batch, ROW)


def exits():
    return CatchesAll(lambda _: os._exit(1)), rows


def returns_nothing():
    return CatchesAll(lambda _: None), rows


def returns_half():
    return CatchesAll(lambda x: x[: len(x) // 2]), rows


def starts_a_thread():
    return StartsThread(), lambda batch: torch.rand(batch, 8)


class Returns(nn.Module):
    """Returns its output up to a batch size, and nothing above it."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def forward(self, x):
        return x * 2 if len(x) <= self.most else None


class LooksUpOnce(nn.Module):
    """Returns one row for each different number in its input."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(16, 8)

    def forward(self, ids):
        return self.rows(ids.unique())


def looks_up_once():
    return LooksUpOnce(), lambda batch: torch.arange(batch) % 10


def returns_64_at_most():
    return Returns(64), lambda batch: torch.rand(batch, 8)


def waits():
    return Waits(), rows


def keeps_outputs():
    return Keeps(), lambda batch: torch.rand(batch, 8)


def sums_at_times():
    return SumsAtTimes(), lambda batch: torch.rand(batch, 8)
