"""The process that imports torch once and forks a fresh child for every question. It never opens a device itself."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle

import msgspec

from tputfind.measure.children import KILL
from tputfind.measure.messages import Ready


def serve(control_fd: int) -> None:
    """Answer questions from the parent until it is gone.

    For each question the parent sends its text, the pipe for the answers and the file for the child's output; the
    child's exit status goes back when it has ended. The end of the connection, however the parent ended, or any word
    from it while a child works, kills that child.
    """
    control = Connection(control_fd)
    control.send_bytes(msgspec.json.encode(_preload()))
    fork = get_context("fork")
    while True:
        try:
            question = control.recv_bytes()
            if question == KILL:  # it crossed the end of the child that it was meant for
                continue
            answers_fd, output_fd = recv_handle(control), recv_handle(control)
        except (EOFError, OSError):
            return
        child = fork.Process(target=_child, args=(control, question, answers_fd, output_fd))
        child.start()
        os.close(answers_fd)
        os.close(output_fd)
        if control in wait([control, child.sentinel]):
            child.kill()
        child.join()
        try:
            control.send_bytes(str(child.exitcode).encode())
        except OSError:
            return


def _preload() -> Ready:
    """Import what every child needs; a failure is an answer, since user models may do without torchvision."""
    problems = {"torch": "", "torchvision": "", "tputfind.measure.worker": ""}
    for name in problems:
        try:
            __import__(name)
        except Exception as error:  # an import can raise anything: ImportError, OSError, RuntimeError
            problems[name] = f"{error}".strip().split("\n")[0] or type(error).__name__
            if name == "torch":
                break
    return Ready(torch_problem=problems["torch"], torchvision_problem=problems["torchvision"])


def _child(control: Connection, question: bytes, answers_fd: int, output_fd: int) -> None:
    """The whole life of a child: it answers into its own pipe, and what it prints goes to a file."""
    _die_with_parent()
    control.close()
    for stream in (1, 2):
        os.dup2(output_fd, stream)
    from tputfind.measure.worker import answer

    answers = Connection(answers_fd, readable=False)
    status = 1
    try:
        answer(question, answers.send_bytes)
        status = 0
    except BaseException:  # a defect of ours, or a pipe that the model closed
        traceback.print_exc()
    finally:
        with suppress(Exception):  # the model may have closed or replaced it
            sys.stdout.flush()
        # Ends without tearing CUDA down, which the driver does faster, and with the pipe open to the end: the parent
        # takes its closing for the end of the process.
        os._exit(status)


def _die_with_parent() -> None:
    """Have the kernel kill this child when the server dies, even by SIGKILL. Linux only; elsewhere the server's end of
    the pipe is all there is.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() == 1:  # the server died before the call
            os._exit(1)
