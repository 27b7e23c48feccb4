"""Classifies exceptions, exit statuses and silences of child processes as failures; it does not import torch."""

import errno
import re
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tputfind.errors import BrokenInstall, TputfindError
from tputfind.record.record import Failure, FailureKind
from tputfind.units import GIB, parse_bytes, printable


class ChildFailed(TputfindError):
    """Raised when a child ends before all its answers: killed, aborted, exited, silent, or sending invalid messages.

    ``failure`` has the kind, as in a record: ``died``, ``host_memory``, ``timeout``, or ``error``.
    """

    exit_code = BrokenInstall.exit_code

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class CannotRunSo(RuntimeError):
    """Raised if a model cannot run in the requested mode: compiled, or as a CUDA graph."""


class Passed(NamedTuple):
    """A smaller batch that fits, and its peak of reserved device memory, or None if that is unknown."""

    batch_size: int
    peak_reserved_bytes: int | None


class Circumstances(NamedTuple):
    """Facts about an exception other than its text; they decide what an ambiguous text means."""

    batch_size: int = 1
    passed: Passed | None = None
    """The largest smaller batch that fits; None if the failing batch is the first."""
    under_a_ceiling: bool = False
    """Whether the process's own address space is limited."""
    memory_is_short: bool = False
    """Whether the device's memory, or the limit on it, was nearly used up when the exception was caught."""
    smaller_untried: bool = False
    """Whether smaller batches are untried: an error counts as a limit until they fail too."""
    own_memory: bool = False
    """Whether the device has its own memory, so that the host can run out of memory while the device does not."""
    printed: str = ""
    """The end of what the process has written to its standard error output."""


OUT_OF_MEMORY_TYPES: Final = frozenset({"torch.OutOfMemoryError", "torch_npu.npu.OutOfMemoryError"})
_GPU_LIBRARIES: Final = frozenset(
    {"cupy", "cupy_backends", "jax", "jaxlib", "numba", "onnxruntime", "pycuda", "tensorflow", "triton", "warp"}
)
"""Top-level packages whose exceptions are read whatever their base class; many derive directly from Exception."""
_OUT_OF_MEMORY_NAMES: Final = frozenset({"OutOfMemoryError", "ResourceExhaustedError", "MemoryError"})
"""Class names of exceptions that these packages raise if the device is out of memory."""
UNEXPLAINED_FACTOR: Final = 4
"""A single request for more than this many times the memory that the batch size explains is an overflowed size. If
memory grows with the square of the batch size, a request at most doubles that estimate when the batch doubles."""
_NO_HONEST_REQUEST_BYTES: Final = 2**50

