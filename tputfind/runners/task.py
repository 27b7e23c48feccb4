"""The code that is sent to the nodes of a cluster: the task, and the board on which tasks write their progress.

Outside functions it does not import tputfind: a node imports its own tputfind, or reports that it has none.
"""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any


class Board:
    """Holds the lines of tasks since the driver's last look: all starts, and otherwise the latest line of each slot."""

    def __init__(self) -> None:
        self._lines: dict[tuple[object, ...], bytes] = {}

    def write(self, slot: tuple[object, ...], line: bytes) -> None:
        """Keep a line; it replaces the line of the same slot."""
        self._lines.pop(slot, None)  # so that the new line comes last
        self._lines[slot] = line

    def take(self) -> bytes:
        """Return the lines in the order of their arrival, and forget them."""
        lines, self._lines = self._lines, {}
        return b"\n".join(lines.values())


def _wait_for(ray: Any, written: Any) -> None:
    with suppress(Exception):  # the driver is gone
        ray.get(written)


def task(number: int, request: bytes, board: Any) -> bytes:
    """Measure one job on this node; always return an answer as JSON.

    No exception leaves the function: Ray would pickle it, and the driver unpickles nothing.
    """
    import ray

    context = ray.get_runtime_context()
    head = {"number": number, "node": context.get_node_id()}
    started = board.write.remote((number, "started", os.getpid()), json.dumps({**head, "started": True}).encode())
    # Report the start before any code of the user runs, which could stop this process. Ray gives the cores of a task
    # whose main thread waits to another task, and both would run at once; so a thread waits.
    told = threading.Thread(target=_wait_for, args=(ray, started))
    told.start()
    told.join()
    initial = Path("/proc/self/environ").read_bytes().split(b"\0")
    if not any(variable.startswith(b"OMP_NUM_THREADS=") for variable in initial):
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's, from the CPUs of the task: torch counts the cores itself
    try:
        from tputfind.runners import on_node
    except ImportError as error:
        refusal = {"error": "BrokenInstall", "message": f"tputfind does not import there: {error}", "hint": ""}
        refusal |= {"hint": "install tputfind, and torch, on every node", "traceback": ""}
        return json.dumps({**head, "refusal": refusal}).encode()
    return on_node.answer(head, request, lambda slot, line: board.write.remote((number, slot), line))
