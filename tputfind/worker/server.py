"""The process that imports torch once and forks a child for every question; it opens no device itself."""

import ctypes
import gc
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from inspect import getmembers
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import psutil

from tputfind.processes.children import COMPILER_CACHE, COPY, COPY_WITH, IMPORT, KILL, LIVE_OBJECT, NO_FORK, OPENED

_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a service manager sends to every process of a group; the parent handles them and ends this one."""


def serve(control_fd: int) -> None:
    """Answer questions from the parent until it is gone.

    The first message to the parent is empty, or the reason why torch cannot be imported; the reply to a request to
    import a package has the same form. For each question the parent sends its text, the pipe for the answers, the file
    for the child's output and the child's gate. It gets the child's exit status when the child has ended. If the
    connection closes, for example because the parent died, or if a message arrives while a child runs, that child is
    killed with all processes that it started. A copy of this process, forked on request, does the same on a connection
    of its own.
    """
    for number in _FOR_THE_PARENT:
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a launcher may ignore it, and children then leave no status
    _adopt_orphans()
    control = Connection(control_fd)
    said = _import("torch") or _import("tputfind.worker.handlers")
    folder = Path(os.environ[COMPILER_CACHE])
    folder.mkdir(mode=0o700)  # after the imports, during which the end of the parent is not noticed
    try:
        with suppress(OSError):
            control.send_bytes(said)
        _answer_all(control)
    finally:
        control.close()
        for pid in _copies:  # which end their children, and these write to the folder
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        shutil.rmtree(folder, ignore_errors=True)


def _answer_all(control: Connection) -> None:
    while True:
        try:
            question = control.recv_bytes()
            if question == KILL:  # the child that it was meant for has just ended
                continue
            if question.startswith(IMPORT):
                with _describe_device():
                    said = _import(question.removeprefix(IMPORT).decode())
                is_open = _has_opened_device(control)
                if is_open is not None:
                    control.send_bytes(OPENED if is_open else said)
                continue
            if question in (COPY, COPY_WITH):
                _fork_copy(control, *(recv_handle(control) for _ in question.split()))
                continue
            answers_fd, output_fd, gate_fd = (recv_handle(control) for _ in range(3))
        except (EOFError, OSError):
            return
        pid = _fork_or_report(control)
        if pid == 0:
            _run_child(control, question, (answers_fd, output_fd, gate_fd))
        for handle in (answers_fd, output_fd, gate_fd):
            os.close(handle)
        if pid is None:
            continue
        status = _wait_for_child(pid, control)
        try:
            control.send_bytes(str(status).encode())
        except OSError:
            return


def _fork_or_report(control: Connection) -> int | None:
    """Fork this process; if the machine allows no further process, tell the parent why, and return None."""
    try:
        return os.fork()
    except OSError as error:
        with suppress(OSError):
            control.send_bytes(NO_FORK + f"{error.strerror}".encode())
        return None


_copies: set[int] = set()
"""The process ids of the copies of this server."""


def _fork_copy(control: Connection, theirs_fd: int, live_fd: int | None = None) -> None:
    """Fork a copy of this server, which answers on a connection of its own until that closes or this server ends."""
    theirs = Connection(theirs_fd)
    pid = _fork_or_report(theirs)
    if pid != 0:
        theirs.close()
        if live_fd is not None:
            os.close(live_fd)
        _copies.update([] if pid is None else [pid])
        return
    control.close()
    _copies.clear()
    _die_with_parent()
    _adopt_orphans()
    os.environ[COMPILER_CACHE] += f"/{os.getpid()}"  # so that it compiles as if it were alone
    if live_fd is not None:
        os.environ[LIVE_OBJECT] = f"{live_fd}"
    _answer_all(theirs)
    os._exit(0)


def _import(name: str) -> bytes:
    """Import a package for all later children; return an empty message, or the error in one line."""
    # Some packages check for a GPU on import. By torch's default that opens the GPU, and no child could open it then.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        import_package(name)
    except Exception as error:  # an import can raise anything: ImportError, OSError, RuntimeError
        return (f"{error}".strip().split("\n")[0] or type(error).__name__).encode()
    gc.collect()
    gc.freeze()  # garbage collections of the children then neither scan nor copy the objects of the packages
    return b""


def _has_opened_device(control: Connection) -> bool | None:
    """Return whether an import has opened the accelerator, so that no child can open it: only a child can tell.

    If there can be no child, the parent learns of it, and the result is None.
    """
    import torch

    pid = _fork_or_report(control)
    if pid is None:
        return None
    if pid == 0:
        is_open = False
        with suppress(Exception):  # a backend without the function, or without any device
            is_open = torch.get_device_module()._is_in_bad_fork()  # noqa: SLF001
        os._exit(is_open)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


@contextmanager
def _describe_device() -> Iterator[None]:
    """Answer packages that ask for the properties of a CUDA device on import, without opening it.

    A child that opens it reads them. For example, transformers imports torchao, which has kernels for some devices.
    """
    import torch

    cuda, are_importing = torch.cuda, True
    own = cuda.current_device, cuda.get_device_properties
    known = cache(partial(_properties_of_devices, own[1]))

    def current_device() -> int:
        return 0 if are_importing and known() else own[0]()

    def get_device_properties(device: Any = None) -> Any:
        index = 0 if device is None else torch.device(device).index or 0
        return known()[index] if are_importing and index < len(known()) else own[1](device)

    cuda.current_device, cuda.get_device_properties = current_device, get_device_properties
    try:
        yield
    finally:
        are_importing = False  # some modules keep the functions
        if (cuda.current_device, cuda.get_device_properties) == (current_device, get_device_properties):
            cuda.current_device, cuda.get_device_properties = own  # else the package put its own functions there
        with suppress(KeyError, AttributeError):
            sys.modules["torch._dynamo.device_interface"].caching_worker_device_properties.clear()


def _properties_of_devices(read: Callable[[int], object]) -> list[SimpleNamespace]:
    """Return objects with the attributes of torch's properties of all CUDA devices; none if they cannot be opened."""
    import torch

    ours, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        with suppress(Exception):
            found = map(read, range(torch.cuda.device_count()))
            plain = ([pair for pair in getmembers(one) if isinstance(pair[1], (int, str))] for one in found)
            theirs.send([dict(pairs) for pairs in plain])
        os._exit(0)
    theirs.close()
    try:
        return [SimpleNamespace(**one) for one in ours.recv()]
    except EOFError:
        return []
    finally:
        ours.close()
        os.waitpid(pid, 0)


