"""The modes in which a model's steps run: a table, and one module per mode."""

from typing import Final

from tputfind.worker.modes.compile import Compile, Freezing, MaxAutotune, ReduceOverhead, backend_mode
from tputfind.worker.modes.cudagraph import CudaGraph
from tputfind.worker.modes.mode import Mode

MODES: Final[dict[str, type[Mode]]] = {
    "eager": Mode,
    "cudagraph": CudaGraph,
    "compile": Compile,
    "compile:reduce-overhead": ReduceOverhead,
    "compile:freezing": Freezing,
    "compile:max-autotune": MaxAutotune,
}


def mode_class(name: str) -> type[Mode]:
    """Return the class of a mode; ``compile:NAME`` may name any backend of ``torch.compile``."""
    return MODES.get(name) or backend_mode(name.partition(":")[2])
