"""A step as a CUDA graph: recorded once, and launched as a whole without Python in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from tputfind.processes.failures import CannotRunSo

_SIDE_STEPS: Final = 3


def captured(step: Callable[[], object], pool: object = None) -> Callable[[], object]:
    """Return what replays a step on the current stream of the current CUDA device, on the inputs that it has.

    ``pool`` is where its memory is taken from, and may be shared by graphs that are not replayed at the same time.
    Warm-up on a side stream and capture are as torch documents them ("CUDA semantics", CUDA Graphs).

    Raises:
        CannotRunSo: something in it cannot be captured. The process is then good for nothing else.
        Exception: what the step raises by itself, or for want of memory.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_SIDE_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    cause: BaseException | None = None
    try:
        with torch.cuda.graph(graph, pool=pool):  # type: ignore[arg-type]  # what graph_pool_handle returns
            try:
                output = step()
            except BaseException as error:
                cause = error
                raise
    except Exception as error:  # ending a broken capture raises an error of its own, which hides the one that broke it
        cause = cause or error
        reason = (f"{cause}".strip().splitlines() or ["no reason given"])[0]
        raise CannotRunSo(f"{type(cause).__name__}: {reason}") from cause

    def replay() -> object:
        graph.replay()
        return output

    return replay
