"""Steps that torch.compile compiles for one batch size; a step that silently runs uncompiled is refused."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Final

import torch
from torch import nn

from tputfind.processes.children import COMPILER_CACHE
from tputfind.processes.failures import CannotRunSo, Circumstances, exception_failure, said
from tputfind.record.environment import Capabilities
from tputfind.record.record import Compiled
from tputfind.worker.modes.mode import Bind, Mode, Prepared, StepOf

_MOST_CALLS: Final = 10
"""Maximum calls until nothing new is compiled; torch gives up earlier, at its own limit of recompilations."""
_DYNAMO: Final = "torch._dynamo"
_ANEW: Final = "it is compiled anew from step to step"


class Compile(Mode):
    """Compiles the step of each batch size. A process keeps one compiled size: another one resets the compiler."""

    as_it_is: ClassVar = False
    torch_mode: ClassVar[str | None] = None
    """The ``mode`` argument of ``torch.compile``."""
    backend: ClassVar = "inductor"
    """The ``backend`` argument of ``torch.compile``."""

    def __init__(self, module: nn.Module, step_of: StepOf) -> None:
        self._module = module
        self._step_of = step_of
        self._cache = os.environ.get(COMPILER_CACHE)
        self._of_size: tuple[int, Callable[..., object]] | None = None

    def prepare(self, size: int, bind: Bind, plain: Callable[[], object]) -> Prepared:
        if self._of_size is None or self._of_size[0] != size:
            if self._cache is not None:
                # Each batch size has its own cache, so that no compile time depends on an earlier size.
                folder = Path(self._cache) / f"batch-{size}"
                os.environ |= {COMPILER_CACHE: str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
            self._of_size = size, compilable(self._module, self.torch_mode, self.backend)
        run = bind(self._step_of(self._of_size[1]))
        try:
            return Prepared(run, compile_now(run))
        except Exception as error:
            plain()  # a model that fails uncompiled too raises its own error here
            if exception_failure(error, Circumstances()).kind == "error":  # its compiled code alone fails
                raise CannotRunSo(f"{type(error).__name__}: {said(error)}") from None
            raise


class ReduceOverhead(Compile):
    """Compiles, and on a GPU replays the compiled code as CUDA graphs."""

    torch_mode = "reduce-overhead"


class MaxAutotune(Compile):
    """Compiles with kernels that the compiler chooses by timing them, which takes minutes."""

    torch_mode = "max-autotune"


class Freezing(Compile):
    """Compiles with weights as constants, which the compiler folds into adjacent operations."""

    def __init__(self, module: nn.Module, step_of: StepOf) -> None:
        """Take a model, and turn freezing on for everything that this process compiles."""
        from torch._inductor import config

        config.freezing = True
        super().__init__(module, step_of)


def backend_mode(name: str) -> type[Compile]:
    """Return a mode that compiles with any backend that torch lists, such as ``openvino`` or ``tensorrt``."""

    class Backend(Compile):
        backend = name

        @staticmethod
        def refusal(can: Capabilities) -> str:  # noqa: ARG004
            from torch._dynamo import list_backends

            if name in list_backends(()):  # with those for debugging
                return ""
            return f"has no backend {name} of torch.compile: installed are {', '.join(list_backends())}"

    return Backend


def compilable(module: torch.nn.Module, mode: str | None = None, backend: str = "inductor") -> Callable[..., object]:
    """Return a module that is compiled at its first call with each set of shapes."""
    import torch._inductor.compile_fx  # before anything is timed; not in the forking server, as it opens the device
    from torch._dynamo import config, reset

    reset()  # drops whatever this process compiled before
    _counters().clear()  # a model may have compiled parts while it was built
    config.fail_on_recompile_limit_hit = True  # else torch silently runs the rest uncompiled
    compiled: Callable[..., object] = torch.compile(module, dynamic=False, mode=mode, backend=backend)
    return compiled


def compile_now(step: Callable[[], object]) -> Compiled:
    """Call a step until nothing more of it is compiled; return the compile time, the graphs and the graph breaks.

    If the compiler skips the whole step, or every call compiles something new, it raises CannotRunSo.
    """
    from torch._dynamo import config
    from torch._dynamo.exc import FailOnRecompileLimitHit

    try:
        _, seconds, is_done = _call_until_compiled(step)
    except FailOnRecompileLimitHit:
        versions = f"more than {config.recompile_limit} versions of one function are compiled"
        raise CannotRunSo(f"{versions}; TORCH_LOGS=recompiles says why") from None
    if not is_done:
        raise CannotRunSo(_ANEW)
    if not graphs_now():
        raise CannotRunSo("torch.compile compiles nothing of it")
    return Compiled(seconds=seconds, graphs=graphs_now(), breaks=_breaks())


def first_output(step: Callable[[], object]) -> tuple[object, Compiled | None]:
    """Run the first step of a model as it is; return the output and the model's own compilations, if any."""
    before = graphs_now()
    output, seconds, _ = _call_until_compiled(step)
    if graphs_now() == before:
        return output, None
    return output, Compiled(seconds=seconds, graphs=graphs_now() - before, breaks=_breaks())


def _call_until_compiled(step: Callable[[], object]) -> tuple[object, float, bool]:
    """Call a step until a call compiles nothing, or at most 10 times.

    Return its output, the seconds of the calls that compiled something, and whether the last one compiled nothing.
    """
    start, seconds, graphs = perf_counter(), 0.0, graphs_now()
    output: object = None
    for _ in range(_MOST_CALLS):
        output = step()
        before, graphs = graphs, graphs_now()
        if graphs == before:
            return output, seconds, True
        seconds = perf_counter() - start
    return output, seconds, False


def fell_back() -> bool:
    """Return whether torch gave up compiling a part of a model in this process and runs that part uncompiled."""
    if _DYNAMO not in sys.modules:
        return False
    reasons = (reason for kind in ("graph_break", "unimplemented") for reason in _counters()[kind])
    return any("recompile limit" in str(reason).lower() or "recompile_limit" in str(reason) for reason in reasons)


def graphs_now() -> int:
    """Return the number of graphs compiled in this process."""
    return int(_counters()["stats"]["unique_graphs"]) if _DYNAMO in sys.modules else 0


def _breaks() -> int:
    # Torch counts some breaks under the first name, some under the second.
    return sum(sum(_counters()[kind].values()) for kind in ("graph_break", "unimplemented"))


def check_still(compiled: Compiled | None) -> None:
    """Refuse the measurement of a compiled step if any part was compiled again meanwhile."""
    if compiled is not None and graphs_now() != compiled.graphs:
        raise CannotRunSo(_ANEW)


def _counters() -> Any:
    from torch._dynamo.utils import counters

    return counters
