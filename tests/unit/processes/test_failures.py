"""Every known failure and its kind. Texts are printed by torch, CUDA and their libraries."""

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tputfind.analysis.notices import ADVICE
from tputfind.processes import failures
from tputfind.processes.failures import (
    CannotRunSo,
    Circumstances,
    Passed,
    cut_line,
    death_failure,
    exception_failure,
    explain_death,
    for_want_of_memory,
    is_kernel_fault,
    misuse_failure,
    said,
    silence_failure,
)
from tputfind.record.record import FailureKind
from tputfind.units import GIB

FIRST = Circumstances(batch_size=1)
LARGER = Circumstances(batch_size=64, passed=Passed(32, GIB))
SHORT = Circumstances(batch_size=64, passed=Passed(32, GIB), memory_is_short=True)
UNDER_A_CEILING = Circumstances(batch_size=64, passed=Passed(32, GIB), under_a_ceiling=True)
FIRST_UNDER_A_CEILING = Circumstances(under_a_ceiling=True)
FIRST_AND_SHORT = Circumstances(under_a_ceiling=True, memory_is_short=True)

CUDA_OOM = (
    "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 139.80 GiB of which 7.12 MiB is free. "
    "Including non-PyTorch memory, this process has 139.79 GiB memory in use."
)
TAIL = (
    "Search for ... for more information.\nCUDA kernel errors might be asynchronously reported at some other API call, "
    "so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
"""The lines that end every CUDA error in torch."""
ILLEGAL = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in https://docs"
ASSERTED = "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com"
NO_ENGINE = "GET was unable to find an engine to execute this computation"
NO_ENGINE_OF_OLD = "FIND was unable to find an engine to execute this computation"
NOT_SUPPORTED = (
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."
)
NOT_INITIALIZED = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
EXECUTION_FAILED = "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"
NO_PRIMITIVE = "could not create a primitive"
NO_SCRATCHPAD = "could not execute a primitive"
"""oneDNN allocates its scratchpad when a primitive runs."""
CPU_OOM = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "{} bytes. Error code 12 (Cannot allocate memory)"
)
INT32_ASSERT = (
    "input_.numel() < std::numeric_limits<int32_t>::max() INTERNAL ASSERT FAILED at "
    '"/pytorch/aten/src/ATen/native/cuda/AdaptiveAveragePooling.cu":532, please report a bug to PyTorch. '
)
WITH_OWN_MEMORY = Circumstances(batch_size=64, passed=Passed(32, GIB), own_memory=True)
OF_COMPILED_CODE = "run_func_(...) API call failed at model_container_runner.cpp, line 144"
PRINTED_OOM = LARGER._replace(printed="Exception in aoti_torch: CUDA out of memory. Tried to allocate 5.00 GiB.")
KILLED_BY = "DataLoader worker (pid 8) is killed by signal:"
NO_SPACE = "No space left on device (28)"
CUPY_OOM = "Out of memory allocating 17,179,869,184 bytes (allocated so far: 2,147,483,648 bytes)."
CUPY_CALL = "cudaErrorMemoryAllocation: out of memory"
JAX_OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 137438953472 bytes."
JAX_EIB = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 18446744073709551616 bytes."
NUMBA_OOM = "[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"
ORT_OOM = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. "
    "bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for "
    "requested buffer of size 4294967296"
)
ORT_LIMIT = (
    "[ONNXRuntimeError] : 1 : FAIL : Available memory of 134217728 is smaller than requested bytes of 4294967296"
)
UPSAMPLE = "upsample_bilinear2d_nhwc only supports input tensors with less than INT_MAX elements, but got [520, 64]"


def raised_by_library(module: str, name: str, base: type[Exception], text: str) -> Exception:
    """Return an exception as if raised by a library: its class has this name and module."""
    return type(name, (base,), {"__module__": module})(text)


def of_the_compiler(text: str) -> Exception:
    return raised_by_library("torch._inductor.exc", "OfTheCompiler", RuntimeError, text)


def raised_from(cause: Exception, error: Exception) -> Exception:
    error.__cause__ = cause
    return error


