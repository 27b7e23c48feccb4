"""Models that take a fixed number of bytes, or fail in a fixed way: each is a factory for ``plain.py:NAME``."""

import importlib
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

MIB = 2**20
ALONE_BYTES = 32 * MIB
"""Block size from which glibc maps a block separately (M_MMAP_THRESHOLD in mallopt(3)). Smaller blocks share a heap,
which keeps gaps: the memory that a batch takes then depends on chance."""


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
    """Takes 32 MiB a sample at first, and 64 MiB from some step on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first, self.steps = first, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return Scratch((1 if self.steps < self.first else 2) * ALONE_BYTES)(x)


class Answers(nn.Module):
    """Returns 64 MiB a sample after more than a second: too slow to run many batches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(1.2)
        answers = torch.ones(len(x), 16 * MIB, device=x.device)
        answers[:, :1] += x
        return answers


class FailsAbove(nn.Module):
    """Raises the error of a wrong shape above a batch size."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.largest:
            raise ValueError(f"this model was made for {self.largest} samples and got {len(x)}")
        return x * 2


class Sleeps(nn.Module):
    """Takes a fixed number of milliseconds per sample, and little memory."""

    def __init__(self, sample_ms: int) -> None:
        super().__init__()
        self.sample_ms = sample_ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sample_ms / 1000 * len(x))
        return x * 2


def small_inputs(batch_size: int) -> torch.Tensor:
    return torch.randn(batch_size, 1)


def with_inputs(make):
    """Return a factory of a model that ``make`` returns, and of these inputs."""
    return lambda: (make(), small_inputs)


def mebibytes():
    return Scratch(MIB), small_inputs


four_mebibytes = with_inputs(lambda: Scratch(4 * MIB))


def four_mebibytes_a_sample():
    return nn.Flatten(), lambda size: torch.ones(size, 2**20)


def step_of_its_own_model(batch_size):
    """A step of a model with 16 MiB of weights for each batch size, in reference cycles."""
    from tputfind import context

    layer = nn.Linear(2**11, 2**11, bias=False, device=context().device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    x = torch.ones(batch_size, 2**11, device=context().device)

    def step():
        layer(x).mean().backward()
        optimizer.step()
        scheduler.step()

    return step


answers = with_inputs(Answers)


def blocks_of_their_own():
    return Scratch(ALONE_BYTES), small_inputs


fails = with_inputs(lambda: FailsAbove(0))


class ChangesItsPace(nn.Module):
    """Takes 300 ms in the first step, and then ``pace(step number)`` milliseconds."""

    def __init__(self, pace) -> None:
        super().__init__()
        self.pace = pace
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        time.sleep(0.3 if self.steps == 1 else self.pace(self.steps) / 1000)
        return x * 2


class DiesOfNewInputs(nn.Module):
    """Kills its process once new values were copied into its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.version: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.version not in (None, x._version):
            os.kill(os.getpid(), signal.SIGKILL)
        self.version = x._version
        time.sleep(0.05)
        return x * 2


dies_of_new_inputs = with_inputs(DiesOfNewInputs)


def full_from_the_20th(steps: int) -> float:
    """Return 50 (milliseconds), and raise from the 20th step on."""
    if steps >= 20:
        raise ValueError("the cache has 20 places")
    return 50


fails_from_its_20th_call_on = with_inputs(lambda: ChangesItsPace(full_from_the_20th))
settles_in_200_steps = with_inputs(lambda: ChangesItsPace(lambda steps: 5 * (1 + math.exp(-steps / 50))))
slows_down_for_ever = with_inputs(lambda: ChangesItsPace(lambda steps: 5 * 1.01**steps))


def paced_by_its_process():
    pace_ms = 4 + os.getpid() % 7
    return ChangesItsPace(lambda steps: pace_ms), small_inputs


def returns_its_input():
    return nn.Identity()


sleeps = with_inputs(lambda: Sleeps(10))
sleeps_longer = with_inputs(lambda: Sleeps(50))


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


