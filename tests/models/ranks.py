"""Steps of several ranks that fail in one of them, as specified by a file."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import tputfind


def _fail_at(moment: str) -> None:
    path = os.environ.get("FAILS_AS")
    asked = {} if path is None else json.loads(Path(path).read_text())
    if asked.get("moment") != moment:
        return
    match asked["how"] if asked["rank"] == tputfind.context().rank else asked.get("others"):
        case "raises":
            raise ValueError("had enough")
        case "exits":
            os._exit(7)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hangs":
            time.sleep(1e6)
        case "out of memory":
            torch.empty(2**45)


def fails() -> tputfind.Step:
    _fail_at("factory")
    model = DistributedDataParallel(nn.Linear(16, 16))
    steps = iter(range(100))

    def run(batch: torch.Tensor) -> torch.Tensor:
        _fail_at(f"step {next(steps)}")
        loss = model(batch).square().mean()
        loss.backward()
        return loss.detach()

    def make_batch(size: int) -> torch.Tensor:
        _fail_at("batch")
        return torch.randn(size, 16)

    return tputfind.Step(run, make_batch, modules=model)


def leaves_one_out() -> tputfind.Step:
    """Return a step in which one rank joins a collective that the other omits; a file gives the step number."""
    step = fails()
    asked = json.loads(Path(os.environ["FAILS_AS"]).read_text())
    steps = iter(range(100))

    def run(batch: torch.Tensor) -> torch.Tensor:
        loss = step.run(batch)
        if next(steps) == asked["step"] and tputfind.context().rank == asked["waits"]:
            distributed.all_reduce(loss)
        return loss

    return tputfind.Step(run, step.make_batch)


def begins_its_own_group() -> tputfind.Step:
    context = tputfind.context()
    distributed.init_process_group("gloo", "tcp://127.0.0.1:29999", rank=context.rank, world_size=context.world_size)
    return fails()


def ends_its_group() -> tputfind.Step:
    step = fails()

    def run(batch: torch.Tensor) -> torch.Tensor:
        loss = step.run(batch)
        distributed.destroy_process_group()
        return loss

    return tputfind.Step(run, step.make_batch)


def unlike() -> tputfind.Step:
    model = DistributedDataParallel(nn.Linear(16, 16))
    return tputfind.Step(lambda batch: model(batch).sum(), lambda size: torch.randn(size + tputfind.context().rank, 16))


class TwoHeads(nn.Module):
    """Trains one of its heads; the other is unused, or only returned."""

    def __init__(self, *, returned: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.returned = returned

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.body(x)
        output = {"loss": self.head(hidden).square().mean()}
        return output | {"scores": self.spare(hidden)} if self.returned else output


def left_out():
    return TwoHeads(), lambda size: torch.randn(size, 16)


def only_returned():
    return TwoHeads(returned=True), lambda size: torch.randn(size, 16)


class FailsInRank1(TwoHeads):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if tputfind.context().rank:
            raise ValueError("rank 1 had enough")
        return {"loss": self.spare(self.body(x)).square().mean() + super().forward(x)["loss"]}


def fails_in_rank_1():
    return FailsInRank1(), lambda size: torch.randn(size, 16)


def times_itself() -> tputfind.Step:
    """Return a step that fails if DDP has timed one of its steps, in which it waits for the device."""
    step = fails()
    (model,) = step.modules

    def run(batch: torch.Tensor) -> torch.Tensor:
        loss = step.run(batch)
        assert not model._get_ddp_logging_data().get("avg_forward_compute_time"), "DDP timed itself"
        return loss

    return tputfind.Step(run, step.make_batch)


def needs_json_tool() -> tputfind.Step:
    assert "json.tool" in sys.modules, "its server has not imported it"
    return fails()


class Shared(nn.Module):
    """Blocks that cannot be sharded one by one: they share weights with each other or with the model."""

    def __init__(self) -> None:
        super().__init__()
        position = nn.Linear(400, 400, bias=False)
        items = (nn.ModuleDict({"mix": nn.Linear(400, 400), "position": position}) for _ in range(2))
        self.layers = nn.ModuleList(items)
        self.embedding = nn.ModuleList([nn.Sequential(nn.Linear(400, 400, bias=False))])
        self.head = nn.Linear(400, 400)
        self.head.weight = self.embedding[0][0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding[0](x)
        for layer in self.layers:
            x = x + layer["position"](layer["mix"](x))
        return self.head(x)


def shares() -> tuple[nn.Module, object]:
    return Shared(), lambda size: torch.randn(size, 400)


class Adapted(nn.Module):
    """A frozen layer of 256 MiB, whose weights take no memory of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8192, 8192, bias=False, device="meta")
        self.frozen.weight = nn.Parameter(torch.zeros(8192, 8192), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.frozen(x)


def mostly_frozen() -> tuple[nn.Module, object]:
    """Return a model of 6 GiB, of which the last layer is trained."""
    model = nn.Sequential(*(Adapted() for _ in range(24)), nn.Linear(8192, 8))
    return model, lambda size: torch.randn(size, 8192)
