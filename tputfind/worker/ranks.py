"""One process of a job of several: torch's process group, and whose turn a step is.

Rank 0 measures. Before each step it tells the others, which take one each time and no more: so all take as many,
however many rank 0 decides on as it goes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tputfind.processes import beats, cores
from tputfind.processes.beats import Beat
from tputfind.processes.failures import CannotRunSo, said
from tputfind.processes.messages import Group
from tputfind.record.spec import Spec
from tputfind.worker.devices.accelerator import kind_here
from tputfind.worker.loops import Work

_STEP, _END = b"s", b"e"
_PEERS_SPEAK_S: Final = 5.0
"""What has failed in another process is told there first: who lost its peer waits so long to be ended."""
_TIMEOUT: Final = timedelta(hours=1)
"""Longer than any step: who waits for this process knows how long a step may take."""
_SMALL_PARAMETERS: Final = 100_000
"""A module with fewer is sharded with what holds it."""


class PeerLost(Exception):
    """Raised where another process of the group is gone."""


class _TurnsOver(BaseException):
    """Raised in place of a step when rank 0 has taken its last."""


class _Member:
    """A process in its group."""

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.device = group.device
        self._folder = Path(group.folder)
        self._pipes: list[int] = []
        self._has_joined = False
        self._steps = self._before = 0
        self._at_work = False

    def join(self, device: torch.device) -> None:
        """Bring up torch's process group on a device, once."""
        if self._has_joined:
            return
        self._has_joined = True
        names = {"RANK": self.rank, "LOCAL_RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": self.size}
        os.environ.update({name: f"{value}" for name, value in names.items()})
        torch.get_device_module(device).set_device(device)
        distributed.init_process_group(
            distributed.get_default_backend_for_device(device),
            init_method=f"file://{self._folder}/store",
            rank=self.rank,
            world_size=self.size,
            timeout=_TIMEOUT,
        )
        if self.rank:
            self._pipes = [os.open(f"{self._folder}/{self.rank}", os.O_RDONLY)]
        else:
            self._pipes = [os.open(f"{self._folder}/{rank}", os.O_WRONLY) for rank in range(1, self.size)]

    def beat(self) -> None:
        """Write the state of this process from now on: who waits in a collective lets other threads run.

        Begin before a device takes note of the memory of the idle process, to which the thread's own belongs.
        """
        has_begun = Event()

        def write() -> None:
            while True:
                self.write_state()
                has_begun.set()
                time.sleep(beats.INTERVAL_S)

        Thread(target=write, name="beat", daemon=True).start()
        has_begun.wait()

    def write_state(self) -> None:
        """Write how far this process is, for those who look for a rank that waits in vain."""
        beats.write(self._folder, self.rank, Beat(self._steps, self._at_work, self._before, _collectives()))

    def take_turn(self) -> None:
        """Tell the others that this process takes a step; or wait until rank 0 does.

        Raises:
            PeerLost: one of them is gone.
        """
        if self.rank:
            self.rest()
            if os.read(self._pipes[0], 1) != _STEP:
                raise _TurnsOver
        else:
            self.tell(_STEP)
        self._before = _collectives()
        self._steps += 1
        self._at_work = True

    def rest(self) -> None:
        """Note that a step has ended, and none is under way."""
        self._at_work = False

    def tell(self, word: bytes) -> None:
        """Tell all others."""
        try:
            for pipe in self._pipes:
                os.write(pipe, word)
        except BrokenPipeError:
            raise PeerLost("another process of the group has ended") from None


def _collectives() -> int:
    """Return how many collectives this process has begun in the group of all; 0 if the user's step ended the group."""
    try:
        return int(distributed.group.WORLD._get_sequence_number_for_group())  # type: ignore[union-attr]  # noqa: SLF001
    except (AttributeError, RuntimeError, ValueError):
        return 0


_member: list[_Member] = []
"""This process, if it is one of several."""


def begin(group: Group | None) -> None:
    """Be a member of a group from now on, on its share of the host's cores if the host computes."""
    if group is None:
        return
    _member[:] = [_Member(group)]
    whole_host = cores.is_host(group.device) and cores.of_device(group.device) is None
    if whole_host or (group.device == "auto" and kind_here() is None):
        mine = cores.split(cores.here(), group.size)[group.rank]
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, mine)
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(len(mine))
    _member[0].beat()


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process, and how many there are: one if it has no group."""
    return (_member[0].rank, _member[0].size) if _member else (0, 1)


def device_of(spec: Spec) -> str:
    """Return the name of this process's device: of several alike, that of its rank."""
    if not _member:
        return spec.device
    member = _member[0]
    kind = kind_here() if member.device in ("auto", "accelerator") else member.device
    if kind is None or cores.is_host(kind) or ":" in kind:
        return member.device
    return f"{kind}:{member.rank}"