exits = with_inputs(lambda: Raises(SystemExit(0)))
says_nothing = with_inputs(lambda: Raises(SaysNothing()))
says_what_no_text_holds = with_inputs(lambda: Raises(ValueError("half a character \ud800")))
runs_out_of_something_else = with_inputs(lambda: Raises(RuntimeError("the queue ran out of memory slots")))


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


class LogitsAndLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x, labels):
        logits = self.layer(x)
        return logits, nn.functional.cross_entropy(logits, labels)


def logits_and_loss():
    return LogitsAndLoss(), lambda size: (torch.randn(size, 8), torch.zeros(size, dtype=torch.long))


def module_and_loss():
    return nn.Linear(8, 2), nn.CrossEntropyLoss()


def model_on_two_devices():
    model = nn.DataParallel(nn.Linear(8, 2))
    model.device_ids = [0, 1]
    return model, small_inputs


def inputs_and_module():
    return small_inputs, nn.Linear(8, 2)


def returns_text():
    return "resnet50"


def raises():
    raise KeyError("weights")


class Above(nn.Module):
    """Doubles its input up to a batch size, and calls another function above it."""

    def __init__(self, largest: int, instead) -> None:
        super().__init__()
        self.largest = largest
        self.instead = instead

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.instead(x) if len(x) > self.largest else x * 2


class Later(nn.Module):
    """Doubles its input, and calls another function with it from some step on."""

    def __init__(self, first: int, instead) -> None:
        super().__init__()
        self.first, self.instead, self.steps = first, instead, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.instead(x) if self.steps >= self.first else x * 2


def always(compute):
    """Return a factory of a model that computes its output by a function."""
    return with_inputs(lambda: Above(0, compute))


def abort(x):
    print("the last words of this process", flush=True)
    os.abort()


def fail_at_the_sixth(x):
    raise ValueError("the sixth step")


def leave_processes(x):
    """Start two processes that would run for a day, one in a session of its own, and abandon them."""
    for own_session in (False, True):
        subprocess.Popen(["sleep", "86398"], start_new_session=own_session)
    return x * 2


def take_a_second(x):
    time.sleep(1.1)
    return x * 2


def hang(x):
    time.sleep(3600)


def kill_oneself(x):
    os.kill(os.getpid(), signal.SIGKILL)


