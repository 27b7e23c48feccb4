"""Questions to a server of processes on a machine that starts none, or whose driver hangs."""

import os
import subprocess
import tempfile
from multiprocessing import Pipe
from threading import Thread

import pytest

from tputfind.errors import BrokenInstall, NoSuchDevice
from tputfind.processes import children as module
from tputfind.processes.children import Children
from tputfind.processes.messages import TryDevice
from tputfind.record.environment import Environment
from tputfind.worker import server

NO_PROCESS = "the machine allows no further process: Resource temporarily unavailable"


def refuse(*_, **__):
    raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.fixture
def control():
    """Yield the parent's end of the connection to a server in a thread."""
    ours, theirs = Pipe()
    thread = Thread(target=server._answer_all, args=(theirs,))
    thread.start()
    yield ours
    ours.close()
    thread.join()


def ask(children):
    return children.ask_one(TryDevice("cpu"), Environment, 10.0)


def test_failed_fork_is_an_error_of_the_machine(control, monkeypatch):
    monkeypatch.setattr(os, "fork", refuse)
    with Children() as children:
        children._control = control

        with pytest.raises(BrokenInstall, match=NO_PROCESS):
            ask(children)


def test_failed_fork_of_another_server_is_an_error_of_the_machine(control, monkeypatch):
    monkeypatch.setattr(os, "fork", refuse)
    with Children() as children, Children() as copy:
        children._control = control
        copy._control = children.copy_server()

        with pytest.raises(BrokenInstall, match=NO_PROCESS):
            ask(copy)


def test_server_that_cannot_start_is_an_error_of_the_machine(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with Children() as children, pytest.raises(BrokenInstall, match=NO_PROCESS):
        ask(children)


def test_devices_that_never_answer_are_an_error(monkeypatch):
    monkeypatch.setattr(module, "_LISTING_S", 0.1)
    monkeypatch.setattr(module, "_LAST_S", 0.1)
    ours, theirs = Pipe()
    with theirs, Children() as children:
        children._control = ours

        with pytest.raises(NoSuchDevice, match=r"only lists the devices fails: no answer within 0\.1 s"):
            children.list_devices()


def test_last_words_of_a_process_are_its_exception_and_no_frame_of_a_stack():
    said = b"terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA out of memory\n"
    stack = b"Exception raised from malloc at allocator.cpp:9\nframe #0: c10::Error + 0x44 (0x7f)\n" * 200
    with tempfile.TemporaryFile() as output:
        output.write(said + stack + b"Extension modules: numpy (total: 1)\n\n")

        assert module._last_line(output) == "CUDA out of memory"


def test_last_words_of_a_process_are_no_advice_of_torch():
    advice = (
        b"Search for `cudaErrorMemoryAllocation' in the documentation of CUDA.\n"
        b"CUDA kernel errors might be asynchronously reported at some other API call.\n"
        b"For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        b"Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    with tempfile.TemporaryFile() as output:
        output.write(b"torch.AcceleratorError: CUDA error: out of memory\n" + advice)

        assert module._last_line(output) == "torch.AcceleratorError: CUDA error: out of memory"
