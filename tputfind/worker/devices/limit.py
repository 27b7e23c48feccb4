"""A memory limit that is held by giving an allocator what everything beside it leaves of the limit."""

from collections.abc import Callable

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from tputfind.units import format_bytes


def left_for_allocator(limit_bytes: int, outside_bytes: int, reserved_bytes: int) -> int:
    """Return what an allocator may take of the device under a limit.

    Args:
        limit_bytes: all that the process may take.
        outside_bytes: what it has taken beside the allocator: context, kernels, library handles.
        reserved_bytes: what the allocator has taken.

    Raises:
        torch.OutOfMemoryError: both together are over the limit.
    """
    if outside_bytes + reserved_bytes > limit_bytes:
        raise torch.OutOfMemoryError(
            f"out of memory: context and libraries take {format_bytes(outside_bytes)} beside "
            f"{format_bytes(reserved_bytes)} of tensors, of the limit of {format_bytes(limit_bytes)}"
        )
    return limit_bytes - outside_bytes


def around_every_module(step: Callable[[], object], adjust: Callable[[], None]) -> object:
    """Take a step, and call ``adjust`` before and after every module of it.

    Kernels and library handles load as they are first used, outside the allocator. On a card of the limit's size they
    would find it full: there is no trying again for them.
    """

    def look(*_: object) -> None:
        if not torch.compiler.is_compiling():
            adjust()

    hooks = [register_module_forward_pre_hook(look), register_module_forward_hook(look)]
    try:
        return step()
    finally:
        for hook in hooks:
            hook.remove()
