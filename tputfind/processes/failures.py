"""From an exception, an exit status or a silence to the kind of failure it stands for. Pure: it needs no torch."""

from __future__ import annotations

import errno
import re
import signal
import traceback
from pathlib import Path
from typing import Final, NamedTuple

from tputfind.record.record import Failure, FailureKind
from tputfind.units import GIB, parse_bytes, printable


class CannotRunSo(RuntimeError):
    """Raised where a model cannot be run in the mode that was asked for: compiled, or as a CUDA graph."""


class Passed(NamedTuple):
    """A smaller batch that is known to pass, and the most memory that it took from the device, where that is known."""

    batch_size: int
    peak_reserved_bytes: int | None


class Circumstances(NamedTuple):
    """What stands beside an exception and decides what an ambiguous text means."""

    batch_size: int = 1
    passed: Passed | None = None
    """The largest smaller batch known to pass; None where the failing one is the first."""
    under_a_ceiling: bool = False
    """Whether the process's own address space is limited."""
    memory_is_short: bool = False
    """Whether little of the device's memory, or of the limit on it, was left when the exception was caught."""


OUT_OF_MEMORY_TYPES: Final = frozenset({"torch.OutOfMemoryError", "torch_npu.npu.OutOfMemoryError"})
UNEXPLAINED_FACTOR: Final = 4
"""A single request for this many times the memory that the batch size explains is an overflowed size. A model whose
memory grows with the square of the batch asks for up to twice of it when the batch doubles."""
_NO_HONEST_REQUEST_BYTES: Final = 2**50

_COMPILERS: Final = "torch._dynamo", "torch._inductor"
_LONGEST_LINE: Final = 500
_LONGEST_TRACEBACK: Final = 20_000
_PACKAGE: Final = str(Path(__file__).resolve().parents[1])

_CERTAIN: Final[tuple[tuple[FailureKind, str], ...]] = (
    ("index_limit", r"can_?use_?32_?bit_?index|32-bit index math|INT_MAX|numeric_limits<int(32_t)?>::max"),
    ("index_limit", r"kernel launch blocks must be positive|integer out of range"),
    ("index_limit", r"integer multiplication overflow|storage size calculation overflowed"),
    ("index_limit", r"converted to type u?int\d*(_t)? without overflow"),
    ("index_limit", r"(input|output|weight) tensor is too large|tensor too large or too many|output size is too large"),
    ("index_limit", r"too large for the channels_last CUDA kernel launch|too large to fit into a int"),
    ("out_of_memory", r"\b(CUDA|HIP|XPU|NPU|MPS|HPU|MLU|MUSA)( backend| driver)?( error:)? out of memory"),
    ("out_of_memory", r"(UR|ZE)_RESULT_ERROR_OUT_OF_(DEVICE|HOST)_MEMORY|PT_DEVMEM Allocation failed for size"),
    ("out_of_memory", r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT)_(STATUS_)?ALLOC_FAILED|\[CUDA\]: out of memory"),
    ("out_of_memory", r"CUDNN_STATUS_INTERNAL_ERROR_(DEVICE|HOST)_ALLOCATION_FAILED"),
    ("out_of_memory", r"DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc"),
    ("died", r"illegal memory access|device-side assert triggered|unspecified launch failure|misaligned address"),
    ("died", r"CUDA error: (an illegal instruction|invalid program counter|hardware stack error|uncorrectable)"),
    ("unsupported", r"not implemented for '|required rank \d tensor"),
    ("unsupported", r"low precision dtypes not supported|unsupported dtype (Half|BFloat16)"),
    ("unsupported", r"mat1 and mat2 must have the same dtype|Input type \((c10::)?\w+\) and (bias|weight) type \("),
    ("unsupported", r"Tensor dtype mismatch! Expected: \w+, Got: (Half|BFloat16)"),
    ("unsupported", r"expected scalar type (Half|Float|BFloat16|Double) but found (Half|Float|BFloat16|Double)"),
)
"""What a text of a RuntimeError means wherever it appears. The first that matches counts."""


