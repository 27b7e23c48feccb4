"""A step as a CUDA graph: recorded once, and launched as a whole without Python in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

_SIDE_STEPS: Final = 3


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """Return what replays a step on the current stream of the current CUDA device, on the inputs that it has.

    Warm-up on a side stream and capture are as torch documents them ("CUDA semantics", CUDA Graphs).

    Raises:
        Exception: what kept the step from being captured. The process is then good for nothing else.
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
        with torch.cuda.graph(graph):
            try:
                output = step()
            except BaseException as error:
                cause = error
                raise
    except Exception as error:  # ending a broken capture raises an error of its own, which hides the one that broke it
        raise cause or error from None

    def replay() -> object:
        graph.replay()
        return output

    return replay
