"""The process that imports torch once, and forks a fresh child for every question. It opens no device itself."""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from types import ModuleType
from typing import Final

import psutil

from tputfind.processes.children import COMPILER_CACHE, IMPORT, KILL, held

_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A service manager sends these to every process of a group. The parent acts on them, and ends this one in order."""


def serve(control_fd: int) -> None:
    """Answer questions from the parent until it is gone.

    The first word that goes back is empty, or says why torch does not import; so does the answer to the name of a
    package to be imported. For each question the parent sends its text, the pipe for the answers, the file for the
    child's output and the child's gate; the child's exit status goes back when it has ended. The end of the connection,
    however the parent ended, or any word from it while a child works, kills that child, and with it whatever the child
    started.
    """
    for number in _FOR_THE_PARENT:
        signal.signal(number, lambda *_: None)
    _adopt_orphans()
    control = Connection(control_fd)
    said = _import("torch") or _import("tputfind.worker.handlers")
    with held(Path(os.environ[COMPILER_CACHE])):  # not before the imports, in which the parent's end goes unseen
        with suppress(OSError):
            control.send_bytes(said)
        _answer_all(control)


def _answer_all(control: Connection) -> None:
    while True:
        try:
            question = control.recv_bytes()
            if question == KILL:  # it crossed the end of the child that it was meant for
                continue
            if question.startswith(IMPORT):
                control.send_bytes(_import(question.removeprefix(IMPORT).decode()))
                continue
            answers_fd, output_fd, gate_fd = (recv_handle(control) for _ in range(3))
        except (EOFError, OSError):
            return
        pid = os.fork()
        if pid == 0:
            _child(control, question, (answers_fd, output_fd, gate_fd))
        for handle in (answers_fd, output_fd, gate_fd):
            os.close(handle)
        status = _outlive(pid, control)
        try:
            control.send_bytes(str(status).encode())
        except OSError:
            return


def _import(name: str) -> bytes:
    """Import what children need, so that each finds it done; return nothing, or in a line why it cannot be."""
    # Some packages ask on import whether there is a GPU, which by torch's default opens it: no child could then.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        import_package(name)
    except Exception as error:  # an import can raise anything: ImportError, OSError, RuntimeError
        return (f"{error}".strip().split("\n")[0] or type(error).__name__).encode()
    return b""


def _outlive(pid: int, control: Connection) -> int:
    """Wait for the child's end, or for a word from the parent that ends it; return its status, negative for a signal.

    The end is seen through the kernel's handle of the process, because a pipe can be held open by a process that the
    child started; and not by a thread, whose stack and heap every later child would inherit.
    """
    ended = os.pidfd_open(pid)
    if control in wait([control, ended]):
        _kill_group(pid)
    wait([ended])
    os.close(ended)
    _kill_group(pid)  # what it left behind; its number is not given anew before it is waited for
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _kill_orphans()
    return status


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the second, for a child that was not yet or is no longer in its own group
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _kill_orphans() -> None:
    """End what the child started in sessions of their own: it is ours since the child is gone (Linux only)."""
    for _ in range(3):  # what is killed may just have started another
        orphans = psutil.Process().children(recursive=True)
        for orphan in orphans:
            with suppress(psutil.Error):
                orphan.kill()
        psutil.wait_procs(orphans, timeout=1)


def _child(control: Connection, question: bytes, handles: tuple[int, int, int]) -> None:
    """The whole life of a child: it answers into its own pipe, and what it prints goes to a file. It never returns."""
    status = 1
    answers_fd, output_fd, gate_fd = handles
    try:
        for number in _FOR_THE_PARENT:
            signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):
            os.setpgid(0, 0)
        _die_with_parent()
        _be_the_one_to_die()
        control.close()
        for stream in (1, 2):
            os.dup2(output_fd, stream)
        from tputfind.worker.handlers import answer

        answer(question, _sender(answers_fd), gate_fd)
        status = 0
    except BaseException:  # a defect of ours, or a pipe that the model closed
        traceback.print_exc()
    finally:
        with suppress(Exception):  # the model may have closed or replaced it
            sys.stdout.flush()
        # Ends without tearing CUDA down, which the driver does faster, and with the pipe open to the end: the parent
        # takes its closing for the end of the process.
        os._exit(status)


def _sender(answers_fd: int) -> Callable[[bytes], None]:
    """Return what writes one message as one line; JSON holds no line breaks."""

    def send(message: bytes) -> None:
        left = memoryview(message + b"\n")
        while left:
            left = left[os.write(answers_fd, left) :]

    return send


def _adopt_orphans() -> None:
    """Become the parent of what a child leaves behind. Linux only."""
    if sys.platform == "linux":
        set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
        ctypes.CDLL(None).prctl(set_child_subreaper, 1)


def _die_with_parent() -> None:
    """Have the kernel kill this child when the server dies, even by SIGKILL. Linux only; elsewhere the server's end of
    the pipe is all there is.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() == 1:  # the server died before the call
            os._exit(1)


def _be_the_one_to_die() -> None:
    """Have the kernel take this child, and not the parent with its record, where the machine's memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


_UTILS: Final = "torch._dynamo.utils"
_ASKED: Final = "is_compile_supported"


def import_package(name: str) -> None:
    """Import a package.

    Raises:
        Exception: whatever its import raises.
    """
    if name != "torchvision" or "torch._dynamo" in sys.modules:
        import_module(name)
        return
    with _compiler_at_first_use():
        import_module(name)


@contextmanager
def _compiler_at_first_use() -> Iterator[None]:
    """Let a module import the one function of the compiler that torchvision names; its first call imports the compiler.

    Whoever asks for anything else gets the compiler at once.
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
