"""One process of a job of several: torch's process group, and the turns of steps.

Rank 0 measures. Before each of its steps it signals the other ranks, which run one step per signal. So all ranks run
the same number of steps, though rank 0 decides on the number while it measures. Instances have no process group, so
that rank 0 also waits for those that are too far behind: its times are then those of the slowest.
"""

import gc
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import torch
from torch import distributed, nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel

from tputfind.processes import beats, cores
from tputfind.processes.beats import Beat
from tputfind.processes.failures import CannotRunSo, said
from tputfind.processes.messages import Group
from tputfind.record.spec import Spec
from tputfind.worker.devices.accelerator import kind_here
from tputfind.worker.devices.protocol import Device
from tputfind.worker.loops import Work

_STEP, _END = b"s", b"e"
_AHEAD, _AHEAD_S = 8, 0.05
"""Maximum number of steps that an instance is behind rank 0, and of seconds, but one step is always allowed.

A short disturbance of one does not hold up the others. If they catch up in a pause before a window, rank 0 takes so
many steps in the window without waiting.
"""
_PEERS_SPEAK_S: Final = 5.0
"""Seconds that a process waits after it has lost another one, which can report the cause in this time."""
_TIMEOUT: Final = timedelta(hours=1)
"""Longer than any step: the parent limits the time of steps itself."""
_TIMED_BY_DDP: Final = 10
"""Number of steps in which DDP times itself. Each of them begins with a wait of the host for the device."""
_SMALL_PARAMETERS: Final = 100_000
"""Minimum number of parameters of a block that is sharded by itself."""


class PeerLost(Exception):
    """Raised if another process of the group is gone."""


class _TurnsOver(BaseException):
    """Raised in place of a step after the last step of rank 0."""