def raised_while_handling(handled: Exception, error: Exception, *, hides: bool = False) -> Exception:
    error.__context__, error.__suppress_context__ = handled, hides
    return error


def not_captured(text: str) -> Exception:
    """Return the exception of a step that cannot be captured because of another exception."""
    return raised_from(RuntimeError(text), CannotRunSo(f"RuntimeError: {text}".splitlines()[0]))


FULL = RuntimeError(CUDA_OOM.format("20.00 MiB"))
HALF = "expected scalar type Half but found Float"
TORCHS = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
UNMAPPED = "scipy.so: failed to map segment from shared object"


TABLE = [
    # Memory errors, at any place.
    ("out_of_memory", RuntimeError(CUDA_OOM.format("392.00 MiB")), FIRST),
    ("out_of_memory", RuntimeError(CUDA_OOM.format("1.53 GiB")), LARGER),
    ("out_of_memory", RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously"), FIRST),
    ("out_of_memory", RuntimeError("CUDA driver error: out of memory"), FIRST),
    ("out_of_memory", RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate`"), FIRST),
    ("out_of_memory", RuntimeError(OF_COMPILED_CODE), PRINTED_OOM),
    ("error", RuntimeError(OF_COMPILED_CODE), LARGER._replace(printed="the input has another shape")),
    ("host_memory", RuntimeError("DataLoader worker (pid 8) is killed by signal: Killed."), WITH_OWN_MEMORY),
    ("host_memory", RuntimeError(f"{KILLED_BY} Bus error. It is possible that"), WITH_OWN_MEMORY),
    ("host_memory", RuntimeError(f"unable to write to file </torch_9_1>: {NO_SPACE}"), WITH_OWN_MEMORY),
    ("out_of_memory", RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), FIRST),
    ("out_of_memory", RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), FIRST),
    ("out_of_memory", RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), FIRST),
    ("out_of_memory", RuntimeError("Triton Error [CUDA]: out of memory"), FIRST),
    ("out_of_memory", RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"), FIRST),
    ("out_of_memory", RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB"), FIRST),
    ("out_of_memory", RuntimeError("MPS backend out of memory (MPS allocated: 9.06 GiB, max: 9.07 GiB)"), FIRST),
    ("out_of_memory", RuntimeError("NPU out of memory. Tried to allocate 1024.00 MiB (NPU 0; 29.50 GiB total)"), FIRST),
    ("out_of_memory", RuntimeError("MUSA out of memory. Tried to allocate 2.00 GiB"), FIRST),
    ("out_of_memory", RuntimeError("level_zero failed: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"), FIRST),
    ("out_of_memory", RuntimeError("FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::512 (512)MB"), FIRST),
    ("out_of_memory", RuntimeError(CPU_OOM.format(4194304)), FIRST),
    ("out_of_memory", RuntimeError("std::bad_alloc"), FIRST),
    ("out_of_memory", MemoryError(), FIRST),
    ("out_of_memory", OSError(12, "Cannot allocate memory"), FIRST),
    ("out_of_memory", RuntimeError("unable to mmap 8192 bytes: Cannot allocate memory (12)"), UNDER_A_CEILING),
    ("out_of_memory", RuntimeError("fork: Cannot allocate memory"), UNDER_A_CEILING),
    ("out_of_memory", RuntimeError("fork: Cannot allocate memory"), FIRST_UNDER_A_CEILING),
    ("error", RuntimeError("fork: Cannot allocate memory"), FIRST_AND_SHORT._replace(under_a_ceiling=False)),
    ("error", RuntimeError("unable to mmap 8192 bytes: Invalid argument (22)"), FIRST),
    ("error", OSError(2, "No such file or directory"), UNDER_A_CEILING),
    # A request that the batch cannot explain is an overflowed size; size alone is not.
    ("index_limit", RuntimeError(CUDA_OOM.format("16.00 EiB")), FIRST),
    ("index_limit", RuntimeError(CUDA_OOM.format("17179869184.00 GiB")), FIRST),
    ("index_limit", RuntimeError(CPU_OOM.format(2**60)), FIRST),
    ("index_limit", RuntimeError(CUDA_OOM.format("110.00 GiB")), Circumstances(40, Passed(20, 13 * GIB))),
    ("out_of_memory", RuntimeError(CUDA_OOM.format("196.00 GiB")), Circumstances(131072, Passed(65536, 120 * GIB))),
    ("out_of_memory", RuntimeError(CUDA_OOM.format("196.00 GiB")), FIRST),
    ("out_of_memory", RuntimeError(CUDA_OOM.format("196.00 GiB")), Circumstances(131072, Passed(8, GIB))),
    # Four times the memory that the batch explains, and at least 1 GiB; above twice the passed batch, unexplained.
    ("out_of_memory", RuntimeError(CUDA_OOM.format("8.00 GiB")), Circumstances(64, Passed(32, GIB))),
    ("index_limit", RuntimeError(CUDA_OOM.format("8.01 GiB")), Circumstances(64, Passed(32, GIB))),
    ("out_of_memory", RuntimeError(CUDA_OOM.format("9.00 GiB")), Circumstances(65, Passed(32, GIB))),
    ("index_limit", RuntimeError(CUDA_OOM.format("8.01 GiB")), Circumstances(33, Passed(32, GIB))),
    ("out_of_memory", RuntimeError(CUDA_OOM.format("1.00 GiB")), Circumstances(64, Passed(32, GIB // 100))),
    ("index_limit", RuntimeError(CUDA_OOM.format("1.01 GiB")), Circumstances(64, Passed(32, GIB // 100))),
    ("out_of_memory", RuntimeError(CUDA_OOM.format("800.00 GiB")), Circumstances(64, Passed(32, None))),
    ("out_of_memory", RuntimeError(CUDA_OOM.format("1048575.00 GiB")), FIRST),
    ("index_limit", RuntimeError(CUDA_OOM.format("1048576.00 GiB")), FIRST),
    # 32-bit limits.
    ("index_limit", RuntimeError("Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output)"), FIRST),
    ("index_limit", RuntimeError("CUDA kernel launch blocks must be positive, but got N=-2147483648"), FIRST),
    ("index_limit", RuntimeError("integer out of range"), FIRST),
    ("index_limit", RuntimeError("input tensor must fit into 32-bit index math"), FIRST),
    ("index_limit", RuntimeError("numel: integer multiplication overflow"), FIRST),
    ("index_limit", RuntimeError("Storage size calculation overflowed with sizes=[4294967296, 4294967296]"), FIRST),
    ("index_limit", RuntimeError(INT32_ASSERT), FIRST),
    ("index_limit", RuntimeError(UPSAMPLE), FIRST),
    ("index_limit", RuntimeError("value cannot be converted to type int32_t without overflow"), FIRST),
    ("error", RuntimeError("value cannot be converted to type at::Half without overflow"), FIRST),
    # Decided by a smaller passed batch, or by short memory.
    ("out_of_memory", RuntimeError(NO_ENGINE), LARGER),
    ("out_of_memory", RuntimeError(NO_ENGINE_OF_OLD), LARGER),
    ("unsupported", RuntimeError(NO_ENGINE), FIRST),
    ("out_of_memory", RuntimeError(EXECUTION_FAILED), SHORT),
    ("out_of_memory", RuntimeError(NOT_INITIALIZED), SHORT),
    ("out_of_memory", RuntimeError(NO_PRIMITIVE), UNDER_A_CEILING),
    ("out_of_memory", RuntimeError(NO_SCRATCHPAD), UNDER_A_CEILING),
    ("out_of_memory", RuntimeError(NO_PRIMITIVE), FIRST_AND_SHORT),
    ("unsupported", RuntimeError(NO_PRIMITIVE), FIRST_UNDER_A_CEILING),
    ("error", RuntimeError(NO_PRIMITIVE), LARGER),
    ("out_of_memory", RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), SHORT),
    ("out_of_memory", RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), SHORT),
    ("index_limit", RuntimeError("Trying to create tensor with negative dimension -2147483648: [-2147483648]"), LARGER),
    ("error", RuntimeError("Trying to create tensor with negative dimension -1: [-1]"), FIRST),
    # An unusable device.
    ("died", RuntimeError("CUDA error: uncorrectable ECC error encountered"), LARGER),
    # Other allocators than torch's.
    ("out_of_memory", raised_by_library("cupy.cuda.memory", "OutOfMemoryError", MemoryError, CUPY_OOM), FIRST),
    ("out_of_memory", RuntimeError("Failed to allocate 17179869184 bytes on device 'cuda:0'"), FIRST),
    ("out_of_memory", raised_by_library("jax.errors", "JaxRuntimeError", RuntimeError, JAX_OOM), FIRST),
    ("out_of_memory", raised_by_library("jaxlib.xla_extension", "XlaRuntimeError", RuntimeError, JAX_OOM), FIRST),
    ("out_of_memory", raised_by_library("onnxruntime.capi", "RuntimeException", Exception, ORT_OOM), FIRST),
    ("out_of_memory", raised_by_library("onnxruntime.capi", "Fail", Exception, ORT_LIMIT), FIRST),
    ("out_of_memory", raised_by_library("tensorflow.python", "ResourceExhaustedError", Exception, "full"), FIRST),
    ("out_of_memory", RuntimeError("OOM when allocating tensor with shape[64,3] and type float"), FIRST),
    ("out_of_memory", raised_by_library("numba.cuda", "CudaAPIError", Exception, NUMBA_OOM), FIRST),
    ("out_of_memory", raised_by_library("pycuda._driver", "MemoryError", Exception, "cuMemAlloc failed"), FIRST),
    ("out_of_memory", raised_by_library("cupy_backends.cuda", "CUDARuntimeError", RuntimeError, CUPY_CALL), FIRST),
    ("out_of_memory", RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `create`"), FIRST),
    ("out_of_memory", RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), FIRST),
    ("out_of_memory", RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `create`"), SHORT),
    ("index_limit", raised_by_library("jaxlib", "XlaRuntimeError", RuntimeError, JAX_EIB), FIRST),
    ("error", raised_by_library("mine.memory", "OutOfMemoryError", Exception, CUPY_OOM), FIRST),
    ("error", raised_by_library("onnxruntime.capi", "InvalidArgument", Exception, "Got invalid dimensions"), FIRST),
    ("error", RuntimeError("RESOURCE_EXHAUSTED: 429 requests"), FIRST),
    # The host's memory differs from that of a device with its own.
    ("host_memory", MemoryError("Unable to allocate 3.00 GiB for an array"), WITH_OWN_MEMORY),
    ("host_memory", OSError(12, "Cannot allocate memory"), WITH_OWN_MEMORY),
    ("host_memory", RuntimeError(CPU_OOM.format(4194304)), WITH_OWN_MEMORY),
    ("host_memory", RuntimeError("std::bad_alloc"), WITH_OWN_MEMORY),
    ("host_memory", RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"), WITH_OWN_MEMORY),
    ("host_memory", RuntimeError(CPU_OOM.format(2**48)), WITH_OWN_MEMORY),
    ("index_limit", RuntimeError(CPU_OOM.format(2**60)), WITH_OWN_MEMORY),
    ("out_of_memory", MemoryError("std::bad_alloc: out_of_memory: CUDA error at: pool.hpp"), WITH_OWN_MEMORY),
    ("out_of_memory", RuntimeError(CUDA_OOM.format("392.00 MiB")), WITH_OWN_MEMORY),
    ("out_of_memory", raised_by_library("cupy.cuda", "OutOfMemoryError", MemoryError, CUPY_OOM), WITH_OWN_MEMORY),
    # No kernel, at any batch.
    ("unsupported", RuntimeError("required rank 4 tensor to use channels_last format"), FIRST),
    ("unsupported", NotImplementedError("\"nms_kernel\" not implemented for 'BFloat16'"), FIRST),
    ("unsupported", NotImplementedError("\"avg_pool3d_out_frame\" not implemented for 'Half'"), FIRST),
    ("unsupported", RuntimeError("expected scalar type Half but found Float"), FIRST),
    ("unsupported", RuntimeError("mat1 and mat2 must have the same dtype, but got Half and Float"), FIRST),
    ("error", RuntimeError("mat1 and mat2 must have the same dtype, but got Long and Float"), FIRST),
    ("error", NotImplementedError("\"host_softmax\" not implemented for 'Long'"), FIRST),
    ("error", RuntimeError("Deterministic behavior was enabled: set CUBLAS_WORKSPACE_CONFIG=:4096:8"), LARGER),
    ("kernel_limit", RuntimeError("CUDA error: HIPBLAS_STATUS_EXECUTION_FAILED"), LARGER),
    ("unsupported", RuntimeError("Input type (c10::Half) and bias type (float) should be the same"), FIRST),
    ("error", RuntimeError("Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be"), FIRST),
    # Short of address space for threads and libraries, or of memory for the text of torch.
    ("error", RuntimeError("can't start new thread"), FIRST),
    ("error", RuntimeError("can't start new thread"), FIRST_UNDER_A_CEILING),
    ("out_of_memory", RuntimeError("can't start new thread"), UNDER_A_CEILING),
    ("out_of_memory", RuntimeError("[enforce fail a"), FIRST_AND_SHORT),
    ("error", RuntimeError("[enforce fail a"), UNDER_A_CEILING),
    ("out_of_memory", ImportError(UNMAPPED), UNDER_A_CEILING),
    ("error", ImportError(UNMAPPED), FIRST),
    # Torch's class, with any text.
    ("out_of_memory", TORCHS("full"), FIRST),
    ("out_of_memory", type("Derived", (TORCHS,), {})("full"), FIRST),
    ("error", raised_by_library("mine", "OutOfMemoryError", RuntimeError, "full"), FIRST),
    # Torch's compilers.
    ("unsupported", of_the_compiler("backend='inductor' raised:\nNoValidChoicesError: No choices to select"), FIRST),
    ("out_of_memory", of_the_compiler("MemoryError: "), FIRST),
    ("out_of_memory", of_the_compiler("C++ compile error\n\nOutput:\ncc1plus: out of memory allocating 655 b"), FIRST),
    ("error", of_the_compiler("OSError: [Errno 28] No space left on device"), FIRST),
    # An earlier exception counts, unless it is hidden or of another kind, or the last one is known itself.
    ("out_of_memory", raised_while_handling(RuntimeError(NOT_INITIALIZED), ValueError("the step failed")), SHORT),
    ("error", raised_while_handling(FULL, ValueError("mine"), hides=True), FIRST),
    ("error", raised_while_handling(RuntimeError(HALF), ValueError("mine")), FIRST),
    ("out_of_memory", raised_from(RuntimeError(ILLEGAL), RuntimeError(CUDA_OOM.format("20.00 MiB"))), FIRST),
    ("unsupported", not_captured(f"CUDA error: operation not permitted when stream is capturing\n{TAIL}"), FIRST),
    ("out_of_memory", not_captured("CUDA error: out of memory"), FIRST),
    ("error", not_captured(ILLEGAL), FIRST),
    ("unsupported", CannotRunSo("RuntimeError: out of resource: shared memory"), FIRST),
    # A kernel limit above a batch that passed.
    ("kernel_limit", RuntimeError(NOT_SUPPORTED), LARGER),
    ("unsupported", RuntimeError(NOT_SUPPORTED), FIRST),
    # User exceptions.
    ("error", AssertionError("Wrong image height! Expected 224 but got 256!"), FIRST),
    ("error", RuntimeError("operator torchvision::nms does not exist"), FIRST),
    ("error", RuntimeError("Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision"), FIRST),
    ("error", RuntimeError("Two accelerators cannot be used at the same time"), FIRST),
    ("error", RuntimeError("expected scalar type Long but found Int"), FIRST),
    ("error", RuntimeError("the queue ran out of memory slots"), FIRST),
    ("error", RuntimeError("something that nobody has seen yet"), SHORT),
    ("error", RuntimeError("something that nobody has seen yet"), UNDER_A_CEILING),
    ("error", ValueError("CUDA out of memory"), FIRST),
    ("error", KeyError("CUDA error: out of memory"), SHORT),
    ("error", SystemExit(0), FIRST),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "error", "circumstances"), TABLE, ids=lambda value: re.sub(r"\W+", " ", str(value))[:60]
)
def test_an_exception_stands_for_its_kind(kind, error, circumstances):
    assert exception_failure(error, circumstances).kind == kind


def test_error_without_text_shows_the_line_that_raised_it():
    with pytest.raises(KeyError) as raised:
        raise KeyError

    assert exception_failure(raised.value, FIRST).message == "KeyError: raise KeyError"


GEMM = (
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemmStridedBatched( handle, opa, opb, m, n, k, "
    "&alpha, a, lda, stridea, b, ldb, strideb, &beta, c, ldc, stridec, num_batches)`"
)
KERNEL_FAULTS = [
    (GEMM, "cuBLAS: execution failed"),
    (NOT_INITIALIZED, "cuBLAS: not initialized"),
    (EXECUTION_FAILED, "cuDNN: execution failed"),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "cuDNN: internal error"),
    ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER", "cuDNN: execution failed cuda driver"),
    ("cuFFT error: CUFFT_INTERNAL_ERROR", "cuFFT: internal error"),
    ("cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED", "cuSOLVER: execution failed"),
    (f"CUDA error: invalid configuration argument\n{TAIL}", "CUDA: invalid configuration argument"),
    (f"CUDA error: too many resources requested for launch\n{TAIL}", "CUDA: too many resources requested for launch"),
    (ILLEGAL, "CUDA: illegal memory access"),
    (ASSERTED, "CUDA: device-side assert triggered"),
    ("CUDA error: misaligned address", "CUDA: misaligned address"),
    ("CUDA error: unspecified launch failure", "CUDA: unspecified launch failure"),
    ("HIP error: an illegal memory access was encountered", "HIP: illegal memory access"),
    ("Triton Error [CUDA]: invalid argument", "CUDA: invalid argument"),
    (f"CUDA error: invalid argument\n{TAIL}", "CUDA: invalid argument"),
    (
        "out of resource: shared memory, Required: 262144, Hardware limit: 232448",
        "CUDA: out of resource: shared memory",
    ),
    ("Call to cuLaunchKernel results in CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "CUDA: launch out of resources"),
]


@pytest.mark.parametrize(("text", "plain"), KERNEL_FAULTS, ids=lambda value: re.sub(r"\W+", " ", value)[:60])
def test_kernel_error_is_limit_above_passing_batch_and_error_at_smallest(text, plain):
    whole = f"RuntimeError: {text.splitlines()[0]}"

    above, smallest = (exception_failure(RuntimeError(text), circumstances) for circumstances in (LARGER, FIRST))

    assert (above.kind, smallest.kind) == ("kernel_limit", "error")
    assert above.message == smallest.message == f"{plain} ({whole})"
    assert exception_failure(RuntimeError(text), Circumstances(64, smaller_untried=True)).kind == "kernel_limit"
    assert is_kernel_fault(above)
    assert is_kernel_fault(smallest)
    own = exception_failure(ValueError(text), LARGER)
    assert own.kind == "error"
    assert own.message.startswith("ValueError: ")


def test_other_failures_are_no_kernel_errors():
    assert not is_kernel_fault(None)
    assert not is_kernel_fault(exception_failure(RuntimeError("mine"), LARGER))
    assert not is_kernel_fault(exception_failure(RuntimeError(GEMM), SHORT))
    assert not is_kernel_fault(death_failure(-11, "illegal memory access"))


TORCHSCRIPT = "The following operation failed in the TorchScript interpreter."
IN_TORCHSCRIPT = f"{TORCHSCRIPT}\nTraceback of TorchScript:\nnet.py(3): forward\nRuntimeError: shape '[11, 4]' is\nodd"


class Mute(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("CUDA out of memory")


@pytest.mark.parametrize(
    ("kind", "message", "error", "circumstances"),
    [
        ("host_memory", "the host's memory ran out (MemoryError: 3 GiB)", MemoryError("3 GiB"), WITH_OWN_MEMORY),
        ("out_of_memory", "ValueError: the layer failed", raised_from(FULL, ValueError("the layer failed")), FIRST),
        (
            "kernel_limit",
            "cuBLAS: execution failed (ValueError: the step failed)",
            raised_while_handling(RuntimeError(GEMM), ValueError("the step failed")),
            LARGER,
        ),
        ("unsupported", "the step is not captured", CannotRunSo("the step is not captured\nbecause"), FIRST),
        ("unsupported", "OfTheCompiler: it raised: Own: none", of_the_compiler("it raised:\n  Own: none"), FIRST),
        ("error", "RuntimeError: shape '[11, 4]' is", RuntimeError(IN_TORCHSCRIPT), FIRST),
        ("error", "ValueError: red \\x1b[31m\\ud800 text", ValueError("red \x1b[31m\ud800 text\nmore"), FIRST),
        ("error", "AssertionError", AssertionError(), FIRST),
        ("error", "Mute", Mute(), FIRST),
    ],
)
def test_message_is_one_printable_line_of_the_exception(kind, message, error, circumstances):
    failure = exception_failure(error, circumstances)

    assert (failure.kind, failure.message) == (kind, message)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError(), "KeyError"),
        (ValueError("first\nsecond"), "first"),
        (RuntimeError(IN_TORCHSCRIPT), "shape '[11, 4]' is"),
        (RuntimeError(TORCHSCRIPT), TORCHSCRIPT),
    ],
)
def test_first_line_of_an_error_is_said_or_its_type(error, line):
    assert said(error) == line


