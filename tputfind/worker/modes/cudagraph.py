"""Steps as CUDA graphs: recorded once, and launched as a whole without Python in between."""

from collections.abc import Callable
from typing import ClassVar, Final

import torch
from torch import nn

from tputfind.processes.failures import CannotRunSo
from tputfind.record.environment import Capabilities
from tputfind.worker.modes.mode import Bind, Mode, Prepared, StepOf

_SIDE_STEPS: Final = 3


class CudaGraph(Mode):
    """Captures the step of each batch size as a CUDA graph, and replays it."""

    as_it_is: ClassVar = False

    def __init__(self, module: nn.Module, step_of: StepOf) -> None:  # noqa: ARG002
        """Take a model; all its graphs share one pool of memory, since they are never replayed at the same time."""
        self._pool: object = None

    @staticmethod
    def refusal(can: Capabilities) -> str:
        return "" if can.graphs else "has no CUDA graphs"

    def prepare(self, size: int, bind: Bind, plain: Callable[[], object]) -> Prepared:  # noqa: ARG002
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        return Prepared(capture_graph(plain, self._pool))


def capture_graph(step: Callable[[], object], pool: object = None) -> Callable[[], object]:
    """Return a function that replays a step on the current stream of the current CUDA device, with the captured inputs.

    The warm-up on a side stream and the capture follow torch's documentation ("CUDA semantics", CUDA Graphs). Graphs
    may share a memory pool if they are not replayed at the same time.

    Raises:
        CannotRunSo: a part of the step cannot be captured. The process is then unusable.
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
    except Exception as error:  # the end of a broken capture raises another error, which hides the cause
        cause = cause or error
        reason = (f"{cause}".strip().splitlines() or ["no reason given"])[0]
        raise CannotRunSo(f"{type(cause).__name__}: {reason}") from cause

    def replay() -> object:
        graph.replay()
        return output

    return replay
