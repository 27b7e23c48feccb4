"""Steps as CUDA graphs: recorded once, and launched as a whole without Python in between."""

from collections.abc import Callable
from typing import ClassVar, Final

import torch

from tputfind.processes.failures import CannotRunSo
from tputfind.record.environment import Capabilities
from tputfind.worker.modes.mode import Bind, Mode, Prepared

_SIDE_STEPS: Final = 3


class CudaGraph(Mode):
    """Captures the step of each batch size as a CUDA graph, and replays it."""

    as_it_is: ClassVar = False

    @staticmethod
    def refusal(can: Capabilities) -> str:
        return "" if can.graphs else "has no CUDA graphs"

    def prepare(self, size: int, bind: Bind, plain: Callable[[], object]) -> Prepared:  # noqa: ARG002
        return Prepared(capture_graph(plain))


def capture_graph(step: Callable[[], object]) -> Callable[[], object]:
    """Return a function that replays a step on the current stream of the current CUDA device, with the captured inputs.

    The warm-up on a side stream and the capture follow torch's documentation ("CUDA semantics", CUDA Graphs). If a part
    of the step cannot be captured, it raises CannotRunSo, and the process is unusable.
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
    except Exception as error:  # the end of a broken capture raises another error, which hides the cause
        cause = cause or error
        reason = (f"{cause}".strip().splitlines() or ["no reason given"])[0]
        raise CannotRunSo(f"{type(cause).__name__}: {reason}") from cause

    def replay() -> object:
        graph.replay()
        return output

    return replay