def test_a_chain_of_exceptions_that_leads_back_to_its_first_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert exception_failure(first, FIRST).kind == "error"


ON_THE_HOST = "made the inputs of batch 8 on the host"
BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'"
THREAD = "cannot allocate memory for thread-local data: ABORT"


@pytest.mark.parametrize(
    ("death", "kind", "message", "want"),
    [
        (death_failure(-9, ""), "died", "killed by SIGKILL", True),
        (death_failure(-9, "", oom_kills=1), "host_memory", "killed by SIGKILL: the host's memory ran out", True),
        (death_failure(-9, "", ON_THE_HOST), "host_memory", f"killed by SIGKILL while it {ON_THE_HOST}", True),
        (death_failure(-6, BAD_ALLOC), "died", f"killed by SIGABRT: {BAD_ALLOC}", True),
        (death_failure(-6, "abort", ON_THE_HOST), "died", f"killed by SIGABRT while it {ON_THE_HOST}: abort", False),
        (death_failure(127, THREAD), "died", f"exited with status 127 before it had answered: {THREAD}", True),
        (death_failure(-11, "", oom_kills=1), "died", "killed by SIGSEGV", False),
        (death_failure(-40, ""), "died", "killed by signal 40", False),
        (death_failure(0, ""), "died", "exited with status 0 before it had answered", False),
        (death_failure(None, ""), "died", "the measuring process was killed from outside", False),
    ],
)
def test_death_without_answer_suspects_memory_only_with_a_reason(death, kind, message, want):
    assert (death.kind, death.message) == (kind, message)
    assert for_want_of_memory(death) is want