def of_exception(error: BaseException, circumstances: Circumstances) -> Failure:
    """Return the failure that an exception from the model stands for.

    The type is asked before the text, and only the errors that torch and Python raise for want of memory are read at
    all: a model's own ValueError stays an ``error`` whatever it says.
    """
    text = _text(error)
    kind = _kind(error, text, circumstances)
    of_a_compiler = any(base.__module__.startswith(_COMPILERS) for base in type(error).__mro__)
    if kind == "error" and of_a_compiler:
        kind = _of_a_compiler(text)
    if kind == "error" and error.__cause__ is not None:  # raised from another, which may be torch's
        kind = _kind(error.__cause__, _text(error.__cause__), circumstances)
    if kind == "error" and isinstance(error, CannotRunSo):
        kind = "unsupported"
    # Where memory ran out says nothing that the batch size does not, and what a compiler fails over lies in torch.
    shown = "" if kind == "out_of_memory" or of_a_compiler else _model_traceback(error)
    return Failure(kind=kind, message=_first_line(error, text), traceback=shown)


def of_death(exit_status: int | None, last_words: str) -> Failure:
    """Return the failure of a process that ended without having answered.

    Args:
        exit_status: as ``waitpid`` gives it, negative for a signal; None where the whole server died.
        last_words: the last line it printed, or nothing.
    """
    if exit_status is None:
        how = "the measuring process was killed from outside"
    elif exit_status < 0:
        how = f"killed by {_signal_name(-exit_status)}"
    else:
        how = f"exited with status {exit_status} before it had answered"
    return Failure(kind="died", message=in_short(f"{how}: {last_words}" if last_words else how))


def of_silence(seconds: float) -> Failure:
    """Return the failure of a process that was silent for ``seconds``, and was killed for it."""
    return Failure(kind="timeout", message=f"no answer within {seconds:.3g} s")


def of_misuse() -> Failure:
    """Return the failure of a process that lives on, and cannot be understood: it was killed for that."""
    return Failure(kind="died", message="it closed the pipe for its answers, or wrote something else into it")


_LAST_WORDS_OF_WANT: Final = re.compile(r"SIGKILL|allocate memory|out of memory|bad_alloc", re.IGNORECASE)


def for_want_of_memory(failure: Failure) -> bool:
    """A process that died may have died of it: by the kernel's SIGKILL, or saying so with its last words."""
    return failure.kind == "out_of_memory" or (
        failure.kind == "died" and bool(_LAST_WORDS_OF_WANT.search(failure.message))
    )


def _kind(error: BaseException, text: str, circumstances: Circumstances) -> FailureKind:
    if isinstance(error, MemoryError):
        return "out_of_memory"
    if not isinstance(error, (RuntimeError, OSError)):
        return "error"
    if isinstance(error, OSError):
        return "out_of_memory" if error.errno == errno.ENOMEM else "error"
    if any(f"{kind.__module__}.{kind.__qualname__}" in OUT_OF_MEMORY_TYPES for kind in type(error).__mro__):
        return _of_request(text, circumstances)
    for kind, pattern in _CERTAIN:
        if re.search(pattern, text, re.IGNORECASE):
            return _of_request(text, circumstances) if kind == "out_of_memory" else kind
    return _ambiguous(text, circumstances)


def _of_a_compiler(text: str) -> FailureKind:
    """What a compiler of torch's says of itself, of the one for C++ that it starts, or of the disk."""
    if re.search(r"MemoryError|out of memory|cannot allocate memory", text, re.IGNORECASE):
        return "out_of_memory"
    return "error" if "No space left on device" in text else "unsupported"


