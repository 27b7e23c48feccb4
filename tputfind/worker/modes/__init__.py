"""The ways to run a model's steps: a table, and one module a way."""

from __future__ import annotations

from typing import Final

from tputfind.record.choices import Mode as Name
from tputfind.worker.modes.compile import Compile
from tputfind.worker.modes.cudagraph import CudaGraph
from tputfind.worker.modes.eager import Eager
from tputfind.worker.modes.mode import Mode

MODES: Final[dict[Name, type[Mode]]] = {"eager": Eager, "compile": Compile, "cudagraph": CudaGraph}