@pytest.mark.parametrize(
    ("last_words", "own_memory", "kind"),
    [
        ("fatal: DefaultCPUAllocator: can't allocate memory", False, "out_of_memory"),
        ("fatal: DefaultCPUAllocator: can't allocate memory", True, "host_memory"),
        ("fatal: CUDA out of memory. Tried to allocate 2.00 GiB", True, "out_of_memory"),
        ("cannot allocate memory for thread-local data: ABORT", False, "out_of_memory"),
        ("libgomp: Thread creation failed: Resource temporarily unavailable", False, "out_of_memory"),
        ("libgomp: Thread creation failed: Resource temporarily unavailable", True, "died"),
        ("not implemented for 'Half'", False, "died"),
        ("", False, "died"),
    ],
)
def test_last_words_of_dead_process_tell_its_lack_of_memory(last_words, own_memory, kind):
    death = death_failure(1, last_words)

    assert explain_death(death, Passed(1, None), own_memory=own_memory) == replace(death, kind=kind)


def test_silence_is_a_timeout_with_its_duration():
    assert (silence_failure(90).kind, silence_failure(90).message) == ("timeout", "no answer within 90 s")


def test_every_kind_has_a_line_of_advice():
    assert set(ADVICE) == set(get_args(FailureKind))
    assert all(advice and "\n" not in advice for advice in ADVICE.values())


