"""Models of fixed step time, to be timed in interleaved rounds."""

import fcntl
import os
import time

import torch


class Sleeper(torch.nn.Module):
    """A model whose step takes ``ms`` milliseconds."""

    def __init__(self, ms):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.ms = ms

    def forward(self, x):
        time.sleep(self.ms / 1000)
        return self.layer(x)


def with_inputs(make, *shape):
    """Return a factory of a model that ``make`` returns, and of inputs whose samples have a shape."""
    return lambda: (make(), lambda batch: torch.randn(batch, *shape))


old = with_inputs(lambda: Sleeper(10), 4)
slower = with_inputs(lambda: Sleeper(12), 4)


class SleepsForEachSample(Sleeper):
    """A model that is as fast at every batch size."""

    def forward(self, x):
        time.sleep(len(x) * self.ms / 1000)
        return self.layer(x)


def few():
    """Return a model with 40 samples of input."""
    samples = torch.randn(40, 4)
    return SleepsForEachSample(5), lambda batch: samples[:batch]


class Large(Sleeper):
    """A model that is out of memory while another process holds an instance."""

    def forward(self, x):
        if not hasattr(self, "held"):
            held = os.open(os.environ["HELD"], os.O_CREAT | os.O_WRONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB") from None
            self.held = held
        return super().forward(x)


class Fails(Sleeper):
    """A model that fails above batch 8."""

    most = 8

    def forward(self, x):
        if len(x) > self.most:
            raise ValueError(f"no more than {self.most}, please")
        return super().forward(x)


class FailsAlways(Fails):
    most = 0


def step():
    """Return a user-written step."""
    from tputfind import Step

    layer = torch.nn.Linear(4, 4)

    def run(batch):
        time.sleep(0.01)
        return layer(batch)

    return Step(run, lambda batch: torch.randn(batch, 4))


class ByLayout(Sleeper):
    """A model that is faster in channels last."""

    def forward(self, x):
        time.sleep(0.01 if x.is_contiguous(memory_format=torch.channels_last) else 0.014)
        return self.layer(x)


class WrongByLayout(ByLayout):
    """A model that is faster in channels last, where its outputs are wrong."""

    def forward(self, x):
        wrong = x.is_contiguous(memory_format=torch.channels_last)
        return super().forward(x) * (1.1 if wrong else 1)


class ByBatch(Sleeper):
    """A model that is faster in channels last, and whose step time grows with the batch."""

    def forward(self, x):
        time.sleep((8 + 2 * len(x)) * (1 if x.is_contiguous(memory_format=torch.channels_last) else 1.4) / 1000)
        return self.layer(x)


class Keeps(Sleeper):
    """A model that keeps less memory in channels last, where it is slower."""

    def forward(self, x):
        small = x.is_contiguous(memory_format=torch.channels_last)
        time.sleep(0.2 if small else 0)
        self.kept = torch.ones(2**24 if small else 2**25)
        return self.layer(x)


class NoLayout(Sleeper):
    """A model that fails on images in channels last."""

    def forward(self, x):
        if not x.is_contiguous():
            raise ValueError("channels first, please")
        return super().forward(x)


class Spins(torch.nn.Module):
    """A model that keeps a GPU busy for a fixed number of cycles."""

    def __init__(self, cycles, held_bytes=0):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.cycles = cycles
        self.held_bytes = held_bytes
        self.held = None

    def forward(self, x):
        if self.held_bytes and self.held is None:
            self.held = torch.empty(self.held_bytes, dtype=torch.uint8, device=x.device)
        torch.cuda._sleep(self.cycles)
        return self.layer(x)


def without_seed():
    """Return a model whose weights differ from process to process, and its inputs."""
    generator, model = torch.Generator(), ByLayout(0)
    generator.seed()
    torch.nn.init.normal_(model.layer.weight, generator=generator)
    return model, lambda batch: torch.randn(batch, 3, 4, 4)


large = with_inputs(lambda: Large(10), 4)
fails = with_inputs(lambda: Fails(10), 4)
fails_always = with_inputs(lambda: FailsAlways(10), 4)
by_layout = with_inputs(lambda: ByLayout(0), 3, 4, 4)
wrong_by_layout = with_inputs(lambda: WrongByLayout(0), 3, 4, 4)
by_batch = with_inputs(lambda: ByBatch(0), 3, 4, 4)
keeps = with_inputs(lambda: Keeps(0), 3, 4, 4)
no_layout = with_inputs(lambda: NoLayout(10), 3, 4, 4)
spins = with_inputs(lambda: Spins(2_000_000), 4)
spins_on = with_inputs(lambda: Spins(2_100_000), 4)
fills = with_inputs(lambda: Spins(2_000_000, 6 * torch.cuda.mem_get_info()[1] // 10), 4)