def _wait_for_child(pid: int, control: Connection) -> int:
    """Wait for the child to end, or kill it at a message from the parent; return its status, negative for a signal.

    The end is detected by the kernel's handle of the process, since a process that the child started can keep a pipe
    open. A thread would not do either: every later child would inherit its stack and heap.
    """
    ended = os.pidfd_open(pid)
    if control in wait([control, ended]):
        _kill_group(pid)
    wait([ended])
    os.close(ended)
    _kill_group(pid)  # the processes that it left; its id is not reused before waitpid
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _kill_orphans()
    return status


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the second is for a child that is not in its own group
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _kill_orphans() -> None:
    """Kill processes that the child started in their own sessions, and that this process has adopted."""
    for _ in range(3):  # a killed process may have just started another one
        orphans = [child for child in psutil.Process().children() if child.pid not in _copies]
        for orphan in list(orphans):
            with suppress(psutil.Error):
                orphans += orphan.children(recursive=True)
        for orphan in orphans:
            with suppress(psutil.Error):
                orphan.kill()
        psutil.wait_procs(orphans, timeout=1)


def _run_child(control: Connection, question: bytes, handles: tuple[int, int, int]) -> None:
    """Run a child: it answers into its own pipe, and its output goes to a file. This function never returns."""
    status = 1
    answers_fd, output_fd, gate_fd = handles
    try:
        for number in _FOR_THE_PARENT:
            signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):
            os.setpgid(0, 0)
        _die_with_parent()
        with suppress(OSError):  # if memory runs out, the kernel kills this child, not the parent with its record
            Path("/proc/self/oom_score_adj").write_text("1000")
        control.close()
        for stream in (1, 2):
            os.dup2(output_fd, stream)
        from tputfind.worker.handlers import answer

        answer(question, _make_sender(answers_fd), gate_fd)
        status = 0
    except BaseException:  # a bug in tputfind, or the model closed the pipe
        traceback.print_exc()
    finally:
        with suppress(Exception):  # the model may have closed or replaced stdout
            sys.stdout.flush()
        # Exit without tearing CUDA down, since the driver is faster at that. The pipe stays open until then: the
        # parent takes its closing for the end of the process.
        os._exit(status)


def _make_sender(answers_fd: int) -> Callable[[bytes], None]:
    """Return a function that writes a message as one line; JSON has no line breaks."""

    def send(message: bytes) -> None:
        left = memoryview(message + b"\n")
        while left:
            left = left[os.write(answers_fd, left) :]

    return send


def _adopt_orphans() -> None:
    set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
    ctypes.CDLL(None).prctl(set_child_subreaper, 1)


def _die_with_parent() -> None:
    """Have the kernel kill this child when the server dies, even by SIGKILL."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() == 1:  # the server died before the call
        os._exit(1)


_UTILS: Final = "torch._dynamo.utils"
_ASKED: Final = "is_compile_supported"


def import_package(name: str) -> None:
    if name != "torchvision" or "torch._dynamo" in sys.modules:
        import_module(name)
        return
    with _compiler_at_first_use():
        import_module(name)


@contextmanager
def _compiler_at_first_use() -> Iterator[None]:
    """Provide the one function of torch's compiler that torchvision imports; its first call imports the compiler.

    Access to any other name of that module imports the compiler at once.
    """
    stand_in = ModuleType(_UTILS)

    def is_compile_supported(*arguments: object) -> object:
        return getattr(import_module(_UTILS), _ASKED)(*arguments)

    def look_up(name: str) -> object:
        if name == _ASKED:
            return is_compile_supported
        if name.startswith("__"):
            raise AttributeError(name)
        remove()
        return getattr(import_module(_UTILS), name)

    def remove() -> None:
        if sys.modules.get(_UTILS) is stand_in:
            del sys.modules[_UTILS]

    stand_in.__getattr__ = look_up  # type: ignore[method-assign]
    sys.modules[_UTILS] = stand_in
    try:
        yield
    finally:
        remove()