@given(text=st.text(), batch_size=st.integers(1, 2**31), short=st.booleans(), ceiling=st.booleans())
def test_any_text_has_a_kind_and_value_errors_stay_errors(text, batch_size, short, ceiling):
    circumstances = Circumstances(batch_size, None, ceiling, short)

    assert exception_failure(RuntimeError(text), circumstances).kind in ADVICE
    assert exception_failure(ValueError(text), circumstances).kind == "error"


@given(number=st.decimals(0, 10**30, allow_nan=False), unit=st.sampled_from(["bytes", "MiB", "GiB", "EiB"]))
def test_no_size_of_a_request_is_misread_as_another_kind_of_failure(number, unit):
    failure = exception_failure(RuntimeError(CUDA_OOM.format(f"{number:f} {unit}")), LARGER)

    assert failure.kind in ("out_of_memory", "index_limit")


def raised_by(source: str, path: str) -> BaseException:
    """Return the exception that code of that file raises."""
    try:
        exec(compile(source, path, "exec"), {})
    except Exception as error:
        return error
    raise AssertionError(source)


def test_traceback_begins_in_user_code_and_is_empty_for_memory():
    own = exception_failure(raised_by("def layer():\n    raise ValueError('mine')\nlayer()", "/home/u/model.py"), FIRST)
    ours = raised_by("raise ValueError('ours')", failures.__file__)
    ours.__traceback__ = ours.__traceback__.tb_next
    full = exception_failure(raised_by("raise MemoryError", "/home/u/model.py"), FIRST)
    compiler = "raise type('Own', (RuntimeError,), {'__module__': 'torch._dynamo.exc'})"
    compiled = exception_failure(raised_by(compiler, "/home/u/model.py"), FIRST)

    assert 'File "/home/u/model.py", line 2, in layer' in own.traceback
    assert "[...]" not in own.traceback
    assert own.traceback.endswith("ValueError: mine\n")
    assert exception_failure(ours, FIRST).traceback == compiled.traceback == ""
    assert (full.kind, full.message, full.traceback) == ("out_of_memory", "MemoryError", "")


