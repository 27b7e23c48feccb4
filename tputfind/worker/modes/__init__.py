"""The ways to run a model's steps: a table, and one module a way."""

from typing import Final

from tputfind.record.types import Mode as Name
from tputfind.worker.modes.compile import Compile, Freezing, MaxAutotune, ReduceOverhead
from tputfind.worker.modes.cudagraph import CudaGraph
from tputfind.worker.modes.mode import Eager, Mode

MODES: Final[dict[Name, type[Mode]]] = {
    "eager": Eager,
    "cudagraph": CudaGraph,
    "compile": Compile,
    "compile:reduce-overhead": ReduceOverhead,
    "compile:freezing": Freezing,
    "compile:max-autotune": MaxAutotune,
}
