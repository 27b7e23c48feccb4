"""Serves with mosec: python with_mosec.py WAIT_MS DEVICES --port PORT ..."""

from __future__ import annotations

import os
import sys
from typing import Any

from mosec import Server, Worker
from serving.step import CAP, Step


class Model(Worker):
    """A batch consists of the requests that arrived together; their content is ignored."""

    def __init__(self) -> None:
        super().__init__()
        self._step = Step()

    def forward(self, data: Any) -> list[Any]:
        """Return an answer for each request; without batches mosec passes a single request."""
        if int(os.environ[CAP]) == 1:
            return self._step(1)
        return [self._step(len(data))] * len(data)


if __name__ == "__main__":
    wait_ms, devices = int(sys.argv.pop(1)), int(sys.argv.pop(1))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices)))).split(",")
    server = Server()
    server.append_worker(
        Model,
        num=devices,
        max_batch_size=int(os.environ[CAP]),
        max_wait_time=wait_ms,
        env=[{"CUDA_VISIBLE_DEVICES": visible[each % len(visible)]} for each in range(devices)],
    )
    server.run()