def test_a_traceback_and_a_message_longer_than_anybody_reads_are_cut():
    failure = exception_failure(raised_by(f"raise ValueError('{'x' * 30_000}')", "/home/u/model.py"), FIRST)

    assert failure.message == f"ValueError: {'x' * 488} [...]"
    assert 20_000 <= len(failure.traceback) <= 20_010
    assert "\n[...]\n" in failure.traceback
    assert cut_line("x" * 500) == "x" * 500
    assert cut_line("x" * 501) == f"{'x' * 500} [...]"


def test_a_process_that_closed_its_pipe_has_died():
    assert misuse_failure().kind == "died"
    assert not for_want_of_memory(misuse_failure())
    assert for_want_of_memory(exception_failure(MemoryError(), FIRST))
    assert not for_want_of_memory(exception_failure(ValueError("out of memory"), FIRST))


def test_assertion_of_a_kernel_is_part_of_the_message():
    error = RuntimeError("CUDA error: device-side assert triggered")
    printed = (
        "Indexing.cu:1231: indexSelectSmallIndex: block: [0,0,0], thread: [0,0,0] Assertion `srcIndex < 4` failed."
    )

    failure = exception_failure(error, LARGER._replace(printed=printed))

    assert failure.message.startswith("CUDA: device-side assert triggered: indexSelectSmallIndex: srcIndex < 4 (")
    assert is_kernel_fault(failure)


def test_worker_of_a_loader_without_shared_memory_is_the_cause_that_is_shown():
    inner = RuntimeError(f"{KILLED_BY} Bus error. It is possible that dataloader's workers are out of shared memory.")
    outer = RuntimeError("DataLoader worker (pid(s) 8) exited unexpectedly")
    outer.__cause__ = inner

    assert "Bus error" in exception_failure(outer, WITH_OWN_MEMORY).message