def join(device: torch.device) -> None:
    """Bring up the process group if this process is one of several."""
    if _member:
        _member[0].join(device)


def take_turn() -> None:
    """Take a step when all others do; errors as for a member's."""
    if _member:
        _member[0].take_turn()


def leads() -> bool:
    """Whether this process decides how many steps are taken."""
    return not _member or _member[0].rank == 0


def end_turns() -> None:
    """Say that no more steps of this batch are taken."""
    if _member and _member[0].rank == 0:
        _member[0].rest()
        _member[0].write_state()  # it may end before the next time
        _member[0].tell(_END)


def rest() -> None:
    """Note that a step has ended, if more may follow that are not told of yet."""
    if _member:
        _member[0].rest()


def follow(work: Work) -> None:
    """Take a step each time that rank 0 does, until it takes no more, each output alive while the next is made."""
    work = work.holding()
    with suppress(_TurnsOver):
        while True:
            work.fresh_step()


def wait_if_lost(error: BaseException) -> None:
    """Give others time to say what has failed, where this process has only lost them."""
    if not _member:
        return
    text = str(error)
    lost = isinstance(error, (PeerLost, distributed.DistError)) or "gloo/transport" in text
    if lost and "out of memory" not in text:
        time.sleep(_PEERS_SPEAK_S)


def spread(module: nn.Module, spec: Spec, device: torch.device) -> Any:
    """Return a module that trains on all devices of the group, as the spec says.

    Raises:
        CannotRunSo: torch refuses it.
    """
    if spec.parallel is None:
        return module
    try:
        if spec.parallel == "ddp":
            return DistributedDataParallel(module, find_unused_parameters=spec.find_unused_parameters)
        return _sharded(module, device)
    except (ValueError, NotImplementedError, AssertionError) as error:
        raise CannotRunSo(f"--parallel {spec.parallel}: {said(error)}") from None


def sum_within_forward(module: Any) -> None:
    """Have DDP expect backward passes inside its forward pass, each after ``expect_backward``, and none after it.

    That is how Lightning's own strategy trains a module that optimizes manually.
    """
    if isinstance(module, DistributedDataParallel):
        module.module.register_forward_hook(lambda *_: setattr(module, "require_backward_grad_sync", False))
        module.register_forward_hook(lambda *_: setattr(module, "require_backward_grad_sync", True))


def expect_backward(module: Any, loss: torch.Tensor) -> None:
    """Have DDP sum the gradients of the next backward pass over all devices, though its forward pass is under way."""
    if isinstance(module, DistributedDataParallel):
        module.reducer._rebuild_buckets()  # noqa: SLF001
        module.reducer.prepare_for_backward([loss] if module.find_unused_parameters else [])


@contextmanager
def local_gradients(module: Any) -> Iterator[None]:
    """Leave gradients on each device: a later batch of the same step sums them over all."""
    if isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
        return
    shards = hasattr(module, "set_requires_gradient_sync")
    if shards:
        module.set_requires_gradient_sync(False)
    yield
    if shards:
        module.set_requires_gradient_sync(True)


def _sharded(module: nn.Module, device: torch.device) -> nn.Module:
    """Shard a module's weights, each repeated block by itself: it is gathered when its turn comes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (_member[0].size,))
    for block in _blocks(module):
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)  # in place
    return module


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return the blocks that a model is made of, the innermost first.

    They are what its library says are not to be split; else what its lists and sequences hold, with as many parameters
    that splitting pays.
    """
    named = set(getattr(module, "_no_split_modules", None) or ())  # transformers
    if named and (found := [one for one in module.modules() if type(one).__name__ in named]):
        return found[::-1]
    held = [
        block
        for holder in module.modules()
        if isinstance(holder, (nn.ModuleList, nn.Sequential))
        for block in holder.children()
        if not isinstance(block, (nn.ModuleList, nn.Sequential)) and any(True for _ in block.children())
    ]
    large = [block for block in held if sum(one.numel() for one in block.parameters()) >= _SMALL_PARAMETERS]
    return list(dict.fromkeys(large))[::-1]