class _Member:
    """The current process as a member of its group."""

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.device = group.device
        self.are_instances = group.instances
        self._folder = Path(group.folder)
        self._pipes: list[int] = []
        self._back: list[int] = []
        self._steps = self._before = self._unread = 0
        self._begin_s = 0.0
        self._at_work = False

    def join(self, device: torch.device) -> None:
        """Initialise torch's process group on a device; instances have none."""
        if not self.are_instances:
            self._init_process_group(device)
        others = range(1, self.size) if self.rank == 0 else (self.rank,)
        ours, theirs = (os.O_WRONLY, os.O_RDONLY) if self.rank == 0 else (os.O_RDONLY, os.O_WRONLY)
        for rank in others:
            self._pipes.append(os.open(f"{self._folder}/{rank}", ours))
            if self.are_instances:
                self._back.append(os.open(f"{self._folder}/{rank}-back", theirs))

    def _init_process_group(self, device: torch.device) -> None:
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

    def beat(self) -> None:
        """Start a thread that writes the state of this process regularly, also while a collective waits.

        Start it before a device reads the memory of the idle process, which includes that of the thread.
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
        beats.write(self._folder, self.rank, Beat(self._steps, self._at_work, self._before, _collectives()))

    def take_turn(self) -> None:
        """Signal a step to the other ranks; or, on another rank, wait for the signal of rank 0.

        Rank 0 raises PeerLost if another process is gone, and the others _TurnsOver if rank 0 takes no more steps.
        """
        if self.rank:
            self.rest()
            if os.read(self._pipes[0], 1) != _STEP:
                raise _TurnsOver
            for pipe in self._back:
                with suppress(BrokenPipeError):  # rank 0 has taken its last step, and ended
                    os.write(pipe, _STEP)
        else:
            self.tell(_STEP)
            self._unread += 1
            while self._unread > self._allowed_ahead():
                if not all(os.read(pipe, 1) for pipe in self._back):
                    raise PeerLost("another instance has ended")
                self._unread -= 1
        self._before = _collectives()
        self._steps += 1
        self._at_work = True

    def _allowed_ahead(self) -> int:
        """Return the number of steps that the others may be behind: all begin together, the second step too."""
        if self._steps < 2:
            self._begin_s = time.monotonic()
            return 0
        mean_s = (time.monotonic() - self._begin_s) / (self._steps - 1)
        return max(1, min(_AHEAD, int(_AHEAD_S / max(mean_s, 1e-9))))

    def rest(self) -> None:
        self._at_work = False

    def tell(self, word: bytes) -> None:
        try:
            for pipe in self._pipes:
                os.write(pipe, word)
        except BrokenPipeError:
            raise PeerLost("another process of the group has ended") from None


def _collectives() -> int:
    """Return how many collectives this process has begun in the default group; 0 if there is no group."""
    try:
        return int(distributed.group.WORLD._get_sequence_number_for_group())  # type: ignore[union-attr]  # noqa: SLF001
    except (AttributeError, RuntimeError, ValueError):
        return 0


_member: list[_Member] = []
"""This process as a member of a group; empty if it has none."""


def begin(group: Group | None) -> None:
    """Join a group, on a part of the host's cores if the host computes; do nothing without a group."""
    if group is None:
        return
    _member[:] = [_Member(group)]
    named = cores.device_cores(group.device)
    whole_host = cores.is_host(group.device) and named is None
    if whole_host or group.instances or (group.device == "auto" and kind_here() is None):
        mine = cores.split(named or cores.here(), group.size)[group.rank]
        os.sched_setaffinity(0, mine)
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(len(mine))
    _member[0].beat()


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks: 0 and 1 without a process group."""
    return (_member[0].rank, _member[0].size) if _member and not _member[0].are_instances else (0, 1)


def wait_for_all() -> None:
    """Wait until all ranks are here; return at once without a process group."""
    if rank_and_size()[1] > 1:
        distributed.barrier()


def gather(tensor: torch.Tensor, group: Any = None, *, differentiable: bool) -> torch.Tensor:
    """Return the tensors of all ranks along a new first axis; without a process group, the tensor itself."""
    if rank_and_size()[1] == 1:
        return tensor
    if differentiable:
        return torch.stack(all_gather(tensor, group or distributed.group.WORLD))  # type: ignore[no-untyped-call]
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(parts, tensor.detach().contiguous(), group)
    return torch.stack(parts)


def process_count() -> int:
    """Return the number of processes that work at once, ranks or instances."""
    return _member[0].size if _member else 1


def device_of(spec: Spec) -> str:
    """Return the name of this process's device; in a group, accelerators are numbered by rank."""
    if not _member:
        return spec.device
    member = _member[0]
    kind = kind_here() if member.device in ("auto", "accelerator") else member.device
    if member.are_instances:
        return member.device if kind is not None and not cores.is_host(kind) else "cpu"
    if kind is None or cores.is_host(kind) or ":" in kind:
        return member.device
    return f"{kind}:{member.rank}"


def join(device: torch.device) -> None:
    """Initialise the process group if this process belongs to one."""
    if _member:
        _member[0].join(device)


def take_turn() -> None:
    """Wait for this process's turn to run a step; errors as for ``_Member.take_turn``."""
    if _member:
        _member[0].take_turn()


def leads() -> bool:
    """Return whether this process decides the number of steps."""
    return not _member or _member[0].rank == 0


def end_turns() -> None:
    """Signal from rank 0 that this batch has no more steps."""
    if _member and _member[0].rank == 0:
        _member[0].rest()
        _member[0].write_state()  # the process may end before the next regular write
        _member[0].tell(_END)


def rest() -> None:
    if _member:
        _member[0].rest()


def follow(work: Work, device: Device) -> None:
    """Run one step for each step of rank 0 until its last, each output alive while the next is made.

    An instance submits a step to an accelerator when the last but one is done, so that rank 0 sees how far it is.
    """
    work = work.holding()
    steps = deque[torch.Event]()
    with suppress(_TurnsOver):
        device.first_step(work.fresh_step)
        while True:
            if _member[0].are_instances and device.capabilities.own_memory:
                steps.append(torch.Event(device.torch_device))
                steps[-1].record()
                if len(steps) > 1:
                    steps.popleft().synchronize()
            work.fresh_step()