def _of_request(text: str, circumstances: Circumstances) -> FailureKind:
    """Memory, unless the request is one that the batch cannot explain: a size that overflowed.

    Mere size beyond the card is none: an honest batch may ask for that. See pytorch issues 33143 and 95024.
    """
    text = text.replace("bytes", "B")
    requested = re.search(r"tried to allocate (\d+(?:\.\d+)?) ?([KMGTPE]i)?B\b", text, re.IGNORECASE)
    if requested is None:
        return "out_of_memory"
    request_bytes = parse_bytes(f"{requested[1]}{requested[2] or ''}B")
    if request_bytes >= _NO_HONEST_REQUEST_BYTES:
        return "index_limit"
    passed = circumstances.passed
    if passed is None or passed.peak_reserved_bytes is None or circumstances.batch_size > 2 * passed.batch_size:
        return "out_of_memory"
    explained_bytes = passed.peak_reserved_bytes * circumstances.batch_size / passed.batch_size
    unexplained = request_bytes > max(UNEXPLAINED_FACTOR * explained_bytes, GIB)
    return "index_limit" if unexplained else "out_of_memory"


def _ambiguous(text: str, circumstances: Circumstances) -> FailureKind:
    """What texts mean that stand for several things: a smaller batch that passed, or memory that ran short, decides."""
    a_smaller_passes, short = circumstances.passed is not None, circumstances.memory_is_short

    def says(pattern: str) -> bool:
        return re.search(pattern, text, re.IGNORECASE) is not None

    if says(r"CU(BLAS|DNN)_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)|CUBLAS_STATUS_EXECUTION_FAILED"):
        return "out_of_memory" if short else "died"
    if says(r"negative dimension"):
        return "index_limit" if a_smaller_passes else "error"
    if says(r"unable to find an engine to execute"):
        return "out_of_memory" if a_smaller_passes else "unsupported"
    if says(r"CUDNN_STATUS_EXECUTION_FAILED"):
        large: FailureKind = "out_of_memory" if short else "index_limit"
        return large if a_smaller_passes else "unsupported"
    if says(r"CUDNN_STATUS_NOT_SUPPORTED|invalid configuration argument"):
        return "index_limit" if a_smaller_passes else "unsupported"
    if circumstances.under_a_ceiling and says(r"could not create a (primitive|memory)|unable to (mmap|allocate)"):
        return "out_of_memory" if a_smaller_passes or short else "unsupported"
    if circumstances.under_a_ceiling and says(r"cannot allocate memory"):
        return "out_of_memory"
    return "error"


def _model_traceback(error: BaseException) -> str:
    """Return the traceback from where the user's code begins: without this package's and the import system's frames.

    It is empty where nothing is left: a callable of the user's that cannot even be called as it must be.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((_PACKAGE, "<frozen importlib")):
        trace = trace.tb_next
    if trace is None:
        return ""
    text = printable("".join(traceback.format_exception(error.with_traceback(trace))), lines=True)
    middle = _LONGEST_TRACEBACK // 2
    return text if len(text) <= _LONGEST_TRACEBACK else f"{text[:middle]}\n[...]\n{text[-middle:]}"


def _text(error: BaseException) -> str:
    """Return what the exception says, or the first part of it; a model's own may fail even at that."""
    try:
        return printable(str(error)[:_LONGEST_TRACEBACK], lines=True).strip()
    except Exception:  # whatever the model's __str__ raises
        return ""


def said(error: BaseException) -> str:
    """Return the first line of what an error says, or its type where it says nothing."""
    return in_short((_text(error).splitlines() or [type(error).__name__])[0])


def _first_line(error: BaseException, text: str) -> str:
    lines = text.splitlines()
    if isinstance(error, CannotRunSo):
        return in_short(lines[0])
    more = lines and lines[0].endswith(":")  # such as "backend='inductor' raised:"
    first = " ".join(line.strip() for line in lines[: 2 if more else 1])
    return in_short(f"{type(error).__name__}: {first}" if lines else type(error).__name__)


def in_short(line: str) -> str:
    """Return a line as it can be printed, cut where it is longer than anybody reads."""
    line = printable(line[: _LONGEST_LINE + 1])
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} [...]"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
