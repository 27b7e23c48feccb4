"""What travels to the nodes of a cluster as it is: the task, and the board on which tasks write their progress.

It names nothing of tputfind outside functions: a node has a tputfind of its own, or says that it has none.
"""

import json
import os
import threading
from contextlib import suppress
from typing import Any


class Board:
    """Holds what tasks wrote since the driver last looked: all starts, and of the rest the latest of each job."""

    def __init__(self) -> None:
        self._lines: dict[tuple[object, ...], bytes] = {}

    def write(self, slot: tuple[object, ...], line: bytes) -> None:
        """Keep a line, in the place of the one with the same slot."""
        self._lines.pop(slot, None)  # so that it stands behind those of before
        self._lines[slot] = line

    def take(self) -> bytes:
        """Return the lines in the order in which they came, and forget them."""
        lines, self._lines = self._lines, {}
        return b"\n".join(lines.values())


def _wait_for(ray: Any, written: Any) -> None:
    with suppress(Exception):  # the driver is gone
        ray.get(written)


def task(number: int, request: bytes, board: Any) -> bytes:
    """Measure one job on this node, and return its answer as JSON, whatever becomes of it.

    No exception leaves it: Ray would pickle that, and the driver unpickles nothing.
    """
    import ray

    context = ray.get_runtime_context()
    head = {"number": number, "node": context.get_node_id()}
    started = board.write.remote((number, "started", os.getpid()), json.dumps({**head, "started": True}).encode())
    # It is told before anything of the user's runs, which could stop this process. Ray gives the cores of a task whose
    # main thread waits to another task, and both would run at once.
    told = threading.Thread(target=_wait_for, args=(ray, started))
    told.start()
    told.join()
    try:
        from tputfind.runners import on_node
    except ImportError as error:
        refusal = {"error": "BrokenInstall", "message": f"tputfind does not import there: {error}", "hint": ""}
        refusal |= {"hint": "install tputfind, and torch, on every node", "traceback": ""}
        return json.dumps({**head, "refusal": refusal}).encode()
    return on_node.answer(head, request, lambda slot, line: board.write.remote((number, slot), line))
