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


def with_inputs(make, inputs=lambda batch: torch.rand(batch, ROW)):
    """Return a factory of a model that ``make`` returns, and of inputs, 1 MiB a sample unless given."""
    return lambda: (make(), inputs)


def few_numbers(batch):
    return torch.rand(batch, 8)


exits = with_inputs(lambda: CatchesAll(lambda _: os._exit(1)))
returns_nothing = with_inputs(lambda: CatchesAll(lambda _: None))
returns_half = with_inputs(lambda: CatchesAll(lambda x: x[: len(x) // 2]))
waits = with_inputs(Waits)
starts_a_thread = with_inputs(StartsThread, few_numbers)
returns_64_at_most = with_inputs(lambda: Returns(64), few_numbers)
keeps_outputs = with_inputs(Keeps, few_numbers)
sums_at_times = with_inputs(SumsAtTimes, few_numbers)
looks_up_once = with_inputs(LooksUpOnce, lambda batch: torch.arange(batch) % 10)