def wait_if_lost(error: BaseException) -> None:
    """Wait if the error only says that another process is gone, so that the other process can report the cause."""
    if not _member:
        return
    text = str(error)
    lost = isinstance(error, (PeerLost, distributed.DistError)) or "gloo/transport" in text
    if lost and "out of memory" not in text:
        time.sleep(_PEERS_SPEAK_S)


def spread(module: nn.Module, spec: Spec, device: torch.device) -> Any:
    """Return a module wrapped by the spec's kind of parallelism, to train on all devices of the group."""
    if spec.parallel is None:
        return module
    try:
        if spec.parallel == "ddp":
            return DistributedDataParallel(module, find_unused_parameters=spec.find_unused_parameters)
        return _shard(module, device)
    except (ValueError, NotImplementedError, AssertionError) as error:
        raise CannotRunSo(f"--parallel {spec.parallel}: {said(error)}") from None


def skip_steps_timed_by_ddp() -> None:
    """Make every DDP module of this process, also one of the user's own step, run as after its first ten steps.

    DDP waits for the device in those steps, which no long training notices, but windows of a few steps do. A module
    with a static graph counts its steps, and keeps them.
    """
    if rank_and_size()[1] == 1:
        return
    for one in gc.get_objects():
        if issubclass(type(one), DistributedDataParallel) and not one.static_graph:
            for _ in range(_TIMED_BY_DDP):
                one.reducer.prepare_for_forward()


def sum_within_forward(module: Any) -> None:
    """Make DDP expect backward passes inside its forward pass, each after ``expect_backward``, and none afterwards.

    Lightning's own strategy trains modules with manual optimization in the same way.
    """
    if isinstance(module, DistributedDataParallel):
        module.module.register_forward_hook(lambda *_: setattr(module, "require_backward_grad_sync", False))
        module.register_forward_hook(lambda *_: setattr(module, "require_backward_grad_sync", True))


def expect_backward(module: Any, loss: torch.Tensor) -> None:
    """Make DDP sum the gradients of the next backward pass over all devices while its forward pass still runs."""
    if isinstance(module, DistributedDataParallel):
        module.reducer._rebuild_buckets()  # noqa: SLF001
        module.reducer.prepare_for_backward([loss] if module.find_unused_parameters else [])


@contextmanager
def local_gradients(module: Any) -> Iterator[None]:
    """Keep gradients on each device; the last batch of the step sums them over all devices."""
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


def _shard(module: nn.Module, device: torch.device) -> nn.Module:
    """Shard a module's weights by block, so that only the running block is gathered."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (_member[0].size,))
    for block in _blocks(module):
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)  # in place
    return module.to(device)  # which modules may use to move more than their weights


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model that are sharded by themselves, the innermost first.

    They are the modules that its library marks as not to be split. Without such marks, they are the composite items of
    its containers that have at least ``_SMALL_PARAMETERS`` parameters. Blocks that share a parameter with the rest of
    the model, as an embedding with its head, are none.
    """
    named = set(getattr(module, "_no_split_modules", None) or ())  # transformers
    found = [one for one in module.modules() if type(one).__name__ in named]
    if not found:
        containers = nn.ModuleList, nn.ModuleDict, nn.Sequential
        held = [
            block
            for holder in module.modules()
            if isinstance(holder, containers)
            for block in holder.children()
            if not isinstance(block, containers) and any(True for _ in block.children())
        ]
        found = [block for block in held if sum(one.numel() for one in block.parameters()) >= _SMALL_PARAMETERS]
    owners: dict[int, set[int]] = {}
    for owner in module.modules():
        for parameter in owner.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(owner))

    def is_by_itself(block: nn.Module) -> bool:
        inside = {id(one) for one in block.modules()}
        return all(owners[id(parameter)] <= inside for parameter in block.parameters())

    return [block for block in dict.fromkeys(found) if is_by_itself(block)][::-1]