_COMPILERS: Final = "torch._dynamo", "torch._inductor"
_IN_COMPILED_CODE: Final = "API call failed at"
"""Part of the only text that compiled models of AOTInductor raise."""
_ASSERTION: Final = re.compile(r"(\w+): block: .*?Assertion `(.+?)` failed")
"""A failed assertion of a CUDA kernel, as the device prints it."""
_IN_TORCHSCRIPT: Final = "The following operation failed in the TorchScript interpreter."
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
    ("out_of_memory", r"(UR|ZE)_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|PT_DEVMEM Allocation failed for size"),
    ("out_of_memory", r"(CU|HIP)(BLAS|DNN|SOLVER|SPARSE|FFT)_(STATUS_)?ALLOC_FAILED|\[CUDA\]: out of memory"),
    ("out_of_memory", r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    ("out_of_memory", r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|\bcu[A-Z]\w+ failed: out of memory"),
    ("out_of_memory", r"Out of memory (allocating|while trying to allocate) [\d,]+|OOM when allocating tensor"),
    ("out_of_memory", r"RESOURCE_EXHAUSTED: .*(out of memory|allocat)|Failed to allocate \d+ bytes on device"),
    ("out_of_memory", r"BFCArena::|Failed to allocate memory for requested buffer of size"),
    ("out_of_memory", r"Available memory of \d+ is smaller than requested bytes of"),
    ("host_memory", r"OUT_OF_HOST_MEMORY|INTERNAL_ERROR_HOST_ALLOCATION_FAILED|std::bad_alloc"),
    ("host_memory", r"DataLoader worker \(pid[^)]*\) is killed by signal: (Killed|Bus error)"),
    ("host_memory", r"</torch_\w+>.*No space left on device"),
    ("host_memory", r"DefaultCPUAllocator: (can't allocate|not enough) memory"),
    ("died", r"CUDA error: uncorrectable"),
    ("unsupported", r"not implemented for '(Half|BFloat16|Float[48]\w*|ComplexHalf|QU?Int\w*|Char)'"),
    ("unsupported", r"required rank \d tensor"),
    ("unsupported", r"low precision dtypes not supported|unsupported dtype (Half|BFloat16)"),
    ("unsupported", r"mat1 and mat2 must have the same dtype.*\b(Half|BFloat16|Float8\w*)"),
    ("unsupported", r"Input type \((c10::)?(Half|BFloat16|float|double)\) and (bias|weight) type \("),
    ("unsupported", r"Tensor dtype mismatch! Expected: \w+, Got: (Half|BFloat16)"),
    ("unsupported", r"expected scalar type (Half|Float|BFloat16|Double) but found (Half|Float|BFloat16|Double)"),
)
"""Failure kinds of error texts, wherever the pattern matches. The first match counts."""


_LIBRARY_FAULT: Final = re.compile(
    r"\b(CU|HIP)(BLAS|DNN|SOLVER|SPARSE|FFT)_(?:STATUS_)?(?!SUCCESS|ALLOC_FAILED|WORKSPACE_CONFIG)([A-Z_]+)"
)
_KERNEL_FAULT: Final = re.compile(
    r"illegal memory access|misaligned address|device-side assert triggered|illegal instruction|invalid program counter"
    r"|hardware stack error|unspecified launch failure|invalid configuration argument"
    r"|too many resources requested for launch|the launch timed out"
    r"|(?<=\[CUDA\]: )invalid argument|(?<=CUDA error: )invalid argument|out of resource: [a-z ]+",
    re.IGNORECASE,
)
_DRIVER_FAULT: Final = re.compile(
    r"\bCUDA_ERROR_(ILLEGAL_[A-Z]+|MISALIGNED_ADDRESS|ASSERT|HARDWARE_STACK_ERROR|INVALID_PC|LAUNCH_[A-Z_]+)"
)


def fault_in(text: str) -> str:
    """Return the library and the error of a kernel in plain words, such as ``cuBLAS: execution failed``; empty if none.

    A device that is out of memory may cause some of these errors: see ``exception_failure``.
    """
    if found := _LIBRARY_FAULT.search(text):
        return f"{found[1].lower()}{found[2]}: {found[3].strip('_').lower().replace('_', ' ')}"
    if found := _DRIVER_FAULT.search(text):
        return f"CUDA: {found[1].lower().replace('_', ' ')}"
    found = _KERNEL_FAULT.search(text)
    return "" if found is None else f"{'HIP' if 'HIP error' in text else 'CUDA'}: {found[0].strip().lower()}"


def is_kernel_fault(failure: Failure | None) -> bool:
    """Return whether a device kernel or a vendor library failed; the caller then repeats it in a second process."""
    if failure is None:
        return False
    return failure.kind == "kernel_limit" or (failure.kind == "error" and bool(fault_in(failure.message)))


def exception_failure(error: BaseException, circumstances: Circumstances) -> Failure:
    """Return the failure for an exception from the model.

    The exception's type is checked before its text. Texts are read only of RuntimeError, OSError, MemoryError and the
    exceptions of GPU libraries: a model's own ValueError is an ``error`` whatever its text, unless one of these is its
    cause.
    """
    known, cause = _kind_and_cause(error, circumstances)
    kind = known or "error"
    if kind == "error" and isinstance(error, CannotRunSo) and not (known and error.__cause__):
        kind = "unsupported"  # a known cause may be the model's own fault
    # The batch size explains why memory ran out, and a compiler fails inside torch: no traceback is needed.
    inside_torch = isinstance(error, CannotRunSo) or _is_compiler_error(error)
    shown = "" if kind == "out_of_memory" or inside_torch else _model_traceback(error)
    first_line = _first_line(cause if kind == "host_memory" else error)
    if kind == "host_memory":
        plain = HOST_RAN_OUT
    else:
        plain = fault_in(_text(cause)) if kind in ("kernel_limit", "error") and _has_readable_text(cause) else ""
        asserted = _ASSERTION.findall(circumstances.printed) if "device-side assert" in plain else []
        plain += f": {asserted[-1][0]}: {asserted[-1][1]}" if asserted else ""
    return Failure(kind=kind, message=cut_line(f"{plain} ({first_line})") if plain else first_line, traceback=shown)


UNUSED_PARAMETERS: Final = "find_unused_parameters"
"""DistributedDataParallel's error names this argument if some parameters get no gradient."""
HOST_RAN_OUT: Final = "the host's memory ran out"
_FROM_CONTEXT: Final = ("out_of_memory", "host_memory", "index_limit", "kernel_limit")
"""Kinds that count even if the exception was merely being handled when the model raised another."""


def _kind_and_cause(error: BaseException, circumstances: Circumstances) -> tuple[FailureKind | None, BaseException]:
    """Return the kind of the first known exception in the chain, and that exception; else None and ``error``."""
    for link, is_context in _chain(error):
        text = _text(link)
        if _IN_COMPILED_CODE in text:  # which prints the exception that it translates
            text += f"\n{circumstances.printed}"
        kind = _kind(link, text, circumstances)
        if kind is None and _is_compiler_error(link):
            if re.search(r"MemoryError|out of memory|cannot allocate memory", text, re.IGNORECASE):
                kind = "out_of_memory"
            else:
                kind = None if "No space left on device" in text else "unsupported"
        if kind is not None and not (is_context and kind not in _FROM_CONTEXT):
            return kind, link
    return None, error


def _chain(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """Yield an exception and each of its causes or contexts, with whether the chain has passed a context."""
    seen: set[int] = set()
    link: BaseException | None = error
    is_context = False
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link, is_context
        is_context = is_context or link.__cause__ is None
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _is_compiler_error(error: BaseException) -> bool:
    return any(base.__module__.startswith(_COMPILERS) for base in type(error).__mro__)


def death_failure(exit_status: int | None, last_words: str, doing: str = "", *, oom_kills: int = 0) -> Failure:
    """Return the failure of a process that ended without an answer.

    ``exit_status`` is as ``waitpid`` returns it, negative for a signal; None if the whole server died. ``last_words``
    are the last line of its output. ``doing`` is its work on the host when it died, as in its last ``Reply``: a SIGKILL
    during such work is attributed to the kernel, which kills processes if the host runs out of memory. ``oom_kills``
    counts the processes that the kernel killed for that reason since the process began.
    """
    if exit_status is None:
        how = "the measuring process was killed from outside"
    elif exit_status < 0:
        how = f"killed by {_signal_name(-exit_status)}"
    else:
        how = f"exited with status {exit_status} before it had answered"
    how += f" while it {doing}" if doing else ""
    starved = exit_status == -signal.SIGKILL and (doing != "" or oom_kills > 0)
    how += f": {HOST_RAN_OUT}" if starved and oom_kills else ""
    kind: FailureKind = "host_memory" if starved else "died"
    return Failure(kind=kind, message=cut_line(f"{how}: {last_words}" if last_words else how))


def explain_death(failure: Failure, passed: Passed | None, *, own_memory: bool) -> Failure:
    """Return the failure of a dead process as that of its last words, if they say that memory ran out.

    Libraries that cannot start a thread, and models that catch every error, end the process. ``passed`` and
    ``own_memory`` are as in ``Circumstances``.
    """
    circumstances = Circumstances(passed=passed, under_a_ceiling=not own_memory, own_memory=own_memory)
    kind = _kind(RuntimeError(), failure.message, circumstances) if failure.kind == "died" else None
    return msgspec.structs.replace(failure, kind=kind) if kind in ("out_of_memory", "host_memory") else failure


def silence_failure(seconds: float) -> Failure:
    """Return the failure of a process that was killed after ``seconds`` of silence."""
    return Failure(kind="timeout", message=f"no answer within {seconds:.3g} s")


def misuse_failure() -> Failure:
    """Return the failure of a process that was killed because its messages were invalid."""
    return Failure(kind="died", message="it closed the pipe for its answers, or wrote something else into it")


_LAST_WORDS_OF_WANT: Final = re.compile(r"SIGKILL|allocate memory|out of memory|bad_alloc", re.IGNORECASE)


def for_want_of_memory(failure: Failure) -> bool:
    """Return whether memory may have run out: by the kind, or by a dead process's signal (SIGKILL) or last line."""
    return failure.kind in ("out_of_memory", "host_memory") or (
        failure.kind == "died" and bool(_LAST_WORDS_OF_WANT.search(failure.message))
    )


def is_for_one_process(failure: Failure) -> bool:
    """Return whether the GPU serves one process at a time (compute mode EXCLUSIVE_PROCESS), and another one has it."""
    return "busy or unavailable" in failure.message


def _is_gpu_library_class(kind: type[BaseException]) -> bool:
    return kind.__module__.partition(".")[0] in _GPU_LIBRARIES


def _has_readable_text(error: BaseException) -> bool:
    """Return whether an exception's text is read: its class is one that is raised if memory runs out."""
    known = isinstance(error, (RuntimeError, OSError, ImportError))
    return known or any(map(_is_gpu_library_class, type(error).__mro__))


def _kind(error: BaseException, text: str, circumstances: Circumstances) -> FailureKind | None:
    """Return the kind of one exception, regardless of its causes; None if it is unknown."""
    of_the_host: FailureKind = "host_memory" if circumstances.own_memory else "out_of_memory"
    bases = type(error).__mro__
    if any(_is_gpu_library_class(base) and base.__name__ in _OUT_OF_MEMORY_NAMES for base in bases):
        return _kind_of_request(text, circumstances)
    if isinstance(error, MemoryError):  # RAPIDS raises it for the device's memory too
        return "out_of_memory" if "CUDA" in text else of_the_host
    if isinstance(error, OSError):
        return of_the_host if error.errno == errno.ENOMEM else None
    if not _has_readable_text(error):
        return None
    if any(f"{base.__module__}.{base.__qualname__}" in OUT_OF_MEMORY_TYPES for base in bases):
        return _kind_of_request(text, circumstances)
    for kind, pattern in _CERTAIN:
        if re.search(pattern, text, re.IGNORECASE):
            if kind not in ("out_of_memory", "host_memory"):
                return kind
            # The device memory of a smaller batch says nothing about a request for host memory.
            on_host = kind == "host_memory" and circumstances.own_memory
            found = _kind_of_request(text, circumstances._replace(passed=None) if on_host else circumstances)
            return of_the_host if kind == "host_memory" and found == "out_of_memory" else found
    return _kind_of_ambiguous_text(text, circumstances)


def _kind_of_request(text: str, circumstances: Circumstances) -> FailureKind:
    """Return ``out_of_memory``, or ``index_limit`` if the request is so large that its size must have overflowed.

    A request beyond the device's memory is no proof of an overflow: a valid batch may be that large. See pytorch issues
    33143 and 95024.
    """
    text = text.replace("bytes", "B")
    requested = re.search(r"(?:tried|trying) to allocate (\d+(?:\.\d+)?) ?([KMGTPE]i)?B\b", text, re.IGNORECASE)
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


def _kind_of_ambiguous_text(text: str, circumstances: Circumstances) -> FailureKind | None:
    """Return the kind of an ambiguous text, decided by whether a smaller batch fits and whether memory was short."""
    a_smaller_passes, short = circumstances.passed is not None, circumstances.memory_is_short

    def says(pattern: str) -> bool:
        return re.search(pattern, text, re.IGNORECASE) is not None

    if says(r"negative dimension"):
        return "index_limit" if a_smaller_passes else None
    if says(r"unable to find an engine to execute"):
        return "out_of_memory" if a_smaller_passes else "unsupported"
    if fault_in(text):
        # Libraries make handles and load kernels at their first use, outside the allocator.
        if short and says(r"_(NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED|EXEC_FAILED|SETUP_FAILED)"):
            return "out_of_memory"
        if a_smaller_passes or circumstances.smaller_untried:
            return "kernel_limit"
        return "unsupported" if says(r"_STATUS_NOT_SUPPORTED") else "error"
    if not circumstances.under_a_ceiling:
        return None
    if says(r"could not (create|execute) a (primitive|memory)|unable to (mmap|allocate)"):
        return "out_of_memory" if a_smaller_passes or short else "unsupported"
    if says(r"can't start new thread|thread creation failed"):  # stacks need memory
        return "out_of_memory" if a_smaller_passes or short else None
    is_cut = short and text == "[enforce fail a"  # torch has no memory for the rest
    says_so = is_cut or says(r"cannot allocate memory|failed to map segment from shared object")
    return "out_of_memory" if says_so else None


def _model_traceback(error: BaseException) -> str:
    """Return the traceback without the leading frames of this package and of the import system.

    It is empty if no frame is left: the user's callable could not even be called.
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
    """Return the beginning of an exception's text; empty if its ``__str__`` raises."""
    try:
        return printable(str(error)[:_LONGEST_TRACEBACK], lines=True).strip()
    except Exception:  # whatever the model's __str__ raises
        return ""


def _lines(error: BaseException) -> list[str]:
    """Return the lines of an error's text; those of an error in TorchScript without its traceback there."""
    text = _text(error)
    if text.startswith(_IN_TORCHSCRIPT):
        text = re.split(r"^\w*(?:Error|Exception): ", text, maxsplit=1, flags=re.MULTILINE)[-1]
    return text.splitlines()


def said(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has no text."""
    return cut_line((_lines(error) or [type(error).__name__])[0])


def _first_line(error: BaseException) -> str:
    lines = _lines(error) or _failing_code(error)
    if isinstance(error, CannotRunSo):
        return cut_line(lines[0])
    more = lines and lines[0].endswith(":")  # such as "backend='inductor' raised:"
    first = " ".join(line.strip() for line in lines[: 2 if more else 1])
    return cut_line(f"{type(error).__name__}: {first}" if lines else type(error).__name__)


def _failing_code(error: BaseException) -> list[str]:
    """Return the line of code that raised an error, such as ``assert batch % 4 == 0``; empty if it cannot be read."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return [frame.line for frame in last if frame.line and not frame.filename.startswith(_PACKAGE)]


def cut_line(line: str) -> str:
    """Return a line in printable characters, cut to 500 characters."""
    line = printable(line[: _LONGEST_LINE + 1])
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} [...]"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