def fail_in_cublas(x):
    raise RuntimeError(
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemmStridedBatched( handle, opa, opb, m, n, "
        "k, &alpha, a, lda, stridea, b, ldb, strideb, &beta, c, ldc, stridec, num_batches)`"
    )


def fail_in_cublas_once(x):
    with Path("failures").open("a") as file:
        file.write(f"{len(x)}\n")
    return x * 2 if len(Path("failures").read_text().split()) > 1 else fail_in_cublas(x)


def wait_to_be_killed(x):
    Path("victim").write_text(str(os.getpid()))
    time.sleep(3600)


def close_every_file_and_hang(x):
    os.closerange(3, 256)
    time.sleep(3600)


def write_rubbish_everywhere(x):
    for descriptor in range(3, 256):
        with suppress(OSError):
            os.write(descriptor, b"\xff{]\n" * 1000)
    time.sleep(3600)


def say_done_without_an_answer(x):
    for descriptor in range(3, 256):
        with suppress(OSError):
            os.write(descriptor, b'{"done":true}\n')
    time.sleep(3600)


def exit_with_3(x):
    print("three")
    sys.stdout.flush()
    os._exit(3)


def ask_for_an_exbibyte(x):
    return torch.empty(2**60, dtype=torch.uint8)


def compute_an_inverse(x):
    return torch.linalg.inv(torch.ones(3, 3, dtype=x.dtype))


def forget_the_last_sample(x):
    return torch.cat([x[:-1] * 2, torch.zeros_like(x[:1])])


def divide_one_by_zero(x):
    y = x * 2
    y[len(x) // 2] = torch.inf
    return y


aborts_above_5 = with_inputs(lambda: Above(5, abort))
takes_more_later = with_inputs(lambda: TakesMoreLater(6))
takes_more_at_the_fiftieth = with_inputs(lambda: TakesMoreLater(50))
fails_later = with_inputs(lambda: Later(6, fail_at_the_sixth))
says_done_later = with_inputs(lambda: Later(8, say_done_without_an_answer))
leaves = always(lambda _: os._exit(0))
leaves_processes = always(leave_processes)
by_count = always(lambda x: x / len(x))
nan_for_some = always(lambda x: torch.where(x > 1, torch.nan, x))
as_long_as_the_longest = always(lambda x: x.expand(-1, 1 + int(x.max() * 20 + 100)).clone())
slow_above_4 = with_inputs(lambda: Above(4, take_a_second))
fails_above_3 = with_inputs(lambda: FailsAbove(3))
hangs_above_4 = with_inputs(lambda: Above(4, hang))
hangs = always(hang)


def hangs_when_it_is_made():
    time.sleep(3600)


fails_in_cublas = always(fail_in_cublas)
fails_in_cublas_above_4 = with_inputs(lambda: Above(4, fail_in_cublas))
fails_in_cublas_once_above_4 = with_inputs(lambda: Above(4, fail_in_cublas_once))


def inputs_are_killed_above_4():
    """Kill the process, like the kernel if inputs exceed the memory of the host."""
    return nn.Identity(), lambda batch_size: small_inputs(batch_size) if batch_size <= 4 else kill_oneself(batch_size)


def inputs_fill_the_host_above_4():
    return nn.Identity(), lambda batch_size: small_inputs(batch_size if batch_size <= 4 else 2**46)


waits_to_be_killed_above_4 = with_inputs(lambda: Above(4, wait_to_be_killed))
closes_every_file_above_4 = with_inputs(lambda: Above(4, close_every_file_and_hang))
writes_rubbish_above_4 = with_inputs(lambda: Above(4, write_rubbish_everywhere))
says_done_above_4 = with_inputs(lambda: Above(4, say_done_without_an_answer))
exits_above_4 = with_inputs(lambda: Above(4, exit_with_3))
asks_for_an_exbibyte_above_4 = with_inputs(lambda: Above(4, ask_for_an_exbibyte))
has_no_kernel = always(compute_an_inverse)


def has_no_kernel_in_fp16():
    return nn.AvgPool3d(2), lambda batch_size: torch.randn(batch_size, 1, 2, 2, 2)


forgets_the_last_sample_above_4 = with_inputs(lambda: Above(4, forget_the_last_sample))
forgets_the_last_sample_above_1000 = with_inputs(lambda: Above(1000, forget_the_last_sample))
overflows_once_above_4 = with_inputs(lambda: Above(4, divide_one_by_zero))


def exits_while_built():
    os._exit(3)


class ForksAndWaits(nn.Module):
    """Exits above a batch size, while a process that it forked keeps all its files open."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 4:
            if os.fork() == 0:
                time.sleep(86397)
            os._exit(4)
        return x * 2


forks_and_waits = with_inputs(ForksAndWaits)


def quantised():
    layers = nn.Sequential(nn.Linear(16, 10))
    return torch.ao.quantization.quantize_dynamic(layers, {nn.Linear}, dtype=torch.qint8), lambda b: torch.randn(b, 16)


says_a_lot = with_inputs(lambda: Raises(ValueError("\x1b[31mA" * 1_000_000)))


class DiesInSmallBatches(nn.Module):
    """Ends the process at a small batch after a larger one, as a kernel that reads out of bounds."""

    largest = 0

    def forward(self, x):
        if len(x) < self.largest:
            os._exit(9)
        self.largest = len(x)
        return 2 * x


dies_in_small_batches = with_inputs(DiesInSmallBatches)


not_callable = 5


class ImportsOnce(nn.Module):
    """Imports torch's compiler at its first call; fails if another process has imported it."""

    def __init__(self):
        super().__init__()
        self.compiler = None

    def forward(self, x):
        if self.compiler is None and "torch._dynamo" in sys.modules:
            raise ValueError("imported before")
        self.compiler = importlib.import_module("torch._dynamo")
        return x * 2


imports_once = with_inputs(ImportsOnce)


def sparse_bag():
    return nn.EmbeddingBag(50, 4, sparse=True), lambda size: torch.randint(50, (size, 3))
