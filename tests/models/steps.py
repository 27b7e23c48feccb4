"""Steps, and objects that look like one: each is a name for ``steps.py:NAME``."""

import asyncio
import os
import signal
import sys
import time
from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tputfind


def pair():
    layer = nn.Linear(8, 8)

    def run(batch):
        with torch.no_grad():
            return layer(batch)

    return run, lambda size: torch.randn(size, 8)


def nothing(batch_size):
    torch.randn(batch_size)


def text(batch_size):
    return f"{batch_size}"


def width(width):
    return nn.Linear(width, width)


async def coroutine(batch_size):
    return lambda: batch_size


def runs_a_coroutine(batch_size):
    async def step():
        return torch.randn(batch_size)

    return step


def infers(batch_size):
    layer, x = nn.Linear(8, 8), torch.randn(batch_size, 8)
    return lambda: layer(x).tanh()


def trains_by_hand(batch_size):
    layer, x = nn.Linear(8, 8), torch.randn(batch_size, 8)

    def step():
        layer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.sub_(0.1 * parameter.grad)
        return loss

    return step


def never_reads(batch_size):
    x = torch.randn(8, 8)
    return lambda: x @ x


def ignores(batch_size):
    x = torch.randn(8, 8)
    assert batch_size

    def step():
        time.sleep(0.01)  # small compared with the noise
        return x @ x

    return step


def same_batch():
    return tputfind.Step(lambda batch: batch @ batch, lambda _: torch.randn(8, 8))


def data_set_that_ends():
    data = torch.randn(9, 8)
    return tputfind.Step(lambda batch: batch * 2, lambda size: data[:size])


def run_is_text():
    return tputfind.Step("run", lambda size: torch.randn(size, 8))


def half_samples():
    return tputfind.Step(lambda batch: batch, lambda size: torch.randn(size, 8), samples=lambda size: size / 2)


def step_takes_a_batch(batch_size):
    x = torch.randn(batch_size, 8)
    return lambda y: x * y


def size_has_a_default(batch_size=4):
    x = torch.randn(batch_size, 8)
    return lambda: x * 2


def task_of_its_own_loop(batch_size):
    x, loop = torch.randn(batch_size, 8), asyncio.new_event_loop()

    async def step():
        return x * 2

    return lambda: loop.create_task(step())


def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def batch_is_a_loader():
    data = TensorDataset(torch.randn(64, 8))
    return tputfind.Step(lambda loader: [x * 2 for (x,) in loader], lambda size: DataLoader(data, batch_size=size))


def loader_with_samples():
    step = batch_is_a_loader()
    return tputfind.Step(step.run, step.make_batch, samples=lambda size: 64 // size * size)


def never_steps():
    layer = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters())
    return tputfind.Step(lambda batch: layer(batch).sum(), lambda size: torch.randn(size, 8), optimizers=optimizer)


def uses_up_a_generator():
    layer = nn.Linear(8, 8)

    def train(micro_batches):
        for micro_batch in micro_batches:
            layer(micro_batch).sum().backward()

    return tputfind.Step(train, lambda size: (torch.randn(size, 8) for _ in range(4)))


def uses_up_a_slice():
    data = [torch.randn(8, 8)] * 8
    return tputfind.Step(lambda batch: [sample.sum() for sample in batch], lambda size: islice(iter(data), size))


def measures_lazy_layers():
    net = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))
    return tputfind.Step(lambda batch: net(batch).detach(), lambda size: torch.randn(size, 8), modules=[net])


def first_graphs_are_of_one_size():
    """A batch of graphs: the nodes of all, which are 5 each in the first ones, and a target for each."""
    graphs = [torch.randn(nodes, 8) for nodes in [5, 5, 7, 3, 9, 12, 4, 6] * 100]

    def make_batch(size):
        return {"nodes": torch.cat(graphs[:size]), "target": torch.randn(size)}

    return tputfind.Step(lambda batch: batch["nodes"].sum() - batch["target"].sum(), make_batch)


class Sharpness(torch.optim.Optimizer):
    """Steps by methods of its own, and by an optimizer inside, as SAM does."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def second_step(self):
        self.inner.step()


class Delegate(torch.optim.Optimizer):
    """Wraps another optimizer without the constructor of its class, as Lookahead and accelerate do."""

    def __init__(self, inner):
        self.inner, self.param_groups = inner, inner.param_groups

    def step(self, closure=None):
        return self.inner.step(closure)


def _wrapped(wrap, name):
    layer = nn.Linear(8, 8)
    optimizer = wrap(torch.optim.Adam(layer.parameters()))

    def train(x):
        layer(x).square().mean().backward()
        getattr(optimizer, name)()

    return tputfind.Step(train, lambda size: torch.randn(size, 8), modules=layer, optimizers=optimizer)


def sharpness_aware():
    return _wrapped(Sharpness, "second_step")


def delegating():
    return _wrapped(Delegate, "step")


def converges():
    layer = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(layer.parameters())

    def train(x):
        def loss():
            optimizer.zero_grad()
            error = layer(x).square().mean()
            error.backward()
            return error

        return optimizer.step(loss)

    return tputfind.Step(train, lambda size: torch.randn(size, 8), modules=layer, optimizers=optimizer)


def converges_by_size(batch_size):
    """A step maker with an optimizer of its own for each batch size."""
    step = converges()
    batch = step.make_batch(batch_size)
    return lambda: step.run(batch)


def takes_args(args):
    return nn.Linear(args.width, 8)


def pops_labels():
    """Changes its batch, and steps its optimizer at every third call."""
    layer, calls = nn.Linear(8, 8), []
    optimizer = torch.optim.Adam(layer.parameters())

    def train(batch):
        labels = batch.pop("labels")
        nn.functional.cross_entropy(layer(**batch), labels).backward()
        calls.append(len(labels))
        if len(calls) % 3 == 0:
            optimizer.step()

    def make(size):
        return {"input": torch.randn(size, 8), "labels": torch.zeros(size, dtype=torch.long)}

    return tputfind.Step(train, make, optimizers=optimizer)


def data_end(batch_size):
    batches = iter(torch.randn(4, batch_size, 8))
    return lambda: next(batches) * 2


def training_exits():
    steps = []

    def train(batch):
        steps.append(batch.sum().item())
        if len(steps) == 4:
            sys.exit(0)

    return tputfind.Step(train, lambda size: torch.randn(size, 8))


def fails(batch_size):
    x = torch.randn(batch_size, 8)
    return lambda: x @ torch.randn(9, 9)


HELD = tputfind.Step(lambda batch: batch * 2, lambda size: torch.randn(size, 8))


def finds_its_optimizers():
    """A Step of two parts; a scaler skips its optimizer at first, and another is never used."""
    layer, spare = nn.Linear(8, 8), nn.Linear(8, 3)
    optimizer, scaler = torch.optim.Adam(layer.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    kept = torch.optim.SGD(spare.parameters(), lr=0.1)

    def train(batch):
        scaler.scale(layer(batch).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return kept.param_groups[0]["lr"]

    return tputfind.Step(train, lambda size: torch.randn(size, 8))


def maker_that_skips(batch_size):
    """A step maker; a scaler skips its optimizer at first."""
    step = finds_its_optimizers()
    batch = step.make_batch(batch_size)
    return lambda: step.run(batch)
