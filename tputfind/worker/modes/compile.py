"""A step that torch.compile compiles for its batch size, and for no other: never one that runs uncompiled unseen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch

from tputfind.processes.children import COMPILER_CACHE
from tputfind.processes.failures import CannotRunSo
from tputfind.record.record import Compiled

_MOST_CALLS: Final = 10
"""Until no call compiles anything new; torch gives up before, at its own limit of recompilations."""
_ANEW: Final = "it is compiled anew from step to step"


def compilable(module: torch.nn.Module) -> Callable[..., object]:
    """Return what is compiled as it is called, for the shapes that it is called with.

    What was compiled before in this process is forgotten.
    """
    import torch._inductor.compile_fx  # before anything is timed; and it opens the device, so in no server that forks
    from torch._dynamo import config, reset

    reset()
    _counters().clear()  # of what a model compiled of its own accord while it was built
    config.fail_on_recompile_limit_hit = True  # torch would go on uncompiled, without a word
    compiled: Callable[..., object] = torch.compile(module, dynamic=False)
    return compiled


def compile_now(step: Callable[[], object], synchronize: Callable[[], None]) -> Compiled:
    """Call a step until nothing more of it is compiled, and return what that took.

    Raises:
        CannotRunSo: nothing of it is compiled, or there is no end to it.
        Exception: whatever the model raises, or its compiler.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit

    start = perf_counter()
    seconds, graphs = 0.0, _graphs()
    for _ in range(_MOST_CALLS):
        try:
            step()
        except FailOnRecompileLimitHit:
            raise CannotRunSo(_ANEW) from None
        synchronize()
        before, graphs = graphs, _graphs()
        if graphs == before:
            break
        seconds = perf_counter() - start
    else:
        raise CannotRunSo(_ANEW)
    if not graphs:
        raise CannotRunSo("torch.compile compiles nothing of it")
    # Some breaks are told as the one, and some as the other.
    breaks = sum(sum(_counters()[kind].values()) for kind in ("graph_break", "unimplemented"))
    return Compiled(seconds=seconds, graphs=graphs, breaks=breaks)


def check_still(compiled: Compiled | None) -> None:
    """Refuse what was measured of a compiled step if any of it was compiled anew meanwhile.

    Raises:
        CannotRunSo: it was.
    """
    if compiled is not None and _graphs() != compiled.graphs:
        raise CannotRunSo(_ANEW)


def use_cache_of(batch_size: int) -> None:
    """Have this process keep what it compiles by batch size, so that none is faster because another came first."""
    folder = os.environ.get(COMPILER_CACHE)
    if folder is not None:
        own = Path(folder) / f"batch-{batch_size}"
        os.environ |= {COMPILER_CACHE: str(own), "TRITON_CACHE_DIR": str(own / "triton")}


def _graphs() -> int:
    return int(_counters()["stats"]["unique_graphs"])


def _counters() -> Any:
    from torch._dynamo.utils import counters

    return counters
