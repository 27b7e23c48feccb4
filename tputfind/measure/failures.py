"""From an exception to the kind of failure it stands for."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Final

import torch

from tputfind.record import Failure, Status

_PACKAGE: Final = str(Path(__file__).resolve().parents[1])
_TEXTS: Final[tuple[tuple[Status, str], ...]] = (
    ("index_limit", r"canUse32BitIndexMath"),
    ("index_limit", r"kernel launch blocks must be positive"),
    ("out_of_memory", r"\b(CUDA|HIP|XPU|NPU|MPS)( backend| driver)?( error:)? out of memory"),
    ("out_of_memory", r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"),
    ("out_of_memory", r"DefaultCPUAllocator: can't allocate memory|std::bad_alloc"),
    ("died", r"illegal memory access|device-side assert"),
    ("unsupported", r"not implemented for '|required rank [45] tensor"),
)
_OVERFLOWED: Final = r"tried to allocate \S+ EiB"
"""A request in exbibytes is an overflowed size, not a lack of memory: pytorch issues 33143 and 95024."""
_UNDER_A_CEILING: Final = r"could not create a (primitive|memory)|unable to (mmap|allocate)|Cannot allocate memory"
"""How oneDNN and the C library say out of memory; elsewhere the same texts mean other things."""


def classify(error: BaseException, *, under_a_ceiling: bool) -> Failure:
    """Return the failure that an exception from the model stands for.

    The type is asked before the text, and only the errors that torch and Python raise for want of memory are read at
    all: a model's own ValueError stays an ``error`` whatever it says.

    Args:
        error: what the model raised.
        under_a_ceiling: the process's address space was limited, so that oneDNN may say it in its own words.
    """
    text = _text(error)
    kind = _kind(error, text, under_a_ceiling)
    # Where memory ran out says nothing that the batch size does not.
    shown = "" if kind == "out_of_memory" else _model_traceback(error)
    return Failure(kind=kind, message=_first_line(error, text), traceback=shown)


def _model_traceback(error: BaseException) -> str:
    """Return the traceback from where the user's code begins: without this package's and the import system's frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((_PACKAGE, "<frozen importlib")):
        trace = trace.tb_next
    return _printable("".join(traceback.format_exception(error.with_traceback(trace or error.__traceback__))))


def _kind(error: BaseException, text: str, under_a_ceiling: bool) -> Status:
    if isinstance(error, MemoryError):
        return "out_of_memory"
    if not isinstance(error, (RuntimeError, OSError)):
        return "error"
    if re.search(_OVERFLOWED, text, re.IGNORECASE):
        return "index_limit"
    if isinstance(error, torch.OutOfMemoryError):
        return "out_of_memory"
    if isinstance(error, RuntimeError):
        for kind, pattern in _TEXTS:
            if re.search(pattern, text, re.IGNORECASE):
                return kind
    if under_a_ceiling and re.search(_UNDER_A_CEILING, text, re.IGNORECASE):
        return "out_of_memory"
    return "error"


def _text(error: BaseException) -> str:
    """Return what the exception says; a model's own may fail even at that."""
    try:
        return _printable(str(error)).strip()
    except Exception:  # whatever the model's __str__ raises
        return ""


def _printable(text: str) -> str:
    """Replace what UTF-8 cannot hold."""
    return text.encode(errors="replace").decode()


def _first_line(error: BaseException, text: str) -> str:
    lines = text.splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
